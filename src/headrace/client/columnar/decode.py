"""Record batches to Arrow record batches, a bounded number of rows at a time."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.client.columnar import decode_native, decode_python, native
from headrace.client.columnar.rows import HEADERS_TYPE, Rows
from headrace.client.columnar.walk import Aborted, Body, Walk
from headrace.records.compression import DECOMPRESSED_BYTES_MAX

COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The columns of Spark's Kafka source, and their types."""

ROWS_MAX = 16_384
BYTES_MAX = 32 << 20
"""Bounds of one Arrow batch. A record batch is never cut, so one that is larger alone goes beyond them."""
FEW_ROWS = 20_000
"""Loading the compiled kernels costs about as much as decoding so many rows without them."""

_US_PER_MS = 1000
_MS_MAX = ((1 << 63) - 1) // _US_PER_MS


class Decoded(NamedTuple):
    batch: Any
    """pyarrow.RecordBatch"""
    next_offset: int
    """Behind the last whole batch of the buffer: where to fetch next."""


class Decoder:
    """Decodes one partition's batches, fetch after fetch, always with the same columns.

    `rows_expected` decides how: a few rows are decoded in plain Python unless the kernels are loaded already.
    `use_native` overrides that, for tests. `memory` is what columns are put into, for decoders that follow one another.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        *,
        read_committed: bool = False,
        check_crc: bool = True,
        rows_expected: int = 1 << 62,
        limit_bytes: int = DECOMPRESSED_BYTES_MAX,
        use_native: bool | None = None,
        memory: decode_native.Memory | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([pa.field(name, COLUMNS[name]) for name in columns])
        self._topic = topic
        self._partition = partition
        self._read_committed = read_committed
        self._check_crc = check_crc
        self._limit_bytes = limit_bytes
        self._wanted = frozenset(columns)
        self._same: dict[str, Any] = {}
        if use_native is None:
            use_native = rows_expected > FEW_ROWS or native.load.cache_info().currsize > 0
        self._native = native.load() if use_native else None
        self._memory = decode_native.Memory() if memory is None else memory
        self.next_offset = -1
        """Behind the last whole batch that `decode` has walked past."""

    def decode(
        self, buffer: bytes | bytearray | memoryview, start_offset: int, end_offset: int, aborted: Aborted = ()
    ) -> Iterator[Any]:
        """Arrow batches of the records in `buffer` with start_offset <= offset < end_offset.

        `buffer` begins at a batch and may end inside one, as the answer to a Fetch does. Corrupt batches raise
        KafkaError; what came before them was given already.
        """
        view = memoryview(buffer)
        position, self.next_offset = 0, start_offset
        if self._native is not None and not (self._read_committed and aborted):
            # Most batches, and no look at each: they are neither compressed nor of aborted transactions.
            survey = decode_native.Survey(self._native, view, start_offset, end_offset, check_crc=self._check_crc)
            while (table := survey.next(ROWS_MAX, BYTES_MAX)) is not None:
                rows = decode_native.decode(
                    self._native, self._memory, view, table, start_offset, end_offset, self._wanted
                )
                yield from self._batches(rows)
                del rows
                position, self.next_offset = survey.position, survey.next_offset
        walk = Walk(
            view[position:],
            start_offset,
            end_offset,
            aborted=aborted,
            read_committed=self._read_committed,
            check_crc=self._check_crc,
            limit_bytes=self._limit_bytes,
        )
        for group in _groups(walk):
            yield from self._batches(self._rows(group, start_offset, end_offset))
        self.next_offset = max(self.next_offset, walk.next_offset)

    def _rows(self, bodies: Sequence[Body], start_offset: int, end_offset: int) -> Rows:
        if self._native is None:
            return decode_python.decode(bodies, start_offset, end_offset, self._wanted)
        source, table = decode_native.one_source(bodies)
        return decode_native.decode(self._native, self._memory, source, table, start_offset, end_offset, self._wanted)

    def _batches(self, rows: Rows) -> Iterator[Any]:
        count = len(rows.offsets)
        if not count:
            return
        arrays = [self._column(name, rows, count) for name in self.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if count <= ROWS_MAX:
            yield batch
            return
        for start in range(0, count, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)

    def _column(self, name: str, rows: Rows, count: int) -> Any:
        if name == "key":
            return rows.key
        if name == "value":
            return rows.value
        if name == "headers":
            return rows.headers
        if name == "offset":
            return _fixed(COLUMNS[name], rows.offsets)
        if name == "timestamp":
            return _fixed(COLUMNS[name], microseconds(rows.timestamps))
        if name == "timestampType":
            kinds = np.array(rows.one_time, np.int32)
            if kinds.any():
                return _fixed(COLUMNS[name], np.repeat(kinds, rows.kept))
            return self._constant(name, 0, count)
        return self._constant(name, self._topic if name == "topic" else self._partition, count)

    def _constant(self, name: str, value: str | int, count: int) -> Any:
        """A column that is the same in every row; kept, since the next batch wants it too. The first one need not wait
        for more than it has rows, and there may be no other."""
        found = self._same.get(name)
        if found is None or len(found) < count:
            rows = count if found is None else max(count, ROWS_MAX)
            found = self._same[name] = pa.repeat(pa.scalar(value, COLUMNS[name]), rows)
        return found.slice(0, count)


def decode_batches(
    buffer: bytes | bytearray | memoryview,
    start_offset: int,
    end_offset: int,
    *,
    topic: str = "",
    partition: int = 0,
    columns: Sequence[str] = tuple(COLUMNS),
    aborted: Aborted = (),
    read_committed: bool = False,
    check_crc: bool = True,
    use_native: bool | None = None,
) -> Decoded:
    """All rows of `buffer` within the offsets as one Arrow batch; see `Decoder` for larger amounts."""
    decoder = Decoder(
        topic, partition, columns, read_committed=read_committed, check_crc=check_crc, use_native=use_native
    )
    batches = list(decoder.decode(buffer, start_offset, end_offset, aborted))
    table = pa.Table.from_batches(batches, decoder.schema).combine_chunks()
    found = table.to_batches()
    return Decoded(found[0] if found else empty(decoder.schema), decoder.next_offset)


def empty(schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def microseconds(timestamps: Any) -> Any:
    """Spark's unit, in place. Times too far away for it (292,000 years) end up at the end of its range."""
    np.clip(timestamps, -_MS_MAX, _MS_MAX, out=timestamps)
    timestamps *= _US_PER_MS
    return timestamps


def _groups(walk: Walk) -> Iterator[list[Body]]:
    """Bodies in groups that make one Arrow batch each."""
    group: list[Body] = []
    rows = size = 0
    for body in walk.bodies():
        more = body.end - body.start
        if group and (rows + body.count > ROWS_MAX or size + more > BYTES_MAX):
            yield group
            group, rows, size = [], 0, 0
        group.append(body)
        rows += body.count
        size += more
    if group:
        yield group


def _fixed(kind: Any, numbers: Any) -> Any:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))], 0)
