"""`df.write.format("headrace")` and `df.writeStream.format("headrace")`: rows to topics, at least once.

Each task writes with an idempotent producer of its own, so no retry of a request doubles a record. A task that Spark
runs again writes its rows again: option dedupHeaders marks each so that readers can tell. Commit messages say who wrote
what (query, batch, task, producer, offsets): all that one decision by the driver per query and batch will need when
tasks write in transactions.
"""

import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from headrace.client.columnar.columns import RecordColumns
from headrace.client.columnar.encode import encode_rows, partitions_of
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed
from headrace.client.net.background import LoopThread
from headrace.client.net.cluster import Cluster, may_pass
from headrace.client.produce.partitioner import Sticky
from headrace.client.produce.producer import OutgoingBatch, ProducerCore
from headrace.errors import Err
from headrace.spark.options import OptionError
from headrace.spark.plain_errors import plain_errors
from headrace.spark.sink.options import OVERWRITE, SinkOptions
from headrace.spark.sink.rows import Layout, chunks, layout_of, timestamps_of, with_dedup_headers

COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""What a process that commits has loaded: schemas are not compiled and brokers not asked once more for each batch."""


@dataclass(frozen=True)
class PartitionWritten:
    """What one task has put into one partition."""

    topic: str
    partition: int
    records: int
    size_bytes: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class TaskIdentity:
    """Which piece of which write a task is: equal when Spark runs it again, but for the attempt."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt: int

    @classmethod
    def current(cls, run_id: str) -> "TaskIdentity":
        """Within a stream, the query's; a batch write goes by the id that the driver gave it."""
        context = TaskContext.get()
        if context is None:
            return cls(run_id, 0, 0, 0)
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(query_id or run_id, int(batch_id) if batch_id else 0, context.partitionId(), context.attemptNumber())


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """A task's report to the driver."""

    identity: TaskIdentity
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionWritten, ...]
    dead_letters: int = 0

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)


