"""Checks of a client's batch that go past its header, by the rules of its topic.

`batch.validate` has passed the header by then. Compacted topics, LogAppendTime, `compression.type` and
`record.validation=records` come here; other topics only with timestamps that look out of bounds.
"""

import msgspec

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.builder import rewrite, set_max_timestamp
from headrace.records.compression import DECOMPRESSED_BYTES_MAX
from headrace.records.layout import NO_TIMESTAMP, BatchHeader, Buffer, read_header
from headrace.records.reader import iter_raw, read_body

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
    body = read_body(buf, pos, header, limit_bytes)
    errors: list[tuple[int, str]] = []
    wrong_timestamps = False
    base_timestamp = header.base_timestamp
    max_timestamp = NO_TIMESTAMP
    bounded = not log_append_time and (before_max_ms < UNBOUNDED_MS or after_max_ms < UNBOUNDED_MS)
    earliest, latest = now_ms - before_max_ms, now_ms + after_max_ms
    for index, (offset_delta, timestamp_delta, key, _, _) in enumerate(iter_raw(body, header.count)):
        timestamp = base_timestamp + timestamp_delta
        if offset_delta != index:
            raise KafkaError(
                Err.INVALID_RECORD, f"record {index} of the batch has offset delta {offset_delta}"
            )
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise KafkaError(Err.INVALID_RECORD, f"record {index} of the batch has timestamp {timestamp}")
        if compacted and key is None:
            errors.append((index, "a compacted topic takes no record without a key"))
        elif bounded and timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            wrong_timestamps = True
            errors.append((index, f"timestamp {timestamp} lies outside [{earliest}, {latest}]"))
        if timestamp > max_timestamp:
            max_timestamp = timestamp
    if errors:
        kind = Err.INVALID_TIMESTAMP if wrong_timestamps else Err.INVALID_RECORD
        raise InvalidRecords(kind, f"{len(errors)} records of the batch are not acceptable", errors)
    return RecordsSummary(max_timestamp, body)


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


def prepare(
    view: memoryview, rules: Rules, now_ms: int, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Prepared:
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
