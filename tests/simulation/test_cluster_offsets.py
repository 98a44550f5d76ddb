"""Committed offsets while coordinators move: what a group was told is kept, and nobody ever sees it go back."""

import asyncio

import pytest

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import seeds_within
from tests.simulation.offsets_group import Group

TIME_BOX_S = 4.0


def run(seed: int) -> list[Group]:
    with World(seed) as world:
        return world.run(_scenario(world))


async def _scenario(world: World) -> list[Group]:
    dice = world.dice("scenario")
    cluster = SimCluster(world, settings={"offsets.topic.num.partitions": "3"})
    await cluster.start()
    await create(cluster.bootstrap, "t", 1, 3, {})
    groups = [Group(cluster.bootstrap, f"g{number}") for number in range(3)]
    tasks = [asyncio.create_task(work) for group in groups for work in (group.commit(), group.look())]
    await asyncio.sleep(1.0)
    for _ in range(dice.randint(1, 4)):
        await cluster.strike(dice)
        await asyncio.sleep(dice.random() * 2)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), f"{cluster.events}: {outcome!r}"
    await cluster.calm("__consumer_offsets")
    async with Admin(cluster.bootstrap) as admin:
        for group in groups:
            await group.look_once(Groups(admin))
    return groups


def check_seeds(seeds: range, time_box_s: float) -> None:
    acknowledged = 0
    for seed in seeds_within(time_box_s, seeds, at_least=5):
        acknowledged += sum(group.acknowledged for group in run(seed))
    assert acknowledged > 100


def test_offsets_never_go_back_whatever_strikes() -> None:
    check_seeds(range(200), TIME_BOX_S)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_offsets_never_go_back_in_thousands_of_histories() -> None:
    check_seeds(range(200, 5_000), 1800.0)
