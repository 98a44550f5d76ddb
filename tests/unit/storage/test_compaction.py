"""Compaction by its rules, against a model, and through power cuts at every step."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.config import LogConfig
from headrace.records.batch import BatchBuilder, BatchHeader, Record, iter_headers, read_records
from headrace.records.control import Marker, encode_marker
from headrace.storage.compaction import (
    Cleaned,
    Compaction,
    CompactionFailed,
    begin_swap,
    compact,
    dirty_range,
    finish_swaps,
    plan,
    serve,
)
from headrace.storage.files import Disk, RealDisk
from headrace.storage.log import Log
from headrace.testing.simulator.disk import CrashMode, MemoryDisk, PowerCut

FOLDER = "/data/t-0"
DAY_MS = 86_400_000
CONFIG = LogConfig(
    compact=True, delete=False, segment_bytes=600, index_interval_bytes=100, min_cleanable_dirty_ratio=0.0
)


@dataclass
class Writer:
    """A leader's log, written a batch at a time."""

    disk: Disk = field(default_factory=MemoryDisk)
    config: LogConfig = CONFIG
    folder: str = FOLDER
    now_ms: int = 1_000_000
    epoch: int = 3

    def __post_init__(self) -> None:
        self.log = self.open()

    def open(self, *, clean: bool = False, recovery_point: int = 0) -> Log:
        return Log.open(
            self.disk,
            self.folder,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            now_ms=self.now_ms,
            producer_expiration_ms=1 << 60,
        )

    def append(self, batch: bytes) -> None:
        self.log.append_batches(batch, self.now_ms)

    def put(self, *pairs: tuple[bytes | None, bytes | None], **options: object) -> int:
        base_offset = self.log.end_offset
        builder = BatchBuilder(base_offset=base_offset, leader_epoch=self.epoch, **options)  # type: ignore[arg-type]
        for key, value in pairs:
            builder.append(self.now_ms, key, value)
        self.append(builder.build())
        return base_offset

    def end(self, producer_id: int, producer_epoch: int, committed: bool) -> int:
        offset = self.log.end_offset
        self.append(
            encode_marker(
                Marker(committed, 0),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp=self.now_ms,
                base_offset=offset,
                leader_epoch=self.epoch,
            )
        )
        return offset

    def roll(self) -> None:
        self.log.roll(self.now_ms)
        self.log.flush()

    def compact(self, first_dirty: int | None = None, **changes: object) -> list[Cleaned]:
        """One round, inline; the results that were swapped in."""
        job = self.job(first_dirty, **changes)
        return [] if job is None else run(self.log, job)

    def job(self, first_dirty: int | None = None, **changes: object) -> Compaction | None:
        stable = self.log.producers.first_undecided_offset
        dirty = dirty_range(
            self.log, first_dirty, self.log.end_offset if stable is None else stable, self.now_ms
        )
        job = plan(self.log, dirty, self.now_ms)
        return None if job is None else msgspec.structs.replace(job, **changes)


def run(log: Log, job: Compaction) -> list[Cleaned]:
    done = []
    for cleaned in compact(log.disk, job):
        swap = begin_swap(log, cleaned)
        assert swap is not None
        swap.run()
        for path in swap.finish():
            log.disk.remove(path)
        done.append(cleaned)
    return done


def batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Everything readers can get, through the log's own reads."""
    found: list[tuple[BatchHeader, list[Record]]] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, log.end_offset)
        assert piece is not None, f"nothing at {offset} of {log.end_offset}"
        data = piece.read()
        piece.release()
        for position, header in iter_headers(data):
            assert header.last_offset >= offset
            found.append((header, read_records(data, position, header)))
            offset = header.end_offset
    return found


def values(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (r.offset, r.key, r.value)
        for header, records in batches(log)
        if not header.is_control
        for r in records
    ]


def reopen(writer: Writer, *, clean: bool) -> Log:
    if clean:
        writer.log.close()
    else:
        writer.log.abandon()
    return writer.open(clean=clean, recovery_point=writer.log.recovery_point)


