"""Damage in a segment costs the damaged batches only, until they are put back; and a crash leaves the old or the
new."""

from random import Random

import pytest

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.layout import HEADER, BatchHeader, iter_headers
from headrace.storage.checking import verify_file
from headrace.storage.compaction import dirty_range
from headrace.storage.log import Log
from headrace.storage.mending import begin_mending
from headrace.storage.salvage import Part, salvage, survey
from headrace.storage.segment_reader import UNKNOWN_TIMESTAMP
from headrace.storage.segment_writer import SegmentWriter
from headrace.testing.simulator.disk import CrashMode, MemoryDisk, PowerCut

from .helpers import FOLDER, append, batch, open_log

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)
BATCHES = 40


def grown(close: bool = True) -> tuple[MemoryDisk, Log, list[bytes]]:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = open_log(disk, config=SMALL)
    written = [append(log, 1 + at % 3, timestamp=1000 + 7 * at, size=30, epoch=at // 10) for at in range(BATCHES)]
    if close:
        log.close()
        disk.sync_all()
    return disk, log, written


def reopened(disk: MemoryDisk, log: Log, *, clean: bool = True, trusted: bool = True) -> Log:
    return open_log(disk, config=SMALL, clean=clean, recovery_point=log.end_offset, manifest_trusted=trusted)


def damage(disk: MemoryDisk, log: Log, number: int, at: int, bit: int = 0) -> tuple[int, int]:
    """Flip a bit of one batch of a segment; returns the batch's offsets."""
    segment = log.segments[number]
    data = disk.read_bytes(segment.handle.path)
    batches = list(iter_headers(data))
    position, header = batches[len(batches) // 2]
    disk.flip(segment.handle.path, position + at, bit)
    return header.base_offset, header.end_offset


def mend(log: Log) -> None:
    """What a broker does with every hole whose file was set aside."""
    for hole in list(log.holes):
        parts = salvage(log.disk, hole.path, hole.start_offset, hole.end_offset, 150, log.config.compact)
        for part in parts:
            mending = begin_mending(log, hole, part)
            assert mending is not None
            mending.run()
            mending.finish()


def fill(log: Log, written: list[bytes]) -> None:
    """What a follower does: write the batches that are missing beside the log, and put them in place."""
    for hole in list(log.holes):
        writer = SegmentWriter(log.disk, log.path, hole.start_offset, 150, aborted_known=False)
        for data in written:
            header = BatchHeader._make(HEADER.unpack_from(data))
            if hole.start_offset <= header.base_offset < hole.end_offset:
                writer.append(header, data)
        size = writer.finish()
        writer.close()
        log.disk.sync_dir(log.path)
        mending = begin_mending(log, hole, Part(hole.start_offset, hole.end_offset, size))
        assert mending is not None
        mending.run()
        mending.finish()


def served(log: Log) -> dict[int, bytes]:
    """Every batch that can be read, by its base offset; an error may stand only for a whole hole."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.end_offset:
        try:
            piece = log.read(offset, 1 << 20, log.end_offset)
        except KafkaError as error:
            assert error.error is Err.KAFKA_STORAGE_ERROR
            hole = min((hole for hole in log.holes if hole.end_offset > offset), key=lambda hole: hole.start_offset)
            assert hole.start_offset <= offset, "only what is damaged is an error"
            offset = hole.end_offset
            continue
        assert piece is not None
        data = piece.read()
        piece.release()
        for position, header in iter_headers(data):
            found[header.base_offset] = data[position : position + header.size]
            offset = header.end_offset
    return found


def by_offset(written: list[bytes]) -> dict[int, bytes]:
    return {BatchHeader._make(HEADER.unpack_from(data)).base_offset: data for data in written}


@pytest.mark.parametrize("at", [6, 7, 9, 10, 11, 14, 15, 16, 17, 22, 26, 61, 70])
@pytest.mark.parametrize("bit", [0, 3, 7])
@pytest.mark.parametrize("number", [0, 3])
def test_only_the_damaged_batch_is_an_error(at: int, bit: int, number: int) -> None:
    """Whichever of its bytes is damaged: offset, length, epoch, magic, CRC, header or records."""
    disk, log, written = grown()
    log = reopened(disk, log)
    base, end = damage(disk, log, number, at, bit)
    segment = log.segments[number]
    original = disk.read_bytes(segment.handle.path)
    log.set_aside(segment, "found by the test")
    mend(log)
    assert [(hole.start_offset, hole.end_offset) for hole in log.holes] == [(base, end)]
    expected = by_offset(written)
    del expected[base]
    assert served(log) == expected
    assert original in [disk.read_bytes(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if name.endswith(".cut")]
    again = reopened(disk, log)
    assert [(hole.start_offset, hole.end_offset) for hole in again.holes] == [(base, end)]
    assert served(again) == expected
    fill(again, written)
    assert not again.holes and served(again) == by_offset(written)
    third = reopened(disk, again, clean=False)
    assert not third.holes and served(third) == by_offset(written)
    assert third.recovery.lines == []


def test_damage_at_both_ends_and_in_the_middle_of_a_segment() -> None:
    disk, log, written = grown()
    log = reopened(disk, log)
    segment = log.segments[2]
    batches = list(iter_headers(disk.read_bytes(segment.handle.path)))
    assert len(batches) >= 5
    gone = [batches[0], batches[2], batches[-1]]
    for position, _ in gone:
        disk.flip(segment.handle.path, position + 65)
    log.set_aside(segment, "found by the test")
    mend(log)
    assert sorted((hole.start_offset, hole.end_offset) for hole in log.holes) == [
        (header.base_offset, header.end_offset) for _, header in gone
    ]
    expected = by_offset(written)
    for _, header in gone:
        del expected[header.base_offset]
    assert served(log) == expected
    fill(log, written)
    assert not log.holes and served(log) == by_offset(written)


def test_damage_beside_a_hole() -> None:
    disk, log, written = grown()
    log = reopened(disk, log)
    base, _ = damage(disk, log, 2, 80)
    log.set_aside(log.segments[2], "found by the test")
    mend(log)
    before = next(segment for segment in log.segments if segment.base_offset == log.segments[2].base_offset)
    other, _ = damage(disk, log, log.segments.index(before), 80)
    log.set_aside(before, "found by the test")
    mend(log)
    assert sorted(hole.start_offset for hole in log.holes) == sorted((base, other))
    expected = by_offset(written)
    del expected[base], expected[other]
    assert served(log) == expected and served(reopened(disk, log)) == expected
    fill(log, written)
    assert not log.holes and served(log) == by_offset(written)


def test_a_whole_batch_within_a_damaged_one_is_not_taken_for_one() -> None:
    """A record may hold a batch that would fit. Behind it the rest of the record follows, and no other batch."""
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = open_log(disk, config=LogConfig(segment_bytes=4000))
    written = [append(log, 1, size=30) for _ in range(3)]
    from headrace.records.builder import build_batch
    from headrace.records.reader import Record

    nested = build_batch([Record(3, 1000, None, b"x" * 20 + batch(4, 1) + b"y" * 20)], base_offset=3, leader_epoch=0)
    log.append(nested, 3, 3, 0, 1000, 1000)
    written += [append(log, 1, size=30) for _ in range(3)]
    log.roll(0)
    position = sum(map(len, written[:3]))
    disk.flip(f"{FOLDER}/00000000000000000000.log", position + 10, 1)  # the length: nothing says where it ends
    log.set_aside(log.segments[0], "found by the test")
    mend(log)
    assert [(hole.start_offset, hole.end_offset) for hole in log.holes] == [(3, 4)]
    assert served(log) == by_offset(written)


def test_damage_in_the_active_segment_costs_no_more() -> None:
    disk, log, written = grown()
    log = reopened(disk, log)
    number = len(log.segments) - 1
    base, _ = damage(disk, log, number, 80)
    written.append(append(log, 2, size=30, epoch=4))
    log.set_aside(log.active, "found by the test")
    assert log.failed is None
    written.append(append(log, 2, size=30, epoch=4))
    mend(log)
    expected = by_offset(written)
    del expected[base]
    assert served(log) == expected
    log.flush()
    disk.crash(Random(1), CrashMode.RANDOM)
    again = reopened(disk, log, clean=False)
    assert served(again) == expected and again.end_offset == log.end_offset


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("number", [2, -1])
def test_a_power_cut_at_every_step_leaves_the_old_or_the_new(number: int, trusted: bool) -> None:
    """Setting aside, salvaging and filling: no batch is lost, none is served wrong, and the next start goes on."""
    origin, log, written = grown()
    everything = by_offset(written)

    def work(disk: MemoryDisk) -> None:
        here = reopened(disk, log, trusted=trusted)
        segment = here.segments[number]
        here.set_aside(segment, "found by the test")
        mend(here)
        fill(here, written)
        here.flush()

    base, _ = damage(origin, log, number, 80)
    whole = origin.fork()
    before = whole.faults.operations
    work(whole)
    steps = whole.faults.operations - before
    assert steps > 15
    for cut in range(steps):
        for mode in CrashMode:
            disk = origin.fork()
            disk.cut_after(cut)
            with pytest.raises(PowerCut):
                work(disk)
            disk.crash(Random(cut), mode)
            again = reopened(disk, log, trusted=trusted)
            assert again.end_offset == log.end_offset, (cut, mode)
            for segment in again.segments[:-1]:
                if verify_file(disk, segment.handle.path, segment.base_offset, segment.size):
                    again.set_aside(segment, "not yet noticed")
            if number == -1 and verify_file(
                disk, again.active.handle.path, again.active.base_offset, again.active.size
            ):
                again.set_aside(again.active, "not yet noticed")
            found = served(again)
            assert all(data == everything[offset] for offset, data in found.items()), (cut, mode)
            mend(again)
            assert set(served(again)) in (set(everything), set(everything) - {base}), (cut, mode)
            fill(again, written)
            assert not again.holes and served(again) == everything, (cut, mode)


def test_a_survey_says_whether_a_file_is_whole() -> None:
    disk, log, _ = grown()
    segment = log.segments[1]
    path, end = segment.handle.path, log.segments[2].base_offset
    assert survey(disk, path, segment.base_offset, end).is_whole
    disk.flip(path, segment.size - 1)
    assert not survey(disk, path, segment.base_offset, end).is_whole


def test_damage_that_a_look_for_something_to_compact_finds_is_no_end_of_the_broker() -> None:
    """The segment is set aside while the log is looked at: nobody goes on with its closed file."""
    disk, log, _ = grown()
    log = reopened(disk, log)
    path = log.segments[2].handle.path
    log.segments[2].max_timestamp = UNKNOWN_TIMESTAMP
    disk.open(path).truncate(30)
    for suffix in (".timeindex", ".indexsum"):
        disk.remove(path.removesuffix(".log") + suffix)
    dirty = dirty_range(log, None, log.end_offset, 1000)
    assert dirty.dirty_bytes and [hole.path for hole in log.holes] == [path + ".corrupt"]
