"""Records to and from a cluster by a client of another project."""

import time
from collections.abc import Iterable

import confluent_kafka as confluent

from tests.librdkafka import STEADY

PATIENCE_S = 60


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes], *, partition: int = -1, key: bytes | None = None
) -> list[tuple[int, int]]:
    """(partition, offset) of each record, all of them acknowledged by every in-sync replica."""
    told: list[tuple[int, int]] = []

    def note(error: object, message: confluent.Message) -> None:
        assert error is None, error
        told.append((message.partition(), message.offset()))

    producer = confluent.Producer({**STEADY, "bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value, key, partition, callback=note)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return told


def consumer(bootstrap: str, group: str, **settings: object) -> confluent.Consumer:
    return confluent.Consumer(
        {
            **STEADY, "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "log_level": 0, "enable.auto.commit": False, **settings,
        }
    )  # fmt: skip


def read(reader: confluent.Consumer, count: int) -> list[confluent.Message]:
    """The next `count` records."""
    found: list[confluent.Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
    return found
