"""Arrow tables to and from topics, through the compiled kernels of `columnar`. Needs pyarrow, numpy and numba.

A table of records has the columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers. To be sent it needs value, and may have key, timestamp (of Arrow's type) and headers.
"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headrace.client.consume.consumer import ConsumerCore
from headrace.client.errors import ClientError
from headrace.client.produce.outgoing import OutgoingBatch
from headrace.client.produce.partitioner import Sticky

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
) -> list[OutgoingBatch]:  # fmt: skip
    """Batches of all rows of a table, by their partitions. Raises ClientError for what is no table of records."""
    _needed()
    import numpy as np
    import pyarrow as pa

    from headrace.client.columnar.columns import RecordColumns
    from headrace.client.columnar.encode import encode_rows, partitions_of

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table) or "value" not in table.column_names:
        raise ClientError("send_table takes a pyarrow.Table or RecordBatch with a column value (and key, headers)")
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    times: Any = time.time_ns() // 1_000_000
    if "timestamp" in columns:
        times = (
            columns["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False)
        )
    try:
        rows = RecordColumns.of(
            columns["value"], key=columns.get("key"), headers=columns.get("headers"), timestamps=times
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ClientError(f"the table cannot be sent: {error}") from error
    if partition is not None:
        chosen: Any = np.full(len(rows), partition, np.int32)
    else:
        chosen = partitions_of(rows.key, partitions)
        keyless = np.flatnonzero(chosen < 0)
        if len(keyless):
            start = 0
            for end, target in sticky.runs(np.cumsum(rows.sizes()[keyless]), partitions):
                chosen[keyless[start:end]] = target
                start = end
    found: list[OutgoingBatch] = []
    for index in np.unique(chosen):
        of_it: Any = np.flatnonzero(chosen == index).astype(np.int64)
        for one in encode_rows(
            rows, of_it, codec=codec, level=level, batch_bytes_max=batch_bytes, transactional=transactional
        ):
            found.append(OutgoingBatch(topic, int(index), one.view, one.count))  # noqa: PERF401
    return found
