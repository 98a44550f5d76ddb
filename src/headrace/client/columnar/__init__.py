"""Record batches to Arrow and back, with compiled loops where numba is at hand and plain Python where it is not."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.columnar.columns import BinaryColumn as BinaryColumn, RecordColumns as RecordColumns
    from headrace.client.columnar.decode import Decoded as Decoded, Decoder as Decoder
    from headrace.client.columnar.decode_native import Memory as Memory
    from headrace.client.columnar.encode import (
        Unsealed as Unsealed,
        encode_batches as encode_batches,
        encode_rows as encode_rows,
        partitions_of as partitions_of,
    )
    from headrace.client.columnar.rows import HEADERS_TYPE as HEADERS_TYPE
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "columns": ["BinaryColumn", "RecordColumns"],
            "decode": ["Decoded", "Decoder"],
            "decode_native": ["Memory"],
            "encode": ["Unsealed", "encode_batches", "encode_rows", "partitions_of"],
            "rows": ["HEADERS_TYPE"],
        },
    )
