"""Every byte of a segment, checked: the checksum and the place of each batch. For recovery, and for a scrub."""

from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from headrace.errors import KafkaError
from headrace.records.batch import check_stored
from headrace.records.layout import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LEGACY_LENGTH_MIN,
    LENGTH_MIN,
    LOG_OVERHEAD,
    HeaderTuple,
)
from headrace.storage.files import Disk, File
from headrace.storage.indexes import RELATIVE_OFFSET_MAX
from headrace.storage.segment import WALK_BYTES, CorruptSegment

SHORTER = "the file became shorter while it was read"

_LENGTH_AND_MAGIC = Struct(">8xi4xb")


class OldFormat(Exception):
    """A log with messages from before Kafka 0.11. Only Kafka can rewrite it; cutting it off would destroy it."""


def checked_batches(
    file: File, base_offset: int, size: int, next_offset: int
) -> Iterator[tuple[int, HeaderTuple, memoryview]]:
    """(position, header fields, bytes from the batch on) while batches are valid; CorruptSegment at the first that is
    not.

    Offsets may have gaps but must grow, and must be near enough to the base for a relative offset.
    """
    unpack = HEADER.unpack_from
    offset_max = base_offset + RELATIVE_OFFSET_MAX
    position = 0
    while position < size:
        chunk = memoryview(file.read(min(WALK_BYTES, size - position), position))
        at = 0
        chunk_bytes = len(chunk)
        if not chunk_bytes:
            raise CorruptSegment(file.path, position, SHORTER)
        while at < chunk_bytes:
            end = at + _batch_bytes(file.path, chunk, at, position + at, size)
            if end > chunk_bytes:
                if at:
                    break
                chunk = memoryview(file.read(end, position))
                chunk_bytes = len(chunk)
            fields = unpack(chunk, at)
            base, length, _, magic, crc, _, delta, _, _, _, _, _, count = fields
            if (
                magic != 2
                or length < LENGTH_MIN
                or delta < 0
                or count < 0
                or base < next_offset
                or base + delta > offset_max
                or crc32c(chunk[at + CRC_FROM : end]) != crc
            ):
                raise CorruptSegment(file.path, position + at, _reason(chunk, at, next_offset))
            yield position + at, fields, chunk[at:end]
            next_offset = base + delta + 1
            at = end
        position += at


def _reason(chunk: memoryview, at: int, next_offset: int) -> str:
    """What is wrong with a batch that was found wrong, in words."""
    try:
        header = check_stored(chunk, at, len(chunk))
    except KafkaError as error:
        return error.message or "invalid batch"
    return f"offset {header.base_offset} where {next_offset} comes next"


def _batch_bytes(path: str, chunk: memoryview, at: int, position: int, size: int) -> int:
    """Whole length of the batch at `at`, which may reach beyond the chunk; CorruptSegment if beyond the file."""
    if len(chunk) - at >= HEADER_BYTES:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(chunk, at)
        whole: int = length + LOG_OVERHEAD
        if magic == 2 and HEADER_BYTES <= whole <= size - position:
            return whole
        if magic in (0, 1) and position == 0 and length >= LEGACY_LENGTH_MIN and whole <= size:
            raise OldFormat(f"{path} holds messages of format v{magic}, from before Kafka 0.11")
        if whole > size - position:
            raise CorruptSegment(path, position, f"a batch of {length} bytes where {size - position} remain")
        return HEADER_BYTES
    if size - position < HEADER_BYTES:
        raise CorruptSegment(path, position, f"{size - position} bytes are too few for a batch header")
    if at == 0:
        raise CorruptSegment(path, position, SHORTER)
    return HEADER_BYTES


def verify_file(disk: Disk, path: str, base_offset: int, size: int) -> str | None:
    """What is wrong with an inactive segment's log file, if anything: every CRC, for a scrub in a worker process.

    `Log.set_aside` is the answer to it.
    """
    file = disk.open(path, readonly=True)
    try:
        for _ in checked_batches(file, base_offset, size, base_offset):
            pass
    except CorruptSegment as damage:
        return f"{damage.reason} at byte {damage.position}"
    finally:
        file.close()
    return None
