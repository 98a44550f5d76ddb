"""The whole cluster, unmodified, under faults: nothing acknowledged is lost, nothing uncommitted is served."""

import asyncio
import time

import pytest

from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import Result, clients, verdict

TIME_BOX_S = 60.0


def run(seed: int, strikes: tuple[int, int] = (1, 4)) -> Result:
    with World(seed) as world:
        return world.run(_scenario(world, strikes))


async def _scenario(world: World, strikes: tuple[int, int]) -> Result:
    dice = world.dice("scenario")
    cluster = SimCluster(world)
    await cluster.start()
    options = Options(partitions=dice.randint(1, 3), pause_s_max=0.05)
    await create(cluster.bootstrap, options.topic, options.partitions, 3, {"internal.segment.bytes": dice.choice(["4000", "40000"])})
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    async with clients(workload, 3):
        await asyncio.sleep(0.5)
        for _ in range(dice.randint(*strikes)):
            await cluster.strike(dice)
            await asyncio.sleep(dice.random() * 2)
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    return result


def check_seeds(seeds: range, time_box_s: float) -> None:
    deadline = time.monotonic() + time_box_s
    acknowledged = 0
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        result = run(seed)
        result.assert_good(seed)
        acknowledged += result.did["acknowledged"]
    assert acknowledged > 100


def test_nothing_is_lost_whatever_strikes() -> None:
    check_seeds(range(400), TIME_BOX_S)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_is_lost_in_thousands_of_histories() -> None:
    check_seeds(range(400, 10_000), 3600.0)
