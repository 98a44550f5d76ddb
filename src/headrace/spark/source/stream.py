"""A stream over topics, on the driver: from where to where each batch goes, and what that means for brokers.

Spark keeps one process with one reader per running query and calls it in turn; `read` runs in tasks, on a copy that was
pickled before anything was asked.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.spark.plain_errors import plain_errors
from headrace.spark.source.batch import input_partitions
from headrace.spark.source.lookup import Lookup
from headrace.spark.source.offsets import OffsetRange, Offsets, available, from_json, limited, listed, to_json
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.progress import ProgressCommitter
from headrace.spark.source.range_reader import read_range, report_loss
from headrace.spark.source.schema import check_schema, typed_values

Json = dict[str, Any]


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, given: Mapping[str, str]) -> None:
        self._options = SourceOptions.read(given, streaming=True)
        self._typed = typed_values(self._options)
        check_schema(schema, self._options.values, self._typed and self._typed.decoder.spark_schema)
        self._schema = schema
        self._lookup: Lookup | None = None
        self._progress: ProgressCommitter | None = None
        self._initial: Offsets | None = None
        self._has_begun = False
        """Whether the first batch was planned, by this process or by one before it."""
        self._target: Offsets | None = None
        """Trigger.AvailableNow: where everything ended when the query began."""
        self._latest: Offsets | None = None
        self._triggered_s = float("-inf")

    def __getstate__(self) -> Json:
        # Connections stay on the driver.
        return {**self.__dict__, "_lookup": None, "_progress": None}

    @property
    def lookup(self) -> Lookup:
        if self._lookup is None:
            self._lookup = Lookup(self._options)
        return self._lookup

    @property
    def progress(self) -> ProgressCommitter:
        if self._progress is None:
            self._progress = ProgressCommitter(self._options, self.lookup)
        return self._progress

    # -- where batches begin and end

    @plain_errors
    def initialOffset(self) -> Json:
        """Where the query starts. Asked several times per start, and again when the first batch is repeated."""
        if self._initial is None:
            self._initial = self.lookup.resolve(self._options.start, self.lookup.partitions(), starting=True)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark's Python API has no limits from both sides; the lower one is seen to in latestOffset.
        most, least = self._options.values["maxOffsetsPerTrigger"], self._options.values["minOffsetsPerTrigger"]
        if most is not None:
            return ReadMaxRows(most)
        return ReadMinRows(least) if least is not None else ReadAllAvailable()

    @plain_errors
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begin = from_json(start)
        is_first, self._has_begun = begin == self._initial and not self._has_begun, True
        if not is_first:
            # Spark asks for the next batch when all before it are done, also when there is none, as at the end of
            # Trigger.AvailableNow, where it never calls commit().
            self.progress.done(begin)
        elif self._options.start.moves:
            # A checkpoint keeps where batches end, not where the query started: a first batch that a crash cut short
            # would start wherever "latest" is by then. So the first one is empty, and ends where the query starts.
            return start
        end = self._latest = self._available_now(begin) if self._target is not None else self._ends(begin)
        if isinstance(limit, ReadAllAvailable) or end == begin:
            return to_json(end)
        begin = {**self._starts_of_added(begin, end), **begin}
        if self._is_too_early(begin, end):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> Json | None:
        return to_json(self._latest) if self._latest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        # Before it is known what was read before; a topic that never was stops the query when it asks for its start.
        self._target = self.lookup.latest(self.lookup.partitions(missing_ok=None))

    def _available_now(self, begin: Offsets) -> Offsets:
        """The target, asked for again where it lies before what was read: `Lookup.latest` knows why that may pass."""
        target = self._target
        assert target is not None
        if any(offset < begin.get(one, 0) for one, offset in target.items()):
            target = self._target = self.lookup.latest(target, begin)
        return target

    def _ends(self, begin: Offsets) -> Offsets:
        """Where everything ends. A topic that was read before and is gone is a loss; `partitions` says so.

        Once a loss was let go, nothing remembers the topic, which may stay away or come back.
        """
        missing_ok = {topic for topic, _ in begin} if self._options.fail_on_data_loss else None
        return self.lookup.latest(self.lookup.partitions(missing_ok=missing_ok), begin)

    def _starts_of_added(self, begin: Offsets, end: Offsets) -> Offsets:
        added = [one for one in end if one not in begin]
        return self.lookup.earliest(added) if added else {}

    def _is_too_early(self, begin: Offsets, end: Offsets) -> bool:
        """minOffsetsPerTrigger: whether to wait for more, at most maxTriggerDelay. Nothing more comes to
        AvailableNow."""
        least = self._options.values["minOffsetsPerTrigger"]
        if least is None or self._target is not None:
            return False
        now_s = time.monotonic()
        waited_ms = (now_s - self._triggered_s) * 1000
        if available(begin, end) < least and waited_ms < self._options.values["maxTriggerDelay"]:
            return True
        self._triggered_s = now_s
        return False

    # -- batches

    @plain_errors
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        begin, until = from_json(start), from_json(end)
        is_first, self._has_begun = begin == self._initial and not self._has_begun, True
        if is_first:
            # Where the query would start now, which is behind the end of a first batch that is repeated if others
            # wrote, or may have partitions that were not there. Nothing that it had to read is lost.
            begin = {one: min(offset, until[one]) for one, offset in begin.items() if one in until}
        gone = sorted(begin.keys() - until.keys())
        if gone:
            self._lost(f"{listed(gone)} no longer exists; what was not read of it is lost")
        for one, offset in self._starts_of_added(begin, until).items():
            if offset:
                self._lost(f"{one[0]}-{one[1]} is new and starts at {offset} rather than 0; what was before is lost")
            begin[one] = offset
        shrunk = [one for one, offset in until.items() if offset < begin[one]]
        for one in shrunk:
            self._lost(
                f"{one[0]}-{one[1]} was read to {begin[one]} and ends at {until[one]} now: it was made anew or cut"
            )
        # What goes on under the old name is new to the query from its beginning.
        begin.update(self.lookup.earliest(shrunk) if shrunk else {})
        return input_partitions(self._options, [OffsetRange(*one, begin[one], offset) for one, offset in until.items()])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._options, self._schema, partition, self._typed)

    @plain_errors
    def commit(self, end: Json) -> None:
        self.progress.done(from_json(end))

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = self._progress = None

    def _lost(self, message: str) -> None:
        report_loss(self._options.fail_on_data_loss, message)
