"""`headrace import`: the records of an exported file into a topic, each into its partition, with its time.

Progress is kept in the target cluster, as the offsets of a group that no member ever joins: of each partition, the
first *source* offset that is not there yet. It is committed in the same transaction as the records. So after a kill -9:

1. The producer comes back under the same transactional id, and what the killed run had open is aborted.
2. The group's offsets say which records are committed, exactly.
3. The file is read again, and those are passed over.

The same file imported twice is therefore imported once.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.groups import Groups
from headrace.client.api import Producer
from headrace.client.api.types import GroupMetadata
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.produce.deliveries import Delivery, WrittenBatch
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.errors import Err
from headrace.tools.archive.files import PARTITIONS_KEY, TOPIC_KEY, open_parquet, read_lines
from headrace.tools.archive.lines import ArchivedRecord, record_of
from headrace.tools.ranges import create_and_await, describe

CHUNK_RECORDS, CHUNK_BYTES = 50_000, 16 << 20
"""What one transaction holds."""
RUNS_MAX = 1_000
"""Runs of equal shift that are told of each partition."""
IDENTITY_BYTES = 64 << 10


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    file: Path
    format: str
    topic: str | None = None
    create: bool = False
    partitions: int | None = None
    """Of a topic that is created; else as many as the file knows of."""
    transactional: bool = True
    again: bool = False
    codec: str = "none"


class Run(msgspec.Struct):
    """Consecutive records whose offsets differ by the same number."""

    source_offset: int
    target_offset: int
    records: int


class Landed(msgspec.Struct):
    """What became of one partition's records."""

    records: int = 0
    skipped: int = 0
    """Were there from an earlier run."""
    next_source_offset: int = 0
    runs: list[Run] = []
    more_runs: int = 0

    def note(self, source: int, target: int, count: int) -> None:
        self.records += count
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.source_offset + last.records, last.target_offset + last.records) == (
            source,
            target,
        ):
            last.records += count
        elif len(self.runs) < RUNS_MAX:
            self.runs.append(Run(source, target, count))
        else:
            self.more_runs += 1

    @property
    def is_same(self) -> bool:
        """Whether each record has the offset that it had."""
        return not self.more_runs and all(run.source_offset == run.target_offset for run in self.runs)


class ImportReport(msgspec.Struct):
    topic: str
    partitions: dict[int, Landed]
    created: bool = False
    transactional: bool = True
    notes: list[str] = []

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions.values())

    @property
    def skipped(self) -> int:
        return sum(one.skipped for one in self.partitions.values())


class Chunk(msgspec.Struct):
    """What goes into one transaction."""

    position: int
    """How far into the file it goes, in units of the reader's own."""
    rows: list[ArchivedRecord] = []
    tables: list[Any] = []
    """pyarrow.RecordBatch"""


