"""Tells a torn tail from damage, before anything is changed.

What a crashed node had written since its last sync may be half there: nobody was told it was committed, so recovery may
cut it off. Several batches may have waited for that sync, and a disk writes sectors in any order: a hole of zeros may
have whole batches behind it. A bad batch without a hole, with good ones behind it, is something else: cutting there
would take back what was committed.
"""

import re
from struct import Struct

from crc32c import crc32c

from headrace.errors import KafkaError
from headrace.quorum import DamagedMetadata
from headrace.records.batch import check_stored
from headrace.records.layout import CRC_AT, CRC_FROM, HEADER_BYTES, LOG_OVERHEAD
from headrace.storage.file_names import OFFSET_DIGITS
from headrace.storage.files import Disk

_SEGMENT = re.compile(rf"\d{{{OFFSET_DIGITS}}}\.log")
_BASE_OFFSET = Struct(">q")
_LENGTH = Struct(">i")
_CRC = Struct(">I")
SECTOR_BYTES = 512
HOLE_BYTES_MIN = 8
"""Fewer zeros at the edge of a sector prove nothing: offsets begin with zeros, records may end with them."""
_MAYBE_BATCH = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)
"""Where a batch could begin: offsets stay below 2^48, and its magic is 2."""


def check_log(disk: Disk, folder: str, covered: int = 0, committed: int = 0) -> int:
    """Raise DamagedMetadata if the metadata log has been damaged other than by an unfinished last write.

    A log that ends below `committed` has lost what was no unfinished write: an end cut off, an older copy.

    Returns where the log begins. Segments before that are left over: a snapshot that reaches up to `covered` stands for
    them, they were being deleted, and the power went when some were gone for good and others not.
    """
    names = [name for name in disk.list(folder) if _SEGMENT.fullmatch(name)] if disk.exists(folder) else []
    begin = _base(names[0]) if names else 0
    walk = _Walk(begin)
    for name in names:
        if walk.next_offset < _base(name) <= covered:
            walk.next_offset = begin = _base(name)
        path = f"{folder}/{name}"
        data = memoryview(disk.read_bytes(path))
        torn = walk.segment(data, path)
        if torn is None:
            continue
        if name != names[-1]:
            raise DamagedMetadata(f"{path} is damaged at byte {torn}, and the log goes on behind it")
        good = _next_good(data, torn + 1, walk.next_offset)
        if good is not None and not _has_hole(data, torn, good):
            raise DamagedMetadata(f"{path} is damaged at byte {torn}, and whole batches follow at byte {good}")
    if max(walk.next_offset, covered) < committed:
        raise DamagedMetadata(
            f"{folder} ends at offset {max(walk.next_offset, covered)}, and {committed} had been committed here"
        )
    return begin


def _base(name: str) -> int:
    return int(name[:OFFSET_DIGITS])


class _Walk:
    """Batch after batch: offsets without a gap, epochs that never go back.

    Both stand outside a batch's CRC, so that a good CRC with a wrong offset or epoch is damage and no torn write.
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.epoch = 0

    def segment(self, data: memoryview, path: str) -> int | None:
        """Where the first batch begins that is not whole, or None."""
        pos, end = 0, len(data)
        while pos < end:
            if end - pos < HEADER_BYTES:
                return pos
            try:
                header = check_stored(data, pos, end)
            except KafkaError:
                if _whole(data, pos, end):
                    raise DamagedMetadata(f"{path} is damaged at byte {pos}: a batch has lost its place") from None
                return pos
            if header.base_offset != self.next_offset or header.leader_epoch < self.epoch:
                raise DamagedMetadata(
                    f"{path} is damaged at byte {pos}: a batch with offset {header.base_offset} and epoch"
                    f" {header.leader_epoch} where {self.next_offset} and {self.epoch} come next"
                )
            self.next_offset = header.last_offset + 1
            self.epoch = header.leader_epoch
            pos += header.size
        return None


def _whole(data: memoryview, pos: int, end: int) -> bool:
    """Whether only what stands outside the CRC is wrong: then it was written whole."""
    size = LOG_OVERHEAD + _LENGTH.unpack_from(data, pos + 8)[0]
    if not HEADER_BYTES <= size <= end - pos:
        return False
    return bool(crc32c(data[pos + CRC_FROM : pos + size]) == _CRC.unpack_from(data, pos + CRC_AT)[0])


def _has_hole(data: memoryview, start: int, end: int) -> bool:
    """Whether a sector between the two never reached the disk: then no sync of it, or of anything behind it, was done.

    A batch begins with its offset, which is not zero here, so a first sector of zeros is a hole as well.
    """
    for sector in range(start - start % SECTOR_BYTES, end, SECTOR_BYTES):
        piece = data[max(start, sector) : min(end, sector + SECTOR_BYTES)]
        if len(piece) >= HOLE_BYTES_MIN and not any(piece):
            return True
    return False


def _next_good(data: memoryview, pos: int, next_offset: int) -> int | None:
    for match in _MAYBE_BATCH.finditer(data, pos):
        at = match.start()
        if len(data) - at < HEADER_BYTES or _BASE_OFFSET.unpack_from(data, at)[0] <= next_offset:
            continue
        try:
            check_stored(data, at, len(data))
        except KafkaError:
            continue
        return at
    return None
