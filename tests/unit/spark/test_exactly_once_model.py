"""Batches committed by drivers that are cut off between any two steps, in a world without brokers: each row once.

The world has what brokers have: transactions that are open, committed, aborted or forgotten, and a topic of decisions.
Drivers run the real steps against it, one after the other or at the same time, and are cut off before, behind or in the
middle of any of them. A judge looks at every row after every step.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.spark.sink.exactly_once import decisions
from headrace.spark.sink.exactly_once.decisions import (
    AbortAll,
    BatchRefused,
    CommitAll,
    Decision,
    Effect,
    Outcome,
    ReadDecision,
    Standing,
    Steps,
    Sweep,
    TaskTransaction,
    WriteDecision,
    abort_batch,
    commit_batch,
    transactional_id,
)

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
TASKS = 3
NOW = 1_000_000
Commit = Callable[..., Steps]


class World:
    """Brokers, as far as the sink can tell."""

    def __init__(self) -> None:
        self.log: list[Decision] = []
        self.transactions: dict[tuple[str, int], str] = {}
        """(transactional id, epoch) -> its state."""
        self.epochs: Counter[str] = Counter()
        self.rows: dict[tuple[str, int], tuple[int, int]] = {}
        """(transactional id, epoch) -> (batch, partition)."""

    def attempt(self, run: str, batch: int, partition: int, attempt: int = 0, rows: int = 10) -> TaskTransaction:
        """A task writes and leaves its transaction open; whoever had the id before is fenced."""
        name = transactional_id("query", run, batch, partition, attempt)
        for key, state in self.transactions.items():
            if key[0] == name and state == OPEN:
                self.transactions[key] = ABORTED
        self.epochs[name] += 1
        key = name, self.epochs[name]
        self.transactions[key] = OPEN
        self.rows[key] = batch, partition
        return TaskTransaction(partition, name, 7, self.epochs[name], True, rows, rows * 10, NOW, 60_000)

    def time_out(self, dice: random.Random) -> None:
        for key, state in self.transactions.items():
            if state == OPEN and dice.random() < 0.3:
                self.transactions[key] = ABORTED

    def standing(self) -> Standing:
        standing = Standing()
        for written in self.log:
            standing = standing.after(written)
        return standing

    def decision(self) -> Decision | None:
        """What a driver is told, which puts right first what compaction would leave."""
        while (owed := self.standing().owed) is not None:
            self.log.append(owed)
        return self.standing().decision

    def compact(self) -> None:
        """Of one key, the last record stays."""
        del self.log[:-1]

    def commit(self, task: TaskTransaction) -> Outcome:
        key = task.transactional_id, task.epoch
        if self.epochs[task.transactional_id] != task.epoch:
            return Outcome.LOST  # fenced: the id has been used again
        if self.transactions[key] == OPEN:
            self.transactions[key] = COMMITTED
        return Outcome.COMMITTED if self.transactions[key] == COMMITTED else Outcome.LOST

    def abort(self, task: TaskTransaction) -> None:
        key = task.transactional_id, task.epoch
        if self.transactions[key] == OPEN:
            self.transactions[key] = ABORTED

    def carry_out(self, effect: Effect, only: int | None = None) -> Any:
        """The result of an effect; `only` so many of its transactions, where the driver dies in the middle of it."""
        if isinstance(effect, ReadDecision):
            return self.decision()
        if isinstance(effect, WriteDecision):
            self.log.append(effect.decision)
            return self.decision()
        if isinstance(effect, CommitAll):
            return [self.commit(task) for task in effect.tasks[:only]]
        if isinstance(effect, AbortAll):
            for task in effect.tasks[:only]:
                self.abort(task)
            return None
        assert isinstance(effect, Sweep)
        for key in [key for key, state in self.transactions.items() if state == OPEN and key[0] not in effect.keep]:
            self.transactions[key] = ABORTED
        return None

    def visible(self) -> Counter[tuple[int, int]]:
        """What a read_committed reader sees: (batch, partition), once for each time that its rows are there."""
        return Counter(self.rows[key] for key, state in self.transactions.items() if state == COMMITTED)


class Driver:
    """One run of the query: does batches until it is cut off or refused."""

    def __init__(self, world: World, run: str, commit: Commit = commit_batch) -> None:
        self.world = world
        self.run = run
        self.commit = commit

    def batch(self, batch: int, attempts: int = 1) -> Iterator[Effect]:
        """Its tasks, and then the effects of its commit, each carried out when the next one is asked for."""
        tasks = [
            [self.world.attempt(self.run, batch, partition, attempt) for attempt in range(attempts)][-1]
            for partition in range(TASKS)
        ]
        try:
            yield from self._carry_out(self.commit(batch, self.run, tasks, NOW))
        except BatchRefused:
            # As Spark does when a commit fails.
            yield from self._carry_out(abort_batch(tasks))
            raise

    def _carry_out(self, steps: Steps) -> Iterator[Effect]:
        result = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration:
                return
            yield effect
            result = self.world.carry_out(effect)


def judge(world: World, done_below: int) -> None:
    """Nothing twice, ever; and of batches that are through, everything."""
    visible = world.visible()
    doubled = {key: count for key, count in visible.items() if count > 1}
    assert not doubled, f"rows are there twice: {doubled}"
    missing = [
        (batch, partition)
        for batch in range(done_below)
        for partition in range(TASKS)
        if (batch, partition) not in visible
    ]
    assert not missing, f"rows are missing: {missing}"


def run_batch(driver: Driver, batch: int, cut: int | None = None, within: int | None = None) -> bool:
    """Whether the batch came through. `cut` is the effect before which the driver dies, or `within` which it does."""
    for number, effect in enumerate(driver.batch(batch)):
        judge(driver.world, batch)
        if number == cut:
            if within is not None:
                driver.world.carry_out(effect, within)
            judge(driver.world, batch)
            return False
    judge(driver.world, batch + 1)
    return True


def effects_of_a_batch() -> int:
    return sum(1 for _ in Driver(World(), "count").batch(0))


CUTS = [
    (cut, within) for cut in range(effects_of_a_batch()) for within in (None, *range(TASKS + 1))
]  # fmt: skip
"""Where a driver can die: before each effect, or after 0, 1, ... of the transactions that it is about."""


def play_cuts(first: tuple[int, int | None], second: tuple[int, int | None], commit: Commit = commit_batch) -> None:
    """A driver dies in batch 0, the next one dies in it again, the third brings it and another one through."""
    world = World()
    for run, (cut, within) in (("one", first), ("two", second)):
        if run_batch(Driver(world, run, commit), 0, cut, within):
            break
    for batch in range(2):
        assert run_batch(Driver(world, "three", commit), batch)
    assert OPEN not in world.transactions.values(), "a transaction was left open behind a batch"


@pytest.mark.parametrize("first", CUTS)
def test_a_driver_cut_between_any_two_steps_and_the_next_one_again(first: tuple[int, int | None]) -> None:
    for second in CUTS:
        play_cuts(first, second)


def late_decision(batch: int, run: str, tasks: list[TaskTransaction], now_ms: int) -> Steps:
    """A planted mistake: the first transaction is committed before the decision is written."""
    steps = commit_batch(batch, run, tasks, now_ms)
    result = None
    while True:
        try:
            effect = steps.send(result)
        except StopIteration:
            return
        if isinstance(effect, WriteDecision) and not effect.decision.done:
            yield CommitAll(effect.decision.tasks[:1])
        result = yield effect


def test_a_decision_written_behind_the_first_commit_is_found() -> None:
    with pytest.raises(AssertionError, match="twice"):
        for first in CUTS:
            play_cuts(first, (0, None), late_decision)


def hasty_done(batch: int, run: str, tasks: list[TaskTransaction], now_ms: int) -> Steps:
    """Another one: the decision is marked as done before its transactions are committed."""
    steps = commit_batch(batch, run, tasks, now_ms)
    result = None
    held: Effect | None = None
    while True:
        try:
            effect = steps.send(result)
        except StopIteration:
            return
        if isinstance(effect, CommitAll):
            held, result = effect, [Outcome.COMMITTED] * len(effect.tasks)
            continue
        result = yield effect
        if isinstance(effect, WriteDecision) and effect.decision.done and held is not None:
            yield held


def test_a_decision_marked_as_done_too_early_is_found() -> None:
    with pytest.raises(AssertionError, match="missing"):
        for first in CUTS:
            play_cuts(first, (0, None), hasty_done)


# -- time-outs, drivers that come back to life, attempts that lost


def play_at_random(seed: int) -> Counter[str]:
    """Up to three drivers at once, any of which may be cut off, stand still, or go on behind the others' backs."""
    dice = random.Random(seed)
    world = World()
    times_out = dice.random() < 0.5
    notes: Counter[str] = Counter()
    through, born = 0, 0
    alive: dict[str, tuple[int, Iterator[Effect]]] = {}
    for _ in range(400):
        if through >= 4:
            break
        if not alive or (len(alive) < 3 and dice.random() < 0.05):
            born += 1
            run = f"run {born}"
            alive[run] = through, Driver(world, run).batch(through, dice.choice((1, 1, 2)))
        run = dice.choice(list(alive))
        batch, effects = alive[run]
        try:
            effect = next(effects)
            if dice.random() < 0.08:
                if dice.random() < 0.5:
                    world.carry_out(effect, dice.randrange(TASKS + 1))
                del alive[run]
                notes["cut"] += 1
        except StopIteration:
            through = max(through, batch + 1)
            alive[run] = batch + 1, Driver(world, run).batch(batch + 1, dice.choice((1, 1, 2)))
            notes["through"] += 1
        except BatchRefused as refusal:
            notes[refusal.problem.split(" ", 3)[2]] += 1
            del alive[run]
        if dice.random() < 0.03:
            world.compact()
            notes["compacted"] += 1
        if times_out and dice.random() < 0.03:
            world.time_out(dice)
            notes["timed out"] += 1
        judge(world, through)
    return notes


