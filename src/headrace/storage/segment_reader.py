"""The reading side of a segment: its indexes, and where batches lie.

An index is a hint: no answer depends on what is in its file. Where `index_sums` tells, it decides whether the files are
the ones that were written; where it cannot, since Kafka wrote them, an entry is compared with the batch it points at
before it is used. One that is wrong is built again from the log file.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.records.layout import HEADER, HEADER_BYTES, LENGTH_MIN, LOG_OVERHEAD, BatchHeader
from headrace.replication.producers import AbortedTransaction
from headrace.storage.file_names import SUMS_SUFFIX, file_name
from headrace.storage.files import Disk
from headrace.storage.index_sums import NOT_KNOWN, IndexSums
from headrace.storage.indexes import (
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_BYTES,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
    encode_aborted,
    last_time_entry,
)
from headrace.storage.indexing import (
    WALK_BYTES,
    CorruptSegment,
    Indexes,
    build_indexes,
    decode_indexes,
    read_aborted,
    read_index,
    read_sums,
    read_tail,
)
from headrace.storage.pool import FilePool, Handle

NEVER = 1 << 62
UNKNOWN_TIMESTAMP = -2
"""Not read from the time index yet; -1 is Kafka's "has none"."""
UNREAD = -2
UNCHECKED = -3
"""In place of the transaction index's checksum: not looked for yet; there are no checksums, since Kafka wrote the
indexes."""

SCAN_BYTES = 8192
"""One read finds a batch in most segments: an index interval and the header behind it."""
VERIFIED_BATCHES = 100

_PLACE = Struct(">qi11xi")  # base offset, length, last offset delta


class Place(NamedTuple):
    """Where one batch lies."""

    position: int
    size: int
    base_offset: int
    last_offset: int


