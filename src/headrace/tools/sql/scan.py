"""A topic as DuckDB reads it: an Arrow stream that fetches as it is read, and anew each time it is read."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.client.columnar.decode import COLUMNS, Decoder
from headrace.client.consume.range_fetcher import BlockingFetcher, OffsetsGone
from headrace.client.security.channel import Security
from headrace.tools.ranges import PartitionRange

FETCH_BYTES = 4 << 20
"""Of records that wait in memory, for each scan under way: what is being read, and as much again under way."""


class TopicScan:
    """Arrow's stream interface, by which DuckDB takes a table. Nothing is fetched before the first batch is wanted."""

    def __init__(
        self,
        bootstrap: str,
        security: Security,
        topic: str,
        columns: Sequence[str],
        ranges: Callable[[], list[PartitionRange]],
        *,
        committed: bool,
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._topic = topic
        self._ranges = ranges
        self._committed = committed
        # A count needs rows, and rows need a column.
        self.columns = tuple(columns) or ("partition",)
        self.schema = pa.schema([pa.field(name, COLUMNS[name]) for name in self.columns])
        self.rows = self.bytes = self.scans = 0
        """What was read so far."""
        self.missing = 0
        """Offsets that were deleted before they could be read."""

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Iterator[Any]:
        self.scans += 1
        for one in self._ranges():
            if one.offsets:
                yield from self._partition(one)

    def _partition(self, one: PartitionRange) -> Iterator[Any]:
        decoder = Decoder(
            self._topic, one.partition, self.columns, read_committed=self._committed, rows_expected=one.offsets
        )
        fetcher = BlockingFetcher(
            self._bootstrap,
            self._topic,
            one.partition,
            one.start_offset,
            one.end_offset,
            client={"security": self._security},
            read_committed=self._committed,
            fetch_bytes=FETCH_BYTES,
        )
        try:
            while True:
                try:
                    got = fetcher.next()
                except OffsetsGone as gone:
                    if gone.log_start <= fetcher.position:
                        raise
                    self.missing += min(gone.log_start, one.end_offset) - fetcher.position
                    fetcher.skip_to(gone.log_start)
                    continue
                if got is None:
                    return
                self.bytes += len(got.records)
                for batch in decoder.decode(got.records, fetcher.answer_start, one.end_offset, got.aborted):
                    self.rows += batch.num_rows
                    yield batch
        finally:
            fetcher.close()
