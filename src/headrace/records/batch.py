"""What a broker does with one whole record batch: check a client's, stamp it, check a stored one.

The names of `layout`, `reader` and `builder` are at hand here too: this is the door to the package. `validate` is on
the hot path of Produce: one unpack, one CRC, one chain of comparisons. Only when that chain breaks does slow code look
for the reason, in the order in which Kafka would have found it.
"""

from struct import Struct

from crc32c import crc32c

from headrace.errors import Err, KafkaError
from headrace.records.builder import BatchBuilder, build_batch, rewrite, set_max_timestamp
from headrace.records.layout import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LEGACY_LENGTH_MIN,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    HeaderTuple,
    iter_headers,
    next_sequence,
    read_header,
)
from headrace.records.reader import Record, iter_records, read_records
from headrace.records.validation import InvalidRecords, validate_records

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "BatchBuilder",
    "BatchHeader",
    "HeaderTuple",
    "InvalidRecords",
    "NotOneBatch",
    "Record",
    "build_batch",
    "check_incoming",
    "check_stored",
    "crc_matches",
    "iter_headers",
    "iter_records",
    "next_sequence",
    "read_header",
    "read_records",
    "require_one_batch",
    "rewrite",
    "set_max_timestamp",
    "stamp",
    "validate",
    "validate_records",
]

CODEC_MAX = 4
_CLIENT_ATTRIBUTES = frozenset(
    codec | transactional for codec in range(CODEC_MAX + 1) for transactional in (0, TRANSACTIONAL)
)
_PLACE = Struct(">qii")  # base offset, length, leader epoch
_LENGTH = Struct(">i")
_unpack_header = HEADER.unpack_from
_pack_place = _PLACE.pack_into


def validate(buf: Buffer, view: memoryview, start: int, end: int, log_append_time: bool = False) -> HeaderTuple:
    """Check a client's records for one partition, `buf[start:end]`; `view` is a view of the same buffer.

    Returns the header's fields in the order of `BatchHeader`; a piece of a batch behind it is to be left out, as Kafka
    does. Raises KafkaError with the code Kafka answers. Some clients leave the maximum timestamp unset, or set the bit
    for LogAppendTime, which Kafka mends: so does this, in place. (The bit is refused where the topic has such times.)
    """
    if end - start < HEADER_BYTES:
        require_one_batch(buf, start, end)
        raise KafkaError(Err.CORRUPT_MESSAGE, "record batch shorter than its header")
    header: HeaderTuple = _unpack_header(buf, start)
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        last_delta,
        base_ts,
        max_ts,
        pid,
        _,
        sequence,
        count,
    ) = header
    if (
        magic == 2
        and length == end - start - LOG_OVERHEAD
        and crc32c(view[start + CRC_FROM : end]) == crc
        and base_offset == 0
        and attributes in _CLIENT_ATTRIBUTES
        and count > 0
        and count == last_delta + 1
        and base_ts <= max_ts
        and (attributes & CODEC_MASK or count <= (length - LENGTH_MIN) // RECORD_BYTES_MIN)
        and (sequence >= 0 if pid > NO_PRODUCER_ID else attributes < TRANSACTIONAL)
    ):
        return header
    _refuse(BatchHeader._make(header), buf, view, start, end)
    if attributes & LOG_APPEND_TIME and (log_append_time or max_ts == NO_TIMESTAMP):
        reason = "producers may not set the timestamp type to LogAppendTime"
        raise InvalidRecords(Err.INVALID_TIMESTAMP, reason, [(index, reason) for index in range(count)])
    if base_ts > max_ts or attributes & LOG_APPEND_TIME:
        return _mend(header, view, start)
    return header


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, length: int, leader_epoch: int) -> None:
    """Give a batch of `length` (its header's) its place in the log. Offset and epoch stand outside the CRC."""
    _pack_place(buf, pos, base_offset, length, leader_epoch)  # one call, though the length stays as it was


def crc_matches(header: BatchHeader, batch: Buffer) -> bool:
    """Whether the bytes of one whole batch are those that its header's CRC was made of."""
    return crc32c(memoryview(batch)[CRC_FROM:]) == header.crc


def check_stored(view: memoryview, start: int, end: int) -> BatchHeader:
    """Check the batch at `start` of a log file or a leader's Fetch answer: magic, size and CRC.

    Nothing ties count to offsets here: compaction leaves gaps, and may leave a batch with no records at all.
    """
    header = read_header(view, start, end)
    computed = crc32c(view[start + CRC_FROM : start + header.size])
    if computed != header.crc:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch at offset {header.base_offset}: CRC mismatch")
    if header.last_offset_delta < 0 or header.base_offset < 0 or header.count < 0:
        raise KafkaError(
            Err.CORRUPT_MESSAGE,
            f"record batch at offset {header.base_offset} with last offset delta {header.last_offset_delta}"
            f" and {header.count} records",
        )
    return header


