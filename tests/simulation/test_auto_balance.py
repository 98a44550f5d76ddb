"""`auto.balance` in a whole cluster whose brokers come and go: it ends even, keeps every replica, and is then still."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster, Partition
from headrace.metadata.balance.auto import Standing
from headrace.metadata.balance.plans import Replicas, TopicPartition
from headrace.metadata.image import Image
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import seeds_within

BROKERS, PARTITIONS, REPLICAS = 5, 7, 3
LOST_MS = 2_000
SETTINGS = {
    "auto.balance": "true",
    "auto.balance.lost.broker.ms": str(LOST_MS),
    "auto.balance.moves.max": "3",
}
EVEN_S = 60.0
STILL_S = 8.0
TIME_BOX_S = 5.0


class Watch:
    """What every partition's replicas were, whenever they changed."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.placed: dict[int, Partition] = {}
        self.added: Counter[tuple[int, int]] = Counter()
        """How often a partition was given to a broker."""

    async def look(self) -> None:
        async with Cluster(self._cluster.bootstrap, retry_timeout_s=5.0, request_timeout_s=2.0) as client:
            topic = await client.topic("t")
        for number, part in topic.partitions.items():
            assert len(set(part.replicas)) >= REPLICAS, f"partition {number} is below its replication factor: {part}"
            before = self.placed.get(number)
            if before is not None:
                self.added.update((number, node) for node in set(part.replicas) - set(before.replicas))
        self.placed = dict(topic.partitions)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def look_on() -> None:
            while True:
                with suppress(ClientError):
                    await self.look()
                await asyncio.sleep(0.5)

        task = asyncio.create_task(look_on())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task  # an assertion in it is raised here


def is_even(placed: Mapping[int, Partition], nodes: range) -> bool:
    if any(len(p.replicas) != REPLICAS or set(p.isr) != set(p.replicas) for p in placed.values()):
        return False
    held = Counter(node for p in placed.values() for node in p.replicas)
    leads = Counter(p.leader for p in placed.values())
    return all(max(n[i] for i in nodes) - min(n[i] for i in nodes) <= 1 for n in (held, leads))


async def come_and_go(cluster: SimCluster, dice: Random) -> None:
    """A broker is away for a moment, or for longer than it is waited for; then it is back."""
    for _ in range(dice.randint(1, 2)):
        name = dice.choice(cluster.names[:-1])
        away_s = dice.choice((0.3, 1.0, LOST_MS / 1000 + 3.0, LOST_MS / 1000 + 6.0))
        cluster.events.append(f"{cluster.world.loop.time():.1f} {name} is away for {away_s} s")
        if dice.random() < 0.3 and away_s < LOST_MS / 1000:
            await cluster.node(name).stop()
        else:
            cluster.node(name).kill()
        await asyncio.sleep(away_s)
        await cluster.restart(name)
        await asyncio.sleep(dice.random() * 3)


async def scenario(world: World) -> Watch:
    dice = world.dice("scenario")
    cluster = SimCluster(world, BROKERS, SETTINGS)
    await cluster.start()
    cluster.node(cluster.names[-1]).kill()  # the one that is added later
    await create(cluster.bootstrap, "t", PARTITIONS, REPLICAS, {})
    watch = Watch(cluster)
    async with watch.running():
        await come_and_go(cluster, dice)
        await cluster.restart(cluster.names[-1])
        await come_and_go(cluster, dice)
    await settle(cluster, watch)
    return watch


async def settle(cluster: SimCluster, watch: Watch) -> None:
    """All are there: soon all is even, no partition went twice to the same broker, and nothing moves any more."""
    watch.added.clear()
    deadline = cluster.world.loop.time() + EVEN_S
    nodes = range(1, BROKERS + 1)
    while not is_even(watch.placed, nodes):
        assert cluster.world.loop.time() < deadline, f"not even: {watch.placed}; {cluster.events}"
        await asyncio.sleep(0.5)
        with suppress(ClientError):
            await watch.look()
    assert max(watch.added.values(), default=0) <= 1, f"back and forth: {watch.added}"
    watch.added.clear()
    async with watch.running():
        await asyncio.sleep(STILL_S)
    assert is_even(watch.placed, nodes) and not watch.added, f"moved although all was even: {watch.added}"


def run(seed: int) -> Watch:
    with World(seed) as world:
        return world.run(scenario(world))


def test_brokers_come_and_go_and_partitions_end_even_whole_and_still() -> None:
    for seed in seeds_within(TIME_BOX_S, range(200), at_least=3):
        run(seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_histories_end_even_whole_and_still() -> None:
    for seed in seeds_within(1800.0, range(200, 2_000), at_least=100):
        run(seed)


def test_a_balancer_that_moves_back_and_forth_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def restless(image: Image, standing: Standing, moves_max: int, sizes: object) -> dict[TopicPartition, Replicas]:
        topic = image.topic_named("t")
        if topic is None or image.reassigning:
            return {}
        replicas = topic.partitions[0].replicas
        free = [n for n, broker in image.brokers.items() if broker.active and n not in replicas]
        return {("t", 0): (*replicas[:-1], free[0])} if free else {}

    monkeypatch.setattr("headrace.broker.controller.active.next_moves", restless)
    with pytest.raises(AssertionError, match=r"not even|back and forth|although all was even"):
        run(1)
