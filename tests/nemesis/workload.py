"""Clients of three kinds that write numbered records, read them and commit offsets, and keep a book of all they were
told.

A value is `writer-number`. Each writer sends its numbers to every partition in turn, in bursts, so that several batches
are under way at once.
"""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka as confluent

from tests.librdkafka import STEADY
from tests.reference.apache import tool_command

Place = tuple[str, int]
"""(topic, partition)"""
BURST, PAUSE_S = 20, 0.1
FLUSH_S = 90.0
TALK: dict[str, Any] = {"debug": debug} if (debug := os.environ.get("NEMESIS_LIBRDKAFKA_DEBUG")) else {"log_level": 0}
"""What librdkafka's members of groups tell on stderr, the only trace of one that hangs: `cgrp,broker,protocol`, say."""
HUNG_S = 20.0
"""There is always something to read: a consumer without records for so long, with the cluster well or not, is replaced,
as whoever runs one would do."""
JAVA = Path(__file__).with_name("Client.java")
JAVA_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@dataclass
class Book:
    """What one writer sent and was told. Times are of the monotonic clock."""

    sent: dict[Place, list[int]] = field(default_factory=dict)
    acked: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """(topic, partition, offset) -> number"""
    implied: list[tuple[Place, int]] = field(default_factory=list)
    """Acknowledged without an offset: librdkafka concludes that from the answer to a later batch."""
    clashes: list[str] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    times: dict[Place, list[float]] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)

    def acknowledged(self, place: Place, offset: int | None, number: int, latency_s: float) -> None:
        if offset is None or offset < 0:
            self.implied.append((place, number))
        elif self.acked.setdefault((*place, offset), number) != number:
            self.clashes.append(f"{place} offset {offset} was given to {self.acked[*place, offset]} and to {number}")
        self.times.setdefault(place, []).append(time.monotonic())
        self.latencies_s.append(latency_s)

    @property
    def count(self) -> int:
        return len(self.acked) + len(self.implied)


@dataclass
class Commit:
    at: float
    place: Place
    offset: int


