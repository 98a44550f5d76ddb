"""What a driver does to have each row of a batch committed once, whatever was cut off before: pure.

Every task attempt writes in a transaction of its own and leaves it open. `commit_batch` and `abort_batch` say what the
driver does then, step by step: they yield an `Effect`, are sent its result, and never touch a broker. A driver may be
killed before, within and behind each effect, and another one begins the same batch again. Why nothing is doubled or
lost then:

1. The decision on a batch is one record in a compacted topic. It names the transactions that count, and it is written
   before the first of them is committed. Before it, nothing of the batch can be read by anybody; after it, the same
   transactions are committed by whoever comes next, as often as it takes: a second commit is answered like the first.
2. Of two decisions on the same batch the first in the topic counts: `in_force`. A driver that was thought dead and was
   not, writes a second one in vain, and then helps with the first. Compaction would keep the second one, so the one in
   force is written again behind it, by whoever reads both first: `Standing`.
3. A transaction of the decision may have timed out before it was committed. A driver that runs the batch again puts its
   own attempt of that task in its place, by a `revision` of the decision, written before it is committed, too. That is
   right if Spark has dealt out the same rows to the same tasks again: if not, it is refused, and says so.
4. The decision is marked as done when all of it is committed, and before the driver's commit returns. Only then may the
   next batch use transactional ids again, so whether a commit was carried out can always be asked.
"""

from collections.abc import Generator, Iterable, Sequence
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from headrace.spark.plain_errors import UserError

PREFIX = "headrace-spark/"
AGE_PERCENT_MAX = 80
"""Of its time-out, that a transaction may have used up when the driver decides to commit it."""


class TaskTransaction(msgspec.Struct, frozen=True, gc=False):
    """What one attempt of a task has written and left open."""

    partition: int
    """Spark's, of the task."""
    transactional_id: str
    producer_id: int
    epoch: int
    is_version_2: bool
    rows: int
    size_bytes: int
    """Of keys and values: with `rows`, what two attempts are told apart by if they were given different rows."""
    opened_ms: int
    timeout_ms: int
    """0: it never times out (two-phase commit)."""


class Decision(msgspec.Struct, frozen=True):
    """Which transactions make up a batch; the value of a record, whose key is the identity of the query or write."""

    batch: int
    revision: int
    """0, and one more each time that another attempt took the place of a transaction that had timed out."""
    run: str
    tasks: tuple[TaskTransaction, ...]
    done: bool = False

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(task.transactional_id for task in self.tasks)


def in_force(current: Decision | None, written: Decision) -> Decision:
    """What counts after `written` follows `current` in the topic: the first decision on each batch and revision."""
    if current is None or written.batch > current.batch:
        return written
    if written.batch == current.batch and not current.done:
        if written.done and written.revision == current.revision:
            return msgspec.structs.replace(written, run=current.run)
        if not written.done and written.revision == current.revision + 1:
            return written
    return current


class Standing(msgspec.Struct, frozen=True):
    """What the records of one query or write say, up to some place in the topic."""

    decision: Decision | None = None
    """In force."""
    last: Decision | None = None

    def after(self, written: Decision) -> "Standing":
        return Standing(in_force(self.decision, written), written)

    @property
    def owed(self) -> Decision | None:
        """What has to be written again before anybody acts on it: compaction keeps the last record, and no other."""
        return None if self.last == self.decision else self.decision


# -- transactional ids


def transactional_id(identity: str, run: str, batch: int, partition: int, attempt: int) -> str:
    """The id of one attempt. Ids are used again two batches later, never by another run, whose decision may be open.

    The next batch has others, so that it does not wait for the markers of this one, and a task of this batch that is
    still running fences none of it.
    """
    return f"{sweep_prefix(identity, run)}{batch % 2}/{partition}/{attempt}"


def sweep_prefix(identity: str, run: str | None = None) -> str:
    """What all ids of one query, or of one named write, begin with; or those of one run of it."""
    prefix = f"{PREFIX}{quote(identity, safe='')}/"
    return prefix if run is None else f"{prefix}{run}/"


# -- effects: what `commit_batch` and `abort_batch` want done


class Outcome(Enum):
    """What became of a transaction that was to be committed."""

    COMMITTED = "committed, now or before"
    LOST = "aborted: it had timed out, or somebody aborted it"
    UNKNOWN = "its coordinator has forgotten it"


class ReadDecision(msgspec.Struct, frozen=True):
    """Result: the decision in force, or None."""


class WriteDecision(msgspec.Struct, frozen=True):
    """Result: the decision in force once this one is in the topic, which may be somebody else's."""

    decision: Decision


class CommitAll(msgspec.Struct, frozen=True):
    """Result: an `Outcome` for each of `tasks`, in their order."""

    tasks: tuple[TaskTransaction, ...]


class AbortAll(msgspec.Struct, frozen=True):
    """No result. Whatever cannot be aborted is left to `Sweep` or to its time-out."""

    tasks: tuple[TaskTransaction, ...]