class Importing:
    """One run. `position` and `size` tell how far it is."""

    def __init__(self, request: ImportRequest, bootstrap: str, security: Security = PLAINTEXT) -> None:
        self.request = request
        self.position = 0
        self.size = 1
        self.report: ImportReport | None = None
        self._bootstrap = bootstrap
        self._security = security
        self._oldest_ms: int | None = None

    async def run(self, on_progress: Callable[["Importing"], None] = lambda importing: None) -> ImportReport:
        """Import everything that is not there yet. Raises ClientError; the same request goes on behind what is."""
        request = self.request
        topic, partitions = source_of(request)
        async with Admin(self._bootstrap, security=self._security) as admin:
            report = self.report = ImportReport(topic, {}, transactional=request.transactional)
            report.created = await self._have_topic(admin, topic, partitions)
            count = len((await describe(admin, topic)).partitions)
            limit = await self._check_topic(admin, topic)
            name = identity(request.file, topic)
            options: dict[str, Any] = {"transactional_id": name} if request.transactional else {}
            async with Producer(
                self._bootstrap,
                security=self._security,
                compression=request.codec,
                request_bytes=max(4 << 20, limit),
                linger_ms=5,
                **options,
            ) as producer:
                # The producer is fenced in first: what the killed run had open is aborted before progress is read.
                groups = Groups(admin)
                if request.again:
                    await _forget(groups, name)
                for (named, at), found in (await groups.committed(name, stable=request.transactional)).items():
                    if named == topic and found.offset >= 0:
                        report.partitions[at] = Landed(next_source_offset=found.offset)
                self.size = max(1, _size_of(request))
                for chunk in chunks_of(request):
                    self._check(chunk, count, topic)
                    await self._send(producer, groups, name, topic, chunk)
                    self.position = chunk.position
                    on_progress(self)
            await self._warn_of_retention(admin, topic)
        return report

    async def _have_topic(self, admin: Admin, topic: str, partitions: int | None) -> bool:
        try:
            await admin.describe_topic(topic)
            return False
        except RequestFailed as error:
            if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        if not self.request.create:
            await describe(admin, topic)  # raises, with the nearest name
        wanted = self.request.partitions or partitions or 1 + max((p for p in _all_partitions(self.request)), default=0)
        await create_and_await(admin, topic, wanted)
        return True

    async def _check_topic(self, admin: Admin, topic: str) -> int:
        """The largest batch that the topic takes."""
        names = ("max.message.bytes", "message.timestamp.type", "retention.ms", "cleanup.policy")
        rows = await admin.describe_configs(Resource.TOPIC, topic, names)
        self._configs = {row.name: row.value or "" for row in rows}
        assert self.report is not None
        if self._configs.get("message.timestamp.type") == "LogAppendTime":
            self.report.notes.append("the topic has LogAppendTime: records get the time of the import, not their own")
        return int(self._configs.get("max.message.bytes") or 1 << 20)

    async def _warn_of_retention(self, admin: Admin, topic: str) -> None:
        """Old records are deleted by their own times, however late they come."""
        assert self.report is not None
        kept_ms = int(self._configs.get("retention.ms") or -1)
        if kept_ms < 0 or self._oldest_ms is None or "delete" not in self._configs.get("cleanup.policy", ""):
            return
        if 0 <= self._oldest_ms < time.time() * 1000 - kept_ms:
            self.report.notes.append(
                f"records older than the topic's retention.ms ({kept_ms}) are deleted again before long;"
                f" `headrace topic alter {topic} --set retention.ms=-1` keeps them"
            )

    def _check(self, chunk: Chunk, count: int, topic: str) -> None:
        highest = max((row.partition for row in chunk.rows), default=-1)
        for table in chunk.tables:
            if len(table):
                highest = max(highest, max(table.column("partition").to_pylist()))
        if highest >= count:
            raise ClientError(
                f"a record is of partition {highest}, and topic {topic!r} has {count}: add some with"
                f" `headrace topic alter {topic} --partitions {highest + 1}`"
            )

    async def _send(self, producer: Producer, groups: Groups, name: str, topic: str, chunk: Chunk) -> None:
        """One chunk and its progress: together, or one after the other without transactions."""
        if not self.request.transactional:
            offsets = await self._send_records(producer, topic, chunk)
            await producer.flush()
            if offsets:
                await groups.commit(name, offsets)
            return
        async with producer.transaction() as transaction:
            offsets = await self._send_records(producer, topic, chunk)
            await transaction.commit_offsets(GroupMetadata(name), offsets)

    async def _send_records(self, producer: Producer, topic: str, chunk: Chunk) -> dict[tuple[str, int], int]:
        assert self.report is not None
        places = self.report.partitions
        if chunk.rows:
            await self._send_rows(producer, topic, chunk.rows)
        for table in chunk.tables:
            await self._send_table(producer, topic, table)
        return {(topic, at): place.next_source_offset for at, place in places.items() if place.next_source_offset}

    async def _send_rows(self, producer: Producer, topic: str, rows: list[ArchivedRecord]) -> None:
        sent: list[tuple[ArchivedRecord, Delivery]] = []
        for row in rows:
            place = self._place(row.partition)
            if row.offset < place.next_source_offset:
                place.skipped += 1
                continue
            delivery = await producer.send_soon(
                topic, row.value, key=row.key, headers=row.headers, timestamp=row.timestamp, partition=row.partition
            )
            place.next_source_offset = row.offset + 1
            self._note_time(row.timestamp)
            sent.append((row, delivery))
        for row, delivery in sent:
            self._place(row.partition).note(row.offset, (await delivery).offset, 1)

    async def _send_table(self, producer: Producer, topic: str, table: Any) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.Table.from_batches([table])
        of_rows: Any = whole.column("partition").to_numpy()
        for at in np.unique(of_rows):
            place = self._place(int(at))
            of_it = whole.filter(pa.array(of_rows == at))
            offsets: Any = of_it.column("offset").to_numpy()
            new = offsets >= place.next_source_offset
            place.skipped += int(len(new) - new.sum())
            if not new.any():
                continue
            of_it, offsets = of_it.filter(pa.array(new)), offsets[new]
            if len(offsets) > 1 and not (np.diff(offsets) > 0).all():
                raise ClientError(f"the offsets of partition {at} do not ascend: this is no file of `headrace export`")
            self._note_time(pc.min(of_it.column("timestamp").cast(pa.int64())).as_py())
            written: list[WrittenBatch] = []
            await producer.send_table(topic, of_it, partition=int(at), on_written=written.append)
            first = 0
            for batch in written:
                _note_spans(place, offsets[first : first + batch.count], batch.offset)
                first += batch.count
            place.next_source_offset = int(offsets[-1]) + 1

    def _place(self, partition: int) -> Landed:
        assert self.report is not None
        found = self.report.partitions.get(partition)
        if found is None:
            found = self.report.partitions[partition] = Landed()
        return found

    def _note_time(self, timestamp: int) -> None:
        if self._oldest_ms is None or timestamp < self._oldest_ms:
            self._oldest_ms = timestamp


