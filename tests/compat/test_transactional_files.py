"""A folder with transactions that are committed, aborted and open, written by one broker and opened by the other: the
coordinator's log, markers and producers mean the same to both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.compat.same_folder import broker_on
from tests.compat.transactional import LIMIT_S
from tests.waiting import eventually

pytestmark = [
    pytest.mark.reference,
    pytest.mark.soak,
    pytest.mark.usefixtures("needs_apache"),
    pytest.mark.timeout(400),
]

TOPIC = "t"


def transactional(bootstrap: str, id: str) -> Producer:
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": id,
        "transaction.timeout.ms": 600_000,
        "log_level": 2,
    }
    producer = Producer(settings)
    producer.init_transactions(LIMIT_S)
    return producer


def send(producer: Producer, value: str) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, value)
    assert producer.flush(LIMIT_S) == 0


def read_committed(bootstrap: str) -> list[str]:
    """All that readers of committed records get now."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []
    while True:
        message = reader.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value().decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            reader.close()
            return found


def reads(bootstrap: str, *values: str) -> None:
    """Soon: a commit is answered before all partitions have been told."""
    eventually(lambda: read_committed(bootstrap) == list(values), f"readers get {values}")


@contextmanager
def running(kind: str, data: Path, end: str) -> Iterator[str]:
    broker = broker_on(kind, data)
    try:
        yield broker.start().bootstrap
    except BaseException:
        broker.kill9()
        raise
    broker.stop() if end == "stop" else broker.kill9()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize(("first", "second"), [("headrace", "apache"), ("apache", "headrace")])
def test_the_other_broker_goes_on_with_the_transactions(first: str, second: str, end: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(first, data, end) as bootstrap:
        settled = transactional(bootstrap, "settled")
        send(settled, "committed before")
        settled.commit_transaction(LIMIT_S)
        send(settled, "aborted before")
        settled.abort_transaction(LIMIT_S)
        send(transactional(bootstrap, "open"), "left open")
        send(settled, "committed behind it")
        settled.commit_transaction(LIMIT_S)
        reads(bootstrap, "committed before")
    with running(second, data, end) as bootstrap:
        reads(bootstrap, "committed before")
        heir = transactional(bootstrap, "open")  # ends what was left open
        send(heir, "committed by the heir")
        heir.commit_transaction(LIMIT_S)
        again = transactional(bootstrap, "settled")
        send(again, "aborted after")
        again.abort_transaction(LIMIT_S)
        expected = ("committed before", "committed behind it", "committed by the heir")
        reads(bootstrap, *expected)
    with running(first, data, end) as bootstrap:
        reads(bootstrap, *expected)
        last = transactional(bootstrap, "settled")
        send(last, "committed at last")
        last.commit_transaction(LIMIT_S)
        reads(bootstrap, *expected, "committed at last")