class SegmentReader:
    """See the module. `Segment` is this and the writing side."""

    __slots__ = (
        "_aborted",
        "_aborted_crc",
        "_max_timestamp",
        "_offsets",
        "_shown_offsets",
        "_shown_times",
        "_times",
        "aborted_guessed",
        "base_offset",
        "bytes_since_index",
        "disk",
        "first_timestamp",
        "folder",
        "handle",
        "index_dirty",
        "index_interval_bytes",
        "max_offset",
        "max_timestamp_offset",
        "open_from",
        "size",
        "synced",
        "synced_size",
        "tail_from",
        "tail_last_offsets",
        "tail_positions",
    )

    def __init__(self, pool: FilePool, folder: str, base_offset: int, size: int) -> None:
        self.disk: Disk = pool.disk
        self.folder = folder
        self.base_offset = base_offset
        self.size = size
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
        self.tail_from = NEVER
        self.tail_last_offsets = array("q")
        self.tail_positions = array("q")
        self._max_timestamp = UNKNOWN_TIMESTAMP
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._shown_offsets = self._shown_times = 0
        """How many entries the files are known to have, of those in memory."""
        self._aborted: list[AbortedTransaction] | None = None
        self._aborted_crc = UNREAD
        """What the transaction index must be, while it is not in memory."""
        self.aborted_guessed = False
        """The transaction index was derived from a log with a hole in it: never vouched for, see `aborted.py`."""
        self.open_from: int | None = None
        """Where the earliest transaction began that was open when this segment did; None until somebody asks."""

    def path(self, suffix: str) -> str:
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    def is_dirty(self) -> bool:
        return self.synced_size < self.size

    def evicted(self) -> None:
        """The pool closed our file: an inactive segment that nobody reads needs no index in memory either."""
        if not self.index_dirty and self.synced:
            self._offsets = None
            self._times = None
            self._aborted = None
            self._aborted_crc = UNREAD

    @property
    def is_unread(self) -> bool:
        """Whether nothing of the index files was looked at yet."""
        return self._offsets is None and self._max_timestamp == UNKNOWN_TIMESTAMP

    # -- indexes, loaded when first asked for

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
        """From the checksums, or else only the last entry of the time index: retention asks this of every segment."""
        if self.size == 0:
            self._max_timestamp = -1
            return
        try:
            sums = self._read_sums()
            if sums is not None:
                self._max_timestamp, self.max_timestamp_offset = sums.max_timestamp, sums.max_timestamp_offset
                return
            data = read_index(self.disk, self.path(".timeindex"), self.size)
            if len(data) % TIME_ENTRY_BYTES:
                raise CorruptIndex("time index with a part of an entry")
            timestamp, relative_offset = last_time_entry(data)
        except CorruptIndex:
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

    @property
    def offsets(self) -> OffsetIndex:
        if self._offsets is None:
            self._load_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self._load_indexes()
        assert self._times is not None
        return self._times

    def _load_indexes(self) -> None:
        """From the files, if they are what was written for this log file; else from the log file."""
        try:
            sums = self._read_sums()
            data = [read_index(self.disk, self.path(suffix), self.size) for suffix in (".index", ".timeindex")]
            offsets, times = decode_indexes(data[0], data[1], sums, self.size)
            if sums is None:
                self._check_ends(offsets)
        except CorruptIndex:
            self.rebuild_indexes()
            return
        self._offsets, self._times = offsets, times
        self._shown_offsets, self._shown_times = len(offsets), len(times)
        if sums is not None:
            self._max_timestamp, self.max_timestamp_offset = sums.max_timestamp, sums.max_timestamp_offset

    def _read_sums(self) -> IndexSums | None:
        self._aborted_crc = NOT_KNOWN
        path = self.path(SUMS_SUFFIX)
        sums = read_sums(self.disk, path, self.base_offset, self.size, self.handle.open())
        self._aborted_crc = UNCHECKED if sums is None else sums.aborted_crc
        return sums

    def _check_ends(self, index: OffsetIndex) -> None:
        """That the first and the last entry point at batches. Every other is looked at when it is used."""
        for slot in (0, -1) if len(index) else ():
            place = self._batch_at(index.positions[slot])
            if place is None or not self.base_offset <= place.base_offset <= self.base_offset + index.offsets[slot]:
                raise CorruptIndex(f"offset index entry {slot} does not point at its batch")

    @property
    def is_index_checked(self) -> bool:
        """Whether the offset index, once in memory, is known to be right; else each entry is a guess until looked
        up."""
        return self._aborted_crc != UNCHECKED

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """CorruptIndex if the file is not what was written: only a log can then say, see `LogReader.aborted_of`."""
        if self._aborted is None:
            if self._aborted_crc == UNREAD:
                self._read_sums()
            data = read_aborted(self.disk, self.path(".txnindex"), self.size)
            if self._aborted_crc not in (UNCHECKED, crc32c(data)):
                raise CorruptIndex("a transaction index that is not the one that was written")
            self._aborted = decode_aborted(data, self.base_offset, whole=True)
        return self._aborted

    def rebuild_indexes(self) -> None:
        """Walk the headers again. The transaction index cannot be told from headers, so it is left alone."""
        file = self.handle.pin()
        try:
            found = build_indexes(file, self.base_offset, self.size, self.index_interval_bytes)
        finally:
            self.handle.unpin()
        self.take_indexes(found)

    def take_indexes(self, found: Indexes) -> None:
        """Go on with indexes that were built from the log file."""
        if self._aborted_crc == UNCHECKED:
            self._aborted_crc = NOT_KNOWN  # it lies beside a file that was wrong
        self._offsets, self._times = found.offsets, found.times
        self._shown_offsets = self._shown_times = 0
        self._max_timestamp, self.max_timestamp_offset = found.max_timestamp, found.max_timestamp_offset
        self.first_timestamp = found.first_timestamp if self.size else UNKNOWN_TIMESTAMP
        self.bytes_since_index = found.bytes_since_index
        self.keep_indexes()

    def keep_indexes(self) -> None:
        """Write them if that can be done. Where it cannot, memory has them, and the next start builds them again."""
        try:
            self.write_indexes()
        except OSError:
            self.index_dirty = True

    def write_indexes(self) -> None:
        """Bring the index files up to date with memory: when rolled, flushed or closed."""
        if self._max_timestamp == UNKNOWN_TIMESTAMP:
            return
        if self._max_timestamp >= 0:
            self.times.append(self._max_timestamp, self.max_timestamp_offset - self.base_offset)
        offsets, times = self.offsets.encode(), self.times.encode()
        sums = IndexSums(
            self.base_offset,
            self.size,
            crc32c(read_tail(self.handle.open(), self.size)),
            self._max_timestamp,
            self.max_timestamp_offset,
            crc32c(offsets),
            crc32c(times),
            self._sum_aborted(),
        )
        # Checksums last: whatever a crash leaves, they then vouch for no file that is not whole.
        for suffix, data in ((".index", offsets), (".timeindex", times), (SUMS_SUFFIX, sums.encode())):
            self._write_file(suffix, data)
        self._aborted_crc = sums.aborted_crc
        self._shown_offsets, self._shown_times = len(self.offsets), len(self.times)
        self.index_dirty = False

    def _sum_aborted(self) -> int:
        if self.aborted_guessed:
            return NOT_KNOWN
        if self._aborted is not None:
            return crc32c(b"".join(map(encode_aborted, self._aborted)))
        if self._aborted_crc == UNREAD:
            try:
                self._read_sums()
            except CorruptIndex:
                return NOT_KNOWN
        if self._aborted_crc == UNCHECKED:
            try:
                _ = self.aborted
            except CorruptIndex:
                return NOT_KNOWN
            return self._sum_aborted()
        return self._aborted_crc

    def _write_file(self, suffix: str, data: bytes) -> None:
        file = self.disk.open(self.path(suffix), create=True)
        try:
            file.truncate(0)
            if data:
                file.append(data)
        finally:
            file.close()

    def first_batch_timestamp(self) -> int:
        if self.first_timestamp == UNKNOWN_TIMESTAMP and self.size:
            header = self.header_at(0)
            self.first_timestamp = header.max_timestamp
        return self.first_timestamp

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
        if (
            behind - position > SCAN_BYTES
            and (place := self._batch_at(behind))
            and place.base_offset <= offset <= place.last_offset
        ):
            return place
        try:
            place = self._scan(position, offset)
            if place is None or place.position != position or not position or place.base_offset <= offset:
                # Batches from a batch at or below the offset on: the first that reaches it is right, whatever the index
                # says.
                return place
        except CorruptIndex:
            pass
        # Either the index led astray or the log file is damaged. A walk from its first byte tells.
        self.rebuild_indexes()
        try:
            return self._scan(self.offsets.position_before(offset - self.base_offset), offset)
        except CorruptIndex as error:
            raise CorruptSegment(self.handle.path, position, str(error)) from error

    def _batch_at(self, position: int) -> Place | None:
        """Where batches are so large that each has an entry in the index, the next entry is likely to be the one."""
        if not 0 <= position < self.size:
            return None
        header = self.handle.open().read(HEADER_BYTES, position)
        if len(header) < HEADER_BYTES or header[16] != 2:
            return None
        base_offset, length, delta = _PLACE.unpack_from(header)
        if not LENGTH_MIN <= length <= self.size - position - LOG_OVERHEAD:
            return None
        return Place(position, length + LOG_OVERHEAD, base_offset, base_offset + delta)

    def _scan(self, position: int, offset: int) -> Place | None:
        """Walk the headers from a position an index gave: CorruptIndex where there is no batch, None at the end."""
        size = self.size
        lowest = self.base_offset
        file = self.handle.open()
        if not 0 <= position < size:
            raise CorruptIndex(f"position {position} is not in the log")
        while position < size:
            chunk = file.read(min(SCAN_BYTES, size - position), position)
            at = 0
            last = len(chunk) - HEADER_BYTES
            if last < 0:
                raise CorruptIndex(f"the file ends inside a batch header at {position}")
            while at <= last:
                base_offset, length, delta = _PLACE.unpack_from(chunk, at)
                if length < LENGTH_MIN or chunk[at + 16] != 2 or base_offset < lowest or delta < 0:
                    raise CorruptIndex(f"no batch at {position + at}")
                if base_offset + delta >= offset:
                    if length + LOG_OVERHEAD > size - position - at:
                        raise CorruptIndex(f"the file ends inside the batch at {position + at}")
                    return Place(position + at, length + LOG_OVERHEAD, base_offset, base_offset + delta)
                lowest = base_offset + delta + 1
                at += length + LOG_OVERHEAD
            position += at
        if position != size:
            raise CorruptIndex("the file ends inside a batch")
        return None

    def offset_before(self, timestamp: int) -> int:
        """An offset below which every record is older than `timestamp`."""
        slot = bisect_right(self.times.timestamps, timestamp) - 1
        if self._aborted_crc == UNCHECKED and slot >= 0 and not self._is_time_of_batch(slot):
            self.rebuild_indexes()
            slot = bisect_right(self.times.timestamps, timestamp) - 1
        return self.base_offset + (self.times.offsets[slot] if slot >= 0 else 0)

    def _is_time_of_batch(self, slot: int) -> bool:
        timestamp, offset = self.times.timestamps[slot], self.base_offset + self.times.offsets[slot]
        place = self.find(offset)
        return (
            place is not None
            and place.base_offset <= offset
            and self.header_at(place.position).max_timestamp == timestamp
        )

    def position_of(self, offset: int) -> int:
        """Where bytes that a reader bounded by `offset` (exclusive) may see end."""
        place = self.find(offset)
        return self.size if place is None else place.position

    def header_at(self, position: int) -> BatchHeader:
        data = self.handle.open().read(HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            raise CorruptSegment(self.handle.path, position, "the file ends inside a batch header")
        header = BatchHeader._make(HEADER.unpack(data))
        if header.size > self.size - position:
            raise CorruptSegment(self.handle.path, position, "the file ends inside a batch")
        return header

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
