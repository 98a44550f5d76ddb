"""Disks that fill up, refuse and lie: no acknowledged record lost, no half batch served, the rest of the broker goes
on."""

import asyncio
import errno

import pytest

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.disk import CrashMode
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.harness import BOOTSTRAP, BROKER, Result, clients, small_segments, started, verdict

OPTIONS = Options(partitions=2, pause_s_max=0.01, retry_timeout_s=2.0)


def test_full_disk_refuses_clearly_and_recovers_when_space_returns() -> None:
    async def main(world: World) -> tuple[Result, set[Err]]:
        node, workload = await started(world, OPTIONS, small_segments(world.dice("s")), {})
        refused: set[Err] = set()
        async with clients(workload, 2):
            await asyncio.sleep(1)
            node.disk.capacity_bytes = node.disk.used_bytes() + 500
            await asyncio.sleep(3)
            refused = await _refusals(workload)
            before = workload.acknowledged
            node.disk.capacity_bytes = None
            await asyncio.sleep(5)
            assert workload.acknowledged > before + 10, "writes did not come back with the space"
        assert node.running
        node.crash(CrashMode.RANDOM)
        await node.start()
        return await verdict(workload, []), refused

    for seed in range(3):
        with World(seed) as world:
            result, refused = world.run(main(world))
        result.assert_good(seed)
        assert refused <= {Err.KAFKA_STORAGE_ERROR}, refused


async def _refusals(workload: Workload) -> set[Err]:
    """What a producer is told while the disk is full."""
    seen: set[Err] = set()
    big = build_batch([Record(0, workload.clock.wall_ms(), None, b"x" * 5_000)])
    async with Cluster(BOOTSTRAP, retry_timeout_s=0.0) as cluster:
        for partition in range(workload.options.partitions):
            with pytest.raises(RequestFailed) as caught:
                await raw.produce(cluster, workload.options.topic, partition, big)
            seen.add(caught.value.error)
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_failed_fsync_is_never_taken_for_success(seed: int) -> None:
    """The kernel drops the dirty pages and says nothing more. What was not synced by then must not be acknowledged."""

    async def main(world: World) -> Result:
        dice = world.dice("scenario")
        node, workload = await started(world, OPTIONS, small_segments(dice), {})
        async with clients(workload, 3):
            await asyncio.sleep(dice.random())
            node.disk.fail("sync", errno.EIO, path="*/t-*.log", skip=dice.randrange(20))
            # Its only log dir is gone: nothing is left to serve.
            await asyncio.wait_for(node.died(), 30)
            node.disk.crash(dice, CrashMode.LOSE)
            await node.start()
            before = workload.acknowledged
            await asyncio.sleep(5)
            assert workload.acknowledged > before
        return await verdict(workload, [])

    with World(seed) as world:
        result = world.run(main(world))
    result.assert_good(seed)
    assert result.did["acknowledged"] > 0


def test_one_of_two_disks_fails_and_the_other_serves_on() -> None:
    async def main(world: World) -> Result:
        node = world.node(BROKER)
        await node.start(broker({"log.dirs": f"{DATA}/one,{DATA}/two", "metadata.log.dir": f"{DATA}/one"}))
        options = Options(partitions=4, pause_s_max=0.01, retry_timeout_s=1.0)
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic(options.topic, options.partitions, 1)
        workload = Workload(BOOTSTRAP, world.dice("workload"), SimClock(world.loop), options)
        async with clients(workload, 3):
            await asyncio.sleep(1)
            node.disk.fail("append", errno.EIO, path=f"{DATA}/two/*", times=None)
            node.disk.fail("sync", errno.EIO, path=f"{DATA}/two/*", times=None)
            await asyncio.sleep(3)
            assert node.running
            served = await _partitions_that_accept(workload)
            assert 0 < len(served) < options.partitions
        node.disk.faults.clear()
        await node.stop()
        await node.start()
        return await verdict(workload, [])

    with World(3) as world:
        world.run(main(world)).assert_good(3)


def test_an_error_that_no_disk_gives_stops_one_partition_alone() -> None:
    """EINVAL is somebody's mistake about a file, and the other partitions of the same disk have none in it."""

    async def main(world: World) -> Result:
        node, workload = await started(world, OPTIONS, {}, {})
        async with clients(workload, 2):
            await asyncio.sleep(1)
            node.disk.fail("append", errno.EINVAL, path="*/t-0/*.log", times=None)
            await asyncio.sleep(3)
            assert node.running
            assert await _partitions_that_accept(workload) == [1]
        node.disk.faults.clear()
        await node.stop()
        await node.start()
        return await verdict(workload, [])

    with World(5) as world:
        world.run(main(world)).assert_good(5)


async def _partitions_that_accept(workload: Workload) -> list[int]:
    accepted = []
    async with Cluster(BOOTSTRAP, retry_timeout_s=0.0) as cluster:
        for partition in range(workload.options.partitions):
            # No value: the checkers know only what the workload itself has sent.
            batch = build_batch([Record(0, workload.clock.wall_ms(), None, None)])
            try:
                await raw.produce(cluster, workload.options.topic, partition, batch)
            except ClientError:
                continue
            accepted.append(partition)
    return accepted


def test_unreadable_partition_says_so_and_the_others_are_read() -> None:
    async def main(world: World) -> None:
        node, workload = await started(world, OPTIONS, {}, {})
        async with clients(workload, 2):
            await asyncio.sleep(1)
        await node.stop()
        await node.start()
        node.disk.fail("read", errno.EIO, path="*/t-0/*.log", times=None)
        async with Cluster(BOOTSTRAP, retry_timeout_s=0.0) as cluster:
            with pytest.raises(RequestFailed) as caught:
                await raw.fetch(cluster, OPTIONS.topic, 0, 0)
            assert caught.value.error is Err.KAFKA_STORAGE_ERROR
            assert (await raw.fetch(cluster, OPTIONS.topic, 1, 0)).records
        node.disk.faults.clear()
        await node.stop()
        await node.start()
        (await verdict(workload, [])).assert_good(4)

    with World(4) as world:
        world.run(main(world))
