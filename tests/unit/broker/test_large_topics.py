"""Topics of thousands of partitions: made in portions, so that the loop goes on, and complete when the client is told."""

import asyncio

from headrace.broker.replicas import PORTION_CHANGES
from headrace.client.admin import Admin
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster

PARTITIONS = PORTION_CHANGES + 20


def test_a_large_topic_is_made_in_portions_and_whole_when_it_is_answered() -> None:
    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("large", PARTITIONS, 3)
            before = turns
            found = await admin.list_offsets("large", dict.fromkeys(range(PARTITIONS), -1))
            assert {row.offset for row in found.values()} == {0}
            await admin.delete_topic("large")
            await admin.create_topic("large", 1, 3)
            assert (await admin.list_offsets("large", {0: -1}))[0].offset == 0
        counting.cancel()
        assert turns > before > 3

    with World(7) as world:
        world.run(main(world))
