"""The quorum's driver, disk format and connections under random faults: power cuts, kills, pauses, cut links, changed
voters.

What was acknowledged stays, whoever dies; afterwards all nodes say the same, and every folder opens.
"""

import asyncio
from random import Random

import pytest

from headrace.errors import Err, KafkaError
from headrace.metadata.image import TOPIC_CONFIG
from headrace.protocol import messages as m
from headrace.quorum.cleaning import SnapshotLimits
from headrace.testing.simulator.world import NodeDied, World
from tests.simulation.harness import seeds_within
from tests.simulation.quorum_nodes import QuorumCluster, host, written

QUICK_SEEDS = 40
QUICK_SECONDS = 5.0
SOAK_SEEDS = 1500
LIMITS = SnapshotLimits(bytes_between=1500, retention_bytes=2500)


class Faults:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"faults {seed}")
        self.acked: list[str] = []

    def run(self) -> None:
        with World(self.seed) as world:
            self.world = world
            nodes = self.random.choice(([1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2]))
            limits = LIMITS if self.random.random() < 0.5 else SnapshotLimits()
            self.cluster = QuorumCluster(world, nodes, limits=limits, segment_bytes=self.random.choice((900, 1 << 30)))
            self.nodes = nodes
            world.run(self.main())

    async def main(self) -> None:
        cluster, world = self.cluster, self.world
        await cluster.start()
        writer = asyncio.create_task(self.write())
        for _ in range(8):
            await asyncio.sleep(self.random.choice((0.05, 0.3, 1.0, 2.5)))
            await self.strike()
        world.network.heal()
        for node_id in self.nodes:
            node = cluster.node(node_id)
            node.cut_after(None)
            if not node.running:
                await node.start()
            else:
                node.resume()
        writer.cancel()
        await asyncio.wait([writer])
        leader = await self.last_write()
        await cluster.wait_for(self.nodes, ["last"], 60)
        assert not cluster.failures, cluster.failures
        for node_id in self.nodes:
            image = cluster.quorums[node_id].image
            lost = set(self.acked) - written(image)
            assert not lost, f"seed {self.seed}: node {node_id} lost {sorted(lost)}"
            assert image.same_content(cluster.quorums[leader].image), f"seed {self.seed}: images differ"
        # And after a power cut of all of them it is still there.
        for node_id in self.nodes:
            cluster.node(node_id).crash()
        await cluster.start()
        await cluster.leader(60)
        await cluster.wait_for(self.nodes, ["last", *self.acked], 60)

    async def last_write(self) -> int:
        """Who has taken it: one that still thinks it leads when the network is whole again may find out only now."""
        async with asyncio.timeout(60):
            while True:
                leader = await self.cluster.leader(60)
                try:
                    await self.cluster.write(leader, "last")
                    return leader
                except KafkaError as error:
                    assert error.error is Err.NOT_CONTROLLER

    async def write(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(0.05)
            for node_id in self.cluster.running():
                if not self.cluster.quorums[node_id].is_active:
                    continue
                number += 1
                name = f"t{number}"
                try:
                    if await self.cluster.node(node_id).run(self.tried(node_id, name)):
                        self.acked.append(name)
                except NodeDied:
                    pass  # unknown: it may come to be or not
                break

    async def tried(self, node_id: int, name: str) -> bool:
        record = m.ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=name, name="k", value=name)
        try:
            async with asyncio.timeout(1.0):
                await self.cluster.quorums[node_id].append([(record, 0)])
        except (KafkaError, TimeoutError):
            return False
        return True

    async def strike(self) -> None:
        random, cluster = self.random, self.cluster
        node_id = random.choice(self.nodes)
        leaders = [n for n in cluster.running() if cluster.quorums[n].is_active]
        if leaders and random.random() < 0.5:
            node_id = leaders[0]
        node = cluster.node(node_id)
        dice = random.random()
        if not node.running:
            await node.start()
        elif dice < 0.35:
            node.crash()
        elif dice < 0.5:
            node.kill()
        elif dice < 0.6:
            node.pause()
            self.world.loop.call_later(random.choice((0.5, 4.0)), lambda: node.resume() if node.running else None)
        elif dice < 0.8:
            hosts = [host(n) for n in self.nodes]
            side = random.sample(hosts, random.randint(1, len(hosts) - 1))
            self.world.network.heal()
            self.world.network.partition(side, [h for h in hosts if h not in side])
        elif dice < 0.9:
            self.world.network.heal()
        else:
            node.cut_after(random.randint(1, 20))


def test_nothing_acknowledged_is_lost() -> None:
    for seed in seeds_within(QUICK_SECONDS, range(QUICK_SEEDS), at_least=5):
        Faults(seed).run()


@pytest.mark.parametrize("seed", [194, 20351, 20593])
def test_seeds_that_once_failed(seed: int) -> None:
    """A power cut undid a part of a deletion, of segments or of snapshots; older snapshots stayed beside a leader's."""
    Faults(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_acknowledged_is_lost_in_many_worlds() -> None:
    for seed in range(QUICK_SEEDS, SOAK_SEEDS):
        Faults(seed).run()
