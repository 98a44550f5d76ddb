"""Batches and logs for storage tests, on the real disk or on the one that forgets."""

from collections.abc import Sequence
from typing import Any

from headrace.config import LogConfig
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record, iter_records
from headrace.storage.files import Disk
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

FOLDER = "/data/topic-0"


def batch(
    offset: int, count: int = 1, *, timestamp: int = 1000, size: int = 10, epoch: int = 0, **options: Any
) -> bytes:
    records = [Record(offset + at, timestamp + at, None, bytes([at % 256]) * size) for at in range(count)]
    return build_batch(records, base_offset=offset, leader_epoch=epoch, **options)


def append(
    log: Log, count: int = 1, *, timestamp: int = 1000, size: int = 10, epoch: int = 0, now_ms: int = 1000
) -> bytes:
    """Append one batch at the end, as a leader does."""
    data = batch(log.end_offset, count, timestamp=timestamp, size=size, epoch=epoch)
    base = log.end_offset
    log.append(data, base, base + count - 1, epoch, timestamp + count - 1, now_ms)
    return data


def open_log(
    disk: Disk, path: str = FOLDER, *, clean: bool = False, config: LogConfig | None = None, **options: Any
) -> Log:
    return Log.open(disk, path, config or LogConfig(), clean=clean, now_ms=1000, **options)


def read_all(log: Log, end_offset: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch from the log's start, as a consumer that follows offsets would see them."""
    found: list[bytes] = []
    offset = log.log_start_offset
    bound = log.end_offset if end_offset is None else end_offset
    while True:
        part = log.read(offset, max_bytes, bound)
        if part is None:
            return found
        data = part.read()
        part.release()
        before = offset
        for position, header in iter_headers(data):
            found.append(data[position : position + header.size])
            offset = header.end_offset
        assert offset > before, "no progress"


def offsets(batches: Sequence[bytes]) -> list[int]:
    return [record.offset for data in batches for record in iter_records(data)]


Files = dict[str, bytes]


def files_of(disk: Disk) -> Files:
    return {name: disk.read_bytes(f"{FOLDER}/{name}") for name in disk.list(FOLDER)}


def restored(files: Files) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs(FOLDER)
    for name, data in files.items():
        file = disk.open(f"{FOLDER}/{name}", create=True)
        if data:
            file.append(data)
        file.sync()
        file.close()
    return disk
