"""Load on a cluster and the verdict on what it left: numbered records, who acknowledged what, who read what, what is
there.

Each writer sends 0, 1, 2 ... with idempotence and acks=all; a value names its writer and number. Verdicts compare what
was acknowledged, what consumers saw on the way and what the log holds at the end.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka as confluent

from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.client.raw import fetch
from headrace.records.batch import check_stored
from headrace.records.layout import iter_headers
from headrace.records.reader import read_records
from headrace.testing.cluster import TestCluster
from tests.librdkafka import STEADY

T = TypeVar("T")

PAUSE_S = 0.002
FLUSH_S = 60.0
Place = tuple[int, int]
"""(partition, offset)"""


@dataclass
class Book:
    """What one writer was told."""

    sent: dict[int, set[bytes]] = field(default_factory=dict)
    acked: dict[Place, bytes] = field(default_factory=dict)
    implied: list[bytes] = field(default_factory=list)
    """Acknowledged without an offset: librdkafka concludes that from the answer to a later batch."""
    failed: list[tuple[bytes, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def acknowledged(self, partition: int, offset: int | None, value: bytes) -> None:
        if offset is None:
            self.implied.append(value)
        else:
            assert self.acked.setdefault((partition, offset), value) == value, (
                "two records were acknowledged at one offset"
            )
        self.times.append(time.monotonic())


class Load(Protocol):
    book: Book

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Writer:
    """A thread that writes until told to stop, then waits for every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, name: str = "w", **settings: Any) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.name = name
        self.settings = settings
        self.book = Book()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer {name}")
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(FLUSH_S + 20)
        assert not self._thread.is_alive(), f"writer {self.name} does not end"
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Writer":
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.stop()

    def wait_acked(self, more: int, limit_s: float = 60.0) -> None:
        """Until so many further records were acknowledged: the cluster takes writes."""
        deadline, wanted = time.monotonic() + limit_s, len(self.book.times) + more
        while len(self.book.times) < wanted:
            assert self._error is None and time.monotonic() < deadline, (
                f"{self.name}: {len(self.book.times)} of {wanted} records acknowledged, failed: {self.book.failed[:3]}"
            )
            time.sleep(0.02)

    def value(self, number: int) -> bytes:
        return f"{self.name}-{number}".encode()

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error

    def _write(self) -> None:
        raise NotImplementedError


class ConfluentWriter(Writer):
    def _write(self) -> None:
        producer = confluent.Producer(
            {**STEADY, "bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 1,
             "log_level": 0, "message.timeout.ms": 60_000, **self.settings}
        )  # fmt: skip

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.book.failed.append((message.value(), str(error)))
            else:
                self.book.acknowledged(message.partition(), message.offset(), message.value())

        number = 0
        while not self._stop.is_set():
            value = self.value(number)
            partition = number % self.partitions
            self.book.sent.setdefault(partition, set()).add(value)
            producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
            number += 1
            producer.poll(PAUSE_S)
        assert producer.flush(FLUSH_S) == 0, "records left undelivered"


class AiokafkaWriter(Writer):
    def _write(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=10_000,
            retry_backoff_ms=50,
        )
        await producer.start()
        waiting: set[Any] = set()

        def delivered(done: Any, value: bytes) -> None:
            waiting.discard(done)
            if done.exception() is not None:
                self.book.failed.append((value, repr(done.exception())))
            else:
                self.book.acknowledged(done.result().partition, done.result().offset, value)

        try:
            number = 0
            while not self._stop.is_set():
                value = self.value(number)
                partition = number % self.partitions
                self.book.sent.setdefault(partition, set()).add(value)
                future = await producer.send(self.topic, value, partition=partition)
                waiting.add(future)
                future.add_done_callback(lambda done, value=value: delivered(done, value))
                number += 1
                await asyncio.sleep(PAUSE_S)
            await asyncio.wait_for(producer.flush(), FLUSH_S)
            while waiting:
                await asyncio.sleep(0.01)
        finally:
            await producer.stop()


WRITERS: dict[str, type[Writer]] = {"confluent": ConfluentWriter, "aiokafka": AiokafkaWriter}


