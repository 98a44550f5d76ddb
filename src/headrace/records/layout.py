"""The 61-byte header of a record batch v2, and walking from batch to batch by headers alone.

Nothing here looks at records or checks a CRC; see `batch` and `reader` for that.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from headrace.errors import Err, KafkaError

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 61

LOG_OVERHEAD = 12
"""Bytes before what `length` counts: base offset and length itself."""
MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21
"""The CRC covers everything from the attributes on; base offset and leader epoch can change without it."""
ATTRIBUTES_AT = 21
RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp delta, offset delta, key, value and header count, one byte each."""
LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD
LEGACY_LENGTH_MIN = 14
"""The smallest legal `length` of any magic (a v0 message); below it even the magic cannot be trusted."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""KIP-534: the base timestamp holds the time from which tombstones and markers of this batch may go."""

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 0x7FFF
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 0x7FFFFFFF

HeaderTuple = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of `BatchHeader`, in order, without the cost of building one: what the hot path handles."""


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls on a header

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last offset of the batch, kept through compaction; -1 without one."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


def read_header(buf: Buffer, pos: int = 0, end: int | None = None) -> BatchHeader:
    """The header at `pos`, whose batch must be v2 and lie whole before `end`; CORRUPT_MESSAGE otherwise."""
    if end is None:
        end = len(buf)
    if end - pos < HEADER_BYTES:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"{end - pos} bytes are too few for a record batch header")
    header = BatchHeader._make(HEADER.unpack_from(buf, pos))
    if header.magic != 2:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch with magic {header.magic}, only 2 is kept")
    if header.length < LENGTH_MIN or header.length > end - pos - LOG_OVERHEAD:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch of length {header.length} where {end - pos} bytes remain")
    return header


def iter_headers(buf: Buffer, pos: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch; stops before an incomplete last one, as a Fetch may end with.

    A whole header that makes no sense raises CORRUPT_MESSAGE.
    """
    if end is None:
        end = len(buf)
    while end - pos >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
        if header.magic != 2:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch with magic {header.magic}, only 2 is kept")
        if header.length < LENGTH_MIN:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch of length {header.length}, shorter than its header")
        after = pos + header.length + LOG_OVERHEAD
        if after > end:
            return
        yield pos, header
        pos = after


def next_sequence(sequence: int, increment: int = 1) -> int:
    """Sequences count to 2^31-1 and start again at 0."""
    return (sequence + increment) & SEQUENCE_MAX
