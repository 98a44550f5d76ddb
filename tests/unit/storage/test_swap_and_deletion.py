"""A topic deleted, and created again, while a compaction swaps its files in a thread."""

from random import Random
from threading import Event, Thread

from headrace.config import LogConfig
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.storage.compaction import begin_swap, compact, dirty_range, plan
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.testing.simulator.disk import CrashMode, MemoryDisk

from .helpers import read_all

CONFIG = LogConfig(compact=True, delete=False, segment_bytes=200, min_cleanable_dirty_ratio=0.0)


class SlowDisk(MemoryDisk):
    """Its first sync of a folder, once told to be slow, gives everybody else time."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.reached, self.go_on = Event(), Event()

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        if self.slow:
            self.slow = False
            self.reached.set()
            self.go_on.wait(0.2)


def _manager(disk: MemoryDisk) -> LogManager:
    made = LogManager(disk, ["/a"], node_id=1, config_of=lambda topic: CONFIG)
    made.open()
    list(made.load(1000))
    return made


def _put(log: Log, key: bytes, value: bytes) -> bytes:
    data = build_batch([Record(log.end_offset, 1000, key, value)], base_offset=log.end_offset)
    log.append_batches(data, 1000)
    return data


def test_the_files_of_a_new_log_of_the_same_name_are_left_alone() -> None:
    disk = SlowDisk()
    made = _manager(disk)
    old = made.create("t", 0, bytes(range(16)), 1000)
    for number in range(20):
        _put(old, b"k", b"%d" % number)
    old.flush()
    job = plan(old, dirty_range(old, None, old.end_offset, 2000), 2000)
    assert job is not None
    swap = begin_swap(old, next(compact(disk, job)))
    assert swap is not None
    disk.slow = True
    thread = Thread(target=swap.run)
    thread.start()
    assert disk.reached.wait(10)
    folder = made.remove(old)
    new = made.create("t", 0, bytes(15) + b"\1", 1000)
    written = [_put(new, b"k", b"new")]
    new.flush()
    disk.go_on.set()
    thread.join()
    made.remove_folder(folder)
    disk.crash(Random(1), CrashMode.LOSE)
    again = _manager(disk).get("t", 0)
    assert again is not None and read_all(again) == written


def test_a_swap_that_comes_too_late_touches_nothing() -> None:
    disk = SlowDisk()
    made = _manager(disk)
    old = made.create("t", 0, bytes(range(16)), 1000)
    for number in range(20):
        _put(old, b"k", b"%d" % number)
    old.flush()
    job = plan(old, dirty_range(old, None, old.end_offset, 2000), 2000)
    assert job is not None
    swap = begin_swap(old, next(compact(disk, job)))
    assert swap is not None
    made.remove(old)
    before = disk.tree()
    swap.run()
    assert disk.tree() == before