def check_incoming(view: memoryview, next_offset: int, leader_epoch: int) -> list[tuple[int, BatchHeader]]:
    """(position, header) of the whole batches that a leader of `leader_epoch` sent, each checked as far as its CRC.

    Those below `next_offset` are there already and are left out, as is a piece of a batch at the end. Raises
    CORRUPT_MESSAGE for bytes that cannot come next.
    """
    found: list[tuple[int, BatchHeader]] = []
    for position, header in iter_headers(view):
        if header.end_offset <= next_offset and not found:
            continue
        if crc32c(view[position + CRC_FROM : position + LOG_OVERHEAD + header.length]) != header.crc:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch at offset {header.base_offset}: CRC mismatch")
        if header.base_offset < next_offset or header.last_offset_delta < 0 or header.count < 0:
            raise KafkaError(
                Err.CORRUPT_MESSAGE,
                f"record batch at offset {header.base_offset} with last offset delta {header.last_offset_delta}"
                f" where {next_offset} comes next",
            )
        if header.leader_epoch > leader_epoch:
            # Of a leader that came after the one asked: what comes before it here may not be what it has.
            break
        found.append((position, header))
        next_offset = header.end_offset
    return found


class NotOneBatch(KafkaError):
    """What was sent for a partition is not one batch of magic 2: Kafka sees so before it looks at the log."""


def batch_end(buf: Buffer, start: int, end: int) -> int | None:
    """Where the batch at `start` ends; None when only a piece of it is there. Raises where there can be none."""
    if end - start < LOG_OVERHEAD:
        return None
    (length,) = _LENGTH.unpack_from(buf, start + 8)
    if length < LEGACY_LENGTH_MIN:
        raise NotOneBatch(Err.CORRUPT_MESSAGE, f"record batch of length {length}")
    if end - start <= MAGIC_AT:
        return None
    if buf[start + MAGIC_AT] > 2:
        raise NotOneBatch(Err.CORRUPT_MESSAGE, f"record batch with magic {buf[start + MAGIC_AT]}")
    whole: int = start + LOG_OVERHEAD + length
    return whole if whole <= end else None


def require_one_batch(buf: Buffer, start: int, end: int) -> int:
    """Where the one batch of magic 2 ends that a Produce request has for a partition."""
    batch = batch_end(buf, start, end)
    if batch is None:
        raise NotOneBatch(Err.INVALID_RECORD, "a Produce request must have one whole record batch per partition")
    magic = buf[start + MAGIC_AT]
    if magic < 2:
        raise NotOneBatch(Err.INVALID_RECORD, f"record batch with magic {magic}; Produce takes only magic 2")
    if batch_end(buf, batch, end) is not None:
        raise NotOneBatch(Err.INVALID_RECORD, "a Produce request must have exactly one record batch per partition")
    return batch


def _refuse(header: BatchHeader, buf: Buffer, view: memoryview, start: int, end: int) -> None:
    """Raise for what made `validate` stumble; return when Kafka would not mind it."""
    end = require_one_batch(buf, start, end)
    if header.base_offset != 0:
        raise KafkaError(Err.INVALID_RECORD, f"record batch with base offset {header.base_offset}; it must be 0")
    if header.length < LENGTH_MIN or crc32c(view[start + CRC_FROM : end]) != header.crc:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch does not match its CRC {header.crc}")
    _refuse_fields(header)


def _refuse_fields(header: BatchHeader) -> None:
    attributes, count = header.attributes, header.count
    if header.codec > CODEC_MAX:
        raise KafkaError(Err.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression type {header.codec}")
    if header.last_offset_delta < 0 or count <= 0 or count != header.last_offset_delta + 1:
        raise KafkaError(
            Err.INVALID_RECORD,
            f"record batch of {count} records with last offset delta {header.last_offset_delta}",
        )
    if attributes & CONTROL:
        raise KafkaError(Err.INVALID_RECORD, "clients may not write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise KafkaError(
            Err.INVALID_RECORD,
            f"record batch of producer {header.producer_id} with sequence {header.base_sequence}",
        )
    if attributes & TRANSACTIONAL and not header.has_producer_id:
        raise KafkaError(Err.INVALID_RECORD, "transactional record batch without a producer id")
    if not attributes & CODEC_MASK and count > (header.length - LENGTH_MIN) // RECORD_BYTES_MIN:
        raise KafkaError(Err.INVALID_RECORD, f"{count} records do not fit in {header.length} bytes")


def _mend(fields: HeaderTuple, view: memoryview, start: int) -> HeaderTuple:
    header = BatchHeader._make(fields)
    max_timestamp = validate_records(view, start, header, now_ms=0).max_timestamp
    set_max_timestamp(view, start, header, max_timestamp, log_append_time=False)
    mended: HeaderTuple = _unpack_header(view, start)
    return mended