class TestKeys:
    def test_the_last_record_of_each_key_stays_where_it_was(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), (b"b", b"1"))
        writer.put((b"a", b"2"), (b"c", b"1"))
        writer.put((b"c", b"2"))
        writer.roll()
        writer.put((b"a", b"active"))
        [cleaned] = writer.compact()
        assert values(writer.log) == [(1, b"b", b"1"), (2, b"a", b"2"), (4, b"c", b"2"), (5, b"a", b"active")]
        assert (cleaned.records_read, cleaned.records_kept, cleaned.clean_until) == (5, 3, 5)

    @pytest.mark.parametrize("codec", range(5))
    def test_batches_keep_their_place_codec_and_epoch(self, codec: int) -> None:
        writer = Writer()
        pairs = [(b"k%d" % n, b"v" * 50) for n in range(5)]
        writer.put(*pairs, compression=codec, producer_id=7, producer_epoch=1, base_sequence=40)
        writer.put((b"k1", b"new"), (b"k4", b"new"))
        writer.roll()
        writer.compact()
        header, records = batches(writer.log)[0]
        assert [record.offset for record in records] == [0, 2, 3]
        assert (header.base_offset, header.last_offset, header.count, header.codec) == (0, 4, 3, codec)
        assert (header.leader_epoch, header.base_sequence, header.last_sequence) == (3, 40, 44)

    def test_long_keys_and_records_without_a_key(self) -> None:
        writer = Writer()
        writer.put((b"x" * 100, b"1"), (None, b"no key"), (b"x" * 101, b"1"), (b"x" * 100, b"2"))
        writer.roll()
        writer.compact()
        assert [(offset, value) for offset, _, value in values(writer.log)] == [(2, b"1"), (3, b"2")]

    def test_a_batch_larger_than_a_read(self) -> None:
        writer = Writer(config=msgspec.structs.replace(CONFIG, segment_bytes=1 << 30))
        writer.put((b"a", b"x" * 3_000_000), (b"b", b"1"))
        writer.put((b"a", b"2"))
        writer.roll()
        writer.compact()
        assert values(writer.log) == [(1, b"b", b"1"), (2, b"a", b"2")]

    def test_the_end_of_the_round_stays_even_if_empty(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"))
        writer.roll()
        writer.put((None, b"x"))
        writer.roll()
        writer.put((b"a", b"3"))
        writer.roll()
        writer.compact()
        assert values(writer.log) == [(2, b"a", b"3")]
        writer.put((None, b"y"))
        writer.roll()
        writer.compact()
        last, records = batches(writer.log)[-1]
        assert (last.last_offset, last.count, records) == (3, 0, [])

    def test_a_small_map_takes_several_rounds(self) -> None:
        writer = Writer()
        for n in range(60):
            writer.put((b"k%d" % (n % 20), b"%d" % n))
        writer.roll()
        first_dirty, rounds = 0, 0
        while True:
            done = writer.compact(first_dirty, dedupe_bytes=2_000)
            if not done:
                break
            assert done[-1].clean_until > first_dirty, "every round must get further"
            first_dirty = done[-1].clean_until
            rounds += 1
        assert rounds > 3
        assert values(writer.log) == [(n, b"k%d" % (n % 20), b"%d" % n) for n in range(40, 60)]

    def test_small_segments_are_joined_up_to_the_size_of_one(self) -> None:
        writer = Writer()
        for n in range(40):
            writer.put((b"k%d" % n, b"v" * 60))
        writer.roll()
        before = len(writer.log.segments)
        writer.compact()
        assert len(writer.log.segments) == before, "nothing to remove and no two fit into one"
        for n in range(40):
            writer.put((b"k%d" % n, b"w"))
        writer.roll()
        # Groups go by the sizes before: the round after joins what this one left small.
        writer.compact()
        writer.compact()
        assert len(writer.log.segments) < before
        assert all(segment.size <= CONFIG.segment_bytes for segment in writer.log.segments)

    def test_reads_from_every_offset_after_most_is_gone(self) -> None:
        writer = Writer()
        for n in range(100):
            writer.put((b"k%d" % (n % 3), b"v%d" % n))
        writer.roll()
        writer.compact()
        log = writer.log
        kept = [offset for offset, _, _ in values(log)]
        for offset in range(log.end_offset):
            piece = log.read(offset, 1, log.end_offset)
            assert piece is not None
            header = next(iter_headers(piece.read()))[1]
            piece.release()
            assert header.last_offset == min(k for k in kept if k >= offset)


class TestTombstones:
    def test_they_stay_for_delete_retention_and_then_go(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), (b"b", b"1"))
        writer.put((b"a", None), (b"c", b"1"))
        writer.roll()
        writer.put((b"z", b"active"))
        writer.compact()
        assert (2, b"a", None) in values(writer.log)
        header = next(header for header, records in batches(writer.log) if header.base_offset == 2)
        assert header.delete_horizon_ms == writer.now_ms + DAY_MS
        timestamps = [record.timestamp for _, records in batches(writer.log) for record in records]
        assert timestamps == [1_000_000] * 4
        writer.now_ms += DAY_MS - 1
        writer.compact()
        assert (2, b"a", None) in values(writer.log)
        writer.now_ms += 1
        writer.compact()
        assert values(writer.log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"z", b"active")]

    def test_a_horizon_once_set_does_not_move(self) -> None:
        writer = Writer()
        writer.put((b"a", None), (b"b", b"1"))
        writer.put((b"q", b"1"))
        writer.roll()
        writer.compact()
        first = batches(writer.log)[0][0].delete_horizon_ms
        writer.now_ms += 1_000
        writer.put((b"b", b"2"))
        writer.roll()
        writer.compact()
        assert batches(writer.log)[0][0].delete_horizon_ms == first

    def test_timestamps_beyond_any_horizon_do_no_harm(self) -> None:
        writer = Writer()
        builder = BatchBuilder(base_offset=0)
        builder.append(-(1 << 63), b"a", None)
        writer.append(builder.build())
        writer.roll()
        writer.compact()
        [(header, records)] = batches(writer.log)
        assert (header.delete_horizon_ms, records[0].timestamp) == (None, -(1 << 63))


