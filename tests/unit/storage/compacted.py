"""A log that is written a batch at a time, compacted, and read back."""

from dataclasses import dataclass, field

import msgspec

from headrace.config import LogConfig
from headrace.records.batch import BatchBuilder, BatchHeader, Record, iter_headers, read_records
from headrace.records.control import Marker, encode_marker
from headrace.storage.compaction import (
    Cleaned,
    Compaction,
    begin_swap,
    compact,
    dirty_range,
    plan,
)
from headrace.storage.files import Disk
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

FOLDER = "/data/t-0"
DAY_MS = 86_400_000
CONFIG = LogConfig(
    compact=True, delete=False, segment_bytes=600, index_interval_bytes=100, min_cleanable_dirty_ratio=0.0
)


@dataclass
class Writer:
    """A leader's log, written a batch at a time."""

    disk: Disk = field(default_factory=MemoryDisk)
    config: LogConfig = CONFIG
    folder: str = FOLDER
    now_ms: int = 1_000_000
    epoch: int = 3

    def __post_init__(self) -> None:
        self.log = self.open()

    def open(self, *, clean: bool = False, recovery_point: int = 0) -> Log:
        return Log.open(
            self.disk,
            self.folder,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            now_ms=self.now_ms,
            producer_expiration_ms=1 << 60,
        )

    def append(self, batch: bytes) -> None:
        self.log.append_batches(batch, self.now_ms)

    def put(self, *pairs: tuple[bytes | None, bytes | None], **options: object) -> int:
        base_offset = self.log.end_offset
        builder = BatchBuilder(base_offset=base_offset, leader_epoch=self.epoch, **options)  # type: ignore[arg-type]
        for key, value in pairs:
            builder.append(self.now_ms, key, value)
        self.append(builder.build())
        return base_offset

    def end(self, producer_id: int, producer_epoch: int, committed: bool) -> int:
        offset = self.log.end_offset
        self.append(
            encode_marker(
                Marker(committed, 0),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp=self.now_ms,
                base_offset=offset,
                leader_epoch=self.epoch,
            )
        )
        return offset

    def roll(self) -> None:
        self.log.roll(self.now_ms)
        self.log.flush()

    def compact(self, first_dirty: int | None = None, **changes: object) -> list[Cleaned]:
        """One round, inline; the results that were swapped in."""
        job = self.job(first_dirty, **changes)
        return [] if job is None else run(self.log, job)

    def job(self, first_dirty: int | None = None, **changes: object) -> Compaction | None:
        stable = self.log.producers.first_undecided_offset
        dirty = dirty_range(self.log, first_dirty, self.log.end_offset if stable is None else stable, self.now_ms)
        job = plan(self.log, dirty, self.now_ms)
        return None if job is None else msgspec.structs.replace(job, **changes)


def run(log: Log, job: Compaction) -> list[Cleaned]:
    done = []
    for cleaned in compact(log.disk, job):
        swap = begin_swap(log, cleaned)
        assert swap is not None
        swap.run()
        for path in swap.finish():
            log.disk.remove(path)
        done.append(cleaned)
    return done


def batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Everything readers can get, through the log's own reads."""
    found: list[tuple[BatchHeader, list[Record]]] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, log.end_offset)
        assert piece is not None, f"nothing at {offset} of {log.end_offset}"
        data = piece.read()
        piece.release()
        for position, header in iter_headers(data):
            assert header.last_offset >= offset
            found.append((header, read_records(data, position, header)))
            offset = header.end_offset
    return found


def values(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for header, records in batches(log) if not header.is_control for r in records]


def reopen(writer: Writer, *, clean: bool) -> Log:
    if clean:
        writer.log.close()
    else:
        writer.log.abandon()
    return writer.open(clean=clean, recovery_point=writer.log.recovery_point)
