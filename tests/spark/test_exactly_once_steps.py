"""The steps of an exactly-once commit against real brokers, Headrace's and Apache Kafka's, cut off between any two."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from headrace.client.admin.admin import Admin
from headrace.client.admin.transactions import ListedTransaction, Transaction, Transactions
from headrace.client.net.cluster import Cluster
from headrace.client.produce import OutgoingBatch, ProducerCore, ProducerTransactions
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import Record, build_batch
from headrace.spark.sink.exactly_once import decision_log
from headrace.spark.sink.exactly_once.commit import Committer
from headrace.spark.sink.exactly_once.decision_log import DecisionLog, ensure_topic
from headrace.spark.sink.exactly_once.decisions import (
    AbortAll,
    BatchRefused,
    CommitAll,
    Decision,
    Steps,
    Sweep,
    TaskTransaction,
    commit_batch,
    transactional_id,
)
from headrace.testing.broker import TestBroker
from tests.committed import committed_records

TASKS = 3
EFFECTS = 6
"""Of a commit: read, decide, commit, mark as done, abort, sweep."""
NOW = 0


@pytest.fixture(params=["headrace", pytest.param("apache", marks=pytest.mark.reference)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap)


async def attempt(
    cluster: Cluster,
    topic: str,
    run: str,
    partition: int,
    batch: int = 0,
    number: int = 0,
    timeout_ms: int = 60_000,
    *,
    two_phase: bool = False,
) -> TaskTransaction:
    """What a task does: write, and leave the transaction open."""
    name = transactional_id(topic, run, batch, partition, number)
    transactions = ProducerTransactions(cluster, name, timeout_ms=timeout_ms, two_phase=True)
    async with ProducerCore(cluster, transactions=transactions) as producer:
        transactions.begin()
        await producer.partition_count(topic)
        value = b"%d of batch %d" % (partition, batch)
        record = build_batch([Record(0, 1000, None, value)], transactional=True)
        await producer.send([OutgoingBatch(topic, partition % 2, memoryview(bytearray(record)), 1)])
        await producer.flush()
    assert transactions.is_two_phase is two_phase
    return TaskTransaction(
        partition, name, transactions.producer.id, transactions.producer.epoch, transactions.steps.is_version_2,
        1, len(value), NOW, timeout_ms,
    )  # fmt: skip


async def attempts(cluster: Cluster, topic: str, run: str, batch: int = 0) -> list[TaskTransaction]:
    return list(await asyncio.gather(*(attempt(cluster, topic, run, partition, batch) for partition in range(TASKS))))


class CutOff(Exception):
    """The driver was killed."""


def cut(steps: Steps, before: int, tasks: int) -> Steps:
    """The same steps, but for a driver that dies before one of them, or when it has seen to so many of its tasks."""
    result = None
    for number in range(EFFECTS):
        effect = steps.send(result)
        if number == before:
            if isinstance(effect, CommitAll | AbortAll) and tasks:
                yield type(effect)(effect.tasks[:tasks])
            raise CutOff
        result = yield effect


async def values(bootstrap: str, topic: str) -> Counter[bytes]:
    found = await committed_records(bootstrap, topic)
    return Counter(record.value or b"" for records in found.values() for record in records)


async def make(admin: Admin, topic: str) -> None:
    await admin.create_topic(topic, 2, 1)
    await ensure_topic(admin)


def everything(batches: int = 1) -> Counter[bytes]:
    return Counter(b"%d of batch %d" % (task, batch) for batch in range(batches) for task in range(TASKS))


def fresh_process() -> None:
    """What the process remembers of the topic goes with it."""
    decision_log._known.clear()


@pytest.mark.parametrize("before", range(EFFECTS))
def test_a_driver_cut_off_between_any_two_steps(bootstrap: str, before: int) -> None:
    topic = f"spark-cut-{before}"

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = await attempts(admin.cluster, topic, "one")
            lost = await attempt(admin.cluster, topic, "one", 0, number=1)
            with pytest.raises(CutOff):
                await Committer(admin, topic).carry_out(cut(commit_batch(0, "one", first, NOW), before, 1))
        fresh_process()
        async with Admin(bootstrap) as admin:
            again = await attempts(admin.cluster, topic, "two")
            await Committer(admin, topic).carry_out(commit_batch(0, "two", again, NOW))
            await Committer(admin, topic).carry_out(
                commit_batch(1, "two", await attempts(admin.cluster, topic, "two", 1), NOW)
            )
            # Nothing is left open, so the reader comes to the end.
            assert await values(bootstrap, topic) == everything(2)
            open_now = await Transactions(admin).list_transactions(["Ongoing"])
            assert lost.transactional_id not in {one.transactional_id for one in open_now}

    asyncio.run(play())


def test_a_transaction_that_was_aborted_is_replaced_by_the_new_attempt(bootstrap: str) -> None:
    topic = "spark-replaced"

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = await attempts(admin.cluster, topic, "one")
            with pytest.raises(CutOff):
                await Committer(admin, topic).carry_out(cut(commit_batch(0, "one", first, NOW), 2, 1))
            # As a time-out would: the coordinator aborts with an epoch that fences.
            await Transactions(admin).fence(first[1].transactional_id)
            fresh_process()
            again = await attempts(admin.cluster, topic, "two")
            await Committer(admin, topic).carry_out(commit_batch(0, "two", again, NOW))
            assert await values(bootstrap, topic) == everything()
            decision = await DecisionLog(admin, topic).read()
            assert decision is not None and (decision.batch, decision.revision, decision.done) == (0, 1, True)

    asyncio.run(play())


def test_a_transaction_that_timed_out_is_noticed_and_replaced(bootstrap: str) -> None:
    topic = "spark-timed-out"

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = [
                await attempt(admin.cluster, topic, "one", 0),
                await attempt(admin.cluster, topic, "one", 1, timeout_ms=1000),
                await attempt(admin.cluster, topic, "one", 2),
            ]
            with pytest.raises(CutOff):
                await Committer(admin, topic).carry_out(cut(commit_batch(0, "one", first, NOW), 2, 1))
            while (await Transactions(admin).describe(first[1].transactional_id)).state != "CompleteAbort":
                await asyncio.sleep(0.05)
            again = await attempts(admin.cluster, topic, "two")
            await Committer(admin, topic).carry_out(commit_batch(0, "two", again, NOW))
            assert await values(bootstrap, topic) == everything()

    asyncio.run(play())


def test_a_commit_of_its_own_that_came_too_late_is_refused_and_the_next_run_heals_it(bootstrap: str) -> None:
    topic = "spark-too-late"

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = await attempts(admin.cluster, topic, "one")
            await Transactions(admin).fence(first[2].transactional_id)
            committer = Committer(admin, topic)
            with pytest.raises(BatchRefused, match="1 of 3 transactions of batch 0 were aborted or timed out"):
                await committer.commit(0, "one", [_young(task) for task in first])
            await committer.abort(first)
            await committer.commit(0, "two", [_young(task) for task in await attempts(admin.cluster, topic, "two")])
            assert await values(bootstrap, topic) == everything()

    asyncio.run(play())


def _young(task: TaskTransaction) -> TaskTransaction:
    """With a time-out that the clock of `Committer.commit` does not mind."""
    return msgspec.structs.replace(task, timeout_ms=0)


def test_of_two_decisions_the_first_one_counts_for_everybody(bootstrap: str) -> None:
    async def play() -> Sequence[Decision | None]:
        async with Admin(bootstrap) as admin:
            await ensure_topic(admin)
            one, two = Decision(5, 0, "one", ()), Decision(5, 0, "two", ())
            log = DecisionLog(admin, "both")
            in_force = [await log.write(one), await log.write(two)]
            fresh_process()
            return [*in_force, await log.read(), await DecisionLog(admin, "neither").read()]

    assert [one and one.run for one in asyncio.run(play())] == ["one", "one", "one", None]


def test_the_last_record_of_the_topic_is_what_is_in_force(bootstrap: str) -> None:
    """Compaction leaves nothing else."""
    task = TaskTransaction(0, "x", 1, 1, True, 1, 1, NOW, 0)
    first, late = (Decision(5, 0, run, (task,)) for run in ("one", "two"))
    done = Decision(5, 0, "one", (), done=True)

    async def last(admin: Admin, name: str) -> Decision:
        found = (await committed_records(bootstrap, decision_log.TOPIC))[0]
        return msgspec.json.decode([one.value or b"" for one in found if one.key == name.encode()][-1], type=Decision)

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await ensure_topic(admin)
            log = DecisionLog(admin, "last")
            assert await log.write(first) == first
            assert await log.write(late) == first
            assert await last(admin, "last") == first
            await log.write(done)
            assert await log.write(late) == done
            assert await last(admin, "last") == done
            # Its driver died before it could put that right.
            await log._append(late)
            fresh_process()
            assert await log.read() == done
            assert await last(admin, "last") == done
            end = (await log._state()).offset
            assert await log.read() == done
            assert (await log._state()).offset == end, "written again without need"

    asyncio.run(play())


def test_a_failed_batch_is_aborted_and_readers_go_on(bootstrap: str) -> None:
    topic = "spark-failed"

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            reported = await attempt(admin.cluster, topic, "one", 0)
            await attempt(admin.cluster, topic, "one", 1)  # its task was lost, and reports nothing
            await Committer(admin, topic).abort([reported])
            assert await values(bootstrap, topic) == Counter()

    asyncio.run(play())


class LateTransactions(Transactions):
    """Those of a driver that stood still: it goes by what brokers told it before."""

    listed: list[ListedTransaction]
    described: dict[str, Transaction]

    async def list_transactions(self, *_: object, **__: object) -> list[ListedTransaction]:
        return self.listed

    async def describe(self, transactional_id: str) -> Transaction:
        return self.described.get(transactional_id) or await super().describe(transactional_id)


@pytest.mark.parametrize("stood_still", ["behind the list", "behind the description"])
def test_a_late_sweep_leaves_what_was_committed_meanwhile_alone(bootstrap: str, stood_still: str) -> None:
    topic = f"spark-late-{stood_still[-4:]}"

    def sweep() -> Steps:
        yield Sweep(frozenset())

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = await attempts(admin.cluster, topic, "one")
            lost = await attempt(admin.cluster, topic, "one", 0, number=1)
            seen = LateTransactions(admin)
            seen.listed = await Transactions(admin).list_transactions(["Ongoing"])
            seen.described = {}
            if stood_still == "behind the description":
                for task in first:
                    seen.described[task.transactional_id] = await Transactions(admin).describe(task.transactional_id)
            # All of it is committed, but nobody has noted that when the late sweep comes.
            with pytest.raises(CutOff):
                await Committer(admin, topic).carry_out(cut(commit_batch(0, "one", first, NOW), 3, 0))
            late = Committer(admin, topic)
            late._transactions = seen
            await late.carry_out(sweep())
            assert (await Transactions(admin).describe(lost.transactional_id)).state != "Ongoing"
            fresh_process()
            again = await attempts(admin.cluster, topic, "two")
            await Committer(admin, topic).carry_out(commit_batch(0, "two", again, NOW))
            assert await values(bootstrap, topic) == everything()

    asyncio.run(play())


def test_with_two_phase_commit_nothing_decided_can_time_out() -> None:
    topic = "spark-two-phase"

    async def play(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = [
                await attempt(admin.cluster, topic, "one", partition, timeout_ms=1, two_phase=True)
                for partition in range(TASKS)
            ]
            lost = await attempt(admin.cluster, topic, "one", 0, number=1, timeout_ms=1, two_phase=True)
            with pytest.raises(CutOff):
                await Committer(admin, topic).carry_out(cut(commit_batch(0, "one", first, NOW), 2, 1))
            # Far longer than the time-out that was asked for.
            other = ProducerTransactions(admin.cluster, "ordinary", timeout_ms=100)
            async with ProducerCore(admin.cluster, transactions=other) as producer:
                other.begin()
                view = memoryview(bytearray(build_batch([Record(0, 1000, None, b"x")], transactional=True)))
                await producer.send([OutgoingBatch(topic, 0, view, 1)])
                await producer.flush()
            while (await Transactions(admin).describe("ordinary")).state != "CompleteAbort":
                await asyncio.sleep(0.02)
            states = {(await Transactions(admin).describe(task.transactional_id)).state for task in first[1:]}
            assert states == {"Ongoing"}
            fresh_process()
            again = [
                await attempt(admin.cluster, topic, "two", partition, timeout_ms=1, two_phase=True)
                for partition in range(TASKS)
            ]
            await Committer(admin, topic).carry_out(commit_batch(0, "two", again, NOW))
            assert await values(bootstrap, topic) == everything()
            decision = await DecisionLog(admin, topic).read()
            assert decision is not None and (decision.revision, decision.done) == (0, True)
            assert (await Transactions(admin).describe(lost.transactional_id)).state != "Ongoing"

    settings = {"transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "2"}
    with TestBroker(settings=settings) as broker:
        asyncio.run(play(broker.bootstrap))


def test_in_the_classic_protocol_only_leftovers_of_the_same_run_are_swept() -> None:
    """An abort does not fence there: a task of another driver would go on without its first rows."""
    topic = "spark-classic"
    kind = m.UpdateFeaturesRequest
    safe_downgrade = 2

    async def lower(bootstrap: str) -> None:
        update = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=safe_downgrade)
        async with Admin(bootstrap) as admin:
            answer = await admin.cluster.to_any(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update]))
            assert answer.error_code == 0, answer
        level = 2
        while level != 1:
            async with Admin(bootstrap) as admin:
                level = (await admin.cluster.any_connection()).features["transaction.version"]

    async def play(bootstrap: str) -> None:
        await lower(bootstrap)
        async with Admin(bootstrap) as admin:
            await make(admin, topic)
            first = await attempts(admin.cluster, topic, "one")
            assert not any(task.is_version_2 for task in first)
            lost = await attempt(admin.cluster, topic, "one", 0, number=1)
            other = await attempt(admin.cluster, topic, "two", 0)
            await Committer(admin, topic).carry_out(commit_batch(0, "one", first, NOW))
            transactions = Transactions(admin)
            assert (await transactions.describe(lost.transactional_id)).state != "Ongoing"
            assert (await transactions.describe(other.transactional_id)).state == "Ongoing"
            await transactions.fence(other.transactional_id)
            assert await values(bootstrap, topic) == everything()

    with TestBroker() as broker:
        asyncio.run(play(broker.bootstrap))
