"""Power cuts: what a log called durable is there afterwards, and nothing it serves was never written."""

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from headrace.config import LogConfig
from headrace.storage.durability import UNSYNCED, SyncPlan
from headrace.storage.files import RealDisk
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.pages import CrashMode

from .helpers import FOLDER, append, open_log, read_all

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=150)


def fresh() -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.sync_all()
    return disk, open_log(disk, config=SMALL)


def sync(log: Log) -> None:
    plan = log.sync_plan()
    if plan is not None:
        plan.run()
        log.mark_durable(plan)


def test_nothing_is_durable_before_a_sync_and_all_is_after() -> None:
    disk, log = fresh()
    written = [append(log, size=50) for _ in range(30)]
    assert len(log.segments) > 3 and log.durable_end == 0
    twin = disk.fork()
    twin.crash(random.Random(1), CrashMode.LOSE)
    assert not twin.exists(FOLDER)
    sync(log)
    assert log.durable_end == log.end_offset == 30
    assert log.recovery_point == log.active.base_offset
    assert log.sync_plan() is None
    disk.crash(random.Random(1), CrashMode.LOSE)
    again = open_log(disk, config=SMALL, recovery_point=log.recovery_point)
    assert read_all(again) == written


def test_appends_during_a_sync_wait_for_the_next() -> None:
    _, log = fresh()
    append(log)
    plan = log.sync_plan()
    assert plan is not None
    append(log)
    plan.run()
    append(log)
    log.mark_durable(plan)
    assert log.durable_end == 1
    sync(log)
    assert log.durable_end == 3


def test_plans_may_overlap() -> None:
    _, log = fresh()
    append(log)
    first = log.sync_plan()
    for _ in range(20):
        append(log, size=50)
    second = log.sync_plan()
    assert first is not None and second is not None
    second.run()
    log.mark_durable(second)
    assert log.durable_end == 21
    first.run()
    log.mark_durable(first)
    assert log.durable_end == 21


def test_a_truncation_during_a_sync_voids_it() -> None:
    _, log = fresh()
    for _ in range(5):
        append(log)
    plan = log.sync_plan()
    assert plan is not None
    log.truncate_to(2)
    for _ in range(3):
        append(log, epoch=1)
    plan.run()
    log.mark_durable(plan)
    assert log.durable_end == 0  # the bytes synced are not those at offsets 2 to 4 now
    sync(log)
    assert log.durable_end == 5
    log.truncate_to(3)
    assert log.durable_end == 3


def test_the_recovered_tail_is_not_durable_until_synced() -> None:
    disk, log = fresh()
    append(log)
    sync(log)
    append(log)
    disk.kill()
    again = open_log(disk, config=SMALL, recovery_point=log.recovery_point)
    assert again.end_offset == 2
    assert again.durable_end == 0
    sync(again)
    assert again.durable_end == 2


@pytest.mark.parametrize("operation", ["sync", "sync_dir"])
def test_a_failed_sync_fails_the_log_for_good(operation: str) -> None:
    disk, log = fresh()
    append(log)
    plan = log.sync_plan()
    assert plan is not None
    disk.fail(operation, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(OSError):
        plan.run()
    with pytest.raises(OSError):
        log.mark_durable(plan)
    assert log.durable_end == 0
    with pytest.raises(OSError):  # although the disk would say yes now
        log.sync_plan()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_failed_sync_has_dropped_is_written_again_by_the_next_process(seed: int) -> None:
    """The kernel shows it as if it were there, and a second sync has nothing to do."""
    disk, log = fresh()
    written = [append(log, size=50) for _ in range(10)]
    sync(log)
    recovery_point = log.recovery_point
    written += [append(log, size=50) for _ in range(7)]
    disk.fail("sync", errno.EIO, path="*.log")
    plan = log.sync_plan()
    assert plan is not None
    with pytest.raises(OSError, match="Input/output"):
        plan.run()
    log.abandon()
    disk.faults.clear()
    again = open_log(disk, config=SMALL, recovery_point=recovery_point)
    assert read_all(again) == written and not disk.exists(f"{FOLDER}/{UNSYNCED}")
    sync(again)
    assert again.durable_end == 17
    disk.crash(random.Random(seed), CrashMode.LOSE if seed else CrashMode.RANDOM)
    after = open_log(disk, config=SMALL, recovery_point=again.recovery_point)
    assert read_all(after) == written


def test_writing_again_leaves_a_real_file_as_it_was(tmp_path: Path) -> None:
    """Linux appends whatever is written to a file that was opened for appending, wherever it should go."""
    disk, folder = RealDisk(), f"{tmp_path}/topic-0"
    log = open_log(disk, folder, config=SMALL)
    written = [append(log, size=50) for _ in range(20)]
    log.flush()
    log.close()
    before = {name: disk.size(f"{folder}/{name}") for name in disk.list(folder) if name.endswith(".log")}
    disk.open(f"{folder}/{UNSYNCED}", create=True).close()
    again = open_log(disk, folder, config=SMALL)
    assert read_all(again) == written and again.recovery.lines == [
        "topic-0: written to the disk again, since a sync had failed"
    ]
    assert {name: disk.size(f"{folder}/{name}") for name in before} == before
    assert not disk.exists(f"{folder}/{UNSYNCED}")
    again.close()


def test_a_plan_that_was_never_run_is_a_failure() -> None:
    _, log = fresh()
    append(log)
    plan = log.sync_plan()
    assert plan is not None
    with pytest.raises(OSError):
        log.mark_durable(plan)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("plan"), st.just(0)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 4)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 1 << 30), st.sampled_from(CrashMode))
def test_after_any_power_cut_the_durable_prefix_is_there(
    script: list[tuple[str, int]], seed: int, mode: CrashMode
) -> None:
    """A model of one log: batches by offset. Whatever unsynced bytes the cut kept, lost or tore, the reopened log
    starts with everything that was durable and goes on only with batches that were written."""
    disk, log = fresh()
    alive: list[tuple[int, bytes]] = []
    everything: set[bytes] = set()
    checkpointed = 0
    epoch = 0
    pending: SyncPlan | None = None
    for step, number in script:
        if step == "append":
            alive.append((log.end_offset, append(log, number, size=40, epoch=epoch)))
            everything.add(alive[-1][1])
        elif step == "sync":
            sync(log)
        elif step == "plan" and pending is None:
            pending = log.sync_plan()
        elif step == "finish" and pending is not None:
            pending.run()
            log.mark_durable(pending)
            pending = None
        elif step == "truncate" and alive and number:
            log.truncate_to(max(log.durable_end, alive[-min(number, len(alive))][0]))
            alive = [(base, data) for base, data in alive if base < log.end_offset]
            epoch += 1
            checkpointed = min(checkpointed, log.recovery_point)
        elif step == "roll":
            log.roll(1000)
        elif step == "checkpoint":
            checkpointed = log.recovery_point
        assert read_all(log) == [data for _, data in alive]
    durable = [data for base, data in alive if base < log.durable_end]
    disk.crash(random.Random(seed), mode)
    disk.make_dirs("/data")
    # The high watermark was checkpointed with the recovery point, at most what was durable then.
    again = open_log(disk, config=SMALL, recovery_point=checkpointed, committed=checkpointed)
    assert not again.holes
    found = read_all(again)
    assert found[: len(durable)] == durable
    assert set(found) <= everything
    if mode is CrashMode.KEEP:
        assert found == [data for _, data in alive]
    sync(again)
    assert again.durable_end == again.end_offset
