"""Lag in a cluster: the metrics of a group's coordinator show it whole, whoever leads what the group reads."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from headrace.broker.coordinators.lag import Lag, LagWatch
from headrace.broker.coordinators.leader_offsets import LeaderOffsets
from headrace.broker.handlers import offsets as offsets_handler
from headrace.broker.server import Broker
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.client.raw import produce
from headrace.config import BrokerConfig
from headrace.protocol.api import ApiKey
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.brokers import DATA
from headrace.testing.simulator.world import Factory, SimRuntime, Stop, World
from tests.simulation.cluster import SimCluster, create

PARTITIONS = 6
RECORDS = 10
COMMITTED = {f"all at {offset}": dict.fromkeys(range(PARTITIONS), offset) for offset in range(6)} | {
    f"only {index}": {index: 0} for index in range(PARTITIONS)
}
"""Group -> partition -> offset."""
WHOLE = {group: sum(RECORDS - offset for offset in offsets.values()) for group, offsets in COMMITTED.items()}
MINUTE_MS = 60_000
ROUND_S_MAX = 12.0
"""Two questions, and for each of them the time to connect and to wait."""


class OpenCluster(SimCluster):
    """Its brokers can be looked into."""

    def __init__(self, world: World, size: int) -> None:
        super().__init__(world, size, settings={"offsets.topic.num.partitions": "6"})
        self.open: dict[str, Broker] = {}

    def _factory(self, name: str) -> Factory:
        options = {"log.dirs": DATA, "node.id": str(self.id_of(name)), **self.settings_of(name)}

        async def start(runtime: SimRuntime) -> Stop:
            self.open[name] = started = Broker(BrokerConfig.load({}, {}, options), runtime)
            await started.start()
            return started.stop

        return start

    @property
    def running(self) -> dict[str, Broker]:
        return {name: broker for name, broker in self.open.items() if self.node(name).running}

    async def fill(self, replicas: int) -> None:
        """One record a minute in each partition, the last of them now."""
        await create(self.bootstrap, "t", PARTITIONS, replicas, {"min.insync.replicas": "1"})
        now_ms = self.node("n1").clock.wall_ms()
        async with Admin(self.bootstrap) as admin:
            for index in range(PARTITIONS):
                for number in range(RECORDS):
                    record = Record(0, now_ms - (RECORDS - 1 - number) * MINUTE_MS, None, bytes(10))
                    await produce(admin.cluster, "t", index, build_batch([record]))
            for group, offsets in COMMITTED.items():
                await Groups(admin).commit(group, {("t", index): offset for index, offset in offsets.items()})
        await asyncio.sleep(1)

    async def round(self) -> dict[str, Lag]:
        """By group. Each has one coordinator."""
        await asyncio.gather(*(broker.lag.refresh() for broker in self.running.values()))
        shown = [lag for broker in self.running.values() for lag in broker.lag.latest.shown]
        assert len({lag.group for lag in shown}) == len(shown)
        return {lag.group: lag for lag in shown}

    def led_by(self, name: str) -> set[int]:
        """Partitions."""
        return {
            index
            for index, replica in self.open[name].replicas.by_name.get("t", {}).items()
            if replica.leader is not None
        }


def in_cluster(size: int, replicas: int, scenario: Callable[[World, OpenCluster], Coroutine[Any, Any, None]]) -> None:
    async def main(world: World) -> None:
        cluster = OpenCluster(world, size)
        await cluster.start()
        await cluster.fill(replicas)
        await scenario(world, cluster)

    with World(1) as world:
        world.run(main(world))


def records_of(lags: dict[str, Lag]) -> dict[str, int | None]:
    return {group: lag.records for group, lag in lags.items()}


@pytest.mark.parametrize(("size", "replicas"), [(3, 3), (3, 1), (5, 2)])
def test_a_groups_coordinator_shows_all_of_its_lag(size: int, replicas: int) -> None:
    async def scenario(world: World, cluster: OpenCluster) -> None:
        asked = {name: broker.metrics.request_latency(ApiKey.LIST_OFFSETS) for name, broker in cluster.running.items()}
        before = {name: sum(latency.counts) for name, latency in asked.items()}
        assert all(len(cluster.led_by(name)) < PARTITIONS for name in cluster.names), (
            "one leads all: this shows nothing"
        )
        lags = await cluster.round()
        assert records_of(lags) == WHOLE
        for group, offsets in COMMITTED.items():
            age_s = (RECORDS - 1 - min(offsets.values())) * 60
            assert age_s <= (lags[group].seconds or -1) <= age_s + 60, group
        assert [broker.lag.latest.unknown for broker in cluster.running.values()] == [0] * size
        coordinators = sum(bool(broker.lag.latest.shown) for broker in cluster.running.values())
        for name, latency in asked.items():
            # Where it ends, and how old what follows is, of all partitions and for all groups at once.
            assert sum(latency.counts) - before[name] <= 2 * coordinators, name

    in_cluster(size, replicas, scenario)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_what_a_leader_that_is_gone_last_said_is_shown_with_a_sign(fault: str) -> None:
    async def scenario(world: World, cluster: OpenCluster) -> None:
        before = await cluster.round()
        assert records_of(before) == WHOLE
        lost, moved = cluster.led_by("n3"), {lag.group for lag in cluster.open["n3"].lag.latest.shown}
        unknown = {group: len(offsets.keys() & lost) for group, offsets in COMMITTED.items()}
        assert lost
        getattr(cluster.node("n3"), fault)()
        for after_s in (0.0, 30.0):  # when nobody has noticed, and when it is fenced and its groups have moved
            await asyncio.sleep(after_s)
            for name in ("n1", "n2"):
                broker = cluster.open[name]
                began = world.loop.time()
                await broker.lag.refresh()
                assert world.loop.time() - began < ROUND_S_MAX
                latest = broker.lag.latest
                assert latest.unknown == sum(lag.unknown > 0 for lag in latest.shown) > 0
                for lag in latest.shown:
                    told_s = before[lag.group].seconds
                    if lag.seconds is None:
                        # Its group has come from the lost node: nobody here had asked for this age.
                        assert lag.group in moved and COMMITTED[lag.group].keys() <= lost
                        continue
                    assert (lag.records, lag.unknown) == (WHOLE[lag.group], unknown[lag.group]), name
                    assert told_s is not None and told_s + after_s <= lag.seconds <= told_s + after_s + 60
        assert any(lag.seconds for lag in latest.shown if lag.group.startswith("only") and lag.unknown), (
            "this shows nothing"
        )
        # A coordinator that has never heard of these partitions can only leave them out.
        broker = cluster.open["n1"]
        leaders = LeaderOffsets(broker.node_id, broker.runtime.clock, broker.metadata, broker.peers)
        broker.lag = LagWatch(broker.node_id, broker.runtime, broker.metadata, broker.replicas, broker.groups, leaders)
        await broker.lag.refresh()
        shown = broker.lag.latest.shown
        for lag in shown:
            rest = [RECORDS - offset for index, offset in COMMITTED[lag.group].items() if index not in lost]
            assert (lag.records, lag.unknown) == (sum(rest) if rest else None, unknown[lag.group])
        families = {family.name: family for family in broker.collector().collect()}
        signs = {
            sample.labels["group"]: sample.value for sample in families["headrace_group_lag_unknown_partitions"].samples
        }
        assert signs == {lag.group: unknown[lag.group] for lag in shown if unknown[lag.group]}
        assert families["headrace_group_lags_unknown"].samples[0].value == len(signs) > 0
        if fault == "kill":
            await cluster.restart("n3")
        else:
            cluster.node("n3").resume()
        await asyncio.sleep(30)
        lags = await cluster.round()
        assert records_of(lags) == WHOLE and not any(lag.unknown for lag in lags.values())

    in_cluster(3, 1, scenario)


def test_no_round_shows_less_without_a_sign_while_leaders_change() -> None:
    async def scenario(world: World, cluster: OpenCluster) -> None:
        seen: list[Lag] = []

        async def look(name: str, broker: Broker) -> None:
            while cluster.running.get(name) is broker:
                await broker.lag.refresh()
                for lag in broker.lag.latest.shown:
                    assert lag.records == WHOLE[lag.group] or lag.unknown, (name, lag)
                    seen.append(lag)
                await asyncio.sleep(0.02)

        looking = [asyncio.ensure_future(look(name, broker)) for name, broker in cluster.running.items()]
        async with Admin(cluster.bootstrap, retry_timeout_s=5.0, request_timeout_s=3.0) as admin:
            for start in range(len(cluster.names)):
                order = [(start + step) % len(cluster.names) + 1 for step in range(2)]
                with suppress(ClientError):
                    await Operations(admin).reassign({("t", index): order for index in range(PARTITIONS)})
                await asyncio.sleep(3)
        cluster.node("n2").kill()
        await asyncio.sleep(15)
        for task in looking:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        assert any(lag.unknown for lag in seen), "no leader was asked for what it had lost: this shows nothing"
        await cluster.restart("n2")
        await asyncio.sleep(5)
        lags = await cluster.round()
        assert records_of(lags) == WHOLE and not any(lag.unknown for lag in lags.values())

    in_cluster(5, 2, scenario)


def test_leaders_that_know_nothing_of_ages_still_say_where_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World, cluster: OpenCluster) -> None:
        lags = await cluster.round()
        assert records_of(lags) == WHOLE
        of_all = {(lag.seconds, lag.unknown) for group, lag in lags.items() if group.startswith("all")}
        assert of_all == {(None, 0)}, "rather none than those of some"
        for broker in cluster.running.values():
            families = {family.name: family for family in broker.collector().collect()}
            assert len(families["headrace_group_lag_records"].samples) == len(broker.lag.latest.shown)
            timed = {sample.labels["group"] for sample in families["headrace_group_lag_seconds"].samples}
            assert timed == {lag.group for lag in broker.lag.latest.shown if lag.seconds is not None}

    # As a broker answers that skips the tagged field: an older one, or Kafka.
    monkeypatch.setattr(offsets_handler, "values_in", lambda tags: ())
    in_cluster(3, 1, scenario)
