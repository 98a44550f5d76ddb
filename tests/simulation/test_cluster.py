"""The whole cluster, unmodified, under faults: nothing acknowledged is lost, nothing uncommitted is served."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.broker.replicas.partition import Partition
from headrace.replication.partition import LeaderState
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import STRIKES, SimCluster, create
from tests.simulation.harness import Result, check_seeds, clients, verdict

TIME_BOX_S = 8.0


def run(seed: int, kinds: Sequence[str] = STRIKES, strikes: tuple[int, int] = (1, 4)) -> Result:
    with World(seed) as world:
        return world.run(_scenario(world, kinds, strikes))


async def _scenario(world: World, kinds: Sequence[str], strikes: tuple[int, int]) -> Result:
    dice = world.dice("scenario")
    cluster = SimCluster(world)
    await cluster.start()
    options = Options(partitions=dice.randint(1, 3), pause_s_max=0.05)
    await create(
        cluster.bootstrap,
        options.topic,
        options.partitions,
        3,
        {"internal.segment.bytes": dice.choice(["4000", "40000"])},
    )
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    async with clients(workload, 3):
        await asyncio.sleep(0.5)
        for _ in range(dice.randint(*strikes)):
            await cluster.strike(dice, kinds)
            await asyncio.sleep(dice.random() * 2)
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    return result


def test_nothing_is_lost_whatever_strikes() -> None:
    check_seeds(run, range(400), TIME_BOX_S, at_least=10)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_nothing_is_lost_in_thousands_of_histories() -> None:
    check_seeds(run, range(400, 10_000), 3600.0, at_least=10)


# Bugs planted on purpose: a checker that cannot see them proves nothing.


def finds_a_loss(seeds: range, kinds: Sequence[str]) -> bool:
    return any(
        anomaly.kind in ("lost-write", "inconsistent-offsets", "vanished-read")
        for seed in seeds
        for anomaly in run(seed, kinds, (2, 4)).anomalies
    )


def test_a_leader_that_commits_alone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: LeaderState) -> bool:
        moved = self.own_end > self.high_watermark and not self.too_few
        self.high_watermark = max(self.high_watermark, self.own_end)
        return moved

    monkeypatch.setattr(LeaderState, "_advance", advance)
    assert finds_a_loss(range(40), ("kill", "isolate", "freeze"))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_follower_that_counts_before_it_has_synced_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    append_copied = Partition.append_copied

    def unsynced(self: Partition, records: memoryview) -> bool:
        append_copied(self, records)
        return False

    monkeypatch.setattr(Partition, "append_copied", unsynced)
    monkeypatch.setattr(Partition, "countable_end", property(lambda self: self.log.end_offset))
    assert finds_a_loss(range(300), ("power cut of all",))
