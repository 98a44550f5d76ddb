"""Brokers of Apache Kafka and of Headrace in one cluster, under either's controller: each replicates from the other."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.mixed import HEADRACE, KAFKA, LIMIT_S, Mixed, create, running
from tests.librdkafka import STEADY

pytestmark = [pytest.mark.reference, pytest.mark.timeout(280)]


def produce(mixed: Mixed, topic: str, values: range) -> None:
    producer = Producer({**STEADY, "bootstrap.servers": mixed.bootstrap, "acks": "all", "enable.idempotence": True})
    failures: list[Any] = []
    for value in values:
        producer.produce(
            topic,
            str(value).encode(),
            partition=value % 2,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0 and not failures, failures


def consume(mixed: Mixed, topic: str, count: int, group: str) -> list[int]:
    consumer = Consumer(
        {
            **STEADY,
            "bootstrap.servers": mixed.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    try:
        consumer.subscribe([topic])
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b"-1"))
        consumer.commit(asynchronous=False)
        committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=60)
        assert sum(entry.offset for entry in committed) == count
    finally:
        consumer.close()
    return sorted(found)


@pytest.mark.parametrize(
    "apache_controls", [True, False], ids=["under Kafka's controller", "under Headrace's controller"]
)
def test_brokers_of_both_kinds_replicate_from_each_other(tmp_path: Path, apache_controls: bool) -> None:
    with running(tmp_path, apache_controls=apache_controls) as mixed:
        create(mixed, "t", f"{KAFKA}:{HEADRACE},{HEADRACE}:{KAFKA}")
        both = {KAFKA, HEADRACE}
        mixed.until(lambda: all(isr == both for _, _, isr in mixed.partitions("t").values()), "all in sync")
        assert [leader for leader, _, _ in mixed.partitions("t").values()] == [KAFKA, HEADRACE]
        produce(mixed, "t", range(2_000))
        assert consume(mixed, "t", 2_000, "g") == list(range(2_000))
        # Each in turn is lost: the other leads on, with everything.
        for lost, left in ((HEADRACE, KAFKA), (KAFKA, HEADRACE)):
            mixed.kill(lost)
            mixed.until(partial(mixed.is_led_by, "t", left), f"{left} leads")
            mixed.start(lost)
            mixed.until(lambda: all(isr == both for _, _, isr in mixed.partitions("t").values()), "in sync again")
        produce(mixed, "t", range(2_000, 3_000))
        assert consume(mixed, "t", 3_000, "h") == list(range(3_000))
