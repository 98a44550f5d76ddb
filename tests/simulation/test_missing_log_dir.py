"""A start without one of the log dirs: what lies there is offline, and never begun anew."""

import errno

import pytest

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.world import Node, World
from tests.simulation.harness import BOOTSTRAP, BROKER

PARTITIONS = 4
BATCH = build_batch([Record(0, 1000, None, b"v")])


async def _write_each(expected: int | None) -> dict[int, int]:
    """Base offsets by partition, of those that took a record."""
    found = {}
    async with Cluster(BOOTSTRAP, retry_timeout_s=0.0) as cluster:
        for partition in range(PARTITIONS):
            try:
                found[partition] = (await raw.produce(cluster, "t", partition, BATCH)).base_offset
            except ClientError:
                continue
    assert expected is None or set(found.values()) == {expected}, found
    return found


async def _prepared(world: World) -> Node:
    node = world.node(BROKER)
    await node.start(broker({"log.dirs": f"{DATA}/one,{DATA}/two", "metadata.log.dir": f"{DATA}/one"}))
    async with Admin(BOOTSTRAP) as admin:
        await admin.create_topic("t", PARTITIONS, 1)
    for offset in range(3):
        assert len(await _write_each(offset)) == PARTITIONS
    return node


@pytest.mark.parametrize("clean", [True, False])
def test_a_disk_that_is_not_mounted(clean: bool) -> None:
    async def main(world: World) -> None:
        node = await _prepared(world)
        if clean:
            await node.stop()
        else:
            node.kill()
        node.disk.rename(f"{DATA}/two", f"{DATA}/away")
        await node.start()
        assert 0 < len(await _write_each(3)) < PARTITIONS
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("new", 2, 1)
        await node.stop()
        node.disk.remove_tree(f"{DATA}/two")
        node.disk.rename(f"{DATA}/away", f"{DATA}/two")
        await node.start()
        assert sorted((await _write_each(None)).values()) == [3, 3, 4, 4]

    with World(1) as world:
        world.run(main(world))


def test_a_disk_that_cannot_be_read_at_the_start() -> None:
    async def main(world: World) -> None:
        node = await _prepared(world)
        await node.stop()
        fault = node.disk.fail("list", errno.EIO, path=f"{DATA}/two", times=None)
        await node.start()
        assert 0 < len(await _write_each(3)) < PARTITIONS
        await node.stop()
        node.disk.faults.clear()
        del fault
        await node.start()
        assert sorted((await _write_each(None)).values()) == [3, 3, 4, 4]

    with World(1) as world:
        world.run(main(world))


def test_folders_moved_to_another_disk_are_served_from_there() -> None:
    async def main(world: World) -> None:
        node = await _prepared(world)
        await node.stop()
        for name in node.disk.list(f"{DATA}/two"):
            if name.startswith("t-"):
                node.disk.rename(f"{DATA}/two/{name}", f"{DATA}/one/{name}")
        await node.start()
        assert len(await _write_each(3)) == PARTITIONS

    with World(1) as world:
        world.run(main(world))
