"""The power goes while a log of many segments is cut: what is left has no gap that a compaction could not have made."""

from contextlib import suppress
from random import Random

import pytest

from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut

from .helpers import append, batch, offsets, open_log, read_all

END = 24
SEEDS = 6


def written(config: LogConfig) -> MemoryDisk:
    """A log of six segments, all of it on the disk."""
    disk = MemoryDisk()
    log = open_log(disk, config=config)
    while log.end_offset < END:
        append(log, 1, size=40)
    assert len(log.segments) == 6
    log.close()
    disk.sync_all()
    return disk


def go_on_from(log: Log, offset: int) -> None:
    """What a follower does whose leader has another history from `offset` on."""
    log.truncate_to(offset)
    for _ in range(3):
        append(log, 1, size=50, epoch=1)
    log.flush()


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("offset", [6, 13, 17, 21])
def test_a_cut_that_the_power_ends_leaves_no_gap(compact: bool, offset: int) -> None:
    """In a compacted log a gap is nothing strange: a later segment that came back would hide what is missing before
    it."""
    config = LogConfig(segment_bytes=500, compact=compact, delete=not compact)
    full = written(config)
    whole = full.fork()
    go_on_from(open_log(whole, config=config, clean=True, manifest_trusted=True), offset)
    for cut in range(1, whole.faults.operations + 1):
        for seed in range(SEEDS):
            disk = full.fork()
            log = open_log(disk, config=config, clean=True, manifest_trusted=True)
            disk.cut_after(cut)
            with suppress(PowerCut):
                go_on_from(log, offset)
            disk.crash(Random(f"{cut} {seed}"))
            found = open_log(disk, config=config, committed=offset, manifest_trusted=True)
            assert not found.holes and offsets(read_all(found)) == list(range(found.end_offset)), (
                cut,
                seed,
                found.recovery.lines,
            )
            assert found.end_offset >= offset, (cut, seed, found.recovery.lines)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("lost_from", [8, 10])
def test_a_segment_behind_a_lost_end_does_not_count(compact: bool, lost_from: int) -> None:
    """Nobody was promised what lies behind it, and a replica that kept it would never ask for what is missing."""
    config = LogConfig(segment_bytes=500, compact=compact, delete=not compact)
    disk = written(config)
    whole = open_log(disk, config=config, clean=True)
    segment = next(s for s in whole.segments if s.base_offset == 8)
    size = 0 if lost_from == 8 else whole.segments[2].size // 2
    whole.abandon()
    disk.open(segment.path(".log")).truncate(size)
    found = open_log(disk, config=config, recovery_point=8, committed=8)
    assert offsets(read_all(found)) == list(range(lost_from))
    assert found.end_offset == lost_from


@pytest.mark.parametrize(("size_from", "hole"), [(0, 8), (2, 10)])
def test_a_gap_among_what_was_committed_is_a_hole(size_from: int, hole: int) -> None:
    """Without fsync a power cut may take the end of one segment and leave the next one. Nobody is to step over it."""
    config = LogConfig(segment_bytes=500)
    disk = written(config)
    path = f"/data/topic-0/{8:020}.log"
    disk.open(path).truncate(disk.size(path) * size_from // 4)
    for start in range(2):
        found = open_log(disk, config=config, recovery_point=8, committed=20)
        assert [(known.start_offset, known.end_offset) for known in found.holes] == [(hole, 12)]
        assert found.recovery.quarantined == (start == 0) and found.end_offset == END
        with pytest.raises(KafkaError, match="STORAGE"):
            found.read(hole, 1000, END)
        assert found.read(12, 1000, END) is not None
        found.abandon()
    found = open_log(disk, config=config, recovery_point=8, committed=20)
    found.truncate_to(hole)  # and so it is copied anew
    while found.end_offset < END:
        append(found, 1, size=40)
    assert not found.holes and offsets(read_all(found)) == list(range(END))


def test_a_lost_end_with_nothing_behind_it_is_the_end() -> None:
    """A segment had just been begun. What is missing is known by the high watermark, and offsets go on where records
    end."""
    config = LogConfig(segment_bytes=500)
    disk = written(config)
    disk.open(f"/data/topic-0/{16:020}.log").truncate(0)
    disk.open(f"/data/topic-0/{20:020}.log").truncate(0)
    found = open_log(disk, config=config, recovery_point=16, committed=22)
    assert not found.holes and found.end_offset == 16


def test_a_gap_of_a_log_that_was_once_compacted_is_no_hole() -> None:
    disk = written(LogConfig(segment_bytes=500, compact=True, delete=False))
    disk.open(f"/data/topic-0/{8:020}.log").truncate(0)
    found = open_log(disk, config=LogConfig(segment_bytes=500), committed=20, cleaned=12)
    assert found.holes == [] and offsets(read_all(found)) == [*range(8), *range(12, END)]


def test_what_was_compacted_of_another_log_says_nothing() -> None:
    """One of the same name that was deleted: its line outlives it until the next one is written."""
    config = LogConfig(segment_bytes=500)
    disk = written(config)
    path = f"/data/topic-0/{8:020}.log"
    disk.open(path).truncate(0)
    found = open_log(disk, config=config, recovery_point=8, committed=20, cleaned=1000)
    assert [(hole.start_offset, hole.end_offset) for hole in found.holes] == [(8, 12)] and found.end_offset == END


def test_a_gap_below_what_is_committed_is_left_to_compaction() -> None:
    config = LogConfig(segment_bytes=500, compact=True, delete=False)
    disk = written(config)
    disk.open("/data/topic-0/00000000000000000008.log").truncate(0)
    found = open_log(disk, config=config, committed=9)
    assert offsets(read_all(found)) == [*range(8), *range(12, END)]
    assert found.end_offset == END


def test_what_a_leader_has_cleaned_away_leaves_no_gap_between_segments() -> None:
    """A copy begins a segment where the last one ends: after a crash it is no different from one without gaps."""
    config = LogConfig(segment_bytes=500, compact=True, delete=False)
    disk = MemoryDisk()
    log = open_log(disk, config=config)
    for offset in range(0, 240, 10):
        log.append_batches(batch(offset, size=40), 1000)
    assert len(log.segments) == 6
    log.flush()
    disk.kill()
    found = open_log(disk, config=config, committed=0)
    assert offsets(read_all(found)) == list(range(0, 240, 10)), found.recovery.lines
