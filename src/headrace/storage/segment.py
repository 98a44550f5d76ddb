"""One segment: a log file, its indexes, and when it has to be rolled.

Offsets here are absolute, positions are bytes in the log file. A segment knows where batches lie, not what is in
them; the log decides what is appended, recovery what is valid.
"""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from headrace.config import LogConfig
from headrace.records.layout import HEADER, HEADER_BYTES, LENGTH_MIN, LOG_OVERHEAD, BatchHeader
from headrace.replication.producers import AbortedTransaction
from headrace.storage.files import Disk
from headrace.storage.indexes import (
    ABORTED_ENTRY_BYTES,
    OFFSET_ENTRY_BYTES,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_BYTES,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
    encode_aborted,
    last_time_entry,
)
from headrace.storage.pool import FilePool, Handle

NEVER = 1 << 62
UNKNOWN_TIMESTAMP = -2
"""Not read from the time index yet; -1 is Kafka's "has none"."""

SCAN_BYTES = 8192
"""One read finds a batch in most segments: an index interval and the header behind it."""
WALK_BYTES = 1 << 20
TAIL_BATCHES = 512
"""The active segment remembers where its last batches lie, so that tail reads need neither index nor disk."""

VERIFIED_BATCHES = 100

_PLACE = Struct(">qi11xi")  # base offset, length, last offset delta


