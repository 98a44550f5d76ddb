"""Compacted topics under power cuts: a gap is nothing strange in their logs, so a lost record must not look like
one."""

import asyncio

import pytest

from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import Result, check_seeds, clients, verdict

KINDS = ("power cut", "power cut", "power cut of all", "kill", "isolate", "freeze")
SETTINGS = {"log.cleaner.backoff.ms": "500", "min.insync.replicas": "1"}


def run(seed: int) -> Result:
    with World(seed) as world:
        return world.run(_scenario(world))


async def _scenario(world: World) -> Result:
    dice = world.dice("scenario")
    cluster = SimCluster(world, settings=SETTINGS)
    await cluster.start()
    options = Options(partitions=2, pause_s_max=0.03, value_bytes_max=60, own_keys=True)
    configs = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": dice.choice(("1500", "4000")),
        "min.cleanable.dirty.ratio": dice.choice(("0", "0.5")),
    }
    await create(cluster.bootstrap, options.topic, options.partitions, 3, configs)
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    async with clients(workload, 3):
        for _ in range(dice.randint(1, 4)):
            await asyncio.sleep(dice.random() * 2)
            await cluster.strike(dice, KINDS)
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    return result


def test_nothing_is_lost_whatever_strikes_compacted_topics() -> None:
    check_seeds(run, range(100), 3.0, at_least=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_is_lost_from_compacted_topics_in_many_histories() -> None:
    check_seeds(run, range(100, 10_000), 900.0, at_least=1)
