"""Arrow tables to and from topics, through the compiled kernels of `columnar`. Needs pyarrow, numpy and numba.

A table of records has the columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers. To be sent it needs value, and may have key, timestamp (of Arrow's type) and headers.
"""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.client.consume.consumer import ConsumerCore
from headrace.client.errors import ClientError
from headrace.client.produce.outgoing import OutgoingBatch
from headrace.client.produce.partitioner import Sticky

if TYPE_CHECKING:
    from headrace.client.columnar.columns import RecordColumns

PIECE_BYTES = 2 << 20
"""Encoded at a time: enough for several batches, and little enough to stay in the processor's cache."""
SENT = ("key", "value", "timestamp", "headers")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


def _needed() -> None:
    try:
        import numba  # noqa: F401
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as missing:
        raise ClientError(f"tables need {missing.name}: pip install 'headrace[columnar]'") from None


async def read_tables(core: ConsumerCore, columns: Sequence[str] | None) -> AsyncIterator[Any]:
    """A `pyarrow.Table` for all that each fetch brings of one partition."""
    _needed()
    import pyarrow as pa

    from headrace.client.columnar.decode import COLUMNS as KNOWN, Decoder

    names = COLUMNS if columns is None else tuple(columns)
    unknown = [name for name in names if name not in KNOWN]
    if unknown or not names:
        raise ClientError(f"there is no column {', '.join(map(repr, unknown))}: known are {', '.join(KNOWN)}")
    options = core.fetcher.options
    decoders: dict[tuple[str, int], Decoder] = {}
    while True:
        found = await core.next_chunk(None)
        assert found is not None
        place, chunk = found
        assert chunk.raw is not None
        at = place.topic, place.partition
        decoder = decoders.get(at)
        if decoder is None:
            decoder = decoders[at] = Decoder(
                *at, names, read_committed=options.read_committed, check_crc=options.check_crcs
            )
        records: Any
        records, aborted = chunk.raw
        try:
            batches = list(decoder.decode(records, chunk.start_offset, chunk.end_offset, aborted))
        except Exception:
            # Nothing of it was handed out: it is fetched, and told, again.
            core.take_back(place, chunk)
            raise
        if batches:
            yield pa.Table.from_batches(batches, decoder.schema)


def encode_table(
    topic: str, table: Any, partitions: int, *, partition: int | None, sticky: Sticky, codec: int, level: int | None,
    batch_bytes: int, transactional: bool,
) -> Iterator[list[OutgoingBatch]]:  # fmt: skip
    """Batches of all rows of a table, a few megabytes at a time and of each partition in turn: what is encoded can be
    on its way while the rest is, and its memory is used again.

    Raises ClientError for what is no table of records, before the first batch.
    """
    _needed()
    rows = _columns(table)
    return _encode(
        topic, rows, _rows_by_partition(rows, partitions, partition, sticky), codec=codec, level=level,
        batch_bytes=batch_bytes, transactional=transactional,
    )  # fmt: skip


def _columns(table: Any) -> "RecordColumns":
    import pyarrow as pa

    from headrace.client.columnar.columns import RecordColumns

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table) or "value" not in table.column_names:
        raise ClientError("send_table takes a pyarrow.Table or RecordBatch with a column value (and key, headers)")
    columns = {name: table.column(name).combine_chunks() for name in table.column_names if name in SENT}
    times: Any = time.time_ns() // 1_000_000
    if "timestamp" in columns:
        times = (
            columns["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False)
        )
    try:
        return RecordColumns.of(
            columns["value"], key=columns.get("key"), headers=columns.get("headers"), timestamps=times
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ClientError(f"the table cannot be sent: {error}") from error


def _rows_by_partition(
    rows: "RecordColumns", partitions: int, partition: int | None, sticky: Sticky
) -> list[tuple[int, Any]]:
    """Which rows go to which partition, in their order."""
    import numpy as np

    from headrace.client.columnar.encode import partitions_of

    if partition is not None or partitions == 1:
        return [(partition or 0, np.arange(len(rows), dtype=np.int64))]
    chosen: Any = partitions_of(rows.key, partitions)
    keyless: Any = np.flatnonzero(chosen < 0)
    if len(keyless):
        start = 0
        for end, target in sticky.runs(np.cumsum(rows.sizes()[keyless]), partitions):
            chosen[keyless[start:end]] = target
            start = end
    # One sort instead of a look through all rows for each partition; stable, so that rows stay in their order.
    order: Any = np.argsort(chosen, kind="stable")
    ends = np.cumsum(np.bincount(chosen, minlength=partitions)).tolist()
    return [(index, order[start:end]) for index, (start, end) in enumerate(pairwise([0, *ends])) if end > start]


def _encode(
    topic: str, rows: "RecordColumns", places: list[tuple[int, Any]], *, codec: int, level: int | None,
    batch_bytes: int, transactional: bool,
) -> Iterator[list[OutgoingBatch]]:  # fmt: skip
    from headrace.client.columnar.encode import encode_rows

    average = max(1, int(rows.sizes().sum()) // max(1, len(rows)))
    step = max(1, max(PIECE_BYTES, 2 * batch_bytes) // average)
    for start in range(0, max((len(of_it) for _, of_it in places), default=0), step):
        for index, of_it in places:
            if start < len(of_it):
                yield [
                    OutgoingBatch(topic, index, one.view, one.count)
                    for one in encode_rows(
                        rows, of_it[start : start + step], codec=codec, level=level, batch_bytes_max=batch_bytes,
                        transactional=transactional,
                    )
                ]  # fmt: skip
