"""What texts about Kafka tell of loss and repetition, shown: each promise kept, and each danger real when asked for."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.client.errors import ConnectionLost
from headrace.client.net.connection import Connection, Sink
from headrace.protocol.api import ApiKey
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, read, read_all, run


def losing_answers(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """The first answers to Produce are lost after the broker has written what was asked."""
    left = [times]
    post_now = Connection.post_now

    class Loses:
        """Hears the answer, and tells that there is none."""

        def __init__(self, sink: Sink) -> None:
            self._sink = sink
            self.done = sink.done
            self.set_exception = sink.set_exception

        def set_result(self, message: Any, /) -> None:
            self._sink.set_exception(ConnectionLost("the answer was lost"))

    def post_and_lose(self: Connection, key: ApiKey, body: Any, sink: Sink, **options: Any) -> None:
        if key is ApiKey.PRODUCE and left[0]:
            left[0] -= 1
            sink = Loses(sink)
        post_now(self, key, body, sink, **options)

    monkeypatch.setattr(Connection, "post_now", post_and_lose)
    return lambda: left[0]


def test_retry_without_idempotence_doubles(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topic: str) -> None:
        left = losing_answers(monkeypatch, 1)
        async with headrace.Producer(broker.bootstrap, idempotence=False) as producer:
            await producer.send(topic, b"order 1")
        assert left() == 0
        assert [record.value for record in await read_all(broker, topic)] == [b"order 1", b"order 1"]

    run(broker, work)


def test_retry_with_idempotence_does_not(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topic: str) -> None:
        left = losing_answers(monkeypatch, 3)
        async with headrace.Producer(broker.bootstrap, batch_bytes=100) as producer:
            where = await producer.send_batch(topic, [b"order %d" % n for n in range(40)])
        assert left() == 0 and [one.offset for one in where if one.offset >= 0] == sorted(
            one.offset for one in where if one.offset >= 0
        )
        assert [record.value for record in await read_all(broker, topic)] == [b"order %d" % n for n in range(40)]

    run(broker, work)


def test_at_most_once_may_lose_and_never_doubles(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(topic: str) -> None:
        losing_answers(monkeypatch, 1)
        async with headrace.Producer(broker.bootstrap, acks=1, retries=0) as producer:
            with pytest.raises(headrace.ConnectionLost):
                await producer.send(topic, b"order 1")
            await producer.send(topic, b"order 2")
        assert [record.value for record in await read_all(broker, topic)] == [b"order 1", b"order 2"], "and not twice"
        async with headrace.Producer(broker.bootstrap, acks=0) as producer:
            assert (await producer.send(topic, b"order 3")).offset == -1
            while len(await read_all(broker, topic)) < 3:
                await asyncio.sleep(0.05)

    run(broker, work)


def worker(broker: TestBroker, topic: str, **options: Any) -> headrace.Consumer:
    options = QUICK | {"auto_commit": False} | options
    return headrace.Consumer(topic, bootstrap=broker.bootstrap, group=f"g-{topic}", **options)


class Crash(Exception):
    """The process ends in mid-work."""


def test_commit_before_processing_loses(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_batch(topic, [b"%d" % n for n in range(5)])
        done: list[bytes] = []
        with pytest.raises(Crash):
            async with worker(broker, topic) as consumer:
                async for record in consumer:
                    await consumer.commit()
                    if record.offset == 2:
                        raise Crash
                    done.append(record.value)
        async with worker(broker, topic) as consumer:
            done += [record.value for record in await read(consumer, 2)]
        assert done == [b"0", b"1", b"3", b"4"], "2 was committed and never processed"

    run(broker, work)


def test_crash_before_commit_repeats(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_batch(topic, [b"%d" % n for n in range(5)])
        done: list[bytes] = []
        with pytest.raises(Crash):
            async with worker(broker, topic) as consumer:
                async for record in consumer:
                    done.append(record.value)
                    if record.offset == 2:
                        raise Crash
                    await consumer.commit()
        async with worker(broker, topic) as consumer:
            done += [record.value for record in await read(consumer, 3)]
        assert done == [b"0", b"1", b"2", b"2", b"3", b"4"], "2 was processed and not committed"

    run(broker, work)


def test_20_committed_and_a_crash_resumes_at_the_last_commit(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_batch(topic, [b"%d" % n for n in range(30)])
        with pytest.raises(Crash):
            async with worker(broker, topic) as consumer:
                async for record in consumer:
                    if record.offset == 19:
                        await consumer.commit()
                    if record.offset == 25:
                        raise Crash
        async with worker(broker, topic) as consumer:
            assert [record.offset for record in await read(consumer, 10)] == list(range(20, 30))

    run(broker, work)


def test_auto_commit_takes_only_what_was_passed(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_batch(topic, [b"%d" % n for n in range(10)])
        with pytest.raises(Crash):
            async with worker(broker, topic, auto_commit=True) as consumer:
                async for record in consumer:
                    if record.offset == 4:
                        raise Crash
        async with worker(broker, topic, auto_commit=True) as consumer:
            async for record in consumer:
                assert record.offset == 4, "it was handed out, and its work has not come to an end"
                break
        async with worker(broker, topic) as consumer:
            assert (await read(consumer, 1))[0].offset == 5, "the end of the block says that it has"

    run(broker, work)


def test_a_broker_killed_under_a_producer_loses_and_doubles_nothing(tmp_path: Any) -> None:
    async def work(broker: TestBroker) -> None:
        async with headrace.Admin(broker.bootstrap) as admin:
            await admin.create_topic("kept", 3, 1)
        async with headrace.Producer(broker.bootstrap, batch_bytes=2_000) as producer:

            async def feed(start: int) -> None:
                for number in range(start, start + 1_500):
                    delivery = await producer.send_soon("kept", b"%d" % number, key=b"%d" % (number % 11))
                    if number % 300 == 0:
                        await delivery

            feeding = asyncio.ensure_future(feed(0))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await feeding
            await feed(1_500)
            await producer.flush()
        found = await read_all(broker, "kept")
        by_key: dict[bytes, list[int]] = {}
        for record in found:
            by_key.setdefault(record.key, []).append(int(record.value))
        assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(3_000))
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), "in order within each key"

    with TestBroker(data=tmp_path) as broker:
        asyncio.run(work(broker))
