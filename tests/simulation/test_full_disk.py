"""Disks of a cluster that fill up: others lead, writes and commits go on, and whoever has room again takes its part
again."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.errors import RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import Result, clients, verdict
from tests.simulation.offsets_group import Group

TOPIC = "t"
PARTITIONS = 3
RESERVE_BYTES = 400_000
PAUSE_S_MAX = 4.0
"""Of writes: a second until the disk is looked at, and what clients need to find another leader."""

Leaders = dict[int, tuple[int, frozenset[int]]]


async def leaders(cluster: SimCluster, topic: str = TOPIC) -> Leaders:
    async with Cluster(cluster.bootstrap, retry_timeout_s=5.0, request_timeout_s=3.0) as client:
        found = await client.topic(topic)
    return {p.index: (p.leader, frozenset(p.isr)) for p in found.partitions.values()}


async def until(cluster: SimCluster, true: Callable[[Leaders], bool], what: str, topic: str = TOPIC) -> None:
    seen: Leaders = {}
    for _ in range(240):
        seen = await leaders(cluster, topic)
        if true(seen):
            return
        await asyncio.sleep(0.25)
    raise AssertionError(f"never: {what}; {seen}")


async def longest_pause(count: Callable[[], int], seconds: float) -> float:
    """How long a count stood still at most."""
    loop = asyncio.get_running_loop()
    longest, last, since = 0.0, count(), loop.time()
    end = since + seconds
    while loop.time() < end:
        await asyncio.sleep(0.01)
        if count() != last:
            last, since = count(), loop.time()
        longest = max(longest, loop.time() - since)
    return longest


def away_from(broker: int) -> Callable[[Leaders], bool]:
    return lambda seen: all(leader not in (broker, -1) and broker not in isr for leader, isr in seen.values())


def spread(seen: Leaders) -> bool:
    return {leader for leader, _ in seen.values()} == {1, 2, 3} and all(len(isr) == 3 for _, isr in seen.values())


@pytest.mark.parametrize("warned", [True, False])
def test_a_full_leader_hands_over_and_comes_back_by_itself(warned: bool) -> None:
    """Without a reserve it hears of it by a write that fails, and its groups move, too."""

    async def main(world: World) -> Result:
        settings = {
            "log.dir.reserve.bytes": str(RESERVE_BYTES if warned else 0),
            "leader.imbalance.check.interval.seconds": "5",
            "offsets.topic.num.partitions": "3",
        }
        cluster = SimCluster(world, settings=settings)
        await cluster.start()
        options = Options(partitions=PARTITIONS, pause_s_max=0.05)
        await create(cluster.bootstrap, TOPIC, PARTITIONS, 3, {"internal.segment.bytes": "40000"})
        await until(cluster, spread, "each leads one")
        workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
        group = Group(cluster.bootstrap, "g")
        tasks = [asyncio.create_task(group.commit()), asyncio.create_task(group.look())]
        async with clients(workload, 3):
            await asyncio.sleep(2)
            disk = cluster.node("n1").disk
            disk.capacity_bytes = disk.used_bytes() + (RESERVE_BYTES - 1 if warned else 100)
            writes, commits = await asyncio.gather(
                longest_pause(lambda: workload.acknowledged, 10), longest_pause(lambda: group.acknowledged, 10)
            )
            assert writes < PAUSE_S_MAX, writes
            assert commits < (1.0 if warned else PAUSE_S_MAX), commits
            seen = await leaders(cluster)
            assert away_from(1)(seen), seen
            groups = await leaders(cluster, OFFSETS_TOPIC)
            assert warned == all(1 in isr for _, isr in groups.values()), groups
            assert cluster.node("n1").running, "its only log dir is in service"
            disk.capacity_bytes = None
            await until(cluster, spread, "it leads what it is preferred for")
            before = workload.acknowledged
            await asyncio.sleep(1)
            assert workload.acknowledged > before
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        await cluster.calm(TOPIC)
        result = await verdict(workload, [])
        cluster.assert_replicas_equal(TOPIC, PARTITIONS)
        return result

    with World(5) as world:
        world.run(main(world)).assert_good(5)


def test_where_all_disks_are_full_records_are_refused_and_commits_go_on() -> None:
    async def main(world: World) -> Result:
        settings = {"log.dir.reserve.bytes": str(RESERVE_BYTES), "offsets.topic.num.partitions": "3"}
        cluster = SimCluster(world, settings=settings)
        await cluster.start()
        options = Options(partitions=PARTITIONS, pause_s_max=0.05)
        await create(cluster.bootstrap, TOPIC, PARTITIONS, 3, {})
        workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
        group = Group(cluster.bootstrap, "g")
        task = asyncio.create_task(group.commit())
        async with clients(workload, 2):
            await asyncio.sleep(2)
            for name in cluster.names:
                disk = cluster.node(name).disk
                disk.capacity_bytes = disk.used_bytes() + RESERVE_BYTES - 1
            await asyncio.sleep(3)
            before = workload.acknowledged
            assert await longest_pause(lambda: group.acknowledged, 5) < 1.0
            assert workload.acknowledged == before
            assert await _refusals(cluster, options) <= {Err.KAFKA_STORAGE_ERROR, Err.NOT_ENOUGH_REPLICAS}
            async with Admin(cluster.bootstrap) as admin:
                await admin.create_topic("small", 1, 3)  # metadata is written from the reserve, too
            for name in cluster.names:
                cluster.node(name).disk.capacity_bytes = None
            await until(cluster, lambda seen: all(len(isr) == 3 for _, isr in seen.values()), "all in sync")
            before = workload.acknowledged
            await asyncio.sleep(5)
            assert workload.acknowledged > before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await cluster.calm(TOPIC)
        result = await verdict(workload, [])
        cluster.assert_replicas_equal(TOPIC, PARTITIONS)
        return result

    with World(6) as world:
        world.run(main(world)).assert_good(6)


async def _refusals(cluster: SimCluster, options: Options) -> set[Err]:
    seen: set[Err] = set()
    async with Cluster(cluster.bootstrap, retry_timeout_s=0.0) as client:
        for partition in range(options.partitions):
            with pytest.raises(RequestFailed) as caught:
                await raw.produce(client, options.topic, partition, build_batch([Record(0, 0, None, None)]))
            seen.add(caught.value.error)
    return seen


def test_what_is_deleted_at_the_leader_makes_room_at_a_full_follower() -> None:
    """It copies nothing, and so would not hear of it."""

    async def main(world: World) -> None:
        settings = {"log.dir.reserve.bytes": str(RESERVE_BYTES), "offsets.topic.num.partitions": "1"}
        cluster = SimCluster(world, settings=settings)
        await cluster.start()
        await create(cluster.bootstrap, TOPIC, 1, 3, {"internal.segment.bytes": "200000"})
        async with Cluster(cluster.bootstrap) as client:
            for _ in range(20):
                await raw.produce(client, TOPIC, 0, build_batch([Record(0, 0, None, b"x" * 50_000)]))
        ((leader, _),) = (await leaders(cluster)).values()
        full = next(name for name in cluster.names if cluster.id_of(name) != leader)
        disk = cluster.node(full).disk
        disk.capacity_bytes = disk.used_bytes() + RESERVE_BYTES - 1
        await until(cluster, away_from(cluster.id_of(full)), "it has left")
        async with Admin(cluster.bootstrap) as admin:
            await admin.delete_records(TOPIC, {0: 18})
        await until(cluster, lambda seen: len(seen[0][1]) == 3, "it has room again")

    with World(7) as world:
        world.run(main(world))
