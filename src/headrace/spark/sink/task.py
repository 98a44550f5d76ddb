"""One task's rows on their way to topics: encoded, dealt out to partitions, sent, and reported to the driver."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.client.columnar.columns import RecordColumns
from headrace.client.columnar.encode import encode_rows, partitions_of
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.background import LoopThread
from headrace.client.net.cluster import may_pass
from headrace.client.produce.partitioner import Sticky
from headrace.client.produce.producer import OutgoingBatch
from headrace.client.produce.transactions import ProducerTransactions
from headrace.spark.sink.exactly_once.decisions import TaskTransaction, transactional_id
from headrace.spark.sink.reports import PartitionWritten, TaskIdentity, TaskWritten, write_identity
from headrace.spark.sink.rows import Layout, chunks, timestamps_of, with_dedup_headers
from headrace.spark.sink.setup import WriteSetup, missing_topic

ABANDON_LIMIT_S = 5.0
"""How long a task that has failed tries to abort its transaction; the driver sweeps what is left."""


def write_task(setup: WriteSetup, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
    identity = TaskIdentity.current(setup.run_id)
    with LoopThread("headrace-sink") as loop:
        task = _Task(setup, identity, loop)
        try:
            for chunk in chunks(iterator):
                task.write(chunk)
            return task.finish()
        except RequestFailed as error:
            task.abandon()
            raise missing_topic(error) from error
        except BaseException:
            task.abandon()
            raise
        finally:
            task.close()


class _Task:
    """One task's rows on their way: this thread encodes, the loop's thread sends."""

    def __init__(self, setup: WriteSetup, identity: TaskIdentity, loop: LoopThread) -> None:
        self._setup = setup
        self._identity = identity
        self._loop = loop
        self._options = setup.options
        self._cluster = setup.cluster()
        self._decided_by: str | None = None
        self._transactions: ProducerTransactions | None = None
        if self._options.exactly_once:
            self._decided_by = write_identity(identity, setup.run_id, self._options.write_id, is_stream=setup.is_stream)
            self._transactions = ProducerTransactions(
                self._cluster,
                transactional_id(
                    self._decided_by, identity.run, identity.batch_id, identity.partition_id, identity.attempt
                ),
                timeout_ms=self._options.transaction_timeout_ms,
                two_phase=True,
            )
        self._producer = setup.producer(self._cluster, self._transactions)
        self._is_open = False
        self._opened_ms = 0
        self._batch_bytes = self._options.batch_bytes
        # Each task starts with a partition of its own choice, or all would fill the same one.
        self._sticky: dict[str, Sticky] = {}
        self._counts: dict[str, int] = {}
        self._rows = 0
        self._size_bytes = 0
        self._letters = 0

    async def _open(self) -> None:
        """With the first rows: a task without any asks nothing of the brokers."""
        # A broker that is away for a moment must not end a stream.
        await self._cluster.retrying(lambda: self._cluster.refresh(()), can_retry=may_pass)
        await self._producer.__aenter__()
        if self._transactions is not None:
            self._transactions.begin()
            self._opened_ms = time.time_ns() // 1_000_000
        self._is_open = True

    async def _close(self) -> None:
        await self._producer.close()
        self._cluster.close()

    def close(self) -> None:
        self._loop.run(self._close())

    def abandon(self) -> None:
        """The task has failed: end its transaction now, since it holds readers back."""
        if self._transactions is not None and self._is_open:
            with suppress(ClientError, TimeoutError):
                self._loop.run(self._transactions.abort(), ABANDON_LIMIT_S)

    def write(self, chunk: pa.RecordBatch) -> None:
        """Encode rows and hand them over; waits while too much is unacknowledged."""
        if not self._is_open:
            self._loop.run(self._open())
        layout = self._setup.layout
        first_row, self._rows = self._rows, self._rows + chunk.num_rows
        chunk, values = self._values(chunk, layout)
        if not chunk.num_rows:
            return
        columns = self._columns(chunk, values, layout, first_row)
        self._size_bytes += int(columns.sizes().sum())
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
            self._decided_by,
            self._open_transaction(),
        )

    def _open_transaction(self) -> TaskTransaction | None:
        """What the driver commits, or somebody aborts."""
        transactions = self._transactions
        if transactions is None or transactions.steps.is_empty:
            return None
        return TaskTransaction(
            self._identity.partition_id,
            transactions.transactional_id,
            transactions.producer.id,
            transactions.producer.epoch,
            transactions.steps.is_version_2,
            self._rows,
            self._size_bytes,
            self._opened_ms,
            0 if transactions.is_two_phase else transactions.timeout_ms,
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
        self._loop.run(
            self._producer.send(
                letter_batches(topic, columns, self._partition_count(topic), transactional=self._options.exactly_once)
            )
        )
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
                transactional=self._options.exactly_once,
            )
            batches += [OutgoingBatch(topic, partition, batch.view, batch.count) for batch in encoded]
        return batches


def _structs(chunk: pa.RecordBatch, layout: Layout) -> pa.StructArray:
    if layout.value is not None:
        return chunk.column(layout.value)
    fields = [chunk.schema.field(index) for index in layout.fields]
    return pa.StructArray.from_arrays([chunk.column(index) for index in layout.fields], fields=fields)
