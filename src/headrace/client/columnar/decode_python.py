"""Record batches to Arrow and back in plain Python: for machines without numba, for a handful of rows, and as the
meaning of what `kernels` must do."""

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from headrace.client.columnar.rows import HEADERS_TYPE, Rows
from headrace.client.columnar.walk import Body
from headrace.records.reader import Headers, iter_raw

_WRAP = 1 << 64
_SIGN = 1 << 63


def decode(bodies: Sequence[Body], start_offset: int, end_offset: int, wanted: Collection[str]) -> Rows:
    """The records with start_offset <= offset < end_offset; `wanted` of key, value and headers."""
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers] = []
    kept: list[int] = []
    for body in bodies:
        before = len(offsets)
        base_offset, base_timestamp, one_time = body.base_offset, body.base_timestamp, body.one_time
        for offset_delta, timestamp_delta, key, value, pairs in iter_raw(
            bytes(body.data[body.start : body.end]), body.count
        ):
            offset = base_offset + offset_delta
            if start_offset <= offset < end_offset:
                offsets.append(offset)
                timestamps.append(base_timestamp if one_time else base_timestamp + timestamp_delta)
                keys.append(key)
                values.append(value)
                headers.append(pairs)
        kept.append(len(offsets) - before)
    return Rows(
        np.array(offsets, np.int64),
        np.array([_wrapped(timestamp) for timestamp in timestamps], np.int64),
        kept,
        [body.one_time for body in bodies],
        pa.array(keys, pa.binary()) if "key" in wanted else None,
        pa.array(values, pa.binary()) if "value" in wanted else None,
        pa.array([_pairs(pairs) for pairs in headers], HEADERS_TYPE) if "headers" in wanted else None,
    )


def _pairs(headers: Headers) -> list[dict[str, str | bytes | None]] | None:
    if not headers:
        return None
    return [
        {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": content}
        for name, content in headers
    ]


def _wrapped(number: int) -> int:
    """As a sum of two 64-bit numbers comes out in Java and in machine code."""
    return (number + _SIGN) % _WRAP - _SIGN
