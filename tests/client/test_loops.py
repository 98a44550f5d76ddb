"""Loops over a consumer that are left, or that go elsewhere in their middle: nothing is passed over, nothing is handed
out that is not wanted any more."""

import asyncio
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, run

COUNT = 10


async def fill(broker: TestBroker, topic: str) -> None:
    async with headrace.Producer(broker.bootstrap, value_serializer="json") as producer:
        await producer.send_batch(topic, [{"n": n} for n in range(COUNT)])


def reading(broker: TestBroker, topic: str, **options: Any) -> headrace.Consumer:
    options = QUICK | {"value_deserializer": "json", "group": f"g-{topic}"} | options
    return headrace.Consumer(topic, bootstrap=broker.bootstrap, **options)


@pytest.mark.parametrize("way", ["records", "batches", "poll", "tables"])
def test_who_leaves_a_loop_and_reads_on_misses_nothing(broker: TestBroker, way: str) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic)
        # Loading what decodes tables holds up the loop for longer than these brokers' sessions last: without a group.
        options = {"group": None} if way == "tables" else {"auto_commit": False}
        async with reading(broker, topic, **options) as consumer:
            found: list[Any] = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 3:
                    break
            if way == "records":
                async for record in consumer:
                    found.append(record.value)
                    if len(found) == COUNT:
                        break
            elif way == "batches":
                async for batch in consumer.batches():
                    found += [record.value for record in batch]
                    break
            elif way == "tables":
                async for table in consumer.tables(["offset"]):
                    found += [{"n": offset} for offset in table["offset"].to_pylist()]
                    break
            else:
                found += [record.value for record in await consumer.poll(5)]
            assert found == [{"n": n} for n in range(COUNT)]
            if way != "tables":
                await consumer.commit()
                assert await consumer.committed() == {(topic, 0): COUNT}

    run(broker, work)


def test_what_was_given_back_is_deserialized_once(broker: TestBroker) -> None:
    """As when the group has news in the middle of a batch."""

    async def work(topic: str) -> None:
        await fill(broker, topic)
        async with reading(broker, topic) as consumer:
            found: list[Any] = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == COUNT:
                    break
                assert consumer._core is not None
                consumer._core.note_news()
            assert found == [{"n": n} for n in range(COUNT)]

    run(broker, work)


def test_a_seek_in_a_loop_decides_what_comes_next(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic)
        async with reading(broker, topic) as consumer:
            found: list[int] = []
            async for record in consumer:
                found.append(record.offset)
                if found == [0, 1, 2]:
                    consumer.seek((topic, 0), 7)
                if record.offset == COUNT - 1:
                    break
            assert found == [0, 1, 2, 7, 8, 9]

    run(broker, work)


def test_a_pause_in_a_loop_holds_at_once(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic)
        async with reading(broker, topic) as consumer:
            found: list[int] = []

            async def read() -> None:
                async for record in consumer:
                    found.append(record.offset)
                    if len(found) == 3:
                        consumer.pause()
                    if len(found) == COUNT:
                        return

            task = asyncio.ensure_future(read())
            while not consumer._core or not consumer.assignment() or not consumer.paused():
                await asyncio.sleep(0.01)
            assert found == [0, 1, 2] and not task.done()
            consumer.resume()
            await task
            assert found == list(range(COUNT))

    run(broker, work)


def test_without_await_a_loop_that_is_left_goes_on_where_it_was(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic)

        def read() -> list[int]:
            options: dict[str, Any] = QUICK | {"value_deserializer": "json"}
            found: list[int] = []
            with headrace.sync.Consumer(topic, bootstrap=broker.bootstrap, **options) as consumer:
                for wanted in (2, 5, COUNT):
                    for record in consumer:
                        found.append(record.value["n"])
                        if len(found) == wanted:
                            break
            return found

        assert await asyncio.to_thread(read) == list(range(COUNT))

    run(broker, work)
