"""Members as processes, a steady producer, and the verdict on what they did."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.broker.coordinators.coordinator import partition_for
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups, Lag
from headrace.client.net.cluster import Cluster
from headrace.client.raw import fetch
from headrace.coordinator.records import decode_offset_commit
from headrace.records.batch import iter_headers
from headrace.records.reader import read_records
from tests.librdkafka import STEADY

KINDS = {
    "confluent-eager": ("confluent", "eager"),
    "confluent-cooperative": ("confluent", "cooperative"),
    "confluent-consumer": ("confluent", "consumer"),
    "aiokafka": ("aiokafka", "eager"),
    "kafka-python": ("kafka-python", "eager"),
}
QUICK = {
    "node.id": 1,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 4000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 8,
}
"""Timeouts of tests rather than of production: a crash is noticed within seconds, but nobody who only waits for a core
of a busy machine is taken for dead, which could go on for ever."""
FINISH_S = 120.0


def wait_until(ready: Any, what: str, limit_s: float = FINISH_S) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.05)


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)


@contextmanager
def quiet_producer(bootstrap: str) -> Iterator[confluent.Producer]:
    # Idempotent: what a killed broker had written but not acknowledged must not come twice and shift the offsets.
    producer = confluent.Producer(
        {**STEADY, "bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0, "enable.idempotence": True}
    )
    yield producer
    assert producer.flush(30) == 0, "records left undelivered"


@dataclass
class Member:
    """One process, and the book it keeps."""

    options: dict[str, Any]
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.book = Path(self.options["out"])
        self.errors = self.book.with_suffix(".err")
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.groups.member", json.dumps(self.options)],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip

    def lines(self) -> list[list[str]]:
        if not self.book.exists():
            return []
        return [line.split() for line in self.book.read_text().splitlines()]

    def processed(self) -> list[tuple[int, int]]:
        return [(int(words[1]), int(words[2])) for words in self.lines() if words[0] == "r"]

    def wait_busy(self, records: int = 1) -> None:
        wait_until(
            lambda: len(self.processed()) >= records or self.process.poll() is not None, f"{self.book.name} at work"
        )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Crew:
    """The members of one group on one topic, and the records made for them."""

    def __init__(self, bootstrap: str, folder: Path, kind: str, topic: str, partitions: int = 6) -> None:
        self.bootstrap = bootstrap
        self.kind = kind
        self.topic = topic
        self.group = f"group-{topic}"
        self.partitions = partitions
        self.folder = folder
        self.members: list[Member] = []
        self._stop = threading.Event()
        self._feeder = threading.Thread(target=self._feed)
        self.sent = 0
        create_topic(bootstrap, topic, partitions)

    def join(self, **more: Any) -> Member:
        library, protocol = KINDS[self.kind]
        out = self.folder / f"{self.topic}-{len(self.members)}.book"
        member = Member(
            {"bootstrap": self.bootstrap, "group": self.group, "topic": self.topic, "out": str(out),
             "library": library, "protocol": protocol, **more}
        )  # fmt: skip
        self.members.append(member)
        return member

    def feed(self) -> None:
        self._feeder.start()

    def _feed(self) -> None:
        with quiet_producer(self.bootstrap) as producer:
            while not self._stop.wait(0.02):
                for _ in range(6):
                    producer.produce(self.topic, b"%d" % self.sent, partition=self.sent % self.partitions)
                    self.sent += 1
                producer.poll(0)

    def stop_feeding(self) -> None:
        self._stop.set()
        self._feeder.join()

    def committed(self) -> dict[int, int]:
        return {index: found.offset for (_, index), found in asyncio.run(committed(self.bootstrap, self.group)).items()}

    def ends(self) -> dict[int, int]:
        whole, rest = divmod(self.sent, self.partitions)
        return {index: whole + (index < rest) for index in range(self.partitions)}

    def finish(self) -> None:
        """Until everything is committed, then everybody leaves."""
        try:
            wait_until(lambda: self.committed() == self.ends(), f"{self.kind} committed all of {self.sent}")
        except AssertionError as late:
            books = {member.book.name: member.lines()[-8:] for member in self.members}
            group = asyncio.run(describe(self.bootstrap, self.group))
            raise AssertionError(f"{late}: committed {self.committed()} of {self.ends()}\n{group}\n{books}") from None
        for member in self.members:
            member.end()

    def skipped(self) -> set[tuple[int, int]]:
        wanted = {(index, offset) for index, end in self.ends().items() for offset in range(end)}
        return wanted - {record for member in self.members for record in member.processed()}

    def close(self) -> None:
        self._stop.set()
        for member in self.members:
            member.end(signal.SIGKILL)


async def describe(bootstrap: str, group: str) -> Any:
    async with Admin(bootstrap) as admin:
        return await Groups(admin).describe(group)


async def committed(bootstrap: str, group: str) -> Any:
    async with Admin(bootstrap) as admin:
        return await Groups(admin).committed(group)


async def lag(bootstrap: str, group: str) -> list[Lag]:
    async with Admin(bootstrap) as admin:
        return await Groups(admin).lag(group, now_ms=int(time.time() * 1000))


async def commits_in_log(bootstrap: str, group: str, topic: str, count: int) -> dict[int, list[int]]:
    """Every offset that was ever committed, by partition and in the order of the log."""
    found: dict[int, list[int]] = {}
    async with Cluster(bootstrap) as cluster:
        index = partition_for(group, count)
        offset = 0
        while True:
            got = await fetch(cluster, "__consumer_offsets", index, offset, max_wait_ms=0)
            batches = list(iter_headers(got.records))
            if not batches:
                return found
            for position, header in batches:
                for record in read_records(got.records, position, header):
                    if record.key is not None and record.key[:2] == b"\0\1":
                        name, of, partition, value = decode_offset_commit(record.key, record.value)
                        if (name, of) == (group, topic) and value is not None:
                            found.setdefault(partition, []).append(value.offset)
                offset = header.end_offset


RECORDS = 60


def consume(
    bootstrap: str, topic: str, group: str, protocol: str = "classic", count: int = RECORDS
) -> confluent.Consumer:
    """A consumer that has read and committed `count` records, still a member."""
    config = {
        **STEADY, "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "group.protocol": protocol, "log_level": 0,
    }  # fmt: skip
    consumer = confluent.Consumer(config)
    consumer.subscribe([topic])
    left = count
    while left:
        messages = consumer.consume(left, 30)
        assert messages, f"{count - left} of {count} records"
        left -= sum(message.error() is None for message in messages)
    consumer.commit(asynchronous=False)
    return consumer
