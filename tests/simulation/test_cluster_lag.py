"""Lag in a cluster: the metrics of a group's coordinator show it whole, whoever leads what the group reads."""

import asyncio

from headrace.broker.lag import Lag
from headrace.broker.server import Broker
from headrace.client.admin import Admin
from headrace.client.groups import Groups
from headrace.client.raw import produce
from headrace.config import BrokerConfig
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.world import Factory, SimRuntime, Stop, World
from tests.simulation.cluster import DATA, SimCluster, create

PARTITIONS = 6
GROUPS = [f"g{number}" for number in range(6)]
MINUTE_MS = 60_000


class OpenCluster(SimCluster):
    """Its brokers can be looked into."""

    def __init__(self, world: World) -> None:
        super().__init__(world, settings={"offsets.topic.num.partitions": "6"})
        self.running: dict[str, Broker] = {}

    def _factory(self, name: str) -> Factory:
        options = {"log.dirs": DATA, "node.id": str(self.id_of(name)), **self.settings_of(name)}

        async def start(runtime: SimRuntime) -> Stop:
            self.running[name] = started = Broker(BrokerConfig.load({}, {}, options), runtime)
            await started.start()
            return started.stop

        return start


async def _scenario(world: World) -> None:
    cluster = OpenCluster(world)
    await cluster.start()
    await create(cluster.bootstrap, "t", PARTITIONS, 3, {})
    now_ms = world.node("n1").clock.wall_ms()
    async with Admin(cluster.bootstrap) as admin:
        for index in range(PARTITIONS):
            for number in range(10):
                record = Record(0, now_ms - (9 - number) * MINUTE_MS, None, bytes(10))
                await produce(admin.cluster, "t", index, build_batch([record]))
        for group in GROUPS:
            await Groups(admin).commit(group, {("t", index): 4 for index in range(PARTITIONS)})
    await asyncio.sleep(1)
    shown: dict[str, list[Lag]] = {}
    for name, broker in cluster.running.items():
        await broker.lag.refresh()
        led = [p for p in broker.replicas if p.leader is not None and p.topic == "t"]
        assert len(led) < PARTITIONS, f"{name} leads all: this shows nothing"
        for lag in broker.lag.latest.shown:
            shown.setdefault(lag.group, []).append(lag)
    assert {group: [lag.records for lag in lags] for group, lags in shown.items()} == {group: [6 * PARTITIONS] for group in GROUPS}
    assert all(4 * 60 <= lag.seconds <= 9 * 60 for lags in shown.values() for lag in lags)


def test_a_groups_coordinator_shows_all_of_its_lag() -> None:
    with World(1) as world:
        world.run(_scenario(world))
