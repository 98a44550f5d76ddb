"""One broker, killed or without power: with everything on disk before it counts, nobody need doubt its log
(KIP-966)."""

import logging

import pytest

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.net.cluster import Cluster
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.brokers import broker
from headrace.testing.simulator.world import World
from tests.simulation.harness import BOOTSTRAP, BROKER

BATCH = build_batch([Record(0, 1000, None, b"v")])


@pytest.mark.parametrize(("durability", "power_cut", "doubted"), [
    ("fsync", False, False), ("fsync", True, False), ("replicated", False, True),
])  # fmt: skip
def test_a_killed_broker_leads_its_only_replicas_again(
    durability: str, power_cut: bool, doubted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker({"durability": durability}))
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t", 1, 1)
        for expected in range(3):
            async with Cluster(BOOTSTRAP) as cluster:
                assert (await raw.produce(cluster, "t", 0, BATCH)).base_offset == expected
            if power_cut:
                node.crash()
            else:
                node.kill()
            await node.start()

    with caplog.at_level(logging.ERROR, "headrace.controller"), World(1) as world:
        world.run(main(world))
    said = sum("unclean election" in record.message for record in caplog.records)
    assert said == (3 if doubted else 0), "as Apache Kafka does where a kernel may have kept what was acknowledged"