@dataclass
class Readings:
    """What one group was given and committed, all members together."""

    read: dict[Place, set[int]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def saw(self, place: Place, offset: int) -> None:
        self.read.setdefault(place, set()).add(offset)

    def committed(self, place: Place, offset: int) -> None:
        self.commits.append(Commit(time.monotonic(), place, offset))


class Actor:
    """A thread that works until told to stop; what it raised is raised by `join`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.abandoned: list[Any] = []
        """Consumers of librdkafka, which are never closed: 2.16 may hang in it, once all brokers were down together and
        it has begun anew from its bootstrap servers. They end with the process."""
        self.stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.stopping.set()
        self._thread.join(FLUSH_S + 30)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._error = error

    def work(self) -> None:
        raise NotImplementedError


class Writer(Actor):
    idempotent = True

    def __init__(
        self, name: str, bootstrap: str, topics: dict[str, int], settings: dict[str, Any] | None = None
    ) -> None:
        super().__init__(name)
        self.bootstrap, self.topics, self.settings = bootstrap, topics, dict(settings or {})
        self.places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        self.book = Book()

    def numbers(self) -> Iterator[tuple[int, Place, bytes]]:
        number = 0
        while not self.stopping.is_set():
            place = self.places[number % len(self.places)]
            self.book.sent.setdefault(place, []).append(number)
            yield number, place, f"{self.name}-{number}".encode()
            number += 1


class ConfluentWriter(Writer):
    """librdkafka. `settings` decide whether it is idempotent; by default it is not."""

    def work(self) -> None:
        producer = confluent.Producer({**STEADY, "bootstrap.servers": self.bootstrap, "log_level": 0, **self.settings})
        self.idempotent = bool(self.settings.get("enable.idempotence"))
        for number, (topic, partition), value in self.numbers():
            began = time.monotonic()

            def delivered(error: Any, message: Any, number: int = number, began: float = began) -> None:
                if error is not None:
                    self.book.failed.append((number, str(error)))
                else:
                    place = (message.topic(), message.partition())
                    self.book.acknowledged(place, message.offset(), number, time.monotonic() - began)

            while True:
                try:
                    producer.produce(topic, value, partition=partition, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(PAUSE_S if number % BURST == BURST - 1 else 0)
        assert producer.flush(FLUSH_S) == 0, "records left undelivered"


class AiokafkaWriter(Writer):
    def work(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        settings = {"acks": "all", "enable_idempotence": True, **self.settings}
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, **settings)
        await producer.start()
        waiting: set[Any] = set()

        def delivered(done: Any, number: int, began: float) -> None:
            waiting.discard(done)
            if done.exception() is not None:
                self.book.failed.append((number, repr(done.exception())))
            else:
                got = done.result()
                self.book.acknowledged((got.topic, got.partition), got.offset, number, time.monotonic() - began)

        try:
            for number, (topic, partition), value in self.numbers():
                began = time.monotonic()
                try:
                    future = await producer.send(topic, value, partition=partition)
                except Exception as error:  # its buffer was full for too long: never sent
                    self.book.failed.append((number, repr(error)))
                    continue
                waiting.add(future)
                future.add_done_callback(lambda done, number=number, began=began: delivered(done, number, began))
                if number % BURST == BURST - 1:
                    await asyncio.sleep(PAUSE_S)
            await asyncio.wait_for(producer.flush(), FLUSH_S)
            while waiting:
                await asyncio.sleep(0.01)
        finally:
            await producer.stop()


class _Java(Actor):
    """A Java program whose lines are taken in by `line`."""

    def java(self, words: Sequence[str]) -> None:
        command = tool_command(str(JAVA), *words, jvm=JAVA_JVM, log_level="off")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None and child.stdout is not None and child.stderr is not None
            told = threading.Thread(target=lambda: (self.stopping.wait(), child.stdin.close()), daemon=True)  # type: ignore[union-attr]
            told.start()
            try:
                for text in child.stdout:
                    self.line(text.split())
                assert child.wait() == 0, child.stderr.read()[-2000:]
            finally:
                child.kill()

    def line(self, words: list[str]) -> None:
        raise NotImplementedError


def spell(topics: dict[str, int]) -> str:
    return ",".join(f"{topic}:{count}" for topic, count in topics.items())


def options(settings: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


class JavaWriter(_Java, Writer):
    def work(self) -> None:
        words = ["write", self.bootstrap, self.name, spell(self.topics), str(BURST), str(int(PAUSE_S * 1000))]
        self.java([*words, *options(self.settings)])

    def line(self, words: list[str]) -> None:
        if words[0] == "acked":
            place = (words[1], int(words[2]))
            self.book.acknowledged(place, int(words[3]), int(words[4]), int(words[5]) / 1e6)
        elif words[0] == "sent":
            self.book.sent.setdefault((words[1], int(words[2])), []).append(int(words[3]))
        elif words[0] == "failed":
            self.book.failed.append((int(words[1]), " ".join(words[2:])))


# -- readers and groups


class Follower(Actor):
    """Reads every partition from its beginning without a group, and notes every offset that is skipped or comes
    twice."""

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        super().__init__("follower")
        self.bootstrap, self.topics = bootstrap, topics
        self.seen: dict[tuple[str, int, int], bytes] = {}
        self.anomalies: list[str] = []

    def work(self) -> None:
        following = {(t, p): 0 for t, count in self.topics.items() for p in range(count)}
        while not self.stopping.is_set():
            self._follow(following)

    def _follow(self, following: dict[Place, int]) -> None:
        """Until told to stop, or until nothing has come for so long that a new consumer is better."""
        consumer = confluent.Consumer(
            {**STEADY, "bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False,
             "auto.offset.reset": "error", "log_level": 0, "fetch.wait.max.ms": 100}
        )  # fmt: skip
        self.abandoned.append(consumer)
        consumer.assign([confluent.TopicPartition(t, p, offset) for (t, p), offset in following.items()])
        heard = time.monotonic()
        while not self.stopping.is_set() and time.monotonic() - heard < HUNG_S:
            for message in consumer.consume(500, 0.1):
                if message.error():
                    if message.error().fatal() or message.error().code() == confluent.KafkaError._AUTO_OFFSET_RESET:
                        self.anomalies.append(f"reader: {message.error()} at {message.topic()}-{message.partition()}")
                    continue
                heard = time.monotonic()
                place, offset = (message.topic(), message.partition()), message.offset()
                if offset != following[place]:
                    self.anomalies.append(f"reader: {place} gave {offset} after {following[place] - 1}")
                following[place] = offset + 1
                if self.seen.setdefault((*place, offset), message.value()) != message.value():
                    self.anomalies.append(f"reader: {place} offset {offset} has changed")


class ConfluentMember(Actor):
    def __init__(self, name: str, bootstrap: str, group: str, topics: dict[str, int], readings: Readings) -> None:
        super().__init__(name)
        self.bootstrap, self.group, self.topics, self.readings = bootstrap, group, topics, readings

    def work(self) -> None:
        while not self.stopping.is_set():
            self._take_part()

    def _take_part(self) -> None:
        """Until told to stop, or until nothing has come for so long that a new member is better.

        One commit at a time, and never a synchronous one: librdkafka 2.16 waits in it for the coordinator, for ever if
        a rebalance meanwhile waits for `consume`.
        """
        done: dict[Place, int] = {}
        is_committing = False

        def committed(error: Any, offsets: list[Any]) -> None:
            nonlocal is_committing
            is_committing = False
            for at in offsets if error is None else ():
                if at.error is None:
                    self.readings.committed((at.topic, at.partition), at.offset)

        consumer = confluent.Consumer(
            {**STEADY, "bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "session.timeout.ms": 10_000, "max.poll.interval.ms": 12_000,
             "on_commit": committed, **TALK}
        )  # fmt: skip
        self.abandoned.append(consumer)
        # Positions of an assignment that is over are not this member's to commit.
        forget = {name: lambda consumer, partitions: done.clear() for name in ("on_assign", "on_revoke", "on_lost")}
        consumer.subscribe(list(self.topics), **forget)
        heard = time.monotonic()
        while not self.stopping.is_set() and time.monotonic() - heard < HUNG_S:
            for message in consumer.consume(500, 0.2):
                if message.error():
                    self.readings.errors.append(str(message.error()))
                    continue
                heard = time.monotonic()
                place = (message.topic(), message.partition())
                self.readings.saw(place, message.offset())
                done[place] = message.offset() + 1
            if done and not is_committing:
                is_committing = True
                consumer.commit(
                    offsets=[confluent.TopicPartition(t, p, o) for (t, p), o in done.items()], asynchronous=True
                )
                done.clear()


class AiokafkaMember(ConfluentMember):
    def work(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            *self.topics, bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False,
            auto_offset_reset="earliest",
        )  # fmt: skip
        await consumer.start()
        try:
            while not self.stopping.is_set():
                try:
                    got = await consumer.getmany(timeout_ms=200)
                    for at, records in got.items():
                        for record in records:
                            self.readings.saw((at.topic, at.partition), record.offset)
                    if got:
                        done = {at: records[-1].offset + 1 for at, records in got.items() if records}
                        await consumer.commit(done)
                        for at, offset in done.items():
                            self.readings.committed((at.topic, at.partition), offset)
                except aiokafka.errors.KafkaError as error:
                    self.readings.errors.append(repr(error))
        finally:
            await consumer.stop()


class JavaMember(_Java, ConfluentMember):
    """By the newer protocol of groups (KIP-848)."""

    def work(self) -> None:
        self.java(["read", self.bootstrap, self.group, spell(self.topics)])

    def line(self, words: list[str]) -> None:
        if words[0] == "read":
            self.readings.saw((words[1], int(words[2])), int(words[3]))
        elif words[0] == "committed":
            self.readings.committed((words[1], int(words[2])), int(words[3]))
        elif words[0] == "error":
            self.readings.errors.append(" ".join(words[1:]))


class Auditor(Actor):
    """Asks again and again what a group has committed: what was acknowledged before it asked must be in the answer."""

    def __init__(self, bootstrap: str, group: str, topics: dict[str, int], readings: Readings) -> None:
        super().__init__(f"auditor of {group}")
        self.bootstrap, self.group, self.readings = bootstrap, group, readings
        self.places = [(t, p) for t, count in topics.items() for p in range(count)]
        self.anomalies: list[str] = []
        self.looks = 0
        self.last: dict[Place, int] = {}

    def work(self) -> None:
        consumer = confluent.Consumer(
            {
                **STEADY,
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self.abandoned.append(consumer)
        wanted = [confluent.TopicPartition(t, p) for t, p in self.places]
        taken = 0
        floor: dict[Place, int] = {}
        while not self.stopping.is_set():
            known = len(self.readings.commits)
            for commit in self.readings.commits[taken:known]:
                floor[commit.place] = max(floor.get(commit.place, 0), commit.offset)
            taken = known
            try:
                answer = consumer.committed(wanted, timeout=5)
            except confluent.KafkaException:
                continue
            self.looks += 1
            for at in answer:
                if at.error is not None:
                    continue
                place, offset = (at.topic, at.partition), max(at.offset, 0)
                if offset < floor.get(place, 0):
                    self.anomalies.append(f"{self.group}: {place} is at {offset} after {floor[place]} was committed")
                floor[place] = max(floor.get(place, 0), offset)
                self.last[place] = offset
            self.stopping.wait(0.1)
