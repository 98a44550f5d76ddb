"""One member of a group: reads, writes down what it has processed, commits. Run as `python -m tests.groups.member`.

Every line is one write: `r partition offset` once a record is processed, `c partition offset` once a commit is
acknowledged, so that a kill -9 between any two of them leaves the truth behind.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from tests.librdkafka import STEADY

STOP = False
SESSION_MS = 4_000
HEARTBEAT_MS = 300
BATCH = 25


def stop(*_: object) -> None:
    global STOP
    STOP = True


class Book:
    """What happened, in order."""

    def __init__(self, path: str, crash_after: int) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._crash_after = crash_after
        self._left = crash_after

    def say(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def processed(self, partition: int, offset: int) -> None:
        self.say("r", partition, offset)

    def committed(self, offsets: dict[int, int]) -> None:
        for partition, offset in sorted(offsets.items()):
            self.say("c", partition, offset)

    def maybe_crash(self) -> None:
        """Die between the two steps, with the second never done."""
        if self._crash_after:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def ends_of(records: list[tuple[int, int]]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for partition, offset in records:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def run_confluent(options: dict[str, Any], book: Book) -> None:
    import confluent_kafka as confluent

    config: dict[str, Any] = {
        **STEADY, "bootstrap.servers": options["bootstrap"], "group.id": options["group"],
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 50,
        "reconnect.backoff.max.ms": 200, "log_level": 0, "retry.backoff.ms": 50,
        "topic.metadata.refresh.interval.ms": 1000,
    }  # fmt: skip
    if options["protocol"] == "consumer":
        config["group.protocol"] = "consumer"
    else:
        config |= {
            "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "cooperative-sticky" if options["protocol"] == "cooperative" else "range",
        }  # fmt: skip
    if options.get("instance"):
        config["group.instance.id"] = options["instance"]
    consumer = confluent.Consumer(config)
    owed: dict[int, int] = {}

    def forget(_: Any, partitions: list[Any]) -> None:
        for one in partitions:
            owed.pop(one.partition, None)

    topic = options["topic"]
    consumer.subscribe([topic], on_revoke=forget, on_lost=forget)
    while not STOP:
        messages = [m for m in consumer.consume(BATCH, 0.1) if m.error() is None]
        records = [(m.partition(), m.offset()) for m in messages]
        if not records and not owed:
            continue

        def process(records: list[tuple[int, int]] = records) -> None:
            for partition, offset in records:
                book.processed(partition, offset)

        def commit(records: list[tuple[int, int]] = records) -> None:
            # 1. The last records are processed. 2. Their commit meets a rebalance and is refused. 3. A cooperative
            # member keeps the partition and reads on, so nobody would ever commit them: it has to be repeated.
            owed.update(ends_of(records))
            try:
                consumer.commit(
                    offsets=[confluent.TopicPartition(topic, p, o) for p, o in owed.items()], asynchronous=False
                )
                book.committed(owed)
                owed.clear()
            except confluent.KafkaException as error:
                book.say("e", error.args[0].name())

        step(options, book, process, commit)
    consumer.close()


def run_kafka_python(options: dict[str, Any], book: Book) -> None:
    import kafka
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata, TopicPartition

    consumer = kafka.KafkaConsumer(
        options["topic"], bootstrap_servers=options["bootstrap"], group_id=options["group"],
        auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS, max_poll_records=BATCH, fetch_max_wait_ms=50, metadata_max_age_ms=1000,
    )  # fmt: skip
    while not STOP:
        found = consumer.poll(timeout_ms=100)
        records = [(tp.partition, r.offset) for tp, rows in found.items() for r in rows]
        if not records:
            continue

        def process(records: list[tuple[int, int]] = records) -> None:
            for partition, offset in records:
                book.processed(partition, offset)

        def commit(records: list[tuple[int, int]] = records) -> None:
            ends = ends_of(records)
            try:
                consumer.commit(
                    {TopicPartition(options["topic"], p): OffsetAndMetadata(o, "", -1) for p, o in ends.items()}
                )
                book.committed(ends)
            except KafkaError as error:
                book.say("e", type(error).__name__)

        step(options, book, process, commit)
    consumer.close()


def step(options: dict[str, Any], book: Book, process: Any, commit: Any) -> None:
    """The order of the two decides what a crash between them costs."""
    first, second = (commit, process) if options.get("order") == "commit-first" else (process, commit)
    first()
    book.maybe_crash()
    second()


async def run_aiokafka(options: dict[str, Any], book: Book) -> None:
    import aiokafka
    from aiokafka.errors import KafkaError

    consumer = aiokafka.AIOKafkaConsumer(
        options["topic"], bootstrap_servers=options["bootstrap"], group_id=options["group"],
        auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS, fetch_max_wait_ms=50, retry_backoff_ms=50, metadata_max_age_ms=1000,
    )  # fmt: skip
    await consumer.start()
    try:
        while not STOP:
            found = await consumer.getmany(timeout_ms=100, max_records=BATCH)
            records = [(tp.partition, r.offset) for tp, rows in found.items() for r in rows]
            if not records:
                continue
            for partition, offset in records:
                book.processed(partition, offset)
            ends = ends_of(records)
            try:
                await consumer.commit({aiokafka.TopicPartition(options["topic"], p): o for p, o in ends.items()})
                book.committed(ends)
            except KafkaError as error:
                book.say("e", type(error).__name__)
    finally:
        await consumer.stop()


def main() -> None:
    options = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, stop)
    book = Book(options["out"], options.get("crash_after", 0))
    book.say("s")
    if options["library"] == "confluent":
        run_confluent(options, book)
    elif options["library"] == "kafka-python":
        run_kafka_python(options, book)
    else:
        asyncio.run(run_aiokafka(options, book))


if __name__ == "__main__":
    main()
