"""One segment: a log file, its indexes, and when it has to be rolled.

Offsets here are absolute, positions are bytes in the log file. A segment knows where batches lie, not what is in
them; the log decides what is appended, recovery what is valid.
"""

import zlib
from contextlib import suppress

from headrace.config import LogConfig
from headrace.replication.producers import AbortedTransaction
from headrace.storage.file_names import INDEX_SUFFIXES, SHOWN_SUFFIXES
from headrace.storage.index_sums import NOT_KNOWN
from headrace.storage.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    encode_aborted,
)
from headrace.storage.indexing import WALK_BYTES as WALK_BYTES, CorruptSegment as CorruptSegment
from headrace.storage.pool import FilePool, Handle
from headrace.storage.segment_reader import NEVER as NEVER, UNKNOWN_TIMESTAMP, Place as Place, SegmentReader

TAIL_BATCHES = 512
"""The active segment remembers where its last batches lie, so that tail reads need neither index nor disk."""


class Segment(SegmentReader):
    """See the module. Everything runs on the loop; threads only touch files pinned for them."""

    __slots__ = (
        "created_ms",
        "roll_at_bytes",
        "roll_at_now_ms",
        "roll_at_timestamp",
    )

    def __init__(self, pool: FilePool, folder: str, base_offset: int, size: int, now_ms: int) -> None:
        super().__init__(pool, folder, base_offset, size)
        self.created_ms = now_ms
        self.roll_at_bytes = NEVER
        self.roll_at_timestamp = NEVER
        self.roll_at_now_ms = NEVER

    @classmethod
    def create(cls, pool: FilePool, folder: str, base_offset: int, config: LogConfig, now_ms: int) -> "Segment":
        """An empty active segment. What an earlier run left under the same name is cut off first."""
        segment = cls(pool, folder, base_offset, 0, now_ms)
        file = pool.disk.open(segment.handle.path, create=True)
        if file.size():
            file.truncate(0)
        pool.adopt(segment.handle, file)
        segment.reset_indexes()
        for suffix in INDEX_SUFFIXES:
            path = segment.path(suffix)
            if suffix in SHOWN_SUFFIXES:
                segment._write_file(suffix, b"")
            elif pool.disk.exists(path):
                pool.disk.remove(path)
        segment.configure(config)
        return segment

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

    @property
    def unshown_entries(self) -> int:
        """How many entries the offset index has that its file has not."""
        return len(self._offsets) - self._shown_offsets if self._offsets is not None else 0

    def show_indexes(self) -> None:
        """Bring the index files of an active segment nearly up to date, for whoever looks at the folder.

        Only what is new is written, and nothing is vouched for: after a crash the active segment's indexes are always
        built from its log file, and a roll or a clean stop writes them whole. A full disk is no reason to complain.
        """
        offsets, times = self.offsets, self.times
        with suppress(OSError):
            if len(offsets) > self._shown_offsets:
                self._append_to(".index", OFFSET_ENTRY_BYTES * self._shown_offsets, offsets.encode(self._shown_offsets))
                self._shown_offsets = len(offsets)
            if len(times) > self._shown_times:
                self._append_to(".timeindex", TIME_ENTRY_BYTES * self._shown_times, times.encode(self._shown_times))
                self._shown_times = len(times)

    def _append_to(self, suffix: str, size: int, data: bytes) -> None:
        """Behind `size` bytes; what is there beyond them was of another time."""
        file = self.disk.open(self.path(suffix), create=True)
        try:
            if file.size() != size:
                file.truncate(size)
            file.append(data)
        finally:
            file.close()

    def index_full(self, config: LogConfig) -> bool:
        return (
            len(self.offsets) >= config.segment_index_bytes // OFFSET_ENTRY_BYTES
            or len(self.times) >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1
        )

    def replace_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Write the transaction index anew, from what the log itself says."""
        self._aborted = entries
        path = self.path(".txnindex")
        if entries:
            self._write_file(".txnindex", b"".join(map(encode_aborted, entries)))
        elif self.disk.exists(path):
            self.disk.remove(path)

    def guess_aborted(self, entries: list[AbortedTransaction]) -> None:
        """What the log says while some of it is missing: for memory only."""
        self._aborted = entries
        self.aborted_guessed = True

    def doubt_aborted(self) -> None:
        """The log has to be asked which transactions were aborted: more of it is there than when that was found out."""
        self._aborted = None
        self._aborted_crc = NOT_KNOWN
        self.aborted_guessed = False
        self.open_from = None

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """After an OSError the file lacks it, and readers have it all the same."""
        self.aborted.append(entry)
        try:
            file = self.disk.open(self.path(".txnindex"), create=True)
            try:
                file.append(encode_aborted(entry))
            finally:
                file.close()
        except OSError:
            # It stays in memory until checksums are written, and by those the file is found wrong later on.
            self.index_dirty = True
            raise

    def reset_indexes(self) -> None:
        """Forget everything that is derived from batches."""
        self._offsets = OffsetIndex()
        self._times = TimeIndex()
        self._aborted = []
        self._max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp = UNKNOWN_TIMESTAMP
        self._shown_offsets = self._shown_times = 0
        self.bytes_since_index = 0
        self.forget_tail(self.base_offset if self.size == 0 else NEVER)

    def forget_tail(self, tail_from: int) -> None:
        self.tail_from = tail_from
        del self.tail_last_offsets[:]
        del self.tail_positions[:]

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
        if len(kept) != len(self.aborted):
            self.replace_aborted(kept)
        self._shown_offsets = self._shown_times = 0
        self._find_max_timestamp()
        if self.size == 0:
            self.first_timestamp = UNKNOWN_TIMESTAMP
        self.bytes_since_index = self.size - (self.offsets.positions[-1] if len(self.offsets) else 0)
        self.keep_indexes()
        return offset

    def _change_handle(self) -> None:
        """Somebody is still sending from the file: what is written to it from now on is not what was promised."""
        old = self.handle
        self.handle = Handle(old.pool, old.path, self)
        self.handle.unchecked = old.unchecked
        old.cut = True
        old.close()

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
        names = [self.path(suffix) for suffix in (".log", *INDEX_SUFFIXES)]
        return [path for path in names if self.disk.exists(path)]

    def move(self, folder: str) -> None:
        """The folder was renamed: open files stay good, paths change."""
        self.folder = folder
        self.handle.path = self.path(".log")

    def close(self) -> None:
        self.handle.close()
