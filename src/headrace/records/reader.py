"""The records inside a batch.

Every length is checked before a byte is taken; malformed records are INVALID_RECORD, a malformed header or compressed
block CORRUPT_MESSAGE, and nothing else can come out.
"""

from collections.abc import Iterator

import msgspec

from headrace.errors import Err, KafkaError
from headrace.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from headrace.records.layout import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    RECORD_BYTES_MIN,
    BatchHeader,
    Buffer,
    iter_headers,
)

Headers = tuple[tuple[str, bytes | None], ...]
RawRecord = tuple[int, int, bytes | None, bytes | None, Headers]
"""(offset delta, timestamp delta, key, value, headers)"""


class Record(msgspec.Struct, frozen=True, gc=False):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def iter_records(buf: Buffer, pos: int = 0, end: int | None = None) -> Iterator[Record]:
    """Every record of every whole batch in `buf[pos:end]`, control records included. CRCs are not checked."""
    for at, header in iter_headers(buf, pos, end):
        yield from read_records(buf, at, header)


def read_records(buf: Buffer, pos: int, header: BatchHeader, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """The records of the one batch that begins at `pos`."""
    base_offset, base_timestamp, max_timestamp = (
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp,
    )
    body = read_body(buf, pos, header, limit_bytes)
    if header.attributes & LOG_APPEND_TIME:
        return [
            Record(base_offset + offset_delta, max_timestamp, key, value, headers)
            for offset_delta, _, key, value, headers in iter_raw(body, header.count)
        ]
    return [
        Record(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, headers)
        for offset_delta, timestamp_delta, key, value, headers in iter_raw(body, header.count)
    ]


def read_body(buf: Buffer, pos: int, header: BatchHeader, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The bytes of the records, decompressed."""
    compressed = memoryview(buf)[pos + HEADER_BYTES : pos + header.size]
    if header.count == 0 and not compressed:
        # An emptied batch keeps its attributes but has no body, not even an empty compressed one.
        return b""
    return decompress(header.codec, compressed, limit_bytes)


def iter_raw(body: bytes, count: int) -> Iterator[RawRecord]:
    """The `count` records that must fill `body` exactly.

    Most of a record's numbers fit one byte: read in line, they cost a third of a call.
    """
    total = len(body)
    check_count(count, total)
    pos = 0
    for _ in range(count):
        try:
            size = body[pos]
            if size < 0x80:
                pos += 1
            elif body[pos + 1] < 0x80:
                size = size & 0x7F | body[pos + 1] << 7
                pos += 2
            else:
                size, pos = read_uvarint(body, pos)
            size = (size >> 1) ^ -(size & 1)
            end = pos + size
            if size < RECORD_BYTES_MIN - 1 or end > total:
                raise KafkaError(Err.INVALID_RECORD, f"record of {size} bytes where {total - pos} remain")
            # One byte of attributes, which have no meaning yet.
            timestamp_delta, pos = read_varint(body, pos + 1)
            offset_delta = body[pos]
            if offset_delta < 0x80 and not offset_delta & 1:
                offset_delta >>= 1
                pos += 1
            else:
                offset_delta, pos = read_varint(body, pos)
            key, pos = _read_bytes(body, pos, end)
            value, pos = _read_bytes(body, pos, end)
            headers: Headers = ()
            if body[pos]:
                header_count, pos = read_varint(body, pos)
                headers, pos = read_headers(body, pos, end, header_count)
            else:
                pos += 1
        except IndexError:
            raise KafkaError(Err.INVALID_RECORD, "records end in mid-record") from None
        if pos != end:
            raise KafkaError(Err.INVALID_RECORD, f"record of {size} bytes whose fields end {end - pos} bytes off")
        if not -0x80000000 <= offset_delta <= 0x7FFFFFFF:
            raise KafkaError(Err.INVALID_RECORD, f"record with offset delta {offset_delta}")
        yield offset_delta, timestamp_delta, key, value, headers
    if pos != total:
        raise KafkaError(Err.INVALID_RECORD, f"{total - pos} bytes remain after the last of {count} records")


Span = tuple[int, int, int, int, int, bytes | None, bool]
"""(start of the record's length, start of what follows its timestamp delta, end, timestamp delta, offset delta, key,
whether it has a value): with another base timestamp only what lies before the second changes."""


def iter_spans(body: bytes, count: int) -> Iterator[Span]:
    """Where the `count` records of `body` lie, and what compaction asks of them: no value or header is looked at."""
    total = len(body)
    check_count(count, total)
    pos = 0
    for _ in range(count):
        start = pos
        try:
            size = body[pos]
            if size < 0x80:
                pos += 1
            elif body[pos + 1] < 0x80:
                size = size & 0x7F | body[pos + 1] << 7
                pos += 2
            else:
                size, pos = read_uvarint(body, pos)
            size = (size >> 1) ^ -(size & 1)
            end = pos + size
            if size < RECORD_BYTES_MIN - 1 or end > total:
                raise KafkaError(Err.INVALID_RECORD, f"record of {size} bytes where {total - pos} remain")
            timestamp_delta, content = read_varint(body, pos + 1)
            offset_delta = body[content]
            if offset_delta < 0x80 and not offset_delta & 1:
                offset_delta >>= 1
                pos = content + 1
            else:
                offset_delta, pos = read_varint(body, content)
            key, pos = _read_bytes(body, pos, end)
            value_length, pos = read_varint(body, pos)
        except IndexError:
            raise KafkaError(Err.INVALID_RECORD, "records end in mid-record") from None
        if value_length > end - pos:
            raise KafkaError(Err.INVALID_RECORD, f"value of {value_length} bytes where {end - pos} remain")
        yield start, content, end, timestamp_delta, offset_delta, key, value_length >= 0
        pos = end
    if pos != total:
        raise KafkaError(Err.INVALID_RECORD, f"{total - pos} bytes remain after the last of {count} records")


def check_count(count: int, length: int) -> None:
    if count < 0 or count > length // RECORD_BYTES_MIN:
        raise KafkaError(Err.INVALID_RECORD, f"{count} records do not fit in {length} bytes")


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits. IndexError past the end of `data`."""
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    raw, pos = read_uvarint(data, pos)
    return (raw >> 1) ^ -(raw & 1), pos


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise KafkaError(Err.INVALID_RECORD, "varint of more than ten bytes")
    if raw > 0xFFFFFFFFFFFFFFFF:
        raise KafkaError(Err.INVALID_RECORD, "varint of more than 64 bits")
    return raw, pos


def _read_bytes(body: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    length = body[pos]
    if length < 0x80 and not length & 1:
        length >>= 1
        pos += 1
    else:
        length, pos = read_varint(body, pos)
    if length < 0:
        return None, pos
    after = pos + length
    if after > end:
        raise KafkaError(Err.INVALID_RECORD, f"field of {length} bytes where {end - pos} remain of its record")
    return body[pos:after], after


def read_headers(body: bytes, pos: int, end: int, count: int) -> tuple[Headers, int]:
    if count < 0 or count > (end - pos) // 2:
        raise KafkaError(Err.INVALID_RECORD, f"{count} record headers where {end - pos} bytes remain")
    headers = []
    for _ in range(count):
        key, pos = _read_bytes(body, pos, end)
        if key is None:
            raise KafkaError(Err.INVALID_RECORD, "record header without a key")
        value, pos = _read_bytes(body, pos, end)
        # Not every client writes UTF-8; what cannot be decoded must still survive a rewrite byte for byte.
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), pos