class Sweep(msgspec.Struct, frozen=True):
    """Abort what is open under ids of this query or write, of whatever run, but for `keep`. No result.

    A driver that was thought dead sweeps, too, while another one works on the same query. So what is aborted must be
    fenced by the same step, and what is committed must stay as it is: its commit may be asked for again.
    """

    keep: frozenset[str]
    run: str | None = None
    """The driver's own, of which no other driver decides."""


Effect: TypeAlias = ReadDecision | WriteDecision | CommitAll | AbortAll | Sweep
Steps: TypeAlias = Generator[Effect, Any, None]


class BatchRefused(UserError):
    """The batch cannot be committed exactly once; the message says why, and what to do."""


# -- the steps


def commit_batch(batch: int, run: str, tasks: Sequence[TaskTransaction], now_ms: int) -> Steps:
    """All tasks of a batch have succeeded; `tasks` are those that wrote anything."""
    mine = tuple(sorted(tasks, key=lambda task: task.partition))
    decision: Decision | None = yield ReadDecision()
    if decision is None or decision.batch < batch:
        if not mine:
            return
        _check_age(batch, mine, now_ms)
        decision = yield WriteDecision(Decision(batch, 0, run, mine))
    committed: frozenset[str] = frozenset()
    while True:
        assert decision is not None
        if decision.batch > batch:
            raise BatchRefused(
                f"batch {batch} is behind batch {decision.batch}, which is in the topic already",
                "the checkpoint was set back, or another driver runs the same query. Stop the other one, or go on from "
                "the right checkpoint, or from a new one. delivery=at-least-once writes the batch again",
            )
        if decision.done:
            break
        outcomes: Sequence[Outcome] = yield CommitAll(decision.tasks)
        lost = _lost(decision, outcomes)
        if lost:
            decision = yield WriteDecision(_revised(decision, lost, run, mine))
        else:
            committed = decision.ids
            decision = yield WriteDecision(msgspec.structs.replace(decision, tasks=(), done=True))
    yield AbortAll(tuple(task for task in mine if task.transactional_id not in committed))
    yield Sweep(frozenset(), run)


def abort_batch(tasks: Sequence[TaskTransaction]) -> Steps:
    """A batch has failed, perhaps within its commit: what is decided stays, and is committed by the next run."""
    decision: Decision | None = yield ReadDecision()
    decided = frozenset() if decision is None or decision.done else decision.ids
    yield AbortAll(tuple(task for task in tasks if task.transactional_id not in decided))
    yield Sweep(decided)


def _check_age(batch: int, tasks: Iterable[TaskTransaction], now_ms: int) -> None:
    """One about to time out must not be decided on: a driver that died now could not commit it later."""
    for task in tasks:
        age_ms = now_ms - task.opened_ms
        if task.timeout_ms and age_ms * 100 > task.timeout_ms * AGE_PERCENT_MAX:
            raise BatchRefused(
                f"batch {batch} took so long that a transaction of {task.timeout_ms / 1000:g} s, opened "
                f"{age_ms / 1000:g} s ago, may time out before it is committed",
                "make batches smaller (maxOffsetsPerTrigger), or raise option kafka.transaction.timeout.ms, and the "
                "brokers' transaction.max.timeout.ms with it",
            )


def _lost(decision: Decision, outcomes: Sequence[Outcome]) -> list[TaskTransaction]:
    assert len(outcomes) == len(decision.tasks)
    forgotten = [task for task, one in zip(decision.tasks, outcomes) if one is Outcome.UNKNOWN]
    if forgotten:
        raise BatchRefused(
            f"batch {decision.batch} was decided on, but the brokers no longer know {forgotten[0].transactional_id!r}, "
            f"so nobody can say whether {forgotten[0].rows} rows are in the topic",
            "ids are forgotten after transactional.id.expiration.ms. Look what is in the topic; one run with "
            "delivery=at-least-once writes the batch again",
        )
    return [task for task, one in zip(decision.tasks, outcomes) if one is Outcome.LOST]


def _revised(
    decision: Decision, lost: Sequence[TaskTransaction], run: str, mine: Sequence[TaskTransaction]
) -> Decision:
    """The decision with my attempts in place of those that timed out."""
    where = f"{len(lost)} of {len(decision.tasks)} transactions of batch {decision.batch} were aborted or timed out"
    if decision.run == run:
        raise BatchRefused(where, "start the query again: the batch then runs again, and what is missing is filled in")
    if len(lost) == len(decision.tasks):
        # Nothing of it can be read by anybody: whatever the tasks were given this time is the batch.
        return Decision(decision.batch, decision.revision + 1, run, tuple(mine))
    before, now = ({task.partition: (task.rows, task.size_bytes) for task in tasks} for tasks in (decision.tasks, mine))
    if before != now:
        raise BatchRefused(
            f"{where} after others had been committed, and the batch has other rows or tasks than the last time",
            "what is missing cannot be told from what is there. Have the query give the same rows for the same batch, "
            "with the settings of its last run; or one run with delivery=at-least-once writes the batch again, part "
            "of it twice",
        )
    gone = {task.partition for task in lost}
    fresh = {task.partition: task for task in mine}
    tasks = tuple(fresh[task.partition] if task.partition in gone else task for task in decision.tasks)
    return Decision(decision.batch, decision.revision + 1, run, tasks)
