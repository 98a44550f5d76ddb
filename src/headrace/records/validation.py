"""Checks of a client's batch that go past its header, by the rules of its topic.

`batch.validate` has passed the header by then. Compacted topics, LogAppendTime, `compression.type` and
`record.validation=records` come here; other topics only with timestamps that look out of bounds.
"""

from typing import NoReturn

import msgspec

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.builder import rewrite, set_max_timestamp
from headrace.records.compression import DECOMPRESSED_BYTES_MAX
from headrace.records.layout import NO_TIMESTAMP, RECORD_BYTES_MIN, BatchHeader, Buffer, read_header
from headrace.records.reader import check_count, iter_raw, read_body, read_headers, read_uvarint, read_varint

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
UNBOUNDED_MS = INT64_MAX


class InvalidRecords(KafkaError):
    """A batch refused for some of its records: (index in the batch, why), as Produce's record_errors tell it."""

    record_errors: list[tuple[int, str]]

    def __init__(self, error: Err, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(error, message)
        self.record_errors = record_errors


class RecordsSummary(msgspec.Struct, frozen=True, gc=False):
    """What a walk over every record found: its true maximum timestamp, and the records decompressed."""

    max_timestamp: int
    body: bytes


def validate_records(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    now_ms: int,
    compacted: bool = False,
    log_append_time: bool = False,
    before_max_ms: int = UNBOUNDED_MS,
    after_max_ms: int = UNBOUNDED_MS,
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> RecordsSummary:
    """Walk every record of a client's batch whose header `batch.validate` has passed.

    Structure first, which raises at once; then keys and timestamps, whose errors are collected into InvalidRecords.
    The bounds are `message.timestamp.before.max.ms` and `.after.max.ms`; LogAppendTime topics have none.
    """
    try:
        body = read_body(buf, pos, header, limit_bytes)
    except KafkaError as error:
        if error.error is not Err.CORRUPT_MESSAGE:
            raise
        # The CRC was right: nothing was damaged on the way, so that sending it again is no use.
        raise KafkaError(Err.INVALID_RECORD, error.message) from error
    bounded = not log_append_time and (before_max_ms < UNBOUNDED_MS or after_max_ms < UNBOUNDED_MS)
    max_timestamp, min_timestamp, keyless = _walk(body, header)
    out_of_bounds = bounded and (max_timestamp > now_ms + after_max_ms or min_timestamp < now_ms - before_max_ms)
    if (compacted and keyless) or out_of_bounds:
        earliest, latest = (now_ms - before_max_ms, now_ms + after_max_ms) if bounded else (INT64_MIN, INT64_MAX)
        _refuse(body, header, compacted, earliest, latest)
    return RecordsSummary(max_timestamp, body)


def _walk(body: bytes, header: BatchHeader) -> tuple[int, int, bool]:
    """(largest timestamp or -1, smallest that is not -1, whether a key is missing) of records that are all in order.

    Nothing is taken out of a record: this is what a compacted topic pays for each one, so numbers of one byte are
    read in line.
    """
    base_timestamp, count = header.base_timestamp, header.count
    total = len(body)
    check_count(count, total)
    latest, earliest, keyless = NO_TIMESTAMP, INT64_MAX, False
    pos = 0
    for index in range(count):
        try:
            # The length of the record: one byte, two, or a call.
            number = body[pos]
            if number < 0x80:
                pos += 1
            elif body[pos + 1] < 0x80:
                number = number & 0x7F | body[pos + 1] << 7
                pos += 2
            else:
                number, pos = read_uvarint(body, pos)
            number = (number >> 1) ^ -(number & 1)
            end = pos + number
            if number < RECORD_BYTES_MIN - 1 or end > total:
                raise KafkaError(Err.INVALID_RECORD, f"record {index} of {number} bytes where {total - pos} remain")
            pos += 1  # attributes, which have no meaning yet
            number = body[pos]
            if number < 0x80:
                pos += 1
            else:
                number, pos = read_uvarint(body, pos)
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
            if index < 64 and body[pos] == index << 1:
                pos += 1
            else:
                number, pos = read_varint(body, pos)
                if number != index:
                    raise KafkaError(Err.INVALID_RECORD, f"record {index} of the batch has offset delta {number}")
            number = body[pos]
            if number < 0x80:
                pos += 1
            else:
                number, pos = read_uvarint(body, pos)
            if number & 1:
                keyless = True
            else:
                pos += number >> 1
            number = body[pos]
            if number < 0x80:
                pos += 1
            elif body[pos + 1] < 0x80:
                number = number & 0x7F | body[pos + 1] << 7
                pos += 2
            else:
                number, pos = read_uvarint(body, pos)
            if not number & 1:
                pos += number >> 1
            if body[pos]:
                number, pos = read_varint(body, pos)
                _, pos = read_headers(body, pos, end, number)
            else:
                pos += 1
        except IndexError:
            raise KafkaError(Err.INVALID_RECORD, f"records end in mid-record {index}") from None
        if pos != end:
            raise KafkaError(Err.INVALID_RECORD, f"fields of record {index} end {pos - end} bytes behind it")
        if timestamp > latest:
            latest = timestamp
        if timestamp < earliest and timestamp != NO_TIMESTAMP:
            earliest = timestamp
    if pos != total:
        raise KafkaError(Err.INVALID_RECORD, f"{total - pos} bytes remain after the last of {count} records")
    if latest > INT64_MAX or earliest < INT64_MIN:
        raise KafkaError(Err.INVALID_RECORD, f"timestamps from {earliest} to {latest}")
    return latest, earliest, keyless


def _refuse(body: bytes, header: BatchHeader, compacted: bool, earliest: int, latest: int) -> NoReturn:
    """Name the records at fault."""
    errors = []
    wrong_timestamps = False
    for index, (_, timestamp_delta, key, _, _) in enumerate(iter_raw(body, header.count)):
        timestamp = header.base_timestamp + timestamp_delta
        if compacted and key is None:
            errors.append((index, "a compacted topic takes no record without a key"))
        elif timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            wrong_timestamps = True
            errors.append((index, f"timestamp {timestamp} lies outside [{earliest}, {latest}]"))
    kind = Err.INVALID_TIMESTAMP if wrong_timestamps else Err.INVALID_RECORD
    raise InvalidRecords(kind, f"{len(errors)} records of the batch are not acceptable", errors)


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The options of a topic that concern what is inside a batch."""

    compacted: bool = False
    log_append_time: bool = False
    before_max_ms: int = UNBOUNDED_MS
    after_max_ms: int = UNBOUNDED_MS
    compression: int | None = None
    """The codec every batch is stored in; None keeps the producer's."""
    compression_level: int | None = None

    @staticmethod
    def of(config: LogConfig) -> "Rules":
        return Rules(
            config.compact,
            config.log_append_time,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.compression,
            config.compression_level,
        )


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A batch ready to be stamped: `data` when it had to be written anew, None when it stayed where it was."""

    data: bytes | None
    max_timestamp: int


def prepare(view: memoryview, rules: Rules, now_ms: int, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Prepared:
    """Walk every record of the batch that fills `view` and make it what the topic stores.

    Another codec needs new bytes; another time is written in place, header and CRC, as is a wrong maximum timestamp.
    """
    header = read_header(view)
    summary = validate_records(
        view,
        0,
        header,
        now_ms=now_ms,
        compacted=rules.compacted,
        log_append_time=rules.log_append_time,
        before_max_ms=rules.before_max_ms,
        after_max_ms=rules.after_max_ms,
        limit_bytes=limit_bytes,
    )
    max_timestamp = now_ms if rules.log_append_time else summary.max_timestamp
    if rules.compression is not None and rules.compression != header.codec:
        data = rewrite(
            header,
            summary.body,
            max_timestamp=max_timestamp,
            log_append_time=rules.log_append_time,
            compression=rules.compression,
            level=rules.compression_level,
        )
        return Prepared(data, max_timestamp)
    set_max_timestamp(view, 0, header, max_timestamp, log_append_time=rules.log_append_time)
    return Prepared(None, max_timestamp)
