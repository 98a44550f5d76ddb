"""Time that passes when a test says so: sessions, transactions and retention end without anybody's waiting."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import confluent_kafka as confluent
import pytest

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.testing.broker import TestBroker
from tests.waiting import eventually, run

PATIENCE_S = 60.0
SESSION_MS = 4 * 60 * 1000


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    with TestBroker(settings=settings) as running:
        yield running


def members(broker: TestBroker, group: str) -> set[str]:
    async def ask() -> set[str]:
        async with Admin(broker.bootstrap) as admin:
            return {member.member_id for member in (await Groups(admin).describe(group)).members}

    return run(ask())


def test_the_session_of_a_silent_member_ends(broker: TestBroker) -> None:
    broker.produce("orders", b"a")
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "silent",
            "session.timeout.ms": SESSION_MS,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    assert len(consumer.consume(1, PATIENCE_S)) == 1
    before = members(broker, "silent")
    assert len(before) == 1
    broker.advance(SESSION_MS / 2000)
    assert members(broker, "silent") == before, "its time is not up"
    broker.advance(SESSION_MS / 1000)
    eventually(lambda: members(broker, "silent") != before, "the member is gone, although it may come again")
    consumer.close()


def test_a_transaction_that_takes_too_long_is_aborted(broker: TestBroker) -> None:
    producer = confluent.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "slow", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", b"never")
    assert producer.flush(PATIENCE_S) == 0
    assert broker.consume("orders", read_committed=True) == []
    broker.advance(timedelta(minutes=11))
    # An abort moves the last stable offset on: what comes behind it can be read.
    broker.produce("orders", b"later")
    assert [record.value for record in broker.consume("orders", 1, read_committed=True)] == [b"later"]
    with pytest.raises(confluent.KafkaException) as failed:
        producer.commit_transaction(PATIENCE_S)
    assert failed.value.args[0].fatal() or failed.value.args[0].txn_requires_abort()


def test_retention_deletes_what_has_grown_old(broker: TestBroker) -> None:
    broker.produce("old", b"a", b"b")
    broker.advance(timedelta(days=8))  # log.retention.hours is a week
    eventually(lambda: broker.consume("old") == [], "the records are deleted")


def test_the_clock_stays_ahead_after_a_restart(broker: TestBroker) -> None:
    async def append_time(admin: Admin) -> Any:
        return await admin.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})

    async def create() -> None:
        async with Admin(broker.bootstrap) as admin:
            await append_time(admin)

    run(create())
    broker.produce("stamped", b"today")
    broker.advance(timedelta(days=3))
    broker.produce("stamped", b"in three days")
    broker.kill()
    broker.start()
    broker.produce("stamped", b"still")
    today, later, still = (record.timestamp for record in broker.consume("stamped", 3))
    days = timedelta(days=3).total_seconds() * 1000
    assert later - today >= days and still - today >= days


def test_time_cannot_be_taken_back(broker: TestBroker) -> None:
    with pytest.raises(ValueError, match="cannot be taken back"):
        broker.advance(-1)
