"""Arrow columns to record batches: pick rows, cut them into batches, write records, compress.

Compiled kernels do the writing where they can be had, `encode_python` does elsewhere, byte for byte the same. A batch
comes out unsealed: who sends it knows its producer and sequence, and the CRC covers both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.columnar import native
from headrace.client.columnar.encode_python import encode_rows_python, partitions_python
from headrace.client.columnar.kernels import ENCODED_FIELDS, OK
from headrace.client.columnar.rows import HEADERS_TYPE
from headrace.records.builder import set_producer
from headrace.records.compression import Codec, compress
from headrace.records.layout import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    next_sequence,
)

Rows: TypeAlias = npt.NDArray[np.int64]

BATCH_BYTES_MAX = 256 << 10
RECORD_OVERHEAD_MAX = 40
"""Length, attributes, both deltas, two field lengths and a header count, each as long as it can get."""
FIELD_OVERHEAD_MAX = 10
_NO_BYTES: Any = np.zeros(1, np.uint8)
_NO_OFFSETS: Any = np.zeros(2, np.int32)


class BinaryColumn:
    """An Arrow binary or string array as addresses that kernels take. `first` is -1 when no row is null."""

    __slots__ = ("array", "data", "first", "lengths", "offsets", "validity")

    def __init__(self, array: pa.Array) -> None:
        if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
            array = array.cast(pa.binary())
        self.array = array
        validity, offsets, data = array.buffers()
        start, rows = array.offset, len(array)
        whole = np.frombuffer(offsets, np.int32) if offsets is not None and offsets.size else _NO_OFFSETS
        self.offsets = whole[start : start + rows + 1]
        self.data = np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES
        self.first = start if array.null_count else -1
        self.validity = np.frombuffer(validity, np.uint8) if array.null_count else _NO_BYTES
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
        whole = np.frombuffer(offsets, np.int32) if offsets is not None and offsets.size else _NO_OFFSETS
        self.offsets = whole[start : start + rows + 1]
        self.first = start if array.null_count else -1
        self.validity = np.frombuffer(validity, np.uint8) if array.null_count else _NO_BYTES
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


@dataclass(slots=True)
class Unsealed:
    """A whole batch but for its producer, sequence and CRC."""

    view: memoryview
    count: int

    def seal(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> memoryview:
        set_producer(self.view, producer_id, producer_epoch, base_sequence)
        return self.view


def encode_rows(
    columns: RecordColumns,
    rows: Rows | None = None,
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    transactional: bool = False,
) -> list[Unsealed]:
    """Batches of at most `batch_bytes_max` before compression (a larger record has one of its own), rows in order."""
    if rows is None:
        rows = np.arange(len(columns), dtype=np.int64)
    if not len(rows):
        return []
    kernels = native.load()
    if kernels is None:
        out, found = encode_rows_python(columns, rows, batch_bytes_max, HEADER_BYTES)
    else:
        out, found = _encode_native(kernels, columns, rows, batch_bytes_max)
    attributes = int(codec) | (TRANSACTIONAL if transactional else 0)
    whole = memoryview(out)
    return [_finish(whole, piece, int(codec), level, attributes) for piece in found]


def encode_batches(
    columns: RecordColumns,
    rows: Rows | None = None,
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> list[memoryview]:
    """`encode_rows` with everything filled in, sequences counting on from `base_sequence`."""
    sealed = []
    for batch in encode_rows(columns, rows, codec=codec, level=level, batch_bytes_max=batch_bytes_max):
        sealed.append(batch.seal(producer_id, producer_epoch, base_sequence))
        if base_sequence != NO_SEQUENCE:
            base_sequence = next_sequence(base_sequence, batch.count)
    return sealed


def partitions_of(keys: BinaryColumn, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key as Kafka's own clients choose it, -1 where there is no key."""
    kernels = native.load()
    if kernels is None:
        return partitions_python(keys, partitions)
    chosen: Any = np.empty(len(keys.array), np.int32)
    kernels.partition(
        _at(keys.data), _at(keys.offsets), _at(keys.validity), keys.first, len(chosen), partitions, _at(chosen)
    )
    return chosen


def _finish(whole: memoryview, piece: Sequence[int], codec: int, level: int | None, attributes: int) -> Unsealed:
    start, end, _, count, base_timestamp, max_timestamp = piece
    view = whole[start:end]
    if codec:
        body = compress(codec, view[HEADER_BYTES:], level)
        view = memoryview(bytearray(HEADER_BYTES + len(body)))
        view[HEADER_BYTES:] = body
    HEADER.pack_into(
        view,
        0,
        0,
        len(view) - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        2,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )
    return Unsealed(view, count)


def _encode_native(
    kernels: native.Native, columns: RecordColumns, rows: Rows, batch_bytes_max: int
) -> tuple[npt.NDArray[np.uint8], list[list[int]]]:
    """(the bytes, where each batch lies in them: the fields of ENCODED_FIELDS)"""
    key, value, headers = columns.key, columns.value, columns.headers
    body_bytes = _body_bytes(columns, rows)
    # Two batches side by side always hold more records than one may.
    batches_max = min(len(rows), 2 * body_bytes // max(batch_bytes_max - HEADER_BYTES, 1) + 1)
    out: Any = np.empty(body_bytes + batches_max * HEADER_BYTES, np.uint8)
    found: Any = np.empty(batches_max * ENCODED_FIELDS, np.int64)
    totals: Any = np.zeros(1, np.int64)
    rows = np.ascontiguousarray(rows, np.int64)
    if headers is None:
        nothing, no_offsets = _at(_NO_BYTES), _at(_NO_OFFSETS)
        header_arguments = no_offsets, nothing, -1, nothing, no_offsets, nothing, no_offsets, nothing, -1, 0
    else:
        header_arguments = (
            _at(headers.offsets),
            _at(headers.validity),
            headers.first,
            _at(headers.names.data),
            _at(headers.names.offsets),
            _at(headers.contents.data),
            _at(headers.contents.offsets),
            _at(headers.contents.validity),
            headers.contents.first,
            1,
        )
    status = kernels.encode(
        _at(rows),
        len(rows),
        _at(columns.timestamps),
        _at(key.data),
        _at(key.offsets),
        _at(key.validity),
        key.first,
        _at(value.data),
        _at(value.offsets),
        _at(value.validity),
        value.first,
        *header_arguments,
        batch_bytes_max,
        HEADER_BYTES,
        _at(out),
        len(out),
        _at(found),
        batches_max,
        _at(totals),
    )
    assert status == OK, "the room for encoded rows was reckoned too small"
    count = int(totals[0])
    return out, found[: count * ENCODED_FIELDS].reshape(count, ENCODED_FIELDS).tolist()


def _body_bytes(columns: RecordColumns, rows: Rows) -> int:
    """An upper bound for the records of `rows`, without batch headers."""
    total = len(rows) * RECORD_OVERHEAD_MAX + int(columns.sizes()[rows].sum())
    headers = columns.headers
    if headers is not None:
        ends: Any = headers.offsets.astype(np.int64)
        names: Any = headers.names.offsets.astype(np.int64)
        contents: Any = headers.contents.offsets.astype(np.int64)
        first, last = ends[rows], ends[rows + 1]
        total += int((last - first).sum()) * FIELD_OVERHEAD_MAX
        total += int((names[last] - names[first]).sum() + (contents[last] - contents[first]).sum())
    return total


def _at(array: Any) -> int:
    address: int = array.ctypes.data
    return address
