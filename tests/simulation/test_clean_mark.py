"""The mark of a clean stop spares the next start its checks, so it must never stand for logs that nobody has
checked."""

import asyncio
import errno

import pytest

from headrace.broker.runtime import StartupError
from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.net.cluster import Cluster
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.world import World
from tests.simulation.harness import BOOTSTRAP, BROKER

MARK = ".kafka_cleanshutdown"
BATCH = build_batch([Record(0, 1000, None, b"v")])


def test_a_start_that_fails_before_all_logs_are_open_leaves_no_mark() -> None:
    async def main(world: World) -> None:
        node = world.node(BROKER)
        dirs = f"{DATA}/one,{DATA}/two"
        await node.start(broker({"log.dirs": dirs, "metadata.log.dir": f"{DATA}/one"}))
        async with Admin(BOOTSTRAP) as admin, Cluster(BOOTSTRAP) as cluster:
            await admin.create_topic("t", 2, 1)
            for partition in range(2):
                for _ in range(5):
                    await raw.produce(cluster, "t", partition, BATCH)
                await admin.delete_records("t", {partition: 3})
        node.kill()
        disk = node.disk
        here = "one" if disk.exists(f"{DATA}/one/t-0") else "two"
        copy = f"{DATA}/{'two' if here == 'one' else 'one'}/t-0"
        disk.make_dirs(copy)
        with pytest.raises(StartupError, match="another log dir"):
            await node.start()
        disk.remove_tree(copy)
        for name in ("one", "two"):
            assert not disk.exists(f"{DATA}/{name}/{MARK}"), name
        await node.start()
        async with Admin(BOOTSTRAP) as admin:
            found = await admin.list_offsets("t", {0: -2, 1: -2})
            assert [offset.offset for offset in found.values()] == [3, 3], "deleted records came back"

    with World(1) as world:
        world.run(main(world))


def test_a_sync_that_fails_while_the_broker_stops_leaves_no_mark() -> None:
    """The error is told to the sync that was out. Closing the log syncs again, and that one succeeds."""

    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker())
        async with Admin(BOOTSTRAP) as admin, Cluster(BOOTSTRAP) as cluster:
            await admin.create_topic("t", 1, 1)
            await raw.produce(cluster, "t", 0, BATCH)
            node.disk.fail("sync", errno.EIO, path="*/t-0/*.log")
            await raw.produce(cluster, "t", 0, BATCH, acks=1)
            stopping = asyncio.create_task(node.stop())
            await asyncio.wait({stopping}, timeout=60)
        assert not node.disk.exists(f"{DATA}/{MARK}")

    for seed in range(5):
        with World(seed) as world:
            world.run(main(world))
