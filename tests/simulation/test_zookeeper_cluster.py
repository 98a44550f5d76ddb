"""The whole cluster with its metadata in a model of ZooKeeper: nothing acknowledged is lost, no two controllers write
at a time."""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.client.errors import ClientError
from headrace.metadata import isr
from headrace.metadata.image import Partition
from headrace.quorum.zookeeper.operations import Operation
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import create
from tests.simulation.harness import Result, clients, seeds_within, verdict
from tests.simulation.zookeeper_cluster import STRIKES, SimSession, ZooKeeperCluster
from tests.simulation.zookeeper_nodes import check_epochs, without_epoch_check

TIME_BOX_S = 4.0


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
    options = Options(
        partitions=dice.randint(1, 3), pause_s_max=0.05, request_timeout_s=dice.choice([0.4, 3.0])
    )  # the shorter: who waits for a deposed leader asks its successor while the old one still does not know
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


# Bugs planted on purpose, each alone: checkers that cannot see them prove nothing.


def found(monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str], seeds: int = 40) -> bool:
    """Whether a history of one of the seeds is wrong, or ends in a cluster that does not come to rest."""
    for seed in range(seeds):
        try:
            if run(seed, monkeypatch, kinds, strikes=(2, 4)).anomalies:
                return True
        except (AssertionError, ClientError):
            return True
    return False


def test_writes_without_the_epochs_check_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    multi = SimSession.multi

    def unfenced(self: SimSession, operations: Sequence[Operation]) -> "Future[None]":
        return multi(self, without_epoch_check(operations))

    monkeypatch.setattr(SimSession, "multi", unfenced)
    assert found(monkeypatch, ("deposed asleep",))


def test_watches_that_are_not_set_again_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimSession, "renew_watches", False)
    assert found(monkeypatch, ("no zookeeper", "moved unheard"))


def test_an_isr_shrunk_by_a_deposed_leader_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(partition: Partition, proposal: Any, leader: int, members: list[tuple[int, int]]) -> Partition:
        return partition

    monkeypatch.setattr(isr, "_checked", unchecked)
    assert found(monkeypatch, ("asks late",))
