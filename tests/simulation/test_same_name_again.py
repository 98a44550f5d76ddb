"""A topic deleted and created again under its name: nothing that was noted about the first may be held against the
second."""

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.net.cluster import Cluster
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.brokers import broker
from headrace.testing.simulator.world import World
from tests.simulation.harness import BOOTSTRAP, BROKER


async def _produce(cluster: Cluster, count: int) -> list[int]:
    return [
        (await raw.produce(cluster, "t", 0, build_batch([Record(0, 1000, None, b"v")]))).base_offset
        for _ in range(count)
    ]


def test_deleted_records_of_the_old_topic_take_none_of_the_new_one() -> None:
    """The log start on disk is kept by name. Killed before the next checkpoint, the new log must not be cut by it."""

    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker())
        async with Admin(BOOTSTRAP) as admin, Cluster(BOOTSTRAP) as cluster:
            await admin.create_topic("t", 1, 1)
            await _produce(cluster, 10)
            await admin.delete_records("t", {0: 8})
            await admin.delete_topic("t")
            await admin.create_topic("t", 1, 1)
        async with Cluster(BOOTSTRAP) as cluster:
            assert await _produce(cluster, 5) == [0, 1, 2, 3, 4]
        node.kill()
        await node.start()
        async with Cluster(BOOTSTRAP) as cluster:
            assert await _produce(cluster, 1) == [5]
        async with Admin(BOOTSTRAP) as admin:
            found = await admin.list_offsets("t", {0: -2})
            assert found[0].offset == 0

    with World(1) as world:
        world.run(main(world))
