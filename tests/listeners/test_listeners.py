"""Listeners against a broker: order per key, dead letters, members that come and go, processes that are killed."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client.api.consumer import Consumer
from headrace.client.api.types import Record
from headrace.listeners.app import App
from headrace.listeners.core.headers import failure_of
from headrace.listeners.core.retry import Retry
from headrace.listeners.idempotence import TopicStore
from headrace.testing.broker import TestBroker
from tests.consumer.conftest import QUICK
from tests.listeners.support import check_order, committed, fill
from tests.waiting import eventually, run, until


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(settings=QUICK) as running:
        yield running


def test_records_are_handled_in_order_per_key_and_committed(broker: TestBroker) -> None:
    seen: list[int] = []
    app = App("billing", bootstrap=broker.bootstrap)

    @app.listener("in-order", concurrency=4)
    def bill(record: Record) -> None:
        seen.append(int(record.value))

    async def test() -> None:
        await fill(broker.bootstrap, "in-order", 0, 500)
        async with app:
            await until(lambda: len(seen) >= 500, "all are handled")
            assert app.health().ok and len(app.health().listeners[0].partitions) == 3
        assert len(seen) == 500
        check_order(seen, 500)
        assert await committed(broker.bootstrap, "in-order") == 500

    run(test())


def test_dead_letters_keep_key_value_and_partition_and_say_why(broker: TestBroker) -> None:
    seen: list[str] = []
    app = App("billing", bootstrap=broker.bootstrap)

    @app.listener("letters", dead_letter="letters.dlq", retry=Retry(attempts=2, delay_s=0.01))
    def bill(number: int) -> None:
        if number == 7:
            raise ValueError("no such table")
        seen.append(str(number))

    async def test() -> None:
        await fill(broker.bootstrap, "letters", 0, 20)
        async with app:
            await until(lambda: len(seen) == 19, "all others are handled")
            async with Consumer("letters.dlq", bootstrap=broker.bootstrap, auto_offset_reset="earliest") as consumer:
                record = await anext(aiter(consumer))
        told = failure_of(record.headers)
        assert told.origin is not None and told.origin.topic == "letters"
        assert (record.key, record.value, record.partition) == (b"k2", b"7", told.origin.partition)
        assert (told.attempts, told.message) == (2, "no such table")
        assert await committed(broker.bootstrap, "letters") == 20

    run(test())


def test_partitions_move_to_a_second_member_with_nothing_lost_or_doubled(broker: TestBroker) -> None:
    """What runs is finished and committed before partitions are given up, so that nobody does it again."""
    seen: list[int] = []
    first, second = (App("billing", bootstrap=broker.bootstrap) for _ in range(2))
    for app in (first, second):

        @app.listener("moving", concurrency=2)
        async def bill(record: Record) -> None:
            await asyncio.sleep(0.002)
            seen.append(int(record.value))

    async def test() -> None:
        await fill(broker.bootstrap, "moving", 0, 300)
        async with first:
            await until(lambda: len(seen) > 20, "the first has begun")
            async with second:
                await until(lambda: second.health().listeners[0].partitions, "the second gets its share")
                await fill(broker.bootstrap, "moving", 300, 600)
                await until(lambda: len(set(seen)) >= 600, "all are handled")
                assert {len(one.health().listeners[0].partitions) for one in (first, second)} == {1, 2}
        assert await committed(broker.bootstrap, "moving") == 600

    run(test())
    assert len(seen) == 600, "something was handled twice although nobody failed"
    check_order(seen, 600)


def test_polling_and_heartbeats_go_on_while_a_handler_takes_long(broker: TestBroker) -> None:
    """Longer than the session and the limit between polls: the member keeps its partitions, and reads no more."""
    seen: list[int] = []
    app = App("patient", bootstrap=broker.bootstrap)
    long_s = 3.0

    @app.listener("slow", buffer_records=10, consumer={"max_poll_interval_ms": 1_000, "max_poll_records": 20})
    def bill(record: Record) -> None:
        if not seen:
            time.sleep(long_s)
        seen.append(int(record.value))

    async def test() -> None:
        await fill(broker.bootstrap, "slow", 0, 200, partitions=1)
        async with app:
            await until(lambda: app.listeners[0].counters.received >= 20, "it has begun")
            runner = app.listeners[0].runner
            assert runner is not None and isinstance(runner.consumer, Consumer)
            await until(lambda: isinstance(runner.consumer, Consumer) and runner.consumer.paused(), "it reads no more")
            assert seen == [] and runner.schedule.records <= 30
            await until(lambda: len(seen) == 200, "all are handled")
            assert runner.consumer.expulsions == 0 and app.listeners[0].counters.received == 200
        assert await committed(broker.bootstrap, "slow", "patient") == 200

    run(test())
    check_order(seen, 200)


def test_idempotent_processing_ignores_a_duplicate_that_another_member_has_handled(broker: TestBroker) -> None:
    """Ids in a compacted topic: the second member knows what the first one did, though it never saw the records."""
    paid: list[int] = []

    def member() -> App:
        app = App("paying", bootstrap=broker.bootstrap)

        @app.listener("payments")
        @app.idempotent(store=TopicStore("payments.handled"), id=lambda payment: payment)
        async def pay(payment: int) -> None:
            paid.append(payment)

        return app

    async def test() -> None:
        for begin in (0, 20):
            app = member()
            # Numbers 0 to 39, and after that 20 to 59: half of them for the second time.
            await fill(broker.bootstrap, "payments", begin, begin + 40)
            async with app:
                counters = app.listeners[0].counters
                await until(lambda: counters.processed == 40, "all are looked at")  # noqa: B023

    run(test())
    assert sorted(paid) == list(range(60))


def test_retry_topics_bring_records_back(broker: TestBroker) -> None:
    seen: list[int] = []
    app = App("retrying", bootstrap=broker.bootstrap)

    @app.listener("unsteady", retry=Retry(attempts=1, topics=("50ms",)), dead_letter="unsteady.dlq")
    async def bill(number: int) -> None:
        seen.append(number)
        if number == 3 and seen.count(3) == 1:
            raise ConnectionError("away")

    async def test() -> None:
        await fill(broker.bootstrap, "unsteady", 0, 10)
        async with app:
            await until(lambda: len(seen) == 11, "the failed one comes back")
        assert await committed(broker.bootstrap, "unsteady", "retrying") == 10
        assert await committed(broker.bootstrap, "unsteady.retrying.retry-50ms", "retrying") == 1

    run(test())
    assert sorted(seen) == sorted([*range(10), 3]) and app.listeners[0].counters.dead_letters == 0


def test_a_killed_broker_comes_back_and_nothing_is_lost() -> None:
    seen: list[int] = []

    async def test(broker: TestBroker) -> None:
        app = App("billing", bootstrap=broker.bootstrap)

        @app.listener("orders", concurrency=4, commit_interval_s=0.05)
        async def bill(record: Record) -> None:
            await asyncio.sleep(0.002)
            seen.append(int(record.value))

        await fill(broker.bootstrap, "orders", 0, 1_000)
        async with app:
            await until(lambda: len(seen) > 50, "it has begun")
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await fill(broker.bootstrap, "orders", 1_000, 1_200)
            await until(lambda: len(set(seen)) == 1_200, "all are handled")
            assert app.health().ok
        assert await committed(broker.bootstrap, "orders") == 1_200

    with TestBroker(settings=QUICK) as broker:
        run(test(broker))
    check_order(seen, 1_200)


def test_a_killed_listener_leaves_nothing_undone_and_keys_in_order(broker: TestBroker, tmp_path: Path) -> None:
    out = tmp_path / "handled"
    out.touch()
    count = 2_000
    run(fill(broker.bootstrap, "orders", 0, count))

    def handled() -> list[int]:
        return [int(line.split()[1]) for line in out.read_bytes().splitlines()]

    def start() -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "tests.listeners.worker", broker.bootstrap, str(out)]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL)

    process = start()
    try:
        eventually(lambda: len(handled()) > 200, "it has begun")
        process.kill()
        process.wait()
        before = len(handled())
        assert before < count
        process = start()
        eventually(lambda: set(handled()) == set(range(count)), "the rest is handled")
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    check_order(handled(), count)
    assert len(handled()) < count + before, "what was committed before the kill was handled again"
    assert run(committed(broker.bootstrap, "orders")) == count
