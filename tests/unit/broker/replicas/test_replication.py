"""Leaders and followers: what is copied, what is committed, and when."""

import asyncio
from typing import Any

import pytest

from headrace.broker.replicas.transactional import append_marker
from headrace.errors import Err
from headrace.records.control import Marker
from tests.unit.broker.replicated import TOPIC_ID, Brokers, run
from tests.unit.broker.sim import HeldSyncs, Sim, records


def test_followers_copy_byte_for_byte_and_acks_all_waits_for_them() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        for count in (1, 5, 100):
            assert await brokers.produce(1, count) == "NONE"
            assert brokers.partition(1).high_watermark == brokers.partition(1).log.end_offset
        await brokers.in_step([1, 2, 3])
        assert brokers.partition(2).log.end_offset == 106
        await brokers.until(
            lambda: brokers.ends() == dict.fromkeys([1, 2, 3], (106, 106)), "followers learn what is committed"
        )

    run(scenario)


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_many_partitions_over_two_leaders(durability: str) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], 20)
        for index in range(0, 20, 2):
            brokers.dictator.change(index, leader=2)
        for turn in range(3):
            done = await asyncio.gather(
                *(brokers.produce(2 - index % 2, 1 + index, index=index) for index in range(20))
            )
            assert set(done) == {"NONE"}, turn
        for index in range(20):
            await brokers.in_step([1, 2, 3], index)
            assert brokers.partition(3, index).log.end_offset == 3 * (1 + index)

    run(scenario, durability=durability)


def test_a_follower_that_cannot_be_reached_holds_acks_up_until_it_is_out_of_the_isr() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1) == "NONE"
        brokers.world.network.partition(["b3"], ["b1", "b2"])
        before_s = brokers.world.loop.time()
        assert await brokers.produce(1, timeout_ms=1000) == "REQUEST_TIMED_OUT"
        assert brokers.partition(1).high_watermark == 1, "it is not committed, so it is not shown"
        assert await brokers.produce(1, timeout_ms=60_000) == "NONE"
        took_s = brokers.world.loop.time() - before_s
        assert 9 < took_s < 16, "after replica.lag.time.max.ms, and half of it for the check"
        assert brokers.dictator.assigned().isr == (1, 2)
        brokers.world.network.heal()
        await brokers.until(lambda: set(brokers.dictator.assigned().isr) == {1, 2, 3}, "it comes back by itself", 60)
        await brokers.in_step([1, 2, 3])

    run(scenario)


def test_a_follower_that_comes_back_under_load_gets_in() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], isr=[1])
        brokers.world.network.partition(["b2"], ["b1"])
        done = False

        async def load() -> None:
            while not done:
                assert await brokers.produce(1, 3) == "NONE"

        tasks = [asyncio.create_task(load()) for _ in range(3)]
        await asyncio.sleep(2)
        brokers.world.network.heal()
        await brokers.until(lambda: brokers.dictator.assigned().isr == (1, 2), timeout_s=60)
        done = True
        await asyncio.gather(*tasks)
        await brokers.in_step([1, 2])

    run(scenario, 2)


def test_too_few_in_sync_is_refused_before_anything_is_written() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], isr=[1], min_insync_replicas="2")
        brokers.dictator.refuse = Err.INELIGIBLE_REPLICA
        assert await brokers.produce(1) == "NOT_ENOUGH_REPLICAS"
        assert brokers.partition(1).log.end_offset == 0
        assert await brokers.produce(1, acks=1) == "NONE"
        assert brokers.partition(1).high_watermark == 0, "one replica alone commits nothing"
        brokers.dictator.refuse = None
        await brokers.until(lambda: len(brokers.dictator.assigned().isr) == 3, "proposed again though nothing happens")
        assert await brokers.produce(1) == "NONE"
        assert brokers.partition(1).high_watermark == 2

    run(scenario)


def test_what_a_follower_has_not_synced_does_not_count() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        assert await brokers.produce(1) == "NONE"
        held = HeldSyncs(Sim(brokers.world, brokers.node(2), brokers.broker(2)))
        waiting = asyncio.create_task(brokers.produce(1, 4))
        await asyncio.sleep(1)
        assert brokers.partition(2).log.end_offset == 5 and brokers.partition(1).log.durable_end == 5
        assert brokers.partition(1).high_watermark == 1 and not waiting.done()
        held.let_go()
        assert await waiting == "NONE"

    run(scenario, 2)


