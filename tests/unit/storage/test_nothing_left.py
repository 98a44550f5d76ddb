"""Full disks and folders that have lost their files: a log never starts again at offsets it has given already."""

import errno
from random import Random

import pytest

from headrace.config import LogConfig
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.testing.simulator.disk import CrashMode, MemoryDisk

from .helpers import FOLDER, append, batch, offsets, open_log, read_all


def test_a_log_without_files_goes_on_behind_what_was_committed() -> None:
    """Retention took all segments, and a power cut the new one's name."""
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(5):
        append(log)
    log.flush()
    disk.remove(f"{FOLDER}/00000000000000000000.log")
    disk.sync_all()
    disk.kill()
    again = open_log(disk, recovery_point=3, committed=5)
    assert (again.log_start_offset, again.end_offset) == (5, 5)


def test_a_full_disk_that_has_no_room_for_epochs_does_not_fail_the_log() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.sync_all()
    log = open_log(disk)
    append(log)
    log.flush()
    append(log, epoch=4)
    fault = disk.fail("append", errno.ENOSPC, path="*checkpoint.tmp", times=None)
    plan = log.sync_plan()
    assert plan is not None
    plan.run()
    log.mark_durable(plan)
    assert log.failed is None and log.durable_end == 2 and log.recovery_point == 0
    disk.crash(Random(1), CrashMode.LOSE)
    again = open_log(disk, recovery_point=log.recovery_point)
    assert again.epochs.entries == [(0, 0), (4, 1)] and offsets(read_all(again)) == [0, 1]
    disk.faults.clear()
    del fault
    again.flush()
    assert Log.open(disk, FOLDER, again.config, clean=True, now_ms=1000).epochs.entries == [(0, 0), (4, 1)]


def test_a_log_is_recovered_on_a_full_disk() -> None:
    """Its indexes are built again and find no room: records are read without them, and it goes on when there is
    some."""
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.sync_all()
    config = LogConfig(segment_bytes=300)
    log = open_log(disk, config=config)
    for _ in range(20):
        append(log)
    log.flush()
    assert len(log.segments) > 3
    disk.crash(Random(1), CrashMode.LOSE)
    disk.fail("append", errno.ENOSPC, times=None, short=True)
    again = open_log(disk, config=config)
    assert offsets(read_all(again)) == list(range(20))
    disk.faults.clear()
    append(again)
    again.close()
    assert offsets(read_all(open_log(disk, clean=True, config=config))) == list(range(21))


def test_a_dir_whose_epochs_found_no_room_is_not_called_closed_in_order() -> None:
    disk = MemoryDisk()
    made = LogManager(disk, ["/a"], node_id=1)
    made.open()
    list(made.load(1000))
    log = made.create("t", 0, bytes(range(16)), 1000)
    log.append(batch(0, epoch=4), 0, 0, 4, 1000, 1000)
    disk.fail("append", errno.ENOSPC, path="*/leader-epoch-checkpoint.tmp", times=None)
    made.close()
    assert not disk.exists("/a/.kafka_cleanshutdown")


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_is_remembered_though_its_records_were_deleted(clean: bool) -> None:
    """It may have lost the answer, and send the batch again after the restart."""
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.sync_all()
    log = open_log(disk)
    for sequence in range(3):
        log.append_batches(batch(sequence, producer_id=7, producer_epoch=0, base_sequence=sequence), 1000)
    log.advance_log_start(3)
    if clean:
        log.close()
    else:
        log.flush()
        disk.crash(Random(1), CrashMode.LOSE)
    again = open_log(disk, clean=clean, log_start=3)
    mark = again.producers.check(7, 0, 2, 0)
    assert mark is not None and mark.base_offset == 2 and again.log_start_offset == again.end_offset == 3
