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
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LEGACY_LENGTH_MIN,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    NO_PRODUCER_ID,
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
    "Record",
    "build_batch",
    "check_stored",
    "iter_headers",
    "iter_records",
    "next_sequence",
    "read_header",
    "read_records",
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


def validate(buf: Buffer, view: memoryview, start: int, end: int) -> HeaderTuple:
    """Check a client's records for one partition, `buf[start:end]`; `view` is a view of the same buffer.

    Returns the header's fields in the order of `BatchHeader`. Raises KafkaError with the code Kafka answers. Some
    clients leave the maximum timestamp unset, which Kafka mends: so does this, in place.
    """
    if end - start < HEADER_BYTES:
        raise _reason_short(buf, start, end)
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
        epoch,
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
        and ((sequence >= 0 and epoch >= 0) if pid > NO_PRODUCER_ID else attributes < TRANSACTIONAL)
    ):
        return header
    _refuse(BatchHeader._make(header), view, start, end)
    return header if base_ts <= max_ts else _mend(header, view, start)


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, length: int, leader_epoch: int) -> None:
    """Give a batch of `length` (its header's) its place in the log. Offset and epoch stand outside the CRC."""
    _pack_place(buf, pos, base_offset, length, leader_epoch)  # one call, though the length stays as it was


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


def _reason_short(buf: Buffer, start: int, end: int) -> KafkaError:
    """Why fewer bytes than a v2 header are refused; an old magic is recognised even then."""
    if end - start < LOG_OVERHEAD:
        return KafkaError(Err.INVALID_RECORD, "a Produce request must have one record batch per partition")
    (length,) = _LENGTH.unpack_from(buf, start + 8)
    if length < LEGACY_LENGTH_MIN:
        return KafkaError(Err.CORRUPT_MESSAGE, f"record batch of length {length}")
    if end - start <= MAGIC_AT:
        return KafkaError(Err.INVALID_RECORD, "a Produce request must have one record batch per partition")
    magic = buf[start + MAGIC_AT]
    if magic > 2:
        return KafkaError(Err.CORRUPT_MESSAGE, f"record batch with magic {magic}")
    if length > end - start - LOG_OVERHEAD:
        return KafkaError(
            Err.INVALID_RECORD, "a Produce request must have one whole record batch per partition"
        )
    if magic < 2:
        return KafkaError(Err.INVALID_RECORD, f"record batch with magic {magic}; Produce takes only magic 2")
    return KafkaError(Err.CORRUPT_MESSAGE, f"record batch of length {length}, shorter than its header")


def _refuse(header: BatchHeader, view: memoryview, start: int, end: int) -> None:
    """Raise for what made `validate` stumble; return when Kafka would not mind it."""
    remaining = end - start - LOG_OVERHEAD
    length, magic = header.length, header.magic
    if length < LEGACY_LENGTH_MIN:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch of length {length}")
    if not 0 <= magic <= 2:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch with magic {magic}")
    if length > remaining:
        raise KafkaError(
            Err.INVALID_RECORD, "a Produce request must have one whole record batch per partition"
        )
    if magic != 2:
        raise KafkaError(Err.INVALID_RECORD, f"record batch with magic {magic}; Produce takes only magic 2")
    if length < remaining:
        raise KafkaError(
            Err.INVALID_RECORD, "a Produce request must have exactly one record batch per partition"
        )
    if header.base_offset != 0:
        raise KafkaError(
            Err.INVALID_RECORD, f"record batch with base offset {header.base_offset}; it must be 0"
        )
    if crc32c(view[start + CRC_FROM : end]) != header.crc:
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
    if attributes & DELETE_HORIZON:
        raise KafkaError(Err.INVALID_RECORD, "clients may not set a delete horizon")
    if header.has_producer_id and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise KafkaError(
            Err.INVALID_RECORD,
            f"record batch of producer {header.producer_id} with epoch {header.producer_epoch}"
            f" and sequence {header.base_sequence}",
        )
    if attributes & TRANSACTIONAL and not header.has_producer_id:
        raise KafkaError(Err.INVALID_RECORD, "transactional record batch without a producer id")
    if not attributes & CODEC_MASK and count > (header.length - LENGTH_MIN) // RECORD_BYTES_MIN:
        raise KafkaError(Err.INVALID_RECORD, f"{count} records do not fit in {header.length} bytes")
    if attributes & LOG_APPEND_TIME:
        raise KafkaError(Err.INVALID_TIMESTAMP, "producers may not set the timestamp type to LogAppendTime")


def _mend(fields: HeaderTuple, view: memoryview, start: int) -> HeaderTuple:
    header = BatchHeader._make(fields)
    max_timestamp = validate_records(view, start, header, now_ms=0).max_timestamp
    set_max_timestamp(view, start, header, max_timestamp, log_append_time=False)
    mended: HeaderTuple = _unpack_header(view, start)
    return mended
