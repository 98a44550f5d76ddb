import errno
import random
import struct
from pathlib import Path

import pytest

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.storage.files import Disk, RealDisk
from headrace.storage.log import Log
from headrace.storage.pool import FilePool
from headrace.storage.segment import NEVER
from headrace.testing.simulator.disk import MemoryDisk

from .helpers import FOLDER, append, batch, offsets, open_log, read_all


@pytest.fixture(params=["memory", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and a folder on it that does not exist yet."""
    if request.param == "memory":
        disk = MemoryDisk()
        disk.make_dirs("/data")
        return disk, FOLDER
    return RealDisk(), str(tmp_path / "topic-0")


@pytest.fixture
def log(place: tuple[Disk, str]) -> Log:
    return open_log(*place)


def test_reads_back_what_was_appended(log: Log) -> None:
    written = [append(log, count, size=50) for count in (1, 3, 2)]
    assert log.end_offset == 6
    assert read_all(log) == written


def test_a_read_inside_a_batch_returns_the_whole_batch(log: Log) -> None:
    append(log, 2)
    second = append(log, 5)
    part = log.read(4, 1 << 20, log.end_offset)
    assert part is not None and part.read() == second


@pytest.mark.parametrize(("length", "magic"), [(1_000, 1), (1_000, 0), (48, 2), (-1, 2)])
def test_what_only_looks_like_a_batch_is_none(log: Log, length: int, magic: int) -> None:
    """An index that leads into a record, which may hold anything: here nearly the head of a batch with every offset."""
    fake = struct.pack(">qiiBiHi", 0, length, 0, magic, 0, 0, 1_000).ljust(61, b"\0")
    for number in range(4):
        data = build_batch(
            [Record(number, 1_000, None, bytes(10_000) + fake + bytes(10_000))], base_offset=number, leader_epoch=0
        )
        log.append(data, number, number, 0, 1_000, 1_000)
    segment = log.active
    segment.forget_tail(NEVER)
    whole = segment.handle.open().read(segment.size, 0)
    positions = segment.offsets.positions
    for at, position in enumerate(positions):
        positions[at] = whole.index(fake, position)
        places = [segment.find(offset) for offset in range(4)]
        assert [(place.position, place.base_offset) for place in places if place] == [
            (number * segment.size // 4, number) for number in range(4)
        ]
        positions = segment.offsets.positions  # found to be wrong, it may have been made again
        positions[at] = position


@pytest.mark.parametrize("seed", range(6))
def test_batches_of_any_size_are_found_by_each_of_their_offsets(seed: int) -> None:
    dice = random.Random(seed)
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = open_log(disk, config=LogConfig(segment_bytes=300_000))
    sizes = ((10, 100), (10, 5_000, 20_000), (10_000, 30_000))[seed % 3]
    for _ in range(60):
        append(log, dice.randint(1, 4), size=dice.choice(sizes))
    # What was appended is remembered; what was read from the disk again is found by the index.
    log.close()
    log = open_log(disk, config=LogConfig(segment_bytes=300_000))
    assert len(log.segments) > 1 or seed % 3 == 0
    for segment in log.segments:
        segment.forget_tail(NEVER)
        if seed >= 3:  # an index that leads astray
            for at in range(len(segment.offsets)):
                segment.offsets.positions[at] += dice.choice((0, 0, 0, -7, 7, 100_000))
        batches = [(position, header) for position, header in segment.walk(0, segment.size)]
        for position, header in batches:
            for offset in range(header.base_offset, header.end_offset):
                found = segment.find(offset)
                assert found is not None and (found.position, found.size) == (position, header.size)
                assert (found.base_offset, found.last_offset) == (header.base_offset, header.last_offset)
        assert segment.find(batches[-1][1].end_offset) is None


def test_reads_are_bounded_by_the_end_given(log: Log) -> None:
    first = append(log, 2)
    append(log, 2)
    for _ in range(2):  # the second time from the remembered bound
        part = log.read(0, 1 << 20, 2)
        assert part is not None and part.read() == first
    # A bound inside a batch excludes the whole batch: half of it is not committed.
    part = log.read(0, 1 << 20, 3)
    assert part is not None and part.read() == first
    assert log.read(2, 1 << 20, 2) is None
    assert log.read(3, 1 << 20, 2) is None


def test_offsets_outside_the_log_are_out_of_range(log: Log) -> None:
    append(log, 4)
    assert log.read(4, 100, 4) is None
    for offset in (5, 100, -1):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 100, 4)
        assert caught.value.error is Err.OFFSET_OUT_OF_RANGE
    log.advance_log_start(2)
    with pytest.raises(KafkaError):
        log.read(1, 100, 4)


def test_the_first_batch_comes_whole_even_if_larger_than_asked(log: Log) -> None:
    big = append(log, 1, size=500)
    append(log, 1)
    part = log.read(0, 100, log.end_offset)
    assert part is not None and part.read() == big
    assert log.read(0, 100, log.end_offset, min_one=False) is None
    # With room for more the rest is cut wherever it falls.
    part = log.read(0, len(big) + 20, log.end_offset)
    assert part is not None and part.length == len(big) + 20


@pytest.mark.parametrize("max_bytes", [1, 90, 1000, 1 << 20])
def test_many_segments_read_as_one_log(place: tuple[Disk, str], max_bytes: int) -> None:
    log = open_log(*place, config=LogConfig(segment_bytes=1000, index_interval_bytes=200))
    written = [append(log, 1 + at % 3, size=40) for at in range(100)]
    assert len(log.segments) > 10
    assert read_all(log, max_bytes=max_bytes) == written
    for bound in range(0, log.end_offset, 7):
        assert offsets(read_all(log, bound, max_bytes)) == [
            offset for data in written if offsets([data])[-1] < bound for offset in offsets([data])
        ]


def test_rolls_by_size_time_index_and_relative_offset(place: tuple[Disk, str]) -> None:
    log = open_log(*place, config=LogConfig(segment_ms=500, segment_index_bytes=40, index_interval_bytes=1))
    append(log, timestamp=1000)
    append(log, timestamp=1500)
    assert len(log.segments) == 1
    append(log, timestamp=1501)  # more than segment.ms after the first batch of the segment
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    while len(log.segments) == 2:  # time index entries need growing timestamps: let the offset index fill up
        append(log, timestamp=1501)
    assert log.segments[2].base_offset == 2 + 6  # the first batch has no entry, five fill 40 bytes
    far = log.end_offset + (1 << 31)
    log.append(batch(far), far, far, 0, 1501, 1000)
    assert log.active.base_offset == far
    assert read_all(log)[-1] == batch(far, timestamp=1000)


def test_segments_without_timestamps_roll_by_the_clock(log: Log) -> None:
    log.reconfigure(LogConfig(segment_ms=500))
    data = batch(0, timestamp=-1)
    log.append(data, 0, 0, 0, -1, 1200)
    log.append(data, 1, 1, 0, -1, 1500)
    assert len(log.segments) == 1
    log.append(data, 2, 2, 0, -1, 1501)
    assert len(log.segments) == 2


def test_a_batch_larger_than_a_segment_gets_its_own(log: Log) -> None:
    log.reconfigure(LogConfig(segment_bytes=100))
    written = [append(log, size=300), append(log, size=300)]
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert read_all(log) == written


def test_followers_append_many_batches_at_once(log: Log) -> None:
    log.reconfigure(LogConfig(segment_bytes=1000))
    data = [batch(0, 2), batch(2, 3, epoch=1), batch(10, 2, epoch=4)]
    log.append_batches(b"".join(data) + b"cut short", 1000)
    assert read_all(log) == data
    assert log.end_offset == 12
    assert log.epochs.entries == [(0, 0), (1, 2), (4, 10)]
    log.append_batches(b"".join(batch(offset, size=300, epoch=4) for offset in range(12, 20)), 1000)
    assert len(log.segments) > 2
    assert offsets(read_all(log)) == [0, 1, 2, 3, 4, 10, 11, *range(12, 20)]
    with pytest.raises(KafkaError):
        log.append_batches(batch(19), 1000)
    # A read in the gap finds what comes after it.
    part = log.read(6, 1 << 20, log.end_offset)
    assert part is not None and part.read().startswith(data[2])


def test_full_disk_leaves_no_half_batch_and_heals() -> None:
    disk = MemoryDisk(capacity_bytes=1000)
    disk.make_dirs("/data")
    log = open_log(disk)
    written = []
    with pytest.raises(OSError) as caught:
        while True:
            written.append(append(log, size=100))
    assert caught.value.errno == errno.ENOSPC
    assert log.failed is None
    assert read_all(log) == written
    disk.capacity_bytes = 10_000
    written.append(append(log, size=100))
    assert read_all(log) == written


def test_a_roll_on_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = open_log(disk, config=LogConfig(segment_bytes=300, index_interval_bytes=50))
    written = [append(log, size=60) for _ in range(2)]
    for operation in ("append", "append", "append", "append", "open"):
        for skip in range(4):
            fault = disk.fail(operation, errno.ENOSPC, skip=skip)
            try:
                written.append(append(log, size=60))
            except OSError:
                assert log.failed is None
            fault.times = 0
            assert read_all(log) == written
    log.close()
    assert read_all(open_log(disk, clean=True)) == written
    assert read_all(open_log(disk)) == written


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".*"])
def test_a_log_is_cut_on_a_full_disk_whose_indexes_have_no_room(suffix: str) -> None:
    """To cut needs no room. An index is a hint: what could not be written is built again when it is next needed."""
    disk = MemoryDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=1))
    for _ in range(20):
        append(log, 5)
    disk.fail("append", errno.ENOSPC, path=f"*{suffix}", times=None)
    log.truncate_to(42)
    assert log.failed is None
    assert offsets(read_all(log)) == list(range(40))
    disk.faults.clear()
    append(log, 5)
    log.close()
    assert offsets(read_all(open_log(disk, config=LogConfig(index_interval_bytes=1)))) == list(range(45))


def test_a_torn_write_that_cannot_be_undone_fails_the_log() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = open_log(disk)
    append(log)

    class Stuck:
        """A file that took half a batch and cannot be truncated."""

        def append(self, data: bytes) -> None:
            raise OSError(errno.EIO, "half of it is there")

        def size(self) -> int:
            return log.active.size + 7

    log.active.handle.file = Stuck()  # type: ignore[assignment]
    with pytest.raises(OSError):
        append(log)
    assert log.failed is not None
    with pytest.raises(OSError):
        log.sync_plan()


def test_timestamps_are_found_to_the_record(place: tuple[Disk, str]) -> None:
    log = open_log(*place, config=LogConfig(segment_bytes=2000, index_interval_bytes=100))
    for at in range(50):
        append(log, 3, timestamp=1000 + 10 * at, size=30)  # 3 records: +0, +1, +2
    assert len(log.segments) > 3
    end = log.end_offset
    for at in range(50):
        for within in range(3):
            found = log.offset_for_timestamp(1000 + 10 * at + within, end)
            assert found is not None
            assert (found.offset, found.timestamp) == (3 * at + within, 1000 + 10 * at + within)
        if at < 49:
            found = log.offset_for_timestamp(1000 + 10 * at + 3, end)
            assert found is not None and found.offset == 3 * at + 3
    assert log.offset_for_timestamp(1493, end) is None
    assert log.offset_for_timestamp(1100, 20) is None  # above the bound
    found = log.offset_for_timestamp(0, end)
    assert found is not None and found.offset == 0
    log.advance_log_start(7)
    found = log.offset_for_timestamp(0, end)
    assert found is not None and found.offset == 7
    latest = log.max_timestamp_offset()
    assert latest is not None and (latest.offset, latest.timestamp) == (149, 1492)


def test_the_first_of_equal_largest_timestamps_wins(log: Log) -> None:
    append(log, 3, timestamp=1000)
    append(log, 2, timestamp=1001)
    append(log, 1, timestamp=1002)
    latest = log.max_timestamp_offset()
    assert latest is not None and (latest.offset, latest.timestamp) == (2, 1002)


def test_slices_outlive_the_deletion_of_their_segment(place: tuple[Disk, str]) -> None:
    log = open_log(*place, config=LogConfig(segment_bytes=100))
    first = append(log, size=80)
    append(log, size=80)
    part = log.read(0, 1 << 20, log.end_offset)
    assert part is not None
    for path in log.delete_segments(1, 1000):
        log.disk.remove(path)
    assert part.read() == first
    part.release()
    assert log.log_start_offset == 1


def test_few_descriptors_serve_many_segments(place: tuple[Disk, str]) -> None:
    disk, path = place
    pool = FilePool(disk, open_files_max=4)
    log = Log.open(disk, path, LogConfig(segment_bytes=100), now_ms=1000, pool=pool)
    written = [append(log, size=60) for _ in range(30)]
    log.flush()
    parts = [log.read(offset, 1 << 20, log.end_offset) for offset in range(30)]  # all pinned
    assert [part.read() for part in parts if part is not None] == written
    for part in parts:
        assert part is not None
        part.release()
    assert read_all(log) == written
    assert len(pool) <= 4


def test_bytes_after_is_zero_only_at_the_end(log: Log) -> None:
    assert log.bytes_after(0, 0) == 0
    first = append(log, 2)
    second = append(log, 2)
    assert log.bytes_after(0, 4) == len(first) + len(second)
    assert log.bytes_after(2, 4) == len(second)
    assert log.bytes_after(0, 2) == len(first)
    assert log.bytes_after(4, 4) == 0
