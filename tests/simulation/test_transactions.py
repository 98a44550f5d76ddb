"""The whole cluster, unmodified, under faults, with transactions in both protocols. Who reads what is committed never
sees an aborted record or half a transaction; nothing committed is lost or doubled; no transaction is open for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from headrace.broker.replicas.partition import Partition
from headrace.broker.transactions.marker_writer import MarkerWriter
from headrace.broker.transactions.membership import Ability, Membership
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.coordinator.outcome import Record
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.transaction import Errors, TransactionState
from headrace.metadata.features import SAFE_DOWNGRADE, UPGRADE
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.replication.producer import BatchMark
from headrace.replication.producers import ProducerStates
from headrace.testing.simulator.checkers import Anomaly, EndTransaction, Outcome, check
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.process import CURRENT, Process
from headrace.testing.simulator.transactions import SETTLE_S, Hanging, TransactionalWorkload
from headrace.testing.simulator.workload import Options
from headrace.testing.simulator.world import World
from tests.simulation.cluster import STRIKES, SimCluster, create
from tests.simulation.harness import seeds_within
from tests.waiting import until

TIME_BOX_S = 5.0
KINDS = (*STRIKES, "late requests", "late requests", "late link", "dying words", "reset")
SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


@dataclass
class Result:
    anomalies: list[Anomaly]
    committed: int
    aborted: int
    refusals: list[str]
    events: list[str]

    def assert_good(self, seed: int) -> None:
        shown = "\n".join(map(str, self.anomalies[:5]))
        assert not self.anomalies, f"seed {seed}, {self.events}: {shown}"


Disturb = Callable[[SimCluster, Random], Awaitable[None]]
"""What happens to the cluster while its clients work."""


def run(seed: int, kinds: Sequence[str] = KINDS, strikes: tuple[int, int] = (1, 4)) -> Result:
    async def strike(cluster: SimCluster, dice: Random) -> None:
        for _ in range(dice.randint(*strikes)):
            await cluster.strike(dice, kinds)
            await asyncio.sleep(dice.random() * 2)

    return play(seed, strike)


def play(seed: int, disturb: Disturb) -> Result:
    with World(seed) as world:
        return world.run(_scenario(world, disturb))


async def _scenario(world: World, disturb: Disturb) -> Result:
    dice = world.dice("scenario")
    cluster = SimCluster(world, settings=SETTINGS)
    await cluster.start()
    options = Options(partitions=dice.randint(1, 4), pause_s_max=0.05)
    segment_bytes = dice.choice(["4000", "40000"])
    await create(cluster.bootstrap, options.topic, options.partitions, 3, {"internal.segment.bytes": segment_bytes})
    workload = TransactionalWorkload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    transactors = [workload.transactor(f"id-{at}", classic=at % 2 == 0) for at in range(3)]
    works = [work for one in transactors for work in (one.run(), one.watch_offsets())]
    works += [workload.consume(f"c{at}", at) for at in range(options.partitions)]
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.sleep(1.5)
    await disturb(cluster, dice)
    tasks += workload.leftovers
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, asyncio.CancelledError), f"{cluster.events}: {outcome!r}"
    for topic in (options.topic, "__transaction_state", "__consumer_offsets"):
        await cluster.calm(topic)
    return await _verdict(workload, cluster)


async def _verdict(workload: TransactionalWorkload, cluster: SimCluster) -> Result:
    history = workload.history
    ends = [operation.outcome for operation in history.operations if isinstance(operation, EndTransaction)]
    result = Result([], ends.count(Outcome.OK), ends.count(Outcome.FAILED), workload.refusals, cluster.events)
    try:
        history.final = await workload.read_all()
        result.anomalies = check(history) + await workload.check_offsets()
    except Hanging as error:
        result.anomalies.append(Anomaly("hanging-transaction", None, str(error)))
        return result
    await _replicas_equal(cluster, workload.options)
    return result


async def _replicas_equal(cluster: SimCluster, options: Options) -> None:
    """Soon: a coordinator may have had to send its last markers twice."""
    deadline = cluster.world.loop.time() + SETTLE_S
    while True:
        try:
            return cluster.assert_replicas_equal(options.topic, options.partitions)
        except AssertionError:
            if cluster.world.loop.time() > deadline:
                raise
        await asyncio.sleep(1.0)


def check_seeds(seeds: range, time_box_s: float) -> None:
    committed = aborted = 0
    for seed in seeds_within(time_box_s, seeds, at_least=3):
        result = run(seed)
        result.assert_good(seed)
        committed += result.committed
        aborted += result.aborted
    assert committed > 20 and aborted > 20, (committed, aborted)


def test_transactions_are_whole_whatever_strikes() -> None:
    check_seeds(range(400), TIME_BOX_S)


def test_nothing_is_refused_where_nothing_fails() -> None:
    """A producer may write as soon as it has an answer to its commit, while partitions are still told of it, and while
    what another one sent under its id before arrives late."""
    committed = 0
    for seed in (5, 6, 9, 10, 19):
        result = run(seed, strikes=(0, 0))
        result.assert_good(seed)
        assert not result.refusals, f"seed {seed}: {result.refusals[:3]}"
        committed += result.committed
    assert committed > 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_transactions_are_whole_in_thousands_of_histories() -> None:
    check_seeds(range(400, 10_000), 3600.0)


# The protocol is raised and lowered meanwhile.


async def change_level(cluster: SimCluster, dice: Random) -> None:
    """Of transaction.version. Clients go on in the protocol they speak; some are in the middle of a transaction."""
    level = dice.randrange(3)
    cluster.events.append(f"{cluster.world.loop.time():.2f} level {level}")
    kind = m.UpdateFeaturesRequest
    client = Cluster(cluster.bootstrap)
    try:
        for how in (UPGRADE, SAFE_DOWNGRADE):
            update = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=how)
            with suppress(ClientError):  # no controller, perhaps
                answer = await client.to_any(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update]))
                if not answer.error_code:
                    return
    finally:
        client.close()


def run_with_levels(seed: int) -> Result:
    async def disturb(cluster: SimCluster, dice: Random) -> None:
        for _ in range(dice.randint(2, 5)):
            await change_level(cluster, dice)
            await asyncio.sleep(dice.random() / 2)
            if dice.random() < 0.5:
                await cluster.strike(dice, KINDS)

    return play(seed, disturb)


def test_transactions_are_whole_while_the_protocol_changes() -> None:
    changes = 0
    for seed in seeds_within(TIME_BOX_S / 2, range(400), at_least=3):
        result = run_with_levels(seed)
        result.assert_good(seed)
        changes += sum(" level " in event for event in result.events)
    assert changes > 5


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_transactions_are_whole_while_the_protocol_changes_again_and_again() -> None:
    for seed in seeds_within(1800.0, range(400, 10_000), at_least=3):
        run_with_levels(seed).assert_good(seed)


# A coordinator or a leader that dies at each step of a transaction, again and again.

STEPS = [state.shown for state in TransactionState] + ["Marker"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", STEPS)
def test_transactions_are_whole_when_brokers_die_at_one_step(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dying: list[Process] = []
    armed = False

    def die(now: str) -> None:
        nonlocal armed
        process = CURRENT.get()
        if armed and now == step and process is not None:
            armed = False
            dying.append(process)

    apply, write = TransactionShard.apply, MarkerWriter.write

    def applied(self: TransactionShard, offset: int, producer_id: int, epoch: int, record: Record) -> None:
        apply(self, offset, producer_id, epoch, record)
        if record.value_message is not None:
            die(record.value_message.state.shown)

    def written(self: MarkerWriter, request: m.WriteTxnMarkersRequest) -> Any:
        found = write(self, request)
        die("Marker")
        return found

    monkeypatch.setattr(TransactionShard, "apply", applied)
    monkeypatch.setattr(MarkerWriter, "write", written)

    async def kill(cluster: SimCluster, dice: Random) -> None:
        nonlocal armed
        for _ in range(3):
            armed = True
            await until(lambda: dying, f"{step} happens")
            name = dying.pop().host
            await asyncio.sleep(dice.choice((0.0, 0.001, 0.01)) * dice.random())
            cluster.events.append(f"{cluster.world.loop.time():.2f} kill {name} at {step}")
            cluster.node(name).kill()
            await asyncio.sleep(4 * dice.random())
            await cluster.restart(name)

    for seed in range(10):
        armed = False
        dying.clear()
        play(seed, kill).assert_good(seed)


# Bugs planted on purpose: checkers that cannot see them prove nothing.


def found(seeds: range, kinds: Sequence[str], strikes: tuple[int, int]) -> set[str]:
    """The anomalies of the first history that has any."""
    for seed in seeds:
        result = run(seed, kinds, strikes)
        if result.anomalies:
            return {anomaly.kind for anomaly in result.anomalies}
    return set()


def test_a_last_stable_offset_one_too_high_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(self: Partition) -> int:
        unstable = self.log.producers.first_unstable_offset
        return min(self.high_watermark, self.high_watermark if unstable is None else unstable + 1)

    monkeypatch.setattr(Partition, "last_stable_offset", property(one_more))
    assert found(range(20), ("kill",), (1, 2)) & {"aborted-read", "vanished-read"}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_late_marker_that_ends_a_newer_transaction_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "check_marker", lambda *arguments: None)
    assert found(range(60), ("kill", "freeze"), (2, 4)) & {"lost-write", "torn-transaction", "aborted-read"}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_leaders_that_do_not_ask_the_coordinator_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Membership.errors

    async def unasked(self: Membership, *arguments: Any) -> Errors:
        return await errors(self, *arguments) if arguments[-1] is Ability.ADDS else {}

    monkeypatch.setattr(Membership, "errors", unasked)
    assert found(range(100), ("reset", "late requests"), (4, 8)) & {"hanging-transaction", "aborted-read"}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_leader_that_remembers_only_the_last_batch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    check_batch = ProducerStates.check

    def forgetful(
        self: ProducerStates, producer_id: int, epoch: int, sequence: int, *rest: Any, **more: Any
    ) -> BatchMark | None:
        entry = self._entries.get(producer_id)
        known = entry.batches[:-1] if entry is not None and entry.epoch == epoch else ()
        if any(mark.base_sequence == sequence for mark in known):
            return None
        return check_batch(self, producer_id, epoch, sequence, *rest, **more)

    monkeypatch.setattr(ProducerStates, "check", forgetful)
    assert "duplicate" in found(range(100), ("reset",), (4, 8))
