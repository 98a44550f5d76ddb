"""Records as Arrow columns, as the encoders take them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.columnar.rows import HEADERS_TYPE

NO_BYTES: Any = np.zeros(1, np.uint8)
NO_OFFSETS: Any = np.zeros(2, np.int32)


class BinaryColumn:
    """An Arrow binary or string array as addresses that kernels take. `first` is -1 when no row is null."""

    __slots__ = ("array", "data", "first", "lengths", "offsets", "validity")

    def __init__(self, array: pa.Array) -> None:
        if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
            array = array.cast(pa.binary())
        self.array = array
        validity, offsets, data = array.buffers()
        start, rows = array.offset, len(array)
        whole = np.frombuffer(offsets, np.int32) if offsets is not None and offsets.size else NO_OFFSETS
        self.offsets = whole[start : start + rows + 1]
        self.data = np.frombuffer(data, np.uint8) if data is not None and data.size else NO_BYTES
        self.first = start if array.null_count else -1
        self.validity = np.frombuffer(validity, np.uint8) if array.null_count else NO_BYTES
        self.lengths = np.diff(self.offsets)

    @classmethod
    def nulls(cls, rows: int) -> "BinaryColumn":
        return cls(pa.nulls(rows, pa.binary()))


class HeaderColumn:
    """An Arrow list of (key, value) structs; a null list is a record without headers."""

    __slots__ = ("array", "contents", "first", "names", "offsets", "validity")

    def __init__(self, array: pa.ListArray) -> None:
        if not pa.types.is_list(array.type):
            array = array.cast(HEADERS_TYPE)
        self.array = array
        validity, offsets = array.buffers()[:2]
        start, rows = array.offset, len(array)
        whole = np.frombuffer(offsets, np.int32) if offsets is not None and offsets.size else NO_OFFSETS
        self.offsets = whole[start : start + rows + 1]
        self.first = start if array.null_count else -1
        self.validity = np.frombuffer(validity, np.uint8) if array.null_count else NO_BYTES
        # `field` forgets the struct's own offset, `flatten` does not; nulls of the struct become nulls of both.
        structs = array.values
        names, contents = structs.flatten() if len(structs) else (pa.array([], pa.string()), pa.array([], pa.binary()))
        self.names = BinaryColumn(names)
        self.contents = BinaryColumn(contents)

    @property
    def has_nameless(self) -> bool:
        return self.names.first >= 0


@dataclass(slots=True)
class RecordColumns:
    """Records as columns of equal length. Timestamps in ms."""

    key: BinaryColumn
    value: BinaryColumn
    timestamps: npt.NDArray[np.int64]
    headers: HeaderColumn | None = None
    _sizes: Any = None

    @classmethod
    def of(
        cls,
        value: pa.Array,
        *,
        key: pa.Array | None = None,
        headers: pa.ListArray | None = None,
        timestamps: npt.NDArray[np.int64] | int,
    ) -> "RecordColumns":
        rows = len(value)
        times = np.full(rows, timestamps, np.int64) if isinstance(timestamps, int) else timestamps
        columns = cls(
            BinaryColumn.nulls(rows) if key is None else BinaryColumn(key),
            BinaryColumn(value),
            np.ascontiguousarray(times, np.int64),
            None if headers is None else HeaderColumn(headers),
        )
        if columns.headers is not None and columns.headers.has_nameless:
            raise ValueError("a record header without a key")
        assert len(columns.key.array) == len(columns.timestamps) == rows, "columns of unequal length"
        return columns

    def __len__(self) -> int:
        return len(self.timestamps)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each record's key and value: what partitioners and limits go by."""
        if self._sizes is None:
            self._sizes = self.key.lengths.astype(np.int64) + self.value.lengths
        found: npt.NDArray[np.int64] = self._sizes
        return found
