"""An index is a hint: whatever happens to its file, every read and lookup is that of the undamaged log."""

import errno
import random
from functools import cache
from typing import NamedTuple

import pytest

from headrace.config import LogConfig
from headrace.records.control import Marker, encode_marker
from headrace.records.layout import MAGIC_AT, iter_headers
from headrace.storage.file_names import INDEX_SUFFIXES, SUMS_SUFFIX
from headrace.storage.index_check import IndexCheck, unread_segments
from headrace.storage.log import Log
from headrace.storage.lookup import TimedOffset
from headrace.storage.reader import Slice
from headrace.storage.retention import SegmentFacts
from headrace.storage.segment import CorruptSegment
from headrace.testing.simulator.disk import MemoryDisk
from tests.unit.storage.helpers import FOLDER, Files, batch, files_of, open_log, read_all, restored

CONFIG = LogConfig(segment_bytes=5_000, index_interval_bytes=200)
ENTRY_BYTES = {".index": 8, ".timeindex": 12, ".txnindex": 34, SUMS_SUFFIX: 1}
KINDS = ("flip", "cut", "cut at an entry", "zero", "extend", "shift", "random", "signs", "swap", "copy", "remove")


def transaction(log: Log, producer_id: int, dice: random.Random, *, commit: bool) -> None:
    for at in range(dice.randint(1, 3)):
        data = batch(
            log.end_offset, 2, timestamp=1000 + dice.randint(0, 5), producer_id=producer_id, producer_epoch=0,
            base_sequence=2 * at, transactional=True,
        )  # fmt: skip
        log.append_batches(data, 1000)
    marker = encode_marker(
        Marker(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=1000, base_offset=log.end_offset
    )
    log.append_batches(marker, 1000)


@cache
def written(seed: int) -> Files:
    """The files of a log that was closed: equal times, times that go back, aborted transactions."""
    disk, dice = MemoryDisk(), random.Random(seed)
    log = open_log(disk, config=CONFIG)
    now = 1000
    for number in range(120):
        now += dice.choice((0, 0, 0, 1, 3))
        if dice.random() < 0.2:
            transaction(log, number, dice, commit=dice.random() < 0.5)
        else:
            count = dice.randint(1, 4)
            timestamp = now - dice.choice((0, 0, 0, 2, 7))
            data = batch(log.end_offset, count, timestamp=timestamp, size=dice.randint(1, 90))
            log.append_batches(data, 1000)
    assert len(log.segments) > 4
    log.close()
    return files_of(disk)


class Answers(NamedTuple):
    everything: list[bytes]
    by_offset: list[bytes]
    bounded: list[int]
    by_time: list[TimedOffset | None]
    latest: object
    aborted: list[list[tuple[int, int]]]
    ages: list[SegmentFacts]


def taken(piece: Slice | None) -> bytes:
    if piece is None:
        return b""
    data = piece.read()
    piece.release()
    return data


def answers(log: Log) -> Answers:
    end = log.end_offset
    return Answers(
        read_all(log),
        [taken(log.read(offset, 1, end)) for offset in range(end)],
        [len(taken(log.read(offset // 2, 1 << 20, offset))) for offset in range(0, end, 3)],
        [log.offset_for_timestamp(timestamp, end) for timestamp in range(985, 1300, 2)],
        log.max_timestamp_offset(),
        [log.aborted_transactions(offset, offset + 40) for offset in range(0, end, 20)],
        log.facts(),
    )


def damage(  # noqa: C901 - one case for each kind
    files: Files, dice: random.Random, suffixes: tuple[str, ...] = INDEX_SUFFIXES
) -> list[str]:
    """Damage one to three index files; returns what was done."""
    done = []
    for _ in range(dice.randint(1, 3)):
        kind = dice.choice(KINDS)
        name = dice.choice([name for name in files if name.endswith(suffixes)])
        suffix = name[20:]
        data, entry = bytearray(files[name]), ENTRY_BYTES[suffix]
        other = dice.choice([other for other in files if other.endswith(suffix)])
        at = dice.randrange(len(data)) if data else 0
        if kind == "flip" and data:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            del data[at:]
        elif kind == "cut at an entry":
            del data[at // entry * entry :]
        elif kind == "zero":
            data[at:] = bytes(len(data) - at)
        elif kind == "extend":
            data += dice.choice((dice.randbytes(entry), bytes(3 * entry), data[-entry:], b"x"))
        elif kind == "shift":
            del data[:entry]
        elif kind == "random":
            data[:] = dice.randbytes(len(data))
        elif kind == "signs":
            for place in range(dice.choice((0, 4)), len(data), 8):
                data[place] ^= 0x80
        elif kind in ("swap", "copy"):
            data[:] = files[other]
            if kind == "swap":
                files[other] = files[name]
        if kind == "remove":
            del files[name]
        else:
            files[name] = bytes(data)
        done.append(f"{kind} {name} {other if kind in ('swap', 'copy') else at}")
    return done


def opened(disk: MemoryDisk, files: Files, clean: bool) -> Log:
    """After a clean stop, or after a kill: then only the last segment is looked at."""
    last = max(int(name[:20]) for name in files if name.endswith(".log"))
    return open_log(disk, config=CONFIG, clean=clean, recovery_point=last, manifest_trusted=True)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_no_damage_to_indexes_changes_an_answer(first_seed: int, clean: bool) -> None:
    for seed in range(first_seed, first_seed + 10):
        dice = random.Random(seed)
        whole = written(seed % 3)
        expected = answers(opened(restored(whole), whole, clean))
        files = dict(whole)
        done = damage(files, dice)
        disk = restored(files)
        log = opened(disk, files, clean)
        assert answers(log) == expected, (seed, done)
        assert not log.holes and log.failed is None
        log.close()
        # What was built again is on the disk, and right.
        mended = files_of(disk)
        log = opened(disk, mended, clean=True)
        assert answers(log) == expected, (seed, done)
        assert {n: d for n, d in mended.items() if n.endswith((".index", ".timeindex", ".txnindex"))} == {
            n: d for n, d in whole.items() if n.endswith((".index", ".timeindex", ".txnindex"))
        }, (seed, done)


@pytest.mark.parametrize("seed", range(30))
def test_a_log_with_damaged_indexes_is_cut_where_an_undamaged_one_is(seed: int) -> None:
    dice = random.Random(seed)
    whole = written(seed % 3)
    files = dict(whole)
    done = damage(files, dice)
    good, bad = (opened(restored(some), some, True) for some in (whole, files))
    offset = dice.randrange(1, good.end_offset)
    for log in (good, bad):
        log.truncate_to(offset)
    assert bad.end_offset == good.end_offset
    assert answers(bad) == answers(good), (seed, done)


@pytest.mark.parametrize("seed", range(40))
def test_without_checksums_no_damage_changes_a_read(seed: int) -> None:
    """As Kafka leaves a folder, and as an older Headrace did."""
    dice = random.Random(seed)
    whole = {name: data for name, data in written(seed % 3).items() if not name.endswith(SUMS_SUFFIX)}
    for name in whole:
        if name.endswith((".index", ".timeindex")) and seed % 2:
            whole[name] += bytes(8 * 12 * 10)  # preallocated
    expected = answers(opened(restored(whole), whole, True))
    assert expected == answers(opened(restored(written(seed % 3)), whole, True))
    files = dict(whole)
    done = damage(files, dice, (".index", ".timeindex"))
    found = answers(opened(restored(files), files, True))
    assert (found.everything, found.by_offset, found.bounded) == (
        expected.everything,
        expected.by_offset,
        expected.bounded,
    ), (seed, done)


def test_a_position_that_no_file_has_is_no_disk_error() -> None:
    """The sign bit of every position flipped, in a folder without checksums: each read is the kernel's EINVAL
    otherwise."""
    files = {name: data for name, data in written(0).items() if not name.endswith(SUMS_SUFFIX)}
    expected = answers(opened(restored(files), files, True))
    for name, data in files.items():
        if name.endswith(".index"):
            entries = bytearray(data)
            for at in range(4, len(entries), 8):
                entries[at] ^= 0x80
            files[name] = bytes(entries)
    assert answers(opened(restored(files), files, True)) == expected


def test_an_index_that_cannot_be_written_again_is_kept_in_memory() -> None:
    whole = written(0)
    files = {name: b"" if name.endswith(".index") else data for name, data in whole.items()}
    disk = restored(files)
    log = opened(disk, files, True)
    disk.capacity_bytes = disk.used_bytes()
    assert answers(log) == answers(opened(restored(whole), whole, True))


def test_a_damaged_log_is_still_told_from_a_damaged_index() -> None:
    whole = written(0)
    name = sorted(name for name in whole if name.endswith(".log"))[1]
    files = {**whole, name.replace(".log", ".index"): b""}
    disk = restored(files)
    log = opened(disk, files, True)
    # Only now: a start sets aside what it finds damaged.
    disk.open(f"{FOLDER}/{name}").write_at(bytes([77]), MAGIC_AT)
    with pytest.raises(CorruptSegment):
        log.segments[1].find(log.segments[1].base_offset)


def test_a_check_ahead_mends_without_the_loop() -> None:
    whole = written(1)
    files = dict(whole)
    for name in whole:
        if name.endswith(".timeindex"):
            files[name] = random.Random(1).randbytes(len(whole[name]))
    disk = restored(files)
    log = opened(disk, files, True)
    unread = unread_segments(log)
    assert unread == log.segments[:-1]
    for segment in unread:
        check = IndexCheck(segment)
        check.run()
        assert check.finish(log)
    assert not unread_segments(log)
    assert {n: d for n, d in files_of(disk).items() if n.endswith(".timeindex")} == {
        n: d for n, d in whole.items() if n.endswith(".timeindex")
    }
    assert answers(log) == answers(opened(restored(whole), whole, True))


def test_a_transaction_index_that_could_not_be_written_is_made_again_from_the_log() -> None:
    """A full disk, at whichever of them: the markers are in the log by then, and readers must skip what they abort."""
    for failing in range(3):
        disk, dice = MemoryDisk(), random.Random(1)
        log = open_log(disk, config=CONFIG)
        disk.fail("append", errno.ENOSPC, path="*.txnindex", skip=failing, short=True)
        for producer_id in range(3):
            transaction(log, producer_id, dice, commit=False)
        aborted = log.aborted_transactions(0, log.end_offset)
        assert [producer_id for producer_id, _ in aborted] == [0, 1, 2]
        log.active.evicted()  # by a pool that needs its file
        assert log.aborted_transactions(0, log.end_offset) == aborted
        for _ in range(60):
            log.append_batches(batch(log.end_offset, 2, timestamp=1000, size=90), 1000)
        assert len(log.segments) > 1
        log.flush()
        log.segments[0].evicted()
        assert log.aborted_transactions(0, log.end_offset) == aborted
        log.close()
        assert open_log(disk, config=CONFIG, clean=True).aborted_transactions(0, 10_000) == aborted
        assert open_log(disk, config=CONFIG).aborted_transactions(0, 10_000) == aborted


@pytest.mark.parametrize("seed", range(3))
def test_a_slice_needs_only_the_aborted_transactions_that_began_before_its_end(seed: int) -> None:
    log = open_log(restored(written(seed)), config=CONFIG, clean=True)
    everything = log.aborted_transactions(0, log.end_offset)
    assert len(everything) > 5
    fewer = 0
    for offset in range(log.end_offset):
        for max_bytes in (1, 300, 2_000, 1 << 20):
            piece = log.read(offset, max_bytes, log.end_offset)
            assert piece is not None
            last_offset = max(header.last_offset for _, header in iter_headers(piece.read()))
            behind = log.offset_behind(offset, piece)
            piece.release()
            assert last_offset < behind <= log.end_offset
            told = log.aborted_transactions(offset, behind)
            needed = [one for one in log.aborted_transactions(offset, log.end_offset) if one[1] <= last_offset]
            assert set(needed) <= set(told)
            fewer += len(told) < len(everything) // 2
    assert fewer > log.end_offset


def test_an_index_without_checksums_does_not_say_which_aborted_transactions_a_slice_needs() -> None:
    """One that is wrong might leave some of them out."""
    files = {name: data for name, data in written(0).items() if not name.endswith(SUMS_SUFFIX)}
    log = open_log(restored(files), config=CONFIG, clean=True)
    ends = [segment.base_offset for segment in log.segments[1:]] + [log.end_offset]
    for segment, end_offset in zip(log.segments, ends):
        if not segment.size:
            continue
        piece = log.read(segment.base_offset, 1, log.end_offset)
        assert piece is not None and len(segment.offsets) and not segment.is_index_checked
        assert log.offset_behind(segment.base_offset, piece) == end_offset
        piece.release()
