"""The whole cluster with its metadata in a model of ZooKeeper: nothing acknowledged is lost, no two controllers write
at a time."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import create
from tests.simulation.harness import Result, clients, seeds_within, verdict
from tests.simulation.zookeeper_cluster import STRIKES, ZooKeeperCluster
from tests.simulation.zookeeper_nodes import check_epochs

TIME_BOX_S = 8.0


def run(
    seed: int, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str] = STRIKES, strikes: tuple[int, int] = (1, 4)
) -> Result:
    with World(seed) as world, monkeypatch.context() as patches:
        return world.run(_scenario(world, patches, kinds, strikes))


async def _scenario(
    world: World, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str], strikes: tuple[int, int]
) -> Result:
    dice = world.dice("scenario")
    cluster = ZooKeeperCluster(world, monkeypatch, {"replica.lag.time.max.ms": dice.choice(["500", "10000"])})
    await cluster.start()
    options = Options(partitions=dice.randint(1, 3), pause_s_max=0.05)
    await create(cluster.bootstrap, options.topic, options.partitions, 3, {})
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    async with clients(workload, 3):
        await asyncio.sleep(0.5)
        for _ in range(dice.randint(*strikes)):
            await cluster.strike(dice, kinds)
            await asyncio.sleep(dice.random() * 2)
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    check_epochs(cluster.ensemble.model)
    cluster.ensemble.close()
    return result


def check_seeds(seeds: range, time_box_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = 0
    for seed in seeds_within(time_box_s, seeds, at_least=6):
        result = run(seed, monkeypatch)
        result.assert_good(seed)
        acknowledged += result.did["acknowledged"]
    assert acknowledged > 60


def test_nothing_is_lost_whatever_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    check_seeds(range(200), TIME_BOX_S, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_is_lost_in_thousands_of_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    check_seeds(range(200, 10_000), 1800.0, monkeypatch)
