"""A segment that is made while a thread syncs the folder is not durable by that sync. Found by the simulator."""

from random import Random

from headrace.config import LogConfig
from headrace.testing.simulator.disk import CrashMode, MemoryDisk
from tests.unit.storage.helpers import FOLDER, append, open_log, read_all


def test_a_roll_during_a_sync_makes_the_folder_dirty_again() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.sync_all()
    config = LogConfig(segment_bytes=150)
    log = open_log(disk, config=config)
    append(log, 2)
    plan = log.sync_plan()
    assert plan is not None
    plan.run()
    append(log, 2)  # too much for the segment: a new file, after the thread synced the folder and before the loop heard
    log.mark_durable(plan)
    assert len(log.segments) == 2
    plan = log.sync_plan()
    assert plan is not None
    plan.run()
    log.mark_durable(plan)
    assert log.durable_end == log.end_offset == 4
    disk.crash(Random(0), CrashMode.LOSE)
    again = open_log(disk, FOLDER, config=config)
    assert len(read_all(again)) == 2
