"""Listeners with Apache Kafka as the broker."""

import asyncio
from collections.abc import Iterator

import pytest

from headrace.client.admin.admin import Admin
from headrace.client.api.consumer import Consumer
from headrace.client.api.types import Record
from headrace.listeners.app import App
from headrace.listeners.core.headers import failure_of
from headrace.listeners.core.retry import Retry
from headrace.listeners.handlers import Send
from tests.consumer.conftest import QUICK
from tests.listeners.support import check_order, committed, fill
from tests.reference.apache import ApacheKafka, Unavailable, java, libs
from tests.waiting import run, until

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    try:
        java()
        libs()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with ApacheKafka(tmp_path_factory.mktemp("apache"), properties=dict(QUICK)) as running:
        yield running


def test_order_dead_letters_and_exactly_once_are_the_same(kafka: ApacheKafka) -> None:
    seen: list[int] = []
    app = App("billing", bootstrap=kafka.bootstrap)

    @app.listener("orders", concurrency=4, exactly_once=True, retry=Retry(attempts=1), dead_letter="orders.dlq")
    async def bill(record: Record) -> Send:
        seen.append(int(record.value))
        if record.value == b"7":
            raise ValueError("no such table")
        return Send(topic="bills", value=record.value, key=record.key)

    async def test() -> None:
        await fill(kafka.bootstrap, "orders", 0, 300)
        async with Admin(kafka.bootstrap) as admin:
            await admin.create_topic("bills", partitions=1, replication_factor=1)
        async with app:
            await until(lambda: len(seen) >= 300, "all are handled")
        check_order(seen, 300)
        # Kafka answers a commit before it has written the markers by which its offsets count.
        while await committed(kafka.bootstrap, "orders") != 300:
            await asyncio.sleep(0.05)
        async with Consumer(
            "bills",
            "orders.dlq",
            bootstrap=kafka.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            found: list[Record] = []
            while len(found) < 300:
                found += await consumer.poll()
        (dead,) = [record for record in found if record.topic == "orders.dlq"]
        assert failure_of(dead.headers).message == "no such table" and dead.value == b"7"
        bills = [int(record.value) for record in found if record.topic == "bills"]
        assert sorted([*bills, 7]) == list(range(300))

    run(test(), 120)