class _WriteSetup:
    """What driver and tasks share: checked options and the meaning of columns. Picklable."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise OptionError(OVERWRITE)
        self.options = SinkOptions.read(options)
        self.layout = layout_of(
            schema,
            topic=self.options.topic,
            timestamp_column=self.options.timestamp_column,
            typed=self.options.value_format is not None,
        )
        self.encoder = None
        if self.options.value_format is not None:
            from headrace.spark.formats import encoder_for

            self.encoder = encoder_for(self.options.values, _value_type(schema, self.layout))
        self.run_id = str(uuid.uuid4())

    def cluster(self) -> Cluster:
        return Cluster(
            self.options.bootstrap,
            client_id=self.options.client_id,
            security=self.options.security,
            request_timeout_s=self.options.request_timeout_ms / 1000,
            retry_timeout_s=self.options.delivery_timeout_ms / 1000,
        )

    def producer(self, cluster: Cluster) -> ProducerCore:
        options = self.options
        return ProducerCore(
            cluster,
            in_flight_max=options.in_flight_max,
            request_bytes_max=options.request_bytes,
            buffer_bytes_max=options.buffer_bytes,
            delivery_timeout_s=options.delivery_timeout_ms / 1000,
            produce_timeout_ms=options.request_timeout_ms,
        )

    def check_topics(self) -> None:
        """Ask, before any task runs, whether the topics are there (or are made by the broker when asked for)."""
        names = [name for name in (self.options.topic, self.options.dead_letter_topic) if name is not None]

        async def ask() -> None:
            options = self.options
            async with Cluster(options.bootstrap, client_id=options.client_id, security=options.security) as cluster:
                producer = ProducerCore(cluster)
                for name in names:
                    await producer.partition_count(name)

        with LoopThread() as loop:
            try:
                loop.run(ask())
            except RequestFailed as error:
                raise _missing_topic(error) from None


class HeadraceWriter(DataSourceArrowWriter):
    """A batch write. All checks are done here, on the driver."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._setup = _WriteSetup(schema, options, overwrite)
        self._setup.check_topics()

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return _write_task(self._setup, iterator)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """A stream's sink. Spark makes it anew in each process that needs it: to plan, and for each batch's commit.

    A commit has nothing to do yet: records are there when their task is done. It is where a driver's decision on
    transactions would be made, from the tasks' reports.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if COMMITTING in sys.modules:
            return
        # `overwrite` is how Spark spells outputMode("complete") here: every batch is the whole table again.
        self._setup = _WriteSetup(schema, options, False)
        try:
            self._setup.check_topics()
        except ClientError as error:
            if isinstance(error, SecurityFailed):
                raise
            if isinstance(error, RequestFailed) and error.error is Err.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # Brokers may be away for a while without a stream having to end; tasks wait for them, and say so.

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return _write_task(self._setup, iterator)


# -- on executors


def _write_task(setup: _WriteSetup, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
    identity = TaskIdentity.current(setup.run_id)
    with LoopThread("headrace-sink") as loop:
        task = _Task(setup, identity, loop)
        try:
            for chunk in chunks(iterator):
                task.write(chunk)
            return task.finish()
        except RequestFailed as error:
            raise _missing_topic(error) from error
        finally:
            task.close()


class _Task:
    """One task's rows on their way: this thread encodes, the loop's thread sends."""

    def __init__(self, setup: _WriteSetup, identity: TaskIdentity, loop: LoopThread) -> None:
        self._setup = setup
        self._identity = identity
        self._loop = loop
        self._options = setup.options
        self._cluster = setup.cluster()
        self._producer = setup.producer(self._cluster)
        loop.run(self._open())
        self._batch_bytes = self._options.batch_bytes
        # Each task starts with a partition of its own choice, or all would fill the same one.
        self._sticky: dict[str, Sticky] = {}
        self._counts: dict[str, int] = {}
        self._rows = 0
        self._letters = 0

    async def _open(self) -> None:
        # A broker that is away for a moment must not end a stream.
        await self._cluster.retrying(lambda: self._cluster.refresh(()), can_retry=may_pass)
        await self._producer.__aenter__()

    async def _close(self) -> None:
        await self._producer.close()
        self._cluster.close()

    def close(self) -> None:
        self._loop.run(self._close())

    def write(self, chunk: pa.RecordBatch) -> None:
        """Encode rows and hand them over; waits while too much is unacknowledged."""
        layout = self._setup.layout
        first_row, self._rows = self._rows, self._rows + chunk.num_rows
        chunk, values = self._values(chunk, layout)
        if not chunk.num_rows:
            return
        columns = self._columns(chunk, values, layout, first_row)
        wanted = None if layout.partition is None else chunk.column(layout.partition)
        for topic, rows in self._topics(chunk, layout):
            partitions = self._partitions(topic, columns, rows, wanted)
            batches = self._encode(topic, columns, rows, partitions)
            self._loop.run(self._producer.send(batches))

    def finish(self) -> TaskWritten:
        written = self._loop.run(self._producer.flush())
        return TaskWritten(
            self._identity,
            self._producer.producer.id,
            self._producer.producer.epoch,
            tuple(
                PartitionWritten(topic, partition, one.records, one.size_bytes, one.first_offset, one.last_offset)
                for (topic, partition), one in sorted(written.items())
            ),
            self._letters,
        )

    def _values(self, chunk: pa.RecordBatch, layout: Layout) -> tuple[pa.RecordBatch, pa.Array]:
        """The rows that can be written, and their values as bytes."""
        encoder = self._setup.encoder
        if encoder is None:
            return chunk, chunk.column(layout.value)
        structs = _structs(chunk, layout)
        values, errors = encoder.encode(structs)
        if not errors:
            return chunk, values
        self._see_to(chunk, structs, errors, layout)
        good = pa.array(np.delete(np.arange(chunk.num_rows), list(errors)))
        return chunk.take(good), values.take(good)

    def _see_to(self, chunk: pa.RecordBatch, structs: pa.StructArray, errors: dict[int, str], layout: Layout) -> None:
        """Rows that cannot be encoded: letters, as JSON, or the end."""
        from headrace.spark.formats.bad_rows import BadRow, letter_batches, letters, marks_of
        from headrace.spark.formats.json import JsonEncoder

        topic, kind = self._options.dead_letter_topic, str(self._options.value_format)
        rows = sorted(errors)
        if topic is None:
            raise BadRow(
                f"a row cannot be encoded as {kind}: {errors[rows[0]]}. "
                "Set badRows=deadLetter and deadLetterTopic to go on without such rows"
            )
        bad = chunk.take(pa.array(rows))
        values, _ = JsonEncoder().encode(structs.take(pa.array(rows)))
        targets = [self._options.topic] * len(rows) if layout.topic is None else bad.column(layout.topic).to_pylist()
        columns = letters(
            None if layout.key is None else bad.column(layout.key),
            values,
            None if layout.headers is None else bad.column(layout.headers),
            time.time_ns() // 1_000_000,
            [marks_of(errors[row], kind, self._options.topic or str(target)) for row, target in zip(rows, targets)],
        )
        self._loop.run(self._producer.send(letter_batches(topic, columns, self._partition_count(topic))))
        self._letters += len(rows)

    def _columns(self, chunk: pa.RecordBatch, values: pa.Array, layout: Layout, first_row: int) -> RecordColumns:
        now_ms = time.time_ns() // 1_000_000
        headers = None if layout.headers is None else chunk.column(layout.headers)
        if self._options.dedup_headers:
            one = self._identity
            texts = (one.query_id, str(one.batch_id), str(one.partition_id))
            headers = with_dedup_headers(headers, texts, first_row, chunk.num_rows)
        return RecordColumns.of(
            values,
            key=None if layout.key is None else chunk.column(layout.key),
            headers=headers,
            timestamps=now_ms if layout.timestamp is None else timestamps_of(chunk.column(layout.timestamp), now_ms),
        )

    def _topics(self, chunk: pa.RecordBatch, layout: Layout) -> Iterator[tuple[str, Any]]:
        """Each topic with the rows that go there."""
        topic = self._options.topic
        if topic is not None:
            yield topic, np.arange(chunk.num_rows)
            return
        assert layout.topic is not None
        column = chunk.column(layout.topic)
        if column.null_count:
            raise ValueError("column 'topic' is null in a row: give every row a topic, or set option topic")
        encoded = column.dictionary_encode()
        indices: Any = encoded.indices.to_numpy(zero_copy_only=False)
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            yield name, np.flatnonzero(indices == index)

    def _partition_count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._loop.run(self._producer.partition_count(topic))
        return count

    def _partitions(self, topic: str, columns: RecordColumns, rows: Any, wanted: pa.Array | None) -> Any:
        """The partition of each of `rows`: as wanted, by the key, or wherever the last ones without a key went."""
        count = self._partition_count(topic)
        chosen: Any = partitions_of(columns.key, count)[rows]
        if wanted is not None:
            given: Any = wanted.take(pa.array(rows)).fill_null(-1).to_numpy(zero_copy_only=False)
            wrong: Any = given[
                (given >= count) | ((given < 0) & wanted.is_valid().to_numpy(zero_copy_only=False)[rows])
            ]
            if len(wrong):
                raise ValueError(
                    f"column 'partition' is {wrong[0]} in a row, but topic '{topic}' has {count} partitions, "
                    f"0 to {count - 1}: use one of them, or null to have it chosen by the key"
                )
            chosen = np.where(given >= 0, given, chosen)
        free: Any = np.flatnonzero(chosen < 0)
        if len(free):
            sticky = self._sticky.setdefault(topic, Sticky(self._batch_bytes))
            start = 0
            for end, partition in sticky.runs(np.cumsum(columns.sizes()[rows[free]]), count):
                chosen[free[start:end]] = partition
                start = end
        return chosen

    def _encode(self, topic: str, columns: RecordColumns, rows: Any, partitions: Any) -> list[OutgoingBatch]:
        order: Any = np.argsort(partitions, kind="stable")
        sorted_partitions: Any = partitions[order]
        starts: Any = np.flatnonzero(np.diff(sorted_partitions, prepend=-1))
        ends: Any = np.append(starts[1:], len(order))
        batches = []
        for start, end in zip(starts.tolist(), ends.tolist()):
            partition = int(sorted_partitions[start])
            encoded = encode_rows(
                columns,
                rows[order[start:end]],
                codec=self._options.codec,
                level=self._options.level,
                batch_bytes_max=self._batch_bytes,
            )
            batches += [OutgoingBatch(topic, partition, batch.view, batch.count) for batch in encoded]
        return batches


def _value_type(schema: StructType, layout: Layout) -> StructType:
    """The struct that a typed value is made of."""
    if layout.value is not None:
        found: StructType = schema[layout.value].dataType
        return found
    return StructType([schema[index] for index in layout.fields])


def _structs(chunk: pa.RecordBatch, layout: Layout) -> pa.StructArray:
    if layout.value is not None:
        return chunk.column(layout.value)
    fields = [chunk.schema.field(index) for index in layout.fields]
    return pa.StructArray.from_arrays([chunk.column(index) for index in layout.fields], fields=fields)


def _missing_topic(error: RequestFailed) -> ClientError:
    if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    return RequestFailed(
        error.what,
        error.error,
        "it does not exist, and the broker makes none by itself: create it (headrace topic create)",
    )
