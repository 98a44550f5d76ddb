"""Compaction through power cuts at every step, against a model, and in a process of its own."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.storage.compaction import (
    Cleaned,
    begin_swap,
    compact,
    finish_swaps,
    serve,
)
from headrace.storage.files import RealDisk
from headrace.storage.log import Log
from headrace.storage.manifest import entry_of
from headrace.testing.simulator.disk import CrashMode, MemoryDisk, PowerCut
from tests.unit.storage.compacted import CONFIG, DAY_MS, FOLDER, Writer, batches, reopen, run, values


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


def nothing_left_at_the_end(disk: MemoryDisk) -> Writer:
    """Of the last segments of a group no batch stays, so the new file does not tell how far the group went."""
    writer = Writer(disk)
    for n in range(10):
        writer.put((b"k", b"v%d" % n), *[(b"only%d" % n, b"x")] * (n % 8 == 0))
        writer.roll()
    writer.put((b"k", b"last"))
    writer.roll()
    return writer


@pytest.mark.parametrize("written", [scenario, nothing_left_at_the_end])
@pytest.mark.parametrize("mode", CrashMode)
def test_a_power_cut_at_every_step_leaves_old_or_new(mode: CrashMode, written: Callable[[MemoryDisk], Writer]) -> None:
    base = MemoryDisk()
    writer = written(base)
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
                fate,
                FOLDER,
                CONFIG,
                recovery_point=attempt.log.recovery_point,
                now_ms=attempt.now_ms,
                manifest_trusted=True,
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
    assert seen == {states.index(state) for state in states}, "every state must have been reached by some crash"


def test_a_segment_is_not_taken_for_the_empty_one_that_was_to_replace_it() -> None:
    disk = MemoryDisk()
    writer = Writer(disk)
    writer.put((b"k", b"x" * 400))
    writer.roll()
    writer.put((b"k", b"y" * 400))
    writer.roll()
    disk.sync_all()
    before = values(writer.log)
    job = writer.job()
    assert job is not None
    cleaned = next(compact(disk, job))
    assert cleaned.size == 0 and cleaned.old_segments == ((0, writer.log.segments[0].size),)
    # The first step of a swap, and no other: the manifest names it.
    path = f"{FOLDER}/{0:020d}.log.cleaned"
    writer.log.manifest.begin_swap(entry_of(disk, path, 0, writer.log.segments[1].base_offset, 0))
    writer.log.manifest.save(disk, FOLDER)
    disk.crash(Random(1), CrashMode.LOSE)
    after = Log.open(disk, FOLDER, CONFIG, now_ms=writer.now_ms, manifest_trusted=True)
    assert values(after) == before
    assert after.recovery.lines == ["t-0: finished an interrupted compaction"]


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
