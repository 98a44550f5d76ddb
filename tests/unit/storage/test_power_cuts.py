"""The power goes after every single operation on the disk, in the middle of rolls, syncs, truncations and stops."""

import random

import pytest

from headrace.config import LogConfig
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut
from headrace.testing.simulator.pages import CrashMode

from .helpers import append, read_all

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=120)


class History:
    """What the script has written, and what it was promised."""

    def __init__(self) -> None:
        self.alive: list[tuple[int, bytes]] = []
        self.written: set[bytes] = set()
        self.durable_end = 0
        self.start = 0

    def append(self, log: Log, count: int, epoch: int) -> None:
        base = log.end_offset
        data = append(log, count, size=40, epoch=epoch)
        self.alive.append((base, data))
        self.written.add(data)

    def promised(self) -> list[bytes]:
        return [data for base, data in self.alive if self.start <= base < self.durable_end]


def start(disk: MemoryDisk) -> LogManager:
    manager = LogManager(disk, ["/data"], node_id=1, config_of=lambda topic: CONFIG)
    manager.open()
    list(manager.load(1000))
    return manager


def script(disk: MemoryDisk, history: History) -> None:
    manager = start(disk)
    log = manager.create("t", 0, bytes(15) + b"\1", 1000)
    for round_number in range(3):
        for at in range(6):
            history.append(log, 1 + at % 2, epoch=2 * round_number)
        log.flush()
        history.durable_end = log.durable_end
        manager.checkpoint_plan({("t", 0): log.durable_end}).run()
        for _ in range(4):
            history.append(log, 1, epoch=2 * round_number)
        # Another was elected and has less. What was promised is not truncated, as the high watermark forbids it.
        manager.truncate_to({log: log.durable_end + 1}).run()
        history.alive = [(base, data) for base, data in history.alive if base < log.end_offset]
        history.append(log, 3, epoch=2 * round_number + 1)
    history.start = log.segments[1].base_offset
    removed = log.delete_segments(1, 1000)
    assert log.log_start_offset == history.start
    log.forget_deleted(removed)
    log.flush()
    history.durable_end = log.durable_end
    manager.close(high_watermarks={("t", 0): log.end_offset})


def operations() -> int:
    disk = MemoryDisk()
    before = disk.faults.operations
    script(disk, History())
    return disk.faults.operations - before


@pytest.mark.parametrize("mode", CrashMode)
def test_the_power_may_go_at_any_moment(mode: CrashMode) -> None:
    total = operations()
    assert total > 100
    for cut in range(total + 1):
        disk = MemoryDisk()
        history = History()
        disk.cut_after(cut)
        try:
            script(disk, history)
        except PowerCut:
            pass
        disk.crash(random.Random(cut), mode)
        manager = start(disk)
        log = manager.get("t", 0)
        assert not manager.offline, (cut, manager.offline)
        if log is None:
            assert history.durable_end == 0, cut
            continue
        assert not log.holes, (cut, manager.notes)
        # The start may be that of before a deletion the crash undid.
        found = read_all(log)
        promised = history.promised()
        if promised:
            assert promised[0] in found, (cut, manager.notes)
            at = found.index(promised[0])
            assert found[at : at + len(promised)] == promised, (cut, manager.notes)
        assert set(found) <= history.written, cut
        # And it goes on: what is written and synced now is there after the next cut.
        data = append(log, epoch=99)
        log.flush()
        manager.checkpoint_plan().run()
        disk.crash(random.Random(cut), CrashMode.LOSE)
        again = start(disk).get("t", 0)
        assert again is not None and read_all(again) == [*found, data], cut


def rolls(disk: MemoryDisk) -> None:
    """Several segments are begun and closed between one sync and the next."""
    manager = start(disk)
    log = manager.create("t", 0, bytes(15) + b"\1", 1000)
    manager.checkpoint_plan({("t", 0): 0}).run()
    for _ in range(3):
        for _ in range(14):
            append(log, 1, size=40)
        log.flush()
        manager.checkpoint_plan({("t", 0): log.durable_end}).run()


@pytest.mark.parametrize("mode", CrashMode)
def test_nothing_is_missed_that_no_sync_was_done_with(mode: CrashMode) -> None:
    """The manifest vouches for closed segments: not before their names are on the disk, too."""
    disk = MemoryDisk()
    rolls(disk)
    for cut in range(disk.faults.operations + 1):
        disk = MemoryDisk()
        disk.cut_after(cut)
        try:
            rolls(disk)
        except PowerCut:
            pass
        disk.crash(random.Random(cut), mode)
        manager = start(disk)
        log = manager.get("t", 0)
        if log is not None:
            assert not log.holes and log.end_offset >= log.recovery.synced_end, (cut, log.recovery)
        assert not manager.lost, cut