def _note_spans(place: Landed, offsets: Any, target: int) -> None:
    """Note a batch: consecutive source offsets together."""
    import numpy as np

    cuts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    for start, end in itertools.pairwise(cuts):
        if end > start:
            place.note(int(offsets[start]), target + start, end - start)


def identity(file: Path, topic: str) -> str:
    """A name for the import of this file into this topic, the same in each run: whatever the file is called, its
    beginning, end and size tell it from others."""
    size = file.stat().st_size
    with file.open("rb") as content:
        head = content.read(IDENTITY_BYTES)
        content.seek(max(0, size - IDENTITY_BYTES))
        tail = content.read(IDENTITY_BYTES)
    digest = hashlib.sha256(b"%d\0%s\0%s\0%s" % (size, topic.encode(), head, tail)).hexdigest()
    return f"headrace-import.{digest[:24]}"


def source_of(request: ImportRequest) -> tuple[str, int | None]:
    """The topic to import into and how many partitions the source had, where known. Raises ClientError."""
    if not request.file.is_file():
        raise ClientError(f"there is no file {request.file}")
    named, partitions = None, None
    if request.format == "parquet":
        with open_parquet(request.file) as opened:
            about = opened.schema_arrow.metadata or {}
            named = about.get(TOPIC_KEY, b"").decode() or None
            partitions = int(about[PARTITIONS_KEY]) if PARTITIONS_KEY in about else None
    else:
        for number, line in read_lines(request.file):
            try:
                _, named = record_of(line)
            except ClientError as error:
                raise ClientError(f"{request.file}, line {number}: {error}") from None
            break
    topic = request.topic or named
    if topic is None:
        raise ClientError(f"{request.file} does not say which topic it is of: name one behind it")
    return topic, partitions


def chunks_of(request: ImportRequest) -> Iterator[Chunk]:
    """The file, a transaction's worth at a time."""
    return _tables(request) if request.format == "parquet" else _rows(request)


def _rows(request: ImportRequest) -> Iterator[Chunk]:
    last: dict[int, int] = {}
    chunk, size, position = Chunk(0), 0, 0
    for number, line in read_lines(request.file):
        position += len(line)
        try:
            record, _ = record_of(line)
        except ClientError as error:
            raise ClientError(f"{request.file}, line {number}: {error}") from None
        if record.offset <= last.get(record.partition, -1):
            raise ClientError(
                f"{request.file}, line {number}: offset {record.offset} of partition {record.partition} comes behind"
                f" {last[record.partition]}: each partition's offsets ascend in a file of `headrace export`"
            )
        last[record.partition] = record.offset
        chunk.rows.append(record)
        size += len(line)
        if len(chunk.rows) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            chunk.position = position
            yield chunk
            chunk, size = Chunk(0), 0
    if chunk.rows:
        chunk.position = position
        yield chunk


def _tables(request: ImportRequest) -> Iterator[Chunk]:
    with open_parquet(request.file) as opened:
        chunk, size, position = Chunk(0), 0, 0
        for batch in opened.iter_batches(batch_size=CHUNK_RECORDS // 4):
            position += batch.num_rows
            chunk.tables.append(batch)
            size += batch.nbytes
            if size >= CHUNK_BYTES or sum(one.num_rows for one in chunk.tables) >= CHUNK_RECORDS:
                chunk.position = position
                yield chunk
                chunk, size = Chunk(0), 0
        if chunk.tables:
            chunk.position = position
            yield chunk


def _size_of(request: ImportRequest) -> int:
    if request.format != "parquet":
        return request.file.stat().st_size
    with open_parquet(request.file) as opened:
        rows: int = opened.metadata.num_rows
        return rows


def _all_partitions(request: ImportRequest) -> Iterator[int]:
    if request.format != "parquet":
        for _, line in read_lines(request.file):
            yield record_of(line)[0].partition
        return
    with open_parquet(request.file) as opened:
        for batch in opened.iter_batches(columns=["partition"]):
            yield from batch.column("partition").to_pylist()


async def _forget(groups: Groups, name: str) -> None:
    try:
        await groups.delete(name)
    except RequestFailed as error:
        if error.error is not Err.GROUP_ID_NOT_FOUND:
            raise