class Reader:
    """A consumer of all partitions from their beginning, which keeps everything it was given in the order it came."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.seen: dict[Place, bytes] = {}
        self.out_of_order: list[tuple[Place, int]] = []
        self._next = dict.fromkeys(range(partitions), 0)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        settings = {
            **STEADY, "bootstrap.servers": bootstrap, "group.id": f"reader-{topic}", "enable.auto.commit": False,
            "auto.offset.reset": "error", "log_level": 0, "fetch.wait.max.ms": 100,
        }  # fmt: skip
        self._consumer = confluent.Consumer(settings)
        self._consumer.assign([confluent.TopicPartition(topic, p, 0) for p in range(partitions)])
        self._thread = threading.Thread(target=self._run, name="reader")

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                message = self._consumer.poll(0.1)
                if message is None:
                    continue
                if message.error():
                    assert not message.error().fatal(), message.error()
                    assert message.error().code() != confluent.KafkaError._AUTO_OFFSET_RESET, message.error()
                    continue
                partition, offset = message.partition(), message.offset()
                if offset != self._next[partition]:
                    self.out_of_order.append(((partition, offset), self._next[partition]))
                self._next[partition] = offset + 1
                assert self.seen.setdefault((partition, offset), message.value()) == message.value(), (
                    "a record has changed"
                )
        except BaseException as error:
            self._error = error

    def wait_for(self, places: Callable[[], set[Place]], limit_s: float = 60.0) -> None:
        """Until everything that was acknowledged has been read."""
        deadline = time.monotonic() + limit_s
        while not places() <= set(self.seen):
            assert time.monotonic() < deadline and self._error is None, (
                f"not read: {sorted(places() - set(self.seen))[:5]}"
            )
            time.sleep(0.05)


# -- what is there


async def read_partition(cluster: Cluster, topic: str, index: int, end: int) -> dict[int, bytes]:
    """offset -> value of everything committed, gaps and broken checksums refused."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset < end:
        got = await fetch(cluster, topic, index, offset, max_wait_ms=100)
        before = offset
        data = memoryview(got.records)
        for position, header in iter_headers(data):
            check_stored(data, position, len(data))
            for record in read_records(data, position, header):
                if record.offset >= offset and not header.is_control:
                    found[record.offset] = bytes(record.value or b"")
            offset = header.end_offset
        assert offset > before, f"{topic}-{index}: nothing at offset {offset} although the log ends at {end}"
    return found


def until_answered(work: Callable[[], Coroutine[Any, Any, T]], limit_s: float = 30.0) -> T:
    """What `work` returns, tried again while brokers are away."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return asyncio.run(work())
        except ClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def read_log(bootstrap: str, topic: str) -> dict[int, dict[int, bytes]]:
    """partition -> offset -> value."""

    async def work() -> dict[int, dict[int, bytes]]:
        async with Admin(bootstrap, connect_timeout_s=2.0) as admin:
            ends = {index: found.offset for index, found in (await admin.list_offsets(topic)).items()}
            return {index: await read_partition(admin.cluster, topic, index, end) for index, end in ends.items()}

    return until_answered(work)


def judge(
    log: dict[int, dict[int, bytes]], *books: Book, reader: Reader | None = None, no_failures: bool = True
) -> None:
    """Every acknowledged record exactly once and where it was acknowledged; nothing seen that is not there."""
    count = Counter(value for rows in log.values() for value in rows.values())
    for book in books:
        assert book.acked, "nothing was acknowledged: the test tests nothing"
        if no_failures:
            assert not book.failed, f"{len(book.failed)} records failed: {book.failed[:3]}"
        lost = {place: value for place, value in book.acked.items() if log[place[0]].get(place[1]) != value}
        assert not lost, f"{len(lost)} acknowledged records are lost or changed: {sorted(lost.items())[:5]}"
        doubled = [value for value in (*book.acked.values(), *book.implied) if count[value] != 1]
        assert not doubled, f"{len(doubled)} acknowledged records are there twice, or not at all: {doubled[:5]}"
        for partition, values in book.sent.items():
            numbers = [int(v.rpartition(b"-")[2]) for _, v in sorted(log[partition].items()) if v in values]
            assert numbers == sorted(numbers), f"partition {partition} is out of order"
    if reader is not None:
        assert not reader.out_of_order, f"skipped or repeated: {reader.out_of_order[:5]}"
        uncommitted = {p: v for p, v in reader.seen.items() if log[p[0]].get(p[1]) != v}
        assert not uncommitted, (
            f"{len(uncommitted)} records were read and are not there: {sorted(uncommitted.items())[:5]}"
        )


# -- replicas


def replica_bytes(folder: Path) -> bytes:
    """A replica's records, segment after segment."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def assert_replicas_identical(cluster: TestCluster, topic: str) -> None:
    """Below the high watermark, byte for byte; the cluster is quiet and in sync, so that is everything."""
    cluster.wait_in_sync(topic)
    for partition in cluster.topic(topic).partitions.values():

        def copies(partition: Any = partition) -> dict[int, bytes]:
            return {n: replica_bytes(cluster[n].data / f"{topic}-{partition.index}") for n in partition.replicas}

        def alike(copies: Callable[[], dict[int, bytes]] = copies) -> bool:
            return len(set(copies().values())) == 1

        deadline = time.monotonic() + 30
        while not alike():
            if time.monotonic() > deadline:
                raise AssertionError(_difference(topic, partition.index, copies()))
            time.sleep(0.1)


def _difference(topic: str, index: int, copies: dict[int, bytes]) -> str:
    lengths = {node: len(data) for node, data in copies.items()}
    first = next(iter(copies.values()))
    at = min(
        (
            next((i for i, (a, b) in enumerate(zip(first, other)) if a != b), min(len(first), len(other)))
            for other in copies.values()
            if other != first
        ),
        default=-1,
    )
    return f"replicas of {topic}-{index} differ from byte {at} on; their lengths are {lengths}"