def test_drivers_at_the_same_time_with_time_outs() -> None:
    notes: Counter[str] = Counter()
    for seed in range(1500):
        try:
            notes += play_at_random(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert notes["through"] > 2000 and min(notes[key] for key in ("cut", "timed out", "compacted")) > 500, notes


def test_a_transaction_that_timed_out_is_replaced_by_the_new_attempt() -> None:
    world = World()
    assert not run_batch(Driver(world, "one"), 0, cut=2, within=1)
    key = next(key for key, state in world.transactions.items() if state == OPEN)
    world.transactions[key] = ABORTED
    assert run_batch(Driver(world, "two"), 0)
    last = world.decision()
    assert last is not None and (last.revision, last.done) == (1, True)


@pytest.mark.parametrize("is_done", [False, True])
def test_a_decision_written_in_vain_is_not_what_compaction_leaves(is_done: bool) -> None:
    world = World()
    late = Driver(world, "late").batch(0)
    assert isinstance(next(late), ReadDecision)
    assert isinstance(next(late), WriteDecision)  # it has read that there is none, and stands still
    first = Driver(world, "first").batch(0)
    for _ in range(5 if is_done else 4):
        effect = next(first)
    assert isinstance(effect, AbortAll) if is_done else isinstance(effect, WriteDecision)
    next(late)
    world.compact()
    assert run_batch(Driver(world, "next"), 0)


def test_other_rows_than_the_last_time_are_refused_when_a_part_is_committed() -> None:
    world = World()
    assert not run_batch(Driver(world, "one"), 0, cut=2, within=1)
    for key, state in list(world.transactions.items()):
        if state == OPEN:
            world.transactions[key] = ABORTED
    steps = commit_batch(0, "two", [world.attempt("two", 0, partition, rows=11) for partition in range(TASKS)], NOW)
    with pytest.raises(BatchRefused, match="other rows or tasks than the last time"):
        drive(world, steps)


def drive(world: World, steps: Steps) -> None:
    result = None
    while True:
        try:
            result = world.carry_out(steps.send(result))
        except StopIteration:
            return


def test_other_rows_are_the_batch_when_nothing_of_the_first_ones_was_committed() -> None:
    world = World()
    assert not run_batch(Driver(world, "one"), 0, cut=2)
    for key in world.transactions:
        world.transactions[key] = ABORTED
    drive(world, commit_batch(0, "two", [world.attempt("two", 0, partition, rows=11) for partition in range(2)], NOW))
    assert world.visible() == Counter({(0, 0): 1, (0, 1): 1})


def test_a_checkpoint_that_was_set_back_is_refused() -> None:
    world = World()
    for batch in range(3):
        assert run_batch(Driver(world, "one"), batch)
    with pytest.raises(BatchRefused, match="batch 1 is behind batch 2"):
        run_batch(Driver(world, "two"), 1)


def test_a_transaction_about_to_time_out_is_not_decided_on() -> None:
    world = World()
    tasks = [world.attempt("one", 0, 0)]
    steps = commit_batch(0, "one", tasks, NOW + 50_000)
    assert isinstance(next(steps), ReadDecision)
    with pytest.raises(BatchRefused, match="took so long"):
        steps.send(None)


def test_what_the_coordinator_has_forgotten_is_refused_and_not_guessed() -> None:
    world = World()
    assert not run_batch(Driver(world, "one"), 0, cut=2)
    steps = commit_batch(0, "two", [], NOW)
    next(steps)
    assert isinstance(steps.send(world.decision()), CommitAll)
    with pytest.raises(BatchRefused, match="the brokers no longer know"):
        steps.send([Outcome.COMMITTED, Outcome.UNKNOWN, Outcome.COMMITTED])


def test_a_failed_commit_leaves_what_is_decided_to_the_next_run() -> None:
    world = World()
    assert not run_batch(Driver(world, "one"), 0, cut=2)
    mine = [task for decision in world.log for task in decision.tasks]
    loser = world.attempt("one", 0, 0, attempt=1)
    drive(world, abort_batch([*mine, loser]))
    assert Counter(world.transactions.values()) == Counter({OPEN: TASKS, ABORTED: 1})


def test_an_empty_batch_decides_nothing() -> None:
    world = World()
    drive(world, commit_batch(0, "one", [], NOW))
    assert world.log == []


def test_ids_are_used_again_and_never_by_another_run() -> None:
    ids = {transactional_id("q", "r", batch, partition, 0) for batch in range(100) for partition in range(4)}
    assert len(ids) == 8
    assert not ids & {transactional_id("q", "s", batch, partition, 0) for batch in range(2) for partition in range(4)}
    assert all(one.startswith(decisions.sweep_prefix("q")) for one in ids)
    assert not any(one.startswith(decisions.sweep_prefix("q")) for one in [transactional_id("q/r", "r", 0, 0, 0)])