class CorruptSegment(Exception):
    """Bytes in a log file that are not a batch where one has to be."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class Place(NamedTuple):
    """Where one batch lies."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class Segment:
    """See the module. Everything runs on the loop; threads only touch files pinned for them."""

    __slots__ = (
        "_aborted",
        "_max_timestamp",
        "_offsets",
        "_times",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "disk",
        "first_timestamp",
        "folder",
        "handle",
        "index_dirty",
        "index_interval_bytes",
        "max_offset",
        "max_timestamp_offset",
        "roll_at_bytes",
        "roll_at_now_ms",
        "roll_at_timestamp",
        "size",
        "synced",
        "synced_size",
        "tail_from",
        "tail_last_offsets",
        "tail_positions",
    )

    def __init__(self, pool: FilePool, folder: str, base_offset: int, size: int, now_ms: int) -> None:
        self.disk: Disk = pool.disk
        self.folder = folder
        self.base_offset = base_offset
        self.size = size
        self.created_ms = now_ms
        self.handle = Handle(pool, f"{folder}/{file_name(base_offset, '.log')}", self)
        self.max_offset = base_offset + RELATIVE_OFFSET_MAX
        self.max_timestamp_offset = -1
        self.first_timestamp = UNKNOWN_TIMESTAMP
        """Largest timestamp of the first batch: what `segment.ms` counts from, as in Kafka."""
        self.bytes_since_index = 0
        self.index_interval_bytes = 4096
        self.index_dirty = False
        """The index in memory is ahead of the files."""
        self.synced = False
        """Files of a rolled segment are all on stable storage, so recovery need not look at it again."""
        self.synced_size = 0
        self.roll_at_bytes = NEVER
        self.roll_at_timestamp = NEVER
        self.roll_at_now_ms = NEVER
        self.tail_from = NEVER
        self.tail_last_offsets = array("q")
        self.tail_positions = array("q")
        self._max_timestamp = UNKNOWN_TIMESTAMP
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None

    @classmethod
    def create(cls, pool: FilePool, folder: str, base_offset: int, config: LogConfig, now_ms: int) -> "Segment":
        """An empty active segment. What an earlier life left under the same name is cut off first."""
        segment = cls(pool, folder, base_offset, 0, now_ms)
        file = pool.disk.open(segment.handle.path, create=True)
        if file.size():
            file.truncate(0)
        pool.adopt(segment.handle, file)
        segment.reset_indexes()
        for suffix in (".index", ".timeindex", ".txnindex"):
            path = segment.path(suffix)
            if pool.disk.exists(path):
                pool.disk.remove(path)
        segment.configure(config)
        return segment

    def path(self, suffix: str) -> str:
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    # -- rolling

    def configure(self, config: LogConfig) -> None:
        """Work out when an active segment must be rolled, once, so that an append compares four numbers."""
        self.index_interval_bytes = config.index_interval_bytes
        self.roll_at_bytes = -1 if self.size and self.index_full(config) else config.segment_bytes
        self.roll_at_timestamp = self.roll_at_now_ms = NEVER
        if self.size:
            wait_ms = config.max_segment_ms - self._jitter_ms(config)
            first = self.first_batch_timestamp()
            if first >= 0:
                self.roll_at_timestamp = first + wait_ms
            else:
                self.roll_at_now_ms = self.created_ms + wait_ms

    def _jitter_ms(self, config: LogConfig) -> int:
        """Spread rolls of many partitions. From the name and not from dice, so that a replay rolls alike."""
        limit = min(config.segment_jitter_ms, config.max_segment_ms)
        return zlib.crc32(self.handle.path.encode()) % limit if limit > 0 else 0

    def must_roll(self, length: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        return (
            self.size > self.roll_at_bytes - length
            or max_timestamp > self.roll_at_timestamp
            or now_ms > self.roll_at_now_ms
            or last_offset > self.max_offset
        )

    def first_batch_timestamp(self) -> int:
        if self.first_timestamp == UNKNOWN_TIMESTAMP and self.size:
            header = self.header_at(0)
            self.first_timestamp = header.max_timestamp
        return self.first_timestamp

    # -- accounting of appended batches

    def note_batch(self, position: int, length: int, last_offset: int, max_timestamp: int) -> None:
        """Account for a batch that lies at `position`. `Log.append` does the same inline."""
        if position == 0:
            self.first_timestamp = max_timestamp
        self.size = position + length
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self.add_index_entry(last_offset, position)
        self.bytes_since_index += length

    def add_index_entry(self, last_offset: int, position: int) -> None:
        self.offsets.append(last_offset - self.base_offset, position)
        if self._max_timestamp >= 0:
            self.times.append(self._max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.bytes_since_index = 0
        self.index_dirty = True
        tail = self.tail_last_offsets
        if len(tail) >= 2 * TAIL_BATCHES:
            drop = len(tail) - TAIL_BATCHES
            self.tail_from = tail[drop - 1] + 1
            del tail[:drop]
            del self.tail_positions[:drop]

    def index_full(self, config: LogConfig) -> bool:
        return (
            len(self.offsets) >= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            or len(self.times) >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        )

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp of any record, -1 if none has one."""
        if self._max_timestamp == UNKNOWN_TIMESTAMP:
            self._load_max_timestamp()
        return self._max_timestamp

    @max_timestamp.setter
    def max_timestamp(self, value: int) -> None:
        self._max_timestamp = value

    def _load_max_timestamp(self) -> None:
        """Read only the last entry of the time index: retention asks this of every segment."""
        if self.size == 0:
            self._max_timestamp = -1
            return
        path = self.path(".timeindex")
        try:
            size = self.disk.size(path)
            if size % TIME_ENTRY_BYTES:
                raise CorruptIndex("time index with a part of an entry")
            file = self.disk.open(path, readonly=True)
            try:
                data = file.read(TIME_ENTRY_BYTES, max(0, size - TIME_ENTRY_BYTES))
            finally:
                file.close()
            timestamp, relative_offset = last_time_entry(data)
        except (CorruptIndex, FileNotFoundError):
            self.rebuild_indexes()
            return
        if not self._is_max_timestamp(timestamp, self.base_offset + relative_offset):
            self.rebuild_indexes()

    def _is_max_timestamp(self, timestamp: int, offset: int) -> bool:
        """Whether the batch at `offset` has this timestamp and the next ones have no larger: the index is no other's.

        In most logs that batch is the last. Where it is not, looking at some must do.
        """
        self._max_timestamp = timestamp
        self.max_timestamp_offset = offset
        place = self.find(offset) if self.base_offset <= offset <= self.max_offset else None
        if place is None or place.last_offset != offset:
            return False
        largest = -1
        for _, header in islice(self.walk(place.position, self.size), VERIFIED_BATCHES):
            largest = max(largest, header.max_timestamp)
        return largest == timestamp

    # -- indexes, loaded when first asked for

    @property
    def offsets(self) -> OffsetIndex:
        if self._offsets is None:
            try:
                self._offsets = OffsetIndex.decode(self.disk.read_bytes(self.path(".index")))
            except (CorruptIndex, FileNotFoundError):
                self.rebuild_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            try:
                self._times = TimeIndex.decode(self.disk.read_bytes(self.path(".timeindex")))
                if not len(self._times) and self.size:
                    raise CorruptIndex("empty time index beside a log that is not")
            except (CorruptIndex, FileNotFoundError):
                self.rebuild_indexes()
        assert self._times is not None
        return self._times

    @property
    def aborted(self) -> list[AbortedTransaction]:
        if self._aborted is None:
            try:
                self._aborted = decode_aborted(self.disk.read_bytes(self.path(".txnindex")), self.base_offset)
            except FileNotFoundError:
                self._aborted = []
        return self._aborted

    def replace_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Write the transaction index anew, from what the log itself says."""
        path = self.path(".txnindex")
        if self.disk.exists(path):
            self.disk.remove(path)
        self._aborted = []
        for entry in entries:
            self.add_aborted(entry)

    def add_aborted(self, entry: AbortedTransaction) -> None:
        aborted = self.aborted
        file = self.disk.open(self.path(".txnindex"), create=True)
        try:
            file.append(encode_aborted(entry))
        finally:
            file.close()
        aborted.append(entry)

    def reset_indexes(self) -> None:
        """Forget everything that is derived from batches."""
        self._offsets = OffsetIndex()
        self._times = TimeIndex()
        self._aborted = []
        self._max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp = UNKNOWN_TIMESTAMP
        self.bytes_since_index = 0
        self.forget_tail(self.base_offset if self.size == 0 else NEVER)

    def forget_tail(self, tail_from: int) -> None:
        self.tail_from = tail_from
        del self.tail_last_offsets[:]
        del self.tail_positions[:]

    def rebuild_indexes(self) -> None:
        """Walk the headers again. The transaction index cannot be told from headers, so it is left alone."""
        size, aborted = self.size, self._aborted
        tail = self.tail_from, self.tail_last_offsets[:], self.tail_positions[:]
        self.reset_indexes()
        self._aborted = aborted
        for position, header in self.walk(0, size):
            self.note_batch(position, header.size, header.last_offset, header.max_timestamp)
        self.size = size
        self.tail_from, self.tail_last_offsets, self.tail_positions = tail
        self.write_indexes()

    def write_indexes(self) -> None:
        """Bring the index files up to date with memory: when rolled, flushed or closed."""
        if self._max_timestamp == UNKNOWN_TIMESTAMP:
            return
        if self._max_timestamp >= 0:
            self.times.append(self._max_timestamp, self.max_timestamp_offset - self.base_offset)
        for suffix, data in ((".index", self.offsets.encode()), (".timeindex", self.times.encode())):
            file = self.disk.open(self.path(suffix), create=True)
            try:
                file.truncate(0)
                if data:
                    file.append(data)
            finally:
                file.close()
        self.index_dirty = False

    # -- finding batches

    def find(self, offset: int) -> Place | None:
        """The first batch whose last offset is at or above `offset`: the one that holds it, if any does."""
        if offset >= self.tail_from:
            tail = self.tail_last_offsets
            slot = bisect_left(tail, offset)
            if slot == len(tail):
                return None
            position = self.tail_positions[slot]
            end = self.tail_positions[slot + 1] if slot + 1 < len(tail) else self.size
            # The exact base offset does not matter to a reader; the lowest it can be does.
            return Place(position, end - position, tail[slot - 1] + 1 if slot else self.tail_from, tail[slot])
        if not self.size:
            return None  # compaction has left nothing of it
        position, behind = self.offsets.around(offset - self.base_offset)
        if behind - position > SCAN_BYTES and (place := self._batch_at(behind)) and place.base_offset <= offset <= place.last_offset:
            return place
        place = self._scan(position, offset)
        if position >= self.size or (
            place is not None and place.position == position and position and place.base_offset > offset
        ):
            # The index led behind the offset. Every other answer is right whatever the index says.
            return self._find_without_index(position, offset)
        return place

    def _batch_at(self, position: int) -> Place | None:
        """Where batches are so large that each has an entry in the index, the next entry is likely to be the one."""
        header = self.handle.open().read(HEADER_BYTES, position)
        if len(header) < HEADER_BYTES or header[16] != 2:
            return None
        base_offset, length, delta = _PLACE.unpack_from(header)
        return Place(position, length + LOG_OVERHEAD, base_offset, base_offset + delta) if length >= LENGTH_MIN else None

    def _scan(self, position: int, offset: int) -> Place | None:
        """Walk the headers from a position an index gave. None when there is no such batch before the end."""
        size = self.size
        lowest = self.base_offset
        file = self.handle.open()
        while position < size:
            chunk = file.read(min(SCAN_BYTES, size - position), position)
            at = 0
            last = len(chunk) - HEADER_BYTES
            if last < 0:
                return self._find_without_index(position, offset)
            while at <= last:
                base_offset, length, delta = _PLACE.unpack_from(chunk, at)
                if length < LENGTH_MIN or chunk[at + 16] != 2 or base_offset < lowest or delta < 0:
                    return self._find_without_index(position + at, offset)
                if base_offset + delta >= offset:
                    return Place(position + at, length + LOG_OVERHEAD, base_offset, base_offset + delta)
                at += length + LOG_OVERHEAD
            position += at
        return None if position == size else self._find_without_index(position, offset)

    def _find_without_index(self, position: int, offset: int) -> Place | None:
        """Either the index pointed into the middle of a batch, or the log file is damaged. A walk from 0 tells."""
        found = None
        for at, header in self.walk(0, self.size):
            if header.last_offset >= offset:
                found = Place(at, header.size, header.base_offset, header.last_offset)
                break
        self.rebuild_indexes()
        return found

    def position_of(self, offset: int) -> int:
        """Where bytes that a reader bounded by `offset` (exclusive) may see end."""
        place = self.find(offset)
        return self.size if place is None else place.position

    def header_at(self, position: int) -> BatchHeader:
        data = self.handle.open().read(HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            raise CorruptSegment(self.handle.path, position, "the file ends inside a batch header")
        return BatchHeader._make(HEADER.unpack(data))

    def walk(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch from one batch's start up to `end`; CorruptSegment where there is none."""
        file = self.handle.pin()
        try:
            while position < end:
                chunk = file.read(min(WALK_BYTES, end - position), position)
                last = len(chunk) - HEADER_BYTES
                if last < 0:
                    raise CorruptSegment(self.handle.path, position, "the file ends inside a batch header")
                at = 0
                while at <= last:
                    header = BatchHeader._make(HEADER.unpack_from(chunk, at))
                    here = position + at
                    if header.magic != 2 or header.length < LENGTH_MIN or header.last_offset_delta < 0:
                        raise CorruptSegment(self.handle.path, here, "no batch where the one before it ends")
                    if here + header.size > end:
                        raise CorruptSegment(self.handle.path, here, "the file ends inside a batch")
                    yield here, header
                    at += header.length + LOG_OVERHEAD
                position += at
        finally:
            self.handle.unpin()

    def last_batch(self) -> tuple[int, BatchHeader] | None:
        """(position, header) of the last batch, from the last index entry on."""
        if self.size == 0:
            return None
        position = self.offsets.positions[-1] if len(self.offsets) else 0
        try:
            return self._last_of_walk(position)
        except CorruptSegment:
            if position == 0:
                raise
            # Perhaps only the index is wrong.
            last = self._last_of_walk(0)
            self.rebuild_indexes()
            return last

    def _last_of_walk(self, position: int) -> tuple[int, BatchHeader] | None:
        """Ends exactly at the size, or CorruptSegment."""
        found = None
        for at, header in self.walk(position, self.size):
            found = at, header
        if found is None:
            raise CorruptSegment(self.handle.path, position, "the index points behind the end of the file")
        return found

    # -- life and death

    def truncate(self, offset: int) -> int:
        """Drop the batch that holds `offset` and all behind it; returns the first offset that is gone."""
        place = self.find(offset)
        if place is None:
            return offset
        header = self.header_at(place.position)
        offset = min(offset, header.base_offset)
        # Bring what depends on the files into memory before the files change.
        relative_offset = offset - self.base_offset
        kept = [entry for entry in self.aborted if entry.last_offset < offset]
        self.offsets.truncate(relative_offset)
        self.times.truncate(relative_offset)
        if self.handle.pins:
            self._change_handle()
        self.handle.open().truncate(place.position)
        self.size = place.position
        self.synced_size = min(self.synced_size, self.size)
        self.forget_tail(offset)
        self._truncate_aborted(kept)
        self._find_max_timestamp()
        if self.size == 0:
            self.first_timestamp = UNKNOWN_TIMESTAMP
        self.bytes_since_index = self.size - (self.offsets.positions[-1] if len(self.offsets) else 0)
        self.write_indexes()
        return offset

    def _change_handle(self) -> None:
        """Somebody is still sending from the file: what is written to it from now on is not what was promised."""
        old = self.handle
        self.handle = Handle(old.pool, old.path, self)
        old.cut = True
        old.close()

    def _truncate_aborted(self, kept: list[AbortedTransaction]) -> None:
        if len(kept) != len(self.aborted):
            file = self.disk.open(self.path(".txnindex"))
            try:
                file.truncate(len(kept) * ABORTED_ENTRY_BYTES)
            finally:
                file.close()
            self._aborted = kept

    def _find_max_timestamp(self) -> None:
        times = self.times
        if len(times):
            self._max_timestamp = times.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + times.offsets[-1]
        else:
            self._max_timestamp = self.max_timestamp_offset = -1
        start = self.offsets.position_before(max(0, self.max_timestamp_offset - self.base_offset))
        for _, header in self.walk(start, self.size):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

    def paths(self) -> list[str]:
        """The files that exist for this segment."""
        names = [self.path(suffix) for suffix in (".log", ".index", ".timeindex", ".txnindex")]
        return [path for path in names if self.disk.exists(path)]

    def is_dirty(self) -> bool:
        return self.synced_size < self.size

    def evicted(self) -> None:
        """The pool closed our file: an inactive segment that nobody reads needs no index in memory either."""
        if not self.index_dirty and self.synced:
            self._offsets = None
            self._times = None
            self._aborted = None

    def move(self, folder: str) -> None:
        """The folder was renamed: open files stay good, paths change."""
        self.folder = folder
        self.handle.path = self.path(".log")

    def close(self) -> None:
        self.handle.close()
