"""A producer that got no answers sends up to five batches again: each is known again, whatever came between."""

import pytest

from headrace.config import LogConfig
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk
from tests.unit.storage.helpers import open_log

PRODUCER, EPOCH = 7, 0


def write(log: Log, sequence: int, count: int, size: int) -> None:
    base_offset = log.end_offset
    records = [Record(base_offset + at, 1000, None, b"v" * size) for at in range(count)]
    batch = build_batch(
        records,
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        base_sequence=sequence,
    )
    log.append_batches(memoryview(batch), 1000)


def known(log: Log, batches: list[tuple[int, int, int]]) -> list[int]:
    """Base offsets at which these (sequence, count) are found to be in the log already."""
    found = []
    for sequence, count, _ in batches:
        mark = log.producers.check(PRODUCER, EPOCH, sequence, count - 1)
        assert mark is not None
        found.append(mark.base_offset)
    return found


def filled(disk: MemoryDisk, size: int, config: LogConfig | None = None) -> tuple[Log, list[tuple[int, int, int]]]:
    """A log of twenty batches, and the last five of them as (sequence, count, base offset)."""
    log, batches, sequence = open_log(disk, config=config), [], 0
    for at in range(20):
        count = 1 + at % 3
        batches.append((sequence, count, log.end_offset))
        write(log, sequence, count, size)
        sequence += count
    return log, batches[-5:]


@pytest.mark.parametrize("size", [10, 3_000, 60_000])
def test_after_a_clean_stop(size: int) -> None:
    disk = MemoryDisk()
    log, last = filled(disk, size)
    log.close()
    assert known(open_log(disk, clean=True), last) == [offset for _, _, offset in last]


@pytest.mark.parametrize("size", [10, 60_000])
def test_after_a_roll_and_a_stop(size: int) -> None:
    disk = MemoryDisk()
    log, last = filled(disk, size)
    log.roll(1000)
    log.close()
    assert known(open_log(disk, clean=True), last) == [offset for _, _, offset in last]


def test_after_a_crash_and_a_snapshot() -> None:
    disk = MemoryDisk()
    log, last = filled(disk, 10)
    log.roll(1000)
    log.flush()
    disk.kill()
    assert known(open_log(disk), last) == [offset for _, _, offset in last]


def test_after_what_followed_was_cut() -> None:
    disk = MemoryDisk()
    log, last = filled(disk, 10)
    log.roll(1000)
    end_offset, (sequence, count, _) = log.end_offset, last[-1]
    for at in range(3):
        write(log, sequence + count + at, 1, 10)
    log.truncate_to(end_offset)
    assert known(log, last) == [offset for _, _, offset in last]
