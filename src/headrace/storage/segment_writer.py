"""Writes one segment beside the log, as `.cleaned` files that a start removes: what compaction or a repair has made.

Its indexes are those that `Segment` would have built from the same batches. `swap` and `mending` put it in place.
"""

from crc32c import crc32c

from headrace.records.layout import NO_TIMESTAMP, BatchHeader
from headrace.replication.producers import AbortedTransaction
from headrace.storage.file_names import CLEANED_SUFFIX, SUMS_SUFFIX, file_name
from headrace.storage.files import Disk, File
from headrace.storage.index_sums import NOT_KNOWN, IndexSums
from headrace.storage.indexes import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex, encode_aborted
from headrace.storage.indexing import read_tail

WRITE_BYTES = 1 << 20


class TooLarge(Exception):
    """More than a segment can have."""


class SegmentWriter:
    """See the module. `aborted_known`: that `aborted` is filled in; else the log around the segment has to be asked by
    the first who wants to know."""

    def __init__(
        self, disk: Disk, folder: str, base_offset: int, index_interval_bytes: int, *, aborted_known: bool
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._index_interval_bytes = index_interval_bytes
        self._base_offset = base_offset
        self._file: File | None = self._create(".log")
        self._parts: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._size = 0
        self._since_index = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = -1
        self._has_markers = False
        self._offsets = OffsetIndex()
        self._times = TimeIndex()
        self.aborted: list[AbortedTransaction] = []
        self.aborted_known = aborted_known

    def _create(self, suffix: str) -> File:
        file = self._disk.open(f"{self._path(suffix)}{CLEANED_SUFFIX}", create=True)
        file.truncate(0)
        return file

    def _path(self, suffix: str) -> str:
        return f"{self._folder}/{file_name(self._base_offset, suffix)}"

    def append(self, header: BatchHeader, data: bytes | memoryview) -> None:
        if self._size + len(data) > RELATIVE_OFFSET_MAX:
            raise TooLarge(f"{self._path('.log')} would grow past 2 GiB")
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self._since_index > self._index_interval_bytes:
            self._offsets.append(header.last_offset - self._base_offset, self._size)
            self._index_time()
            self._since_index = 0
        if header.is_control:
            self._has_markers = True
        self._since_index += len(data)
        self._size += len(data)
        self._parts.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= WRITE_BYTES:
            self._flush()

    def _index_time(self) -> None:
        if self._max_timestamp >= 0:
            self._times.append(self._max_timestamp, self._max_timestamp_offset - self._base_offset)

    def _flush(self) -> None:
        assert self._file is not None
        if self._parts:
            self._file.append(b"".join(self._parts))
        self._parts.clear()
        self._pending_bytes = 0

    def finish(self) -> int:
        """Write and sync everything; returns the size of the log file."""
        self._flush()
        assert self._file is not None
        self._file.sync()
        self._index_time()
        data = [self._offsets.encode(), self._times.encode(), b"".join(map(encode_aborted, self.aborted))]
        self._write(".index", data[0])
        self._write(".timeindex", data[1])
        stale = f"{self._path('.txnindex')}{CLEANED_SUFFIX}"
        if self.aborted:
            self._write(".txnindex", data[2])
        elif self._disk.exists(stale):
            self._disk.remove(stale)
        tail = read_tail(self._file, self._size)
        latest = self._max_timestamp, self._max_timestamp_offset
        aborted_crc = crc32c(data[2]) if self.aborted_known or not self._has_markers else NOT_KNOWN
        sums = IndexSums(
            self._base_offset, self._size, crc32c(tail), *latest, crc32c(data[0]), crc32c(data[1]), aborted_crc
        )
        self._write(SUMS_SUFFIX, sums.encode())
        return self._size

    def _write(self, suffix: str, data: bytes) -> None:
        file = self._create(suffix)
        try:
            if data:
                file.append(data)
            file.sync()
        finally:
            file.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
