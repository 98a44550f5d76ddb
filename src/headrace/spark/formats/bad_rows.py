"""Rows that cannot be decoded or encoded: the end of the job, or letters to a topic of their own with the reason.

A dead letter is the record as it was, with headers that say why it is there and where it comes from. Letters are
written at least once, like everything else: a task that runs again writes its own again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.client.columnar.columns import RecordColumns
from headrace.client.columnar.encode import encode_rows, partitions_of
from headrace.client.columnar.rows import HEADERS_TYPE
from headrace.client.net.background import LoopThread
from headrace.client.net.cluster import Cluster
from headrace.client.produce.producer import OutgoingBatch, ProducerCore
from headrace.spark.formats import Errors, ValueDecoder
from headrace.spark.plain_errors import UserError

REASON, FORMAT, TOPIC, PARTITION, OFFSET = (
    f"headrace.error.{name}" for name in ("reason", "format", "topic", "partition", "offset")
)
REASON_LENGTH_MAX = 1000
NEEDED = ("key", "value", "headers", "offset", "timestamp")
"""What a letter is made of, beside what the query asks for."""


class BadRow(UserError, ValueError):
    """A row that stops the job; the message says which, why, and what to set to go on without it."""


def letters(
    key: pa.Array | None,
    value: pa.Array,
    headers: pa.Array | None,
    timestamps: Any,
    marks: Sequence[Mapping[str, str]],
) -> RecordColumns:
    """Bad rows as records: what they were, and `marks` behind their own headers."""
    own = [None] * len(value) if headers is None else headers.to_pylist()
    lists = [
        [*(before or ()), *({"key": name, "value": text.encode()} for name, text in mark.items())]
        for before, mark in zip(own, marks)
    ]
    return RecordColumns.of(value, key=key, headers=pa.array(lists, HEADERS_TYPE), timestamps=timestamps)


def marks_of(reason: str, kind: str, topic: str) -> dict[str, str]:
    return {REASON: reason[:REASON_LENGTH_MAX], FORMAT: kind, TOPIC: topic}


def letter_batches(
    topic: str, columns: RecordColumns, partitions: int, *, transactional: bool = False
) -> list[OutgoingBatch]:
    """Letters keep the partition that their key has; those without a key go to the first."""
    chosen: Any = np.maximum(partitions_of(columns.key, partitions), 0)
    batches = []
    for partition in np.unique(chosen).tolist():
        rows: Any = np.flatnonzero(chosen == partition)
        encoded = encode_rows(columns, rows, transactional=transactional)
        batches += [OutgoingBatch(topic, partition, batch.view, batch.count) for batch in encoded]
    return batches


class TypedValues:
    """What a read does about valueFormat: decodes values, and sees to those that are bad. Picklable until used."""

    def __init__(self, decoder: ValueDecoder, values: Mapping[str, Any], client: Mapping[str, Any]) -> None:
        self.decoder = decoder
        self._kind = values["valueFormat"]
        self._letter_topic = values["deadLetterTopic"] if values["badRows"] == "deadletter" else None
        self._error_column = values["errorColumn"]
        self._bootstrap = values["kafka.bootstrap.servers"]
        self._client = dict(client)
        self._writer: _LetterWriter | None = None

    def raw_columns(self, wanted: Sequence[str]) -> list[str]:
        """The columns to decode from the log, for a query that wants these."""
        wanted = [name for name in wanted if name != self._error_column]
        if "value" not in wanted or self._letter_topic is None:
            return [*wanted, *(["offset"] if "value" in wanted and "offset" not in wanted else [])]
        return [*wanted, *(name for name in NEEDED if name not in wanted)]

    def apply(self, batch: pa.RecordBatch, topic: str, partition: int, wanted: Sequence[str]) -> list[pa.Array]:
        """The wanted columns with typed values; without bad rows, or with the reason in the error column."""
        found: dict[str, pa.Array] = {}
        errors: Errors = {}
        if "value" in wanted:
            found["value"], errors = self.decoder.decode(batch.column("value"))
        if self._error_column is not None:
            found[self._error_column] = (
                pa.array([errors.get(row) for row in range(batch.num_rows)], pa.string())
                if errors
                else pa.nulls(batch.num_rows, pa.string())
            )
        columns = [found[name] if name in found else batch.column(name) for name in wanted]
        if not errors:
            return columns
        self._write_letters(batch, errors, topic, partition)
        if self._error_column is not None:
            return columns
        good = pa.array(np.delete(np.arange(batch.num_rows), list(errors)))
        return [column.take(good) for column in columns]

    def close(self) -> None:
        """All letters are written before the task counts as done."""
        if self._writer is not None:
            self._writer.close()

    def _write_letters(self, batch: pa.RecordBatch, errors: Errors, topic: str, partition: int) -> None:
        rows = sorted(errors)
        offsets = batch.column("offset").take(pa.array(rows)).to_pylist()
        if self._letter_topic is None:
            raise BadRow(
                f"{topic}-{partition} offset {offsets[0]}: the value is not {self._kind} as the schema says: "
                f"{errors[rows[0]]}. Set badRows=deadLetter and deadLetterTopic to go on without such records"
            )
        bad = batch.take(pa.array(rows))
        times: Any = bad.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
        marks = [
            {**marks_of(errors[row], self._kind, topic), PARTITION: str(partition), OFFSET: str(offset)}
            for row, offset in zip(rows, offsets)
        ]
        if self._writer is None:
            self._writer = _LetterWriter(self._bootstrap, self._letter_topic, self._client)
        self._writer.put(letters(bad.column("key"), bad.column("value"), bad.column("headers"), times, marks))


class _LetterWriter:
    """A producer of its own for letters, within a task that reads."""

    def __init__(self, bootstrap: str, topic: str, client: Mapping[str, Any]) -> None:
        self._topic = topic
        self._loop = LoopThread("headrace-letters")
        self._cluster = Cluster(bootstrap, **client)
        self._producer = ProducerCore(self._cluster)
        self._partitions = self._loop.run(self._open())

    async def _open(self) -> int:
        await self._cluster.__aenter__()
        await self._producer.__aenter__()
        return await self._producer.partition_count(self._topic)

    def put(self, columns: RecordColumns) -> None:
        self._loop.run(self._producer.send(letter_batches(self._topic, columns, self._partitions)))

    def close(self) -> None:
        try:
            self._loop.run(self._finish())
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        await self._producer.flush()
        await self._producer.close()
        self._cluster.close()