def test_what_the_leader_has_not_synced_does_not_count_either() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        assert await brokers.produce(1) == "NONE"
        held = HeldSyncs(Sim(brokers.world, brokers.node(1), brokers.broker(1)))
        waiting = asyncio.create_task(brokers.produce(1, 4))
        await brokers.until(lambda: brokers.partition(2).log.durable_end == 5)
        await asyncio.sleep(0.1)
        assert brokers.partition(1).high_watermark == 1 and not waiting.done()
        held.let_go()
        assert await waiting == "NONE"

    run(scenario, 2)


def test_a_marker_is_synced_by_all_replicas_soon_where_records_are_not() -> None:
    """Whoever leads after a power cut must have it: nobody would write it again."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 4) == "NONE"
        await asyncio.sleep(5)
        logs = [brokers.partition(number).log for number in (1, 2, 3)]
        assert all(log.durable_end < 4 for log in logs), "records by themselves wait for the kernel"
        assert append_marker(brokers.partition(1), 7, 0, Marker(True, 0)) == 5
        await asyncio.sleep(0.5)
        assert [log.durable_end for log in logs] == [5, 5, 5]

    run(scenario, durability="replicated")


def test_who_waits_for_a_sync_that_is_no_longer_asked_for_waits_no_longer() -> None:
    """A topic's flush.messages=1 is taken back while a record waits for the disk, and nothing more is written."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1], flush_messages="1")
        assert await brokers.produce(1) == "NONE"
        held = HeldSyncs(Sim(brokers.world, brokers.node(1), brokers.broker(1)))
        waiting = asyncio.create_task(brokers.produce(1, 4, timeout_ms=60_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        brokers.dictator.configure(flush_messages="1000")
        held.let_go()
        async with asyncio.timeout(5):
            assert await waiting == "NONE"

    run(scenario, 1, durability="replicated")


def test_a_new_topic_is_copied_at_once_though_the_last_fetch_is_parked() -> None:
    """A Fetch waits up to half a second at the leader; what is new does not wait for it."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 2)
        assert await brokers.produce(1) == "NONE"
        await asyncio.sleep(0.3)  # its Fetch is parked now
        brokers.dictator.change(1, leader=2)
        brokers.dictator.change(1, leader=1)
        before_s = brokers.world.loop.time()
        assert await brokers.produce(1, index=1) == "NONE"
        assert brokers.world.loop.time() - before_s < 0.1

    run(scenario, 2, replica_fetch_wait_max_ms="5000")


@pytest.mark.parametrize("then", [0, 1])
def test_what_is_written_upon_an_answer_is_copied_at_once(then: int) -> None:
    """A follower's Fetch commits a record, and its producer's next one comes before that Fetch has begun to wait."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 2)
        assert await brokers.produce(1, index=1) == "NONE"
        wire = await brokers.wire(1)
        for _ in range(10):
            before_s = brokers.world.loop.time()
            for index in (0, then):
                row = {"index": index, "records": records()}
                topic = {"topic_id": TOPIC_ID, "partition_data": [row]}
                wire.send("Produce", 13, {"acks": -1, "timeout_ms": 30_000, "topic_data": [topic]})
                wire.send("Metadata", 12, {"topics": []})  # so that it waits for the answer to the first one
            for _ in range(4):
                await wire.receive()
            assert brokers.world.loop.time() - before_s < 1

    run(scenario, 2, replica_fetch_wait_max_ms="5000")


def test_idle_partitions_are_not_looked_at() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 300)
        assert await brokers.produce(1, index=7) == "NONE"
        await asyncio.sleep(2)
        followers = brokers.broker(1).router._hot[1].followers  # type: ignore[attr-defined]
        looked: list[int] = []
        inner = followers._look

        def look(session: Any, row: Any, *rest: Any) -> None:
            looked.append(row.index)
            inner(session, row, *rest)

        followers._look = look
        await asyncio.sleep(5)
        assert looked == []
        for _ in range(10):
            assert await brokers.produce(1, index=7) == "NONE"
        assert set(looked) == {7} and len(looked) < 60

    run(scenario, 2)
