"""Group commit: durable means synced before it is said, whatever happens between plan, sync and callback."""

import errno
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.metrics import Latency
from headrace.broker.replicas import syncer as subject
from headrace.broker.replicas.syncer import Syncer
from headrace.storage.log import Log
from headrace.storage.pool import FilePool
from headrace.testing.simulator.disk import CrashMode, MemoryDisk
from tests.unit.broker.fakes import FakeLoop
from tests.unit.storage.helpers import append, open_log


class Part:
    """A partition as far as the syncer knows. It promises what it is told, and the test checks the promise."""

    def __init__(self, world: "World", log: Log) -> None:
        self.world = world
        self.log = log
        self.promised = 0

    def write(self, count: int = 1) -> None:
        append(self.log, count)
        self.world.syncer.dirty(self)

    def durable(self) -> None:
        self.promised = self.log.durable_end
        if self.log.durable_end < self.log.end_offset:
            self.world.syncer.dirty(self)


class World:
    """Sync threads by hand: `work` happens when the test says so, and so does its report."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_dirs("/data")
        self.disk.sync_all()
        self.loop = FakeLoop()
        self.jobs: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.failures: list[tuple[Log, OSError]] = []
        runtime: Any = SimpleNamespace(
            loop=self.loop, perf_counter=lambda: 0.0, sync=lambda work, done: self.jobs.append((work, done))
        )
        self.syncer = Syncer(runtime, Latency(), lambda log, error: self.failures.append((log, error)))

    def part(self, number: int = 0, pool: FilePool | None = None) -> Part:
        log = open_log(self.disk, f"/data/t-{number}", **({"pool": pool} if pool else {}))  # type: ignore[arg-type]
        log.flush()
        return Part(self, log)

    def run_all(self) -> None:
        for _ in range(100):
            self.loop.turn()
            jobs, self.jobs = self.jobs, []
            for work, done in jobs:
                work()
                done()
            if self.syncer.idle and not self.loop.ready:
                return
        raise AssertionError("never idle")


def test_records_of_one_turn_share_one_sync() -> None:
    world = World()
    part = world.part()
    for _ in range(5):
        part.write()
    assert world.jobs == []
    world.loop.turn()
    assert len(world.jobs) == 1
    world.run_all()
    assert part.promised == 5


def test_what_nobody_waits_for_is_synced_later_and_once() -> None:
    world = World()
    part = world.part()
    for _ in range(3):
        append(part.log, 1)
        world.syncer.dirty_later(part)
    world.loop.turn()
    assert world.jobs == [] and len(world.loop.later) == 1
    world.loop.ready, world.loop.later = world.loop.later, []
    world.run_all()
    assert part.promised == 3 and world.loop.later == []


@pytest.mark.parametrize("when", ["before the sync", "after the sync"])
def test_what_is_written_between_plan_and_report_is_not_promised(when: str) -> None:
    world = World()
    part = world.part()
    part.write(3)
    world.loop.turn()
    ((work, done),) = world.jobs
    world.jobs.clear()
    if when == "before the sync":
        part.write(2)
        work()
    else:
        work()
        part.write(2)
    done()
    assert part.promised == 3
    world.run_all()
    assert part.promised == 5


@pytest.mark.parametrize("mode", [CrashMode.LOSE, CrashMode.RANDOM])
@pytest.mark.parametrize("moment", range(13))
def test_a_power_cut_keeps_every_promise(moment: int, mode: CrashMode) -> None:
    """At each moment of a small history: what was promised is on the platter."""
    world = World()
    part = world.part()
    steps: list[Callable[[], object]] = [
        lambda: part.write(2),
        world.loop.turn,
        lambda: part.write(1),
        lambda: world.jobs[0][0](),
        lambda: part.write(1),
        lambda: world.jobs.pop(0)[1](),
    ]
    for step in (2 * steps)[:moment]:
        step()
    world.disk.crash(Random(moment), mode)
    log = open_log(world.disk, "/data/t-0")
    assert log.end_offset >= part.promised
    assert moment < 6 or part.promised >= 2


def test_a_log_is_never_synced_twice_at_the_same_time() -> None:
    world = World()
    part = world.part()
    part.write()
    world.loop.turn()
    part.write()
    world.loop.turn()
    assert len(world.jobs) == 1
    world.run_all()
    assert part.promised == 2


def test_many_logs_share_the_threads_and_none_is_forgotten() -> None:
    world = World()
    parts = [world.part(number) for number in range(40)]
    for part in parts:
        part.write()
    world.loop.turn()
    assert len(world.jobs) == subject.PARALLEL_SYNCS
    for part in parts[::3]:
        part.write()
    world.loop.turn()
    assert len(world.jobs) == subject.PARALLEL_SYNCS
    world.run_all()
    assert [part.promised for part in parts] == [part.log.end_offset for part in parts]


def test_what_is_written_while_every_thread_is_busy_gets_its_turn() -> None:
    world = World()
    parts = [world.part(number) for number in range(subject.PARALLEL_SYNCS)]
    late = world.part(99)
    for part in parts:
        part.write()
    world.loop.turn()
    late.write()
    world.run_all()
    assert late.promised == 1


def test_the_only_free_thread_takes_no_more_than_its_share() -> None:
    world = World()
    busy = [world.part(number) for number in range(subject.PARALLEL_SYNCS)]
    late = [world.part(100 + number) for number in range(2 * subject.PARALLEL_SYNCS)]
    for part in busy:
        part.write()
    world.loop.turn()
    for part in late:
        part.write()
    work, done = world.jobs.pop(0)
    work()
    done()
    work, done = world.jobs.pop()  # what the free thread was given
    work()
    done()
    assert sum(part.promised for part in late) == 2
    world.run_all()
    assert all(part.promised == 1 for part in [*busy, *late])


def test_a_failed_sync_is_never_a_success_and_never_tried_again() -> None:
    world = World()
    good, bad = world.part(0), world.part(1)
    world.disk.fail("sync", errno.EIO, path="/data/t-1/*.log")
    good.write(2)
    bad.write(2)
    world.run_all()
    assert good.promised == 2
    assert bad.promised == 0
    assert [(log, error.errno) for log, error in world.failures] == [(bad.log, errno.EIO)]
    bad.durable()
    world.syncer.dirty(bad)
    world.run_all()
    assert bad.promised == 0, "a second fsync succeeds, and means nothing"
    assert len(world.failures) == 1


def test_one_failure_in_a_job_leaves_the_others_their_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PARALLEL_SYNCS", 1)
    world = World()
    parts = [world.part(number) for number in range(3)]
    world.disk.fail("sync", errno.EIO, path="/data/t-1/*.log")
    for part in parts:
        part.write()
    world.run_all()
    assert [part.promised for part in parts] == [1, 0, 1]


def test_a_log_that_is_removed_while_it_syncs_fails_nothing() -> None:
    """A topic deleted right after its first record: the folder that the sync looks for has another name."""
    world = World()
    part = world.part()
    part.log.epochs.assign(1, 0)
    part.write()
    world.loop.turn()
    part.log.abandon()
    part.log.move_folder("/data/t-0.0123-delete")
    world.run_all()
    assert world.failures == [] and part.log.failed is None
    assert all(segment.handle.pins == 0 for segment in part.log.segments)


def test_a_log_that_is_removed_before_its_sync_starts_is_left_alone() -> None:
    world = World()
    gone, other = world.part(0), world.part(1)
    gone.write()
    other.write()
    gone.log.abandon()
    gone.log.move_folder("/data/t-0.0123-delete")
    world.run_all()
    assert world.failures == [] and other.promised == 1


def test_out_of_descriptors_is_a_failure_of_that_log_only() -> None:
    world = World()
    pool = FilePool(world.disk, 1)
    evicted, other = world.part(0, pool), world.part(1, pool)
    evicted.write()
    for handle in [segment.handle for segment in evicted.log.segments]:
        handle.pool._close(handle)
    world.disk.fail("open", errno.EMFILE, path="/data/t-0/*.log", times=None)
    other.write()
    world.run_all()
    assert other.promised == 1 and evicted.promised == 0
    assert [(log, error.errno) for log, error in world.failures] == [(evicted.log, errno.EMFILE)]


def test_a_bug_in_a_sync_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread must live on, and report: an ack that waits for ever is as bad as one that lies."""
    world = World()
    part = world.part()
    part.write()
    world.loop.turn()
    file = part.log.active.handle.file
    assert file is not None
    monkeypatch.setattr(type(file), "sync", lambda self: 1 // 0)
    world.run_all()
    assert part.promised == 0 and len(world.failures) == 1


def test_what_is_written_at_the_end_of_a_turn_shares_its_sync() -> None:
    world = World()
    part, other = world.part(), world.part(1)
    world.syncer.dirty_soon(part, lambda: part.write(3))
    other.write()
    assert part.log.end_offset == 0, "not before the turn is over"
    world.loop.turn()
    assert part.log.end_offset == 3 and len(world.jobs) == 2
    world.run_all()
    assert (part.promised, other.promised) == (3, 1)


def test_it_is_written_before_the_sync_that_an_earlier_one_has_begun_to_wait_for() -> None:
    """Who comes between the end of one sync and the start of the next still gets into that."""
    world = World()
    part = world.part()
    part.write()
    world.loop.turn()
    part.write()  # must wait: the first is being synced
    [(work, done)] = world.jobs
    world.jobs = []
    work()
    done()
    world.syncer.dirty_soon(part, part.write)
    world.run_all()
    assert part.promised == 3


def test_it_is_written_in_time_though_all_threads_are_busy_and_others_wait() -> None:
    world = World()
    parts = [world.part(number) for number in range(subject.PARALLEL_SYNCS)]
    for part in parts:
        part.write()
    world.loop.turn()
    assert len(world.jobs) == subject.PARALLEL_SYNCS
    late = world.part(99)
    for part in (parts[0], late):
        world.syncer.dirty_soon(part, part.write)
    world.loop.turn()
    assert parts[0].log.end_offset == 2 and late.log.end_offset == 1
    assert len(world.jobs) == subject.PARALLEL_SYNCS
    world.run_all()
    assert parts[0].promised == 2 and late.promised == 1


def test_one_that_cannot_be_written_keeps_nobody_else_from_being_synced() -> None:
    world = World()
    part, bad = world.part(), world.part(1)

    def fail() -> None:
        raise MemoryError

    world.syncer.dirty_soon(bad, fail)
    world.syncer.dirty_soon(part, part.write)
    world.run_all()
    assert part.promised == 1
    bad.write()
    world.run_all()
    assert bad.promised == 1


def test_what_is_decided_while_others_are_written_is_written_next() -> None:
    """A write that fails answers those who waited for it, and they go on at once."""
    world = World()
    part, other = world.part(), world.part(1)

    def write() -> None:
        part.write()
        world.syncer.dirty_soon(other, other.write)

    world.syncer.dirty_soon(part, write)
    world.run_all()
    assert (part.promised, other.promised) == (1, 1)


def test_one_that_cannot_say_that_it_is_durable_keeps_nobody_else_waiting() -> None:
    world = World()
    parts = [world.part(number) for number in range(2 * subject.PARALLEL_SYNCS)]  # two in each thread's share

    def fail() -> None:
        raise MemoryError

    for part in parts[::2]:
        part.durable = fail  # type: ignore[method-assign]
    for part in parts:
        part.write()
    world.run_all()
    assert [part.promised for part in parts[1::2]] == [1] * subject.PARALLEL_SYNCS
    for part in parts:
        part.write()
    world.run_all()
    assert [part.promised for part in parts[1::2]] == [2] * subject.PARALLEL_SYNCS
