"""Sessions of many partitions: only those with news are looked at, and nothing is missed or left behind by that."""

import asyncio
from typing import Any

import pytest

from headrace.broker.handlers.fetch import session_news
from headrace.broker.handlers.fetch.consumers import FetchHandler
from headrace.broker.handlers.fetch.session_news import LARGE
from headrace.replication.fetch_sessions import Target
from tests.unit.broker.answers import errors, fetched, sizes
from tests.unit.broker.sim import Sim, Wire, fetch, produce, records, run

T = "t"
COUNT = 4 * LARGE


class Consumer:
    """A consumer with a session over all partitions of a topic."""

    def __init__(self, sim: Sim, wire: Wire, topic_id: bytes) -> None:
        self.sim, self.wire, self.topic_id = sim, wire, topic_id
        self.session_id = 0
        self.epoch = 0

    async def begin(self) -> None:
        """All is read and told after two requests: the second goes over everything once more."""
        first = await self.wire.ask("Fetch", 13, fetch(self.topic_id, *[0] * COUNT, session_epoch=0))
        self.session_id, self.epoch = first.session_id, 1
        assert fetched(await self.ask()) == []

    def request(self, offsets: dict[int, int] | None = None, **more: Any) -> dict[str, Any]:
        rows = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for index, offset in (offsets or {}).items()
        ]
        named = [{"topic_id": self.topic_id, "partitions": rows}] if rows else []
        asked = fetch(self.topic_id, session_id=self.session_id, session_epoch=self.epoch, **more)
        self.epoch += 1
        return {**asked, "topics": named}

    async def ask(self, offsets: dict[int, int] | None = None, **more: Any) -> Any:
        return await self.wire.ask("Fetch", 13, self.request(offsets, **more))


async def consumer_of(sim: Sim) -> tuple[Consumer, Wire]:
    topic_id = await sim.create(T, COUNT)
    consumer = Consumer(sim, await sim.wire(), topic_id)
    await consumer.begin()
    return consumer, await sim.wire()


def waiters(sim: Sim) -> int:
    return sum(len(partition.fetch_waiters) for partition in sim.broker.replicas)


async def fill(wire: Wire, data: bytes, first: int) -> None:
    answer = await wire.ask("Produce", 9, produce(T, data, first=first))
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_only_partitions_with_news_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    read = FetchHandler.read

    def counted(self: FetchHandler, targets: list[Target], *more: Any) -> Any:
        targets = list(targets)
        looked.append(len(targets))
        return read(self, targets, *more)

    async def scenario(sim: Sim) -> None:
        consumer, writer = await consumer_of(sim)
        monkeypatch.setattr(FetchHandler, "read", counted)
        consumer.wire.send("Fetch", 13, consumer.request(max_wait_ms=60_000))
        await sim.quiet()
        await fill(writer, records(), 70)
        answer = await consumer.wire.receive()
        assert [row.partition_index for row in fetched(answer)] == [70] and sizes(answer)[0] > 0
        assert looked == [0, 1], "nothing when it came, one when it was woken"
        assert fetched(await consumer.ask({70: 1})) == []

    run(scenario)


def test_what_came_before_the_request_is_given_at_once() -> None:
    async def scenario(sim: Sim) -> None:
        consumer, writer = await consumer_of(sim)
        for index in (3, 90):
            await fill(writer, records(), index)
        answer = await consumer.ask()
        assert sorted(row.partition_index for row in fetched(answer)) == [3, 90]
        again = await consumer.ask()
        assert sorted(row.partition_index for row in fetched(again)) == [3, 90], "not named: it did not take them"

    run(scenario)


def test_waits_for_min_bytes_of_all_partitions_together() -> None:
    async def scenario(sim: Sim) -> None:
        consumer, writer = await consumer_of(sim)
        data = records(size=100)
        consumer.wire.send("Fetch", 13, consumer.request(max_wait_ms=60_000, min_bytes=3 * len(data)))
        await sim.quiet()
        for index in (5, 6):
            await fill(writer, data, index)
            await asyncio.sleep(1)
            assert sim.parked()
        await fill(writer, data, 5)
        assert sum(sizes(await consumer.wire.receive())) == 3 * len(data)

    run(scenario)


def test_a_deleted_topic_and_a_moved_log_start_are_heard_of() -> None:
    async def scenario(sim: Sim) -> None:
        consumer, writer = await consumer_of(sim)
        await fill(writer, records(), 8)
        await consumer.ask()
        assert fetched(await consumer.ask({8: 1})) == []
        rows = [{"partition_index": 8, "offset": 1}]
        topics = [{"name": T, "partitions": rows}]
        await writer.ask("DeleteRecords", 2, {"topics": topics, "timeout_ms": 1000})
        told: list[int] = []
        for _ in range(COUNT // session_news.SWEEP + 2):
            await asyncio.sleep(session_news.SWEEP_MS / 1000)
            told += [row.log_start_offset for row in fetched(await consumer.ask())]
        assert told == [1], "no event tells of it: it is found by looking"
        consumer.wire.send("Fetch", 13, consumer.request(max_wait_ms=60_000))
        await sim.quiet()
        await sim.delete(T)
        assert "NONE" not in errors(await consumer.wire.receive())

    run(scenario)


def test_nothing_is_left_at_partitions_when_a_session_ends() -> None:
    async def scenario(sim: Sim) -> None:
        consumer, _ = await consumer_of(sim)
        assert waiters(sim) == COUNT
        gone = {"topic_id": consumer.topic_id, "partitions": [1, 2]}
        await consumer.wire.ask("Fetch", 13, {**consumer.request(), "forgotten_topics_data": [gone]})
        assert waiters(sim) == COUNT - 2
        await consumer.wire.ask(
            "Fetch", 13, {**fetch(consumer.topic_id, session_epoch=-1, session_id=consumer.session_id), "topics": []}
        )
        assert waiters(sim) == 0 and len(sim.broker.sessions) == 0

    run(scenario)


def test_one_that_reads_otherwise_is_told_everything_anew() -> None:
    async def scenario(sim: Sim) -> None:
        consumer, writer = await consumer_of(sim)
        await fill(writer, records(), 11)
        answer = await consumer.ask(isolation_level=1)
        assert [row.partition_index for row in fetched(answer)] == [11]
        assert waiters(sim) == COUNT - 1

    run(scenario)