class TestProducers:
    def test_the_last_batch_of_a_producer_stays_for_its_sequence(self) -> None:
        writer = Writer()
        for n in range(3):
            writer.put((b"a", b"%d" % n), producer_id=7, producer_epoch=1, base_sequence=n)
        writer.put((b"a", b"last"))
        writer.put((b"b", b"x"))
        writer.roll()
        writer.compact()
        assert [(h.base_offset, h.count) for h, _ in batches(writer.log)] == [(2, 0), (3, 1), (4, 1)]
        writer.log.snapshots.remove_outside(1 << 60, 0)
        log = reopen(writer, clean=False)
        assert log.producers.last_records() == {7: (2, 1)}
        assert log.producers.check(7, 1, 3, 0) is None

    def test_an_expired_producer_is_not_kept(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=0)
        writer.put((b"a", b"2"))
        writer.roll()
        writer.compact(producers={})
        assert [h.base_offset for h, _ in batches(writer.log)] == [1]


class TestTransactions:
    def test_aborted_records_go_and_their_marker_follows(self) -> None:
        writer = Writer()
        t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
        writer.put((b"a", b"good"))
        writer.put((b"a", b"bad"), (b"b", b"bad"), base_sequence=0, **t)
        marker = writer.end(7, 1, committed=False)
        writer.put((b"z", b"1"), producer_id=7, producer_epoch=1, base_sequence=2)
        writer.roll()
        writer.put((b"y", b"active"))
        writer.compact()
        assert values(writer.log) == [(0, b"a", b"good"), (4, b"z", b"1"), (5, b"y", b"active")]
        assert writer.log.aborted_transactions(0, 10) == [(7, 1)], "a reader in the middle may still need it"
        assert marker in [h.base_offset for h, _ in batches(writer.log) if h.is_control]
        writer.compact()
        assert writer.log.aborted_transactions(0, 10) == []
        control = [h for h, _ in batches(writer.log) if h.is_control]
        assert [h.delete_horizon_ms for h in control] == [writer.now_ms + DAY_MS]
        writer.now_ms += DAY_MS
        writer.compact()
        assert [h for h, _ in batches(writer.log) if h.is_control] == []
        assert values(writer.log) == [(0, b"a", b"good"), (4, b"z", b"1"), (5, b"y", b"active")]

    def test_a_commit_marker_stays_as_long_as_its_records(self) -> None:
        writer = Writer()
        t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
        writer.put((b"a", b"1"), base_sequence=0, **t)
        writer.end(7, 1, committed=True)
        writer.put((b"q", b"1"), producer_id=7, producer_epoch=1, base_sequence=1)
        writer.roll()
        writer.compact()
        assert [h.delete_horizon_ms for h, _ in batches(writer.log) if h.is_control] == [None]
        writer.put((b"a", b"2"))
        writer.roll()
        writer.compact()
        writer.compact()
        assert [h.delete_horizon_ms for h, _ in batches(writer.log) if h.is_control] == [
            writer.now_ms + DAY_MS
        ]
        writer.now_ms += DAY_MS
        writer.compact()
        assert [h for h, _ in batches(writer.log) if h.is_control] == []

    def test_the_last_marker_keeps_the_epoch_of_a_fenced_producer(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
        writer.end(7, 2, committed=False)
        writer.put((b"b", b"1"))
        writer.roll()
        for _ in range(4):
            writer.compact()
            writer.now_ms += DAY_MS
        log = reopen(writer, clean=False)
        assert log.producers.last_records() == {7: (-1, 2)}
        assert [(h.base_offset, h.is_control) for h, _ in batches(log)] == [(1, True), (2, False)]

    def test_nothing_at_or_above_an_open_transaction(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"))
        writer.roll()
        writer.put((b"a", b"2"), producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
        writer.put((b"a", b"3"))
        writer.roll()
        writer.put((b"a", b"4"))
        writer.compact()
        assert values(writer.log)[0] == (0, b"a", b"1")

    def test_a_transaction_across_groups(self) -> None:
        writer = Writer()
        t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
        writer.put((b"a", b"x" * 400), base_sequence=0, **t)
        writer.roll()
        writer.put((b"b", b"y" * 400))
        writer.roll()
        writer.end(7, 1, committed=False)
        writer.put((b"c", b"z" * 400))
        writer.roll()
        assert len(writer.compact()) > 1
        assert [key for _, key, _ in values(writer.log)] == [b"b", b"c"]
        assert writer.log.aborted_transactions(0, 10) == [(7, 0)]


class TestDirty:
    def filled(self, **config: object) -> Writer:
        writer = Writer(config=msgspec.structs.replace(CONFIG, **config))
        for n in range(20):
            writer.now_ms = 1_000_000 + 1_000 * n
            writer.put((b"k", b"v" * 100))
        writer.roll()
        return writer

    def test_from_the_start_to_the_active_segment(self) -> None:
        log = self.filled().log
        dirty = dirty_range(log, None, log.end_offset, 2_000_000)
        assert (dirty.first_dirty_offset, dirty.end_offset) == (0, 20)
        assert (dirty.clean_bytes, dirty.dirty_bytes, dirty.ratio) == (0, log.size, 1.0)

    def test_the_last_stable_offset_stops_it_at_a_segment(self) -> None:
        log = self.filled().log
        bases = [segment.base_offset for segment in log.segments]
        assert dirty_range(log, None, bases[2] + 1, 2_000_000).end_offset == bases[2]
        assert dirty_range(log, None, bases[2], 2_000_000).end_offset == bases[2]
        assert dirty_range(log, None, bases[2] - 1, 2_000_000).end_offset == bases[1]

    def test_min_compaction_lag(self) -> None:
        log = self.filled(min_compaction_lag_ms=5_000).log
        dirty = dirty_range(log, None, log.end_offset, 1_019_000)
        [first_young] = [s.base_offset for s in log.segments if s.base_offset <= 15][-1:]
        assert dirty.end_offset == first_young

    def test_max_compaction_lag_makes_it_due_whatever_the_ratio(self) -> None:
        log = self.filled(max_compaction_lag_ms=10_000, min_cleanable_dirty_ratio=1.0, segment_ms=10**9).log
        assert not dirty_range(log, None, log.end_offset, 1_010_000).is_due(1.0)
        dirty = dirty_range(log, None, log.end_offset, 1_010_001)
        assert dirty.overdue_ms == 1
        assert dirty.is_due(1.0)

    def test_the_ratio(self) -> None:
        log = self.filled().log
        middle = log.segments[len(log.segments) // 2].base_offset
        dirty = dirty_range(log, middle, log.end_offset, 2_000_000)
        assert 0 < dirty.ratio < 1
        assert dirty.is_due(dirty.ratio - 0.01)
        assert not dirty.is_due(dirty.ratio)

    @pytest.mark.parametrize("checkpoint", [-1, 999])
    def test_a_wrong_checkpoint(self, checkpoint: int) -> None:
        log = self.filled().log
        dirty = dirty_range(log, checkpoint, log.end_offset, 2_000_000)
        assert dirty.checkpoint_was_wrong
        assert dirty.first_dirty_offset == 0

    def test_segments_that_are_not_durable_wait(self) -> None:
        writer = self.filled()
        bases = [segment.base_offset for segment in writer.log.segments]
        writer.log.segments[1].synced = False
        assert dirty_range(writer.log, None, 20, 2_000_000).end_offset == bases[1]

    def test_nothing_to_do(self) -> None:
        writer = self.filled()
        assert writer.job(20) is None


class TestChanges:
    def test_a_log_that_changed_is_left_alone(self) -> None:
        writer = Writer()
        for n in range(20):
            writer.put((b"k", b"%d" % n))
        writer.roll()
        job = writer.job()
        assert job is not None
        cleaned = next(compact(writer.disk, job))
        writer.log.truncate_fully(100)
        assert begin_swap(writer.log, cleaned) is None
        assert not [name for name in writer.disk.list(FOLDER) if name.endswith(".cleaned")]

    def test_a_segment_removed_under_way(self) -> None:
        writer = Writer()
        for n in range(20):
            writer.put((b"k", b"%d" % n))
        writer.roll()
        job = writer.job()
        assert job is not None
        writer.disk.remove(f"{FOLDER}/{job.segments[-1][0]:020d}.log")
        with pytest.raises(CompactionFailed):
            list(compact(writer.disk, job))

    def test_damage_is_not_copied(self) -> None:
        disk = MemoryDisk()
        writer = Writer(disk)
        for n in range(20):
            writer.put((b"k", b"%d" % n))
        writer.roll()
        before = disk.tree()
        disk.flip(f"{FOLDER}/{0:020d}.log", 70)
        job = writer.job()
        assert job is not None
        with pytest.raises(CompactionFailed):
            list(compact(disk, job))
        assert {path for path in disk.tree() if path.endswith(".log")} == {
            p for p in before if p.endswith(".log")
        }

    def test_readers_keep_the_old_segment_while_files_change_names(self) -> None:
        writer = Writer()
        writer.put((b"k", b"old"))
        writer.put((b"k", b"new"))
        writer.roll()
        job = writer.job()
        assert job is not None
        log = writer.log
        piece = log.read(0, 1 << 20, log.end_offset)
        assert piece is not None
        swap = begin_swap(log, next(compact(writer.disk, job)))
        assert swap is not None
        swap.run()
        assert values(log) == [(0, b"k", b"old"), (1, b"k", b"new")]
        swap.finish()
        assert values(log) == [(1, b"k", b"new")]
        assert [h.base_offset for _, h in iter_headers(piece.read())] == [0, 1]
        piece.release()

    def test_a_failed_rename_fails_the_log(self) -> None:
        disk = MemoryDisk()
        writer = Writer(disk)
        writer.put((b"k", b"old"))
        writer.put((b"k", b"new"))
        writer.roll()
        job = writer.job()
        assert job is not None
        swap = begin_swap(writer.log, next(compact(disk, job)))
        assert swap is not None
        disk.fail("rename", skip=4)
        with pytest.raises(OSError):
            swap.run()
        with pytest.raises(OSError):
            swap.finish()
        assert writer.log.failed is not None


def scenario(disk: MemoryDisk) -> Writer:
    """Several segments and groups, transactions and tombstones: something of everything at stake in a crash."""
    writer = Writer(disk)
    t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
    for n in range(6):
        writer.put((b"k%d" % (n % 3), b"v%d" % n), (b"only%d" % n, b"x" * 40))
        writer.roll()  # small segments, so that groups are made of several
    writer.put((b"k0", b"aborted"), base_sequence=0, **t)
    writer.end(7, 1, committed=False)
    for n in range(6):
        writer.put((b"k%d" % n, b"w%d" % n if n % 2 else None))
    writer.roll()
    writer.put((b"k1", b"active"))
    writer.log.flush()
    return writer


@pytest.mark.parametrize("mode", CrashMode)
def test_a_power_cut_at_every_step_leaves_old_or_new(mode: CrashMode) -> None:
    base = MemoryDisk()
    writer = scenario(base)
    writer.log.abandon()
    base.sync_all()

    def opened(disk: MemoryDisk) -> Writer:
        again = Writer(disk)
        again.log.flush()
        disk.sync_all()
        return again

    states = [values(opened(base.fork()).log)]
    reference = opened(base.fork())
    job = reference.job()
    assert job is not None
    joined = 0
    for cleaned in compact(reference.disk, job):
        swap = begin_swap(reference.log, cleaned)
        assert swap is not None
        swap.run()
        swap.finish()
        states.append(values(reference.log))
        joined = max(joined, len(cleaned.old_segments))
    assert len(states) > 2
    assert joined > 2

    seen = set()
    step = 0
    while True:
        disk = base.fork()
        attempt = opened(disk)
        disk.cut_after(step)
        try:
            job = attempt.job()
            assert job is not None
            run(attempt.log, job)
            disk.cut_after(None)
            break
        except PowerCut:
            pass
        for seed in range(1 if mode in (CrashMode.LOSE, CrashMode.KEEP) else 12):
            fate = disk.fork()
            fate.crash(Random(1_000 * step + seed), mode)
            after = Log.open(
                fate, FOLDER, CONFIG, recovery_point=attempt.log.recovery_point, now_ms=attempt.now_ms
            )
            assert values(after) in states, f"step {step} seed {seed}"
            seen.add(states.index(values(after)))
            assert after.end_offset == attempt.log.end_offset
            assert after.producers.last_records() == attempt.log.producers.last_records()
            assert not after.recovery.holes
            for segment, following in pairwise(after.segments):
                last = segment.last_batch()
                assert last is None or last[1].last_offset < following.base_offset, "two logs in one"
            left = [name for name in fate.list(FOLDER) if name.endswith((".cleaned", ".swap", ".deleted"))]
            assert left == []
        step += 1
    assert step > 20
    assert seen == {states.index(state) for state in states}, (
        "every state must have been reached by some crash"
    )


def test_files_of_an_undecided_compaction_are_forgotten() -> None:
    disk = MemoryDisk()
    writer = scenario(disk)
    job = writer.job()
    assert job is not None
    next(compact(disk, job))
    before = values(writer.log)
    # Half of the first step: some files renamed, some not.
    disk.rename(f"{FOLDER}/{0:020d}.log.cleaned", f"{FOLDER}/{0:020d}.log.swap")
    writer.disk.replace_bytes(f"{FOLDER}/not-ours.swap", b"x")
    finish_swaps(disk, FOLDER)
    assert values(reopen(writer, clean=False)) == before
    assert disk.exists(f"{FOLDER}/not-ours.swap")


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.integers(-1, 2),
            st.lists(
                st.tuples(st.sampled_from([b"a", b"b", b"c", b"d" * 40]), st.none() | st.binary(max_size=80)),
                min_size=1,
                max_size=4,
            ),
            st.integers(0, 4),
        ),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("wait"), st.sampled_from([1, DAY_MS // 2, DAY_MS])),
        st.tuples(st.just("compact"), st.sampled_from([500, 1 << 20])),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=40,
)


OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Model:
    """Every record that was ever written, and what became of it."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[bytes, bytes | None]] = {}
        self.fate: dict[int, str] = {}
        self.transactions: dict[int, list[int]] = {}

    def wrote(self, base_offset: int, producer_id: int, pairs: list[tuple[bytes, bytes | None]]) -> None:
        for offset, pair in enumerate(pairs, base_offset):
            self.records[offset] = pair
            self.fate[offset] = COMMITTED if producer_id < 0 else OPEN
            if producer_id >= 0:
                self.transactions.setdefault(producer_id, []).append(offset)

    def ended(self, producer_id: int, committed: bool) -> None:
        for offset in self.transactions.pop(producer_id, []):
            self.fate[offset] = COMMITTED if committed else ABORTED

    def last_values(self) -> dict[bytes, bytes]:
        last = {key: value for offset, (key, value) in self.records.items() if self.fate[offset] == COMMITTED}
        return {key: value for key, value in last.items() if value is not None}

    def check(self, log: Log) -> None:
        """What stays is what was written; a read_committed reader ends up with the last value of every key."""
        aborted = sorted(log.aborted_transactions(0, log.end_offset), key=lambda entry: entry[1])
        aborting: set[int] = set()
        last: dict[bytes, bytes | None] = {}
        for header, records in batches(log):
            while aborted and aborted[0][1] <= header.last_offset:
                aborting.add(aborted.pop(0)[0])
            if header.is_control:
                aborting.discard(header.producer_id)
                continue
            for record in records:
                assert self.records[record.offset] == (record.key, record.value)
                if header.is_transactional and header.producer_id in aborting:
                    assert self.fate[record.offset] == ABORTED
                elif self.fate[record.offset] != OPEN:
                    assert self.fate[record.offset] == COMMITTED, "an aborted record would be read"
                    assert record.key is not None
                    last[record.key] = record.value
        assert {key: value for key, value in last.items() if value is not None} == self.last_values()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions)
def test_readers_end_up_with_the_same(steps: Iterable[tuple[Any, ...]]) -> None:
    writer, model = Writer(), Model()
    sequences = dict.fromkeys(range(3), 0)
    first_dirty = 0
    for kind, *args in steps:
        if kind == "put":
            producer_id, pairs, codec = args
            options: dict[str, Any] = {"compression": codec}
            if producer_id >= 0:
                options |= {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
                options["base_sequence"] = sequences[producer_id]
                sequences[producer_id] += len(pairs)
            model.wrote(writer.put(*pairs, **options), producer_id, pairs)
        elif kind == "end":
            producer_id, committed = args
            writer.end(producer_id, 0, committed)
            model.ended(producer_id, committed)
        elif kind == "roll":
            writer.roll()
        elif kind == "wait":
            writer.now_ms += args[0]
        elif kind == "compact":
            writer.log.flush()
            done = writer.compact(first_dirty, dedupe_bytes=args[0])
            if done:
                assert done[-1].clean_until > first_dirty
                first_dirty = done[-1].clean_until
        else:
            known, end_offset = writer.log.producers.last_records(), writer.log.end_offset
            writer.log = reopen(writer, clean=args[0])
            assert writer.log.end_offset == end_offset
            assert writer.log.producers.last_records() == known
        model.check(writer.log)


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    writer = Writer(RealDisk(), folder=str(tmp_path / "t-0"))
    for n in range(40):
        writer.put((b"k%d" % (n % 7), b"v%d" % n))
    writer.roll()
    writer.put((b"z", b"1"))
    job = writer.job()
    assert job is not None
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, job))
    process.start()
    groups = 0
    while (answer := ours.recv()) is not None:
        assert isinstance(answer, Cleaned), answer
        swap = begin_swap(writer.log, answer)
        assert swap is not None
        swap.run()
        swap.finish()
        groups += 1
        ours.send(True)
    process.join(20)
    assert process.exitcode == 0
    assert groups > 0
    assert [value for _, _, value in values(writer.log)] == [b"v%d" % n for n in range(33, 40)] + [b"1"]
    writer.log.close()
