"""A segment's indexes from its log file, and back from the files beside it.

`build_indexes` only reads a file it is given, so a thread may do it. Nothing here changes a segment.
"""

from struct import Struct

from crc32c import crc32c

from headrace.records.layout import HEADER_BYTES, LENGTH_MIN, LOG_OVERHEAD
from headrace.storage.files import OUT_OF_DESCRIPTORS, Disk, File
from headrace.storage.index_sums import TAIL_BYTES, IndexSums
from headrace.storage.indexes import (
    POSITION_MAX,
    RELATIVE_OFFSET_MAX,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
)

WALK_BYTES = 1 << 20
LARGE_BATCH_BYTES = 65_536
"""From here on a header is read alone, and not with all that lies between it and the next."""
INDEX_BYTES_MAX = 64 << 20
"""No index is larger than its log and this, as far as Kafka may preallocate it: what is, must not be read into
memory."""

_WALKED = Struct(">qi4xb6xi8xq")  # base offset, length, magic, last offset delta, largest timestamp


class CorruptSegment(Exception):
    """Bytes in a log file that are not a batch where one has to be."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class Indexes:
    """What a segment knows of the batches in it."""

    __slots__ = ("bytes_since_index", "first_timestamp", "max_timestamp", "max_timestamp_offset", "offsets", "times")

    def __init__(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        self.offsets = offsets
        self.times = times
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.first_timestamp = -1
        self.bytes_since_index = 0


def build_indexes(file: File, base_offset: int, size: int, interval_bytes: int) -> Indexes:
    """What appending the same batches would have built. CorruptSegment where a batch has to be and is none."""
    found = Indexes(OffsetIndex(), TimeIndex())
    unpack = _WALKED.unpack_from
    offset_max = base_offset + RELATIVE_OFFSET_MAX
    next_offset, max_timestamp, since = base_offset, -1, 0
    position = 0
    read_bytes = WALK_BYTES
    while position < size:
        chunk = file.read(min(read_bytes, size - position), position)
        last = len(chunk) - HEADER_BYTES
        if last < 0:
            raise CorruptSegment(file.path, position, "the file ends inside a batch header")
        at = length = 0
        while at <= last:
            base, length, magic, delta, timestamp = unpack(chunk, at)
            here = position + at
            length += LOG_OVERHEAD
            if magic != 2 or length < LENGTH_MIN + LOG_OVERHEAD or delta < 0:
                raise CorruptSegment(file.path, here, "no batch where the one before it ends")
            if base < next_offset or base + delta > offset_max or here > POSITION_MAX:
                raise CorruptSegment(file.path, here, f"offset {base} where {next_offset} comes next")
            if here + length > size:
                raise CorruptSegment(file.path, here, "the file ends inside a batch")
            next_offset = base + delta + 1
            if timestamp > max_timestamp:
                max_timestamp = timestamp
                found.max_timestamp, found.max_timestamp_offset = timestamp, next_offset - 1
            if since > interval_bytes:
                found.offsets.append(next_offset - 1 - base_offset, here)
                if max_timestamp >= 0:
                    found.times.append(max_timestamp, found.max_timestamp_offset - base_offset)
                since = 0
            elif here == 0:
                found.first_timestamp = timestamp
            since += length
            at += length
        position += at
        read_bytes = WALK_BYTES if length < LARGE_BATCH_BYTES else HEADER_BYTES
    found.bytes_since_index = since
    return found


def read_index(disk: Disk, path: str, log_bytes: int) -> bytes:
    """A file that can be derived again: whatever is wrong with it is CorruptIndex, and never a failed disk."""
    try:
        if disk.size(path) > log_bytes + INDEX_BYTES_MAX:
            raise CorruptIndex(f"{path} is larger than any index of its log")
        return disk.read_bytes(path)
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise
        raise CorruptIndex(str(error)) from error


def read_aborted(disk: Disk, path: str, log_bytes: int) -> bytes:
    """A transaction index as it lies there; most segments have none."""
    return read_index(disk, path, log_bytes) if disk.exists(path) else b""


def read_sums(disk: Disk, path: str, base_offset: int, log_bytes: int, file: File) -> IndexSums | None:
    """The checksums of the indexes; None without such a file, CorruptIndex if it is of another log file than `file`."""
    if not disk.exists(path):
        return None
    sums = IndexSums.decode(read_index(disk, path, log_bytes))
    if not sums.is_of(base_offset, log_bytes, read_tail(file, log_bytes)):
        raise CorruptIndex(f"{path} is of another log file, or of an earlier state of it")
    return sums


def read_tail(file: File, size: int) -> bytes:
    at = max(0, size - TAIL_BYTES)
    return file.read(size - at, at)


def decode_indexes(
    offsets_data: bytes, times_data: bytes, sums: IndexSums | None, log_bytes: int
) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes. With checksums these decide; without, as Kafka leaves them, all that no log can have is refused."""
    if sums is not None and (crc32c(offsets_data), crc32c(times_data)) != (sums.offsets_crc, sums.times_crc):
        raise CorruptIndex("an index that is not the one that was written")
    offsets, times = OffsetIndex.decode(offsets_data), TimeIndex.decode(times_data)
    if sums is None:
        offsets.check(log_bytes)
        times.check()
        if not len(times) and log_bytes:
            raise CorruptIndex("empty time index beside a log that is not")
        if not len(offsets) and log_bytes > WALK_BYTES:
            raise CorruptIndex("empty offset index beside a log that is large")
    return offsets, times
