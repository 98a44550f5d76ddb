"""Eligible leader replicas (KIP-966) while the minimum of in-sync replicas changes, and through being switched off and
on."""

import asyncio

import pytest

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.operations import Operations
from headrace.client.net.cluster import Cluster
from headrace.metadata.features import SAFE_DOWNGRADE, UPGRADE
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.world import World
from tests.simulation.cluster import MOVED_S, Apart, SimCluster
from tests.simulation.records import write


async def leader(cluster: SimCluster) -> int:
    async with Cluster(cluster.bootstrap, retry_timeout_s=20.0) as client:
        return (await client.topic("t")).partitions[0].leader


async def until_led_by(cluster: SimCluster, node: int) -> None:
    async with asyncio.timeout(30):
        while await leader(cluster) != node:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("resource", [(Resource.TOPIC, "t"), (Resource.BROKER, "")])
def test_replicas_stay_eligible_through_a_change_of_the_minimum_and_no_longer(resource: tuple[Resource, str]) -> None:
    async def main(world: World) -> None:
        cluster = SimCluster(world, 5)  # three are there all the time, and decide
        await cluster.start()
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("t", assignments={0: [1, 2]})
            assert await write(cluster.bootstrap, 3) == [0, 1, 2]
            for name in ("n1", "n2"):
                cluster.node(name).kill()
                await asyncio.sleep(1)
            assert await leader(cluster) == -1
            await admin.alter_configs(*resource, set={"min.insync.replicas": "1"})
        await cluster.restart("n2")
        await until_led_by(cluster, 2)
        assert await write(cluster.bootstrap, 2) == [3, 4], "one is enough now"
        cluster.node("n2").kill()
        await cluster.restart("n1")
        await asyncio.sleep(5)
        assert await leader(cluster) == -1, "it lacks what the other one has committed"
        await cluster.restart("n2")
        assert await write(cluster.bootstrap, 1) == [5]
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)

    with World(1) as world:
        world.run(main(world))


async def finalize(cluster: SimCluster, level: int, kind: int) -> None:
    Q = m.UpdateFeaturesRequest
    update = Q.FeatureUpdateKey(feature=ELR_VERSION, max_version_level=level, upgrade_type=kind)
    async with Cluster(cluster.bootstrap, retry_timeout_s=20.0) as client:
        answer = await client.to_controller(ApiKey.UPDATE_FEATURES, Q(feature_updates=[update]))
    assert answer.error_code == 0, answer


def test_nobody_stays_eligible_while_eligibility_is_switched_off() -> None:
    async def main(world: World) -> None:
        cluster = SimCluster(world, 5)
        await cluster.start()
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("t", assignments={0: [1, 2]})
            assert await write(cluster.bootstrap, 3) == [0, 1, 2]
            cluster.node("n2").kill()
            await asyncio.sleep(1)
            await finalize(cluster, 0, SAFE_DOWNGRADE)
            await admin.alter_configs(Resource.TOPIC, "t", set={"min.insync.replicas": "1"})
        assert await write(cluster.bootstrap, 2) == [3, 4], "one is enough now"
        await finalize(cluster, 1, UPGRADE)
        cluster.node("n1").kill()
        await asyncio.sleep(1)
        await cluster.restart("n2")
        await asyncio.sleep(5)
        assert await leader(cluster) == -1, "it lacks what the other one has committed"
        await cluster.restart("n1")
        assert await write(cluster.bootstrap, 1) == [5]
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)

    with World(1) as world:
        world.run(main(world))


def test_one_whose_move_was_called_off_and_that_begins_anew_is_not_eligible() -> None:
    async def main(world: World) -> None:
        cluster = Apart(world, 4, {"min.insync.replicas": "2"})
        await cluster.start()
        async with Admin("n3:9092") as admin:
            await admin.create_topic("t", assignments={0: [1, 2]})
            assert await write("n3:9092", 3) == [0, 1, 2]
            cluster.node("n2").kill()
            cluster.node("n4").kill()
            await asyncio.sleep(1)
            await Operations(admin).reassign({("t", 0): [3, 4]})
            await asyncio.sleep(1)  # n3 is in sync by now
            await Operations(admin).reassign({("t", 0): None})
            await asyncio.sleep(MOVED_S)
            world.network.partition(["n1"], ["n3"])
            await Operations(admin).reassign({("t", 0): [3, 4]})
            await asyncio.sleep(1)
            cluster.node("n1").kill()
            await asyncio.sleep(5)
            assert await leader(cluster) == -1, "it has nothing"
        world.network.heal()
        for name in ("n1", "n2", "n4"):
            await cluster.restart(name)
        assert await write("n3:9092", 1) == [3], "nothing was lost"

    with World(1) as world:
        world.run(main(world))
