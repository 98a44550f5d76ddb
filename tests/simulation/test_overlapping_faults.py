"""Faults that overlap, on clusters of several shapes, while partitions are moved and the minimum of in-sync replicas
changes."""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import pytest

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.metadata.features import SAFE_DOWNGRADE, UPGRADE
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.brokers import DATA
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import NodeDied, World
from tests.simulation.cluster import MOVED_S, STRIKES, Apart, SimCluster, create
from tests.simulation.harness import Result, check_seeds, clients, verdict

SETTLE_S = 5.0
KINDS = (*STRIKES, "full disk", "no room", "full metadata", "failing disk", "all, one after the other")
CHANGES = ("move", "move", "call off", "elect", "minimum", "unregister", "eligibility")


class TwoDisks(SimCluster):
    """A log dir may fail while its broker serves from the other one."""

    log_dirs = (f"{DATA}/one", f"{DATA}/two")

    def settings_of(self, name: str) -> dict[str, str]:
        return {**super().settings_of(name), "log.dirs": ",".join(self.log_dirs), "metadata.log.dir": DATA}


class Chaos:
    """Several strikers at once; a node that one of them is busy with is left alone by the others, unless the power
    fails."""

    def __init__(self, cluster: SimCluster, dice: Random) -> None:
        self.cluster, self.dice = cluster, dice
        self._busy: set[str] = set()

    async def strikes(self, count: int) -> None:
        for _ in range(count):
            free = [n for n in self.cluster.names if n not in self._busy and self.cluster.node(n).running]
            if free:
                with self._at(self.dice.choice(free)) as name:
                    await self._strike(
                        self.dice.choice(KINDS), name, self.dice.choice((0.05, 0.3, 1.0, 4.0)) * self.dice.random()
                    )
            await asyncio.sleep(self.dice.random() * self.dice.choice((0.1, 1.0, 3.0)))

    @contextmanager
    def _at(self, name: str) -> Iterator[str]:
        self._busy.add(name)
        try:
            yield name
        finally:
            self._busy.discard(name)

    async def _strike(self, kind: str, name: str, seconds: float) -> None:
        cluster, dice, node = self.cluster, self.dice, self.cluster.node(name)
        if kind in STRIKES:
            await cluster.strike(dice, (kind,), (name,))
            return
        cluster.events.append(f"{cluster.world.loop.time():.2f} {kind} {name} {seconds:.2f} s")
        match kind:
            case "full disk":
                node.disk.fail(
                    "append", errno.ENOSPC, path="*/t-*", times=dice.choice((1, 5, None)), short=dice.random() < 0.5
                )
                await asyncio.sleep(seconds)
                node.disk.faults.clear()
            case "no room":  # for anything: what is left is soon less than the reserve
                node.disk.capacity_bytes = node.disk.used_bytes() + dice.choice((100, 5_000, 100_000))
                await asyncio.sleep(seconds)
                node.disk.capacity_bytes = None
            case "full metadata":
                node.disk.fail(
                    "append", errno.ENOSPC, path="*/__cluster_metadata-0/*.log", skip=dice.randrange(4), times=None
                )
                await asyncio.sleep(seconds)
                node.disk.faults.clear()
            case "failing disk":
                log_dir = dice.choice(cluster.log_dirs)
                node.disk.fail(
                    "sync" if dice.random() < 0.5 else "append", errno.EIO, path=f"{log_dir}/t-*", times=None
                )
                await asyncio.sleep(seconds)
                node.disk.faults.clear()
                with suppress(NodeDied):
                    if node.running:
                        await node.stop()
                await cluster.restart(name)
            case _:
                for other in cluster.names:
                    if cluster.node(other).running:
                        cluster.node(other).kill()
                for other in dice.sample(cluster.names, len(cluster.names)):
                    cluster.world.loop.create_task(cluster.restart(other))
                    await asyncio.sleep(seconds / len(cluster.names))

    async def changes(self, count: int, topic: str, partitions: int, replicas: int) -> None:
        """What a person may ask for meanwhile. Refused or unanswered, it is as if nobody had asked."""
        for _ in range(count):
            await asyncio.sleep(self.dice.random() * 4)
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(15), Admin(self.cluster.bootstrap) as admin:
                    await self._change(admin, topic, self.dice.randrange(partitions), replicas)

    async def _change(self, admin: Admin, topic: str, partition: int, replicas: int) -> None:
        dice, cluster = self.dice, self.cluster
        what = dice.choice(CHANGES)
        cluster.events.append(f"{cluster.world.loop.time():.2f} {what} {partition}")
        match what:
            case "move":
                target = dice.sample([cluster.id_of(name) for name in cluster.brokers], replicas)
                await Operations(admin).reassign({(topic, partition): target})
            case "call off":
                await Operations(admin).reassign({(topic, partition): None})
            case "elect":
                await Operations(admin).elect(None)
            case "unregister":
                await Operations(admin).unregister(cluster.id_of(dice.choice(cluster.brokers)))
            case "eligibility":
                for level, kind in ((0, SAFE_DOWNGRADE), (1, UPGRADE)):
                    update = m.UpdateFeaturesRequest.FeatureUpdateKey(
                        feature=ELR_VERSION, max_version_level=level, upgrade_type=kind
                    )
                    await admin.cluster.to_controller(
                        ApiKey.UPDATE_FEATURES, m.UpdateFeaturesRequest(feature_updates=[update])
                    )
                    await asyncio.sleep(dice.random())
            case _:
                await admin.alter_configs(Resource.TOPIC, topic, set={"min.insync.replicas": dice.choice("12")})


def run(seed: int) -> Result:
    with World(seed) as world:
        return world.run(_scenario(world))


async def _scenario(world: World) -> Result:
    dice = world.dice("scenario")
    settings = {"min.insync.replicas": dice.choice("112"), "replica.lag.time.max.ms": dice.choice(("2000", "10000"))}
    shape = dice.choice((SimCluster, TwoDisks, Apart))
    cluster = shape(world, dice.choice((3, 3, 4)), settings)
    await cluster.start()
    options, replicas = Options(partitions=dice.randint(1, 3), pause_s_max=0.05), dice.choice((2, 3))
    await create(
        cluster.bootstrap,
        options.topic,
        options.partitions,
        replicas,
        {"internal.segment.bytes": dice.choice(["4000", "40000"])},
    )
    cluster.events.append(f"{shape.__name__} of {len(cluster.names)}, {replicas} replicas, {settings}")
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    chaos = Chaos(cluster, dice)
    async with clients(workload, 3):
        await asyncio.sleep(0.5)
        strikers = [chaos.strikes(dice.randint(1, 4)) for _ in range(dice.choice((1, 2, 2, 3)))]
        await asyncio.gather(*strikers, chaos.changes(dice.randint(0, 4), options.topic, options.partitions, replicas))
    for name in cluster.names:
        cluster.node(name).disk.faults.clear()
    await asyncio.sleep(SETTLE_S)
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    await asyncio.sleep(MOVED_S)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    return result


def test_nothing_is_lost_and_all_recovers_whatever_strikes_at_once() -> None:
    check_seeds(run, range(200), 5.0, at_least=4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_many_histories_of_overlapping_faults() -> None:
    check_seeds(run, range(200, 10_000), 1800.0, at_least=4)
