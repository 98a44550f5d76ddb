"""Records as a consumer hands them out, and their decoding from record batches.

Records of one batch mostly look alike: one producer wrote them, and fields of equal lengths lie at equal places. So the
shape of a record is remembered, and while the next ones have it, too, each is taken apart by one `struct` call.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from headrace.errors import Err, KafkaError
from headrace.records.batch import check_stored, iter_headers
from headrace.records.control import decode_marker
from headrace.records.layout import LOG_APPEND_TIME, BatchHeader, Buffer
from headrace.records.reader import Headers, check_count, iter_raw, read_body

NO_HEADERS: Headers = ()

Aborted = tuple[tuple[int, int], ...]


class TopicPartition(NamedTuple):
    """One partition of a topic. Wherever one is taken, a plain tuple is, too."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as read. `key` and `value` are bytes, or what the deserializers have made of them."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    key: Any
    value: Any
    headers: Headers = NO_HEADERS

    def header(self, name: str) -> bytes | None:
        """The last header of a name, None if there is none."""
        return next((content for key, content in reversed(self.headers) if key == name), None)


def visible_batches(
    records: Buffer, topic: str, partition: int, position: int, aborted: Aborted, *, check_crcs: bool = True
) -> Iterator[tuple[int, list[Record]]]:
    """The records from `position` on, batch by batch with the batch's leader epoch, without control records and aborted
    transactions.

    `aborted` has (producer id, first offset) of transactions that reach into `records`. Raises KafkaError for bytes
    that are no sound batch.
    """
    view = memoryview(records)
    coming = sorted(aborted, key=lambda pair: pair[1])
    ended: set[int] = set()
    for at, header in iter_headers(records):
        if check_crcs:
            check_stored(view, at, at + header.size)
        while coming and coming[0][1] < header.end_offset:
            ended.add(coming.pop(0)[0])
        if header.is_control:
            marker = decode_marker(view, at, header)
            if marker is not None and not marker.committed:
                ended.discard(header.producer_id)
            continue
        if header.end_offset <= position or (header.is_transactional and header.producer_id in ended):
            continue
        found = read_batch(view, at, header, topic, partition)
        if header.base_offset < position:
            found = [record for record in found if record.offset >= position]
        if found:
            yield header.leader_epoch, found


def read_batch(view: memoryview, at: int, header: BatchHeader, topic: str, partition: int) -> list[Record]:
    """The records of the batch that begins at `at`. Raises KafkaError where they are malformed."""
    body = read_body(view, at, header)
    count = header.count
    check_count(count, len(body))
    base_offset = header.base_offset
    # With the broker's time, that is the time of every record.
    fixed = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    base_timestamp = header.base_timestamp
    found: list[Record] = []
    pos = 0
    while len(found) < count:
        shape = _shape_at(body, pos)
        if shape is not None:
            pos = _read_alike(body, pos, shape, count, found, topic, partition, base_offset, base_timestamp, fixed)
            if len(found) == count:
                break
        pos, raw = _read_one(body, pos)
        offset_delta, timestamp_delta, key, value, headers = raw
        timestamp = base_timestamp + timestamp_delta if fixed is None else fixed
        found.append(Record(topic, partition, base_offset + offset_delta, timestamp, key, value, headers))
    if pos != len(body):
        raise KafkaError(Err.INVALID_RECORD, f"{len(body) - pos} bytes remain after the last of {count} records")
    return found


class _Shape(NamedTuple):
    """Where the fields of a record without headers lie, for records whose lengths are all the same."""

    unpack: Any
    length: int
    size_field: bytes
    key_field: bytes
    value_field: bytes
    wide_time: bool
    wide_offset: bool
    has_key: bool
    has_value: bool


def _read_alike(
    body: bytes,
    pos: int,
    shape: _Shape,
    count: int,
    found: list[Record],
    topic: str,
    partition: int,
    base_offset: int,
    base_timestamp: int,
    fixed: int | None,
) -> int:
    """Take records as long as they have this shape; returns where the next one begins."""
    unpack, length, size_0, key_0, value_0, wide_time, wide_offset, has_key, has_value = shape
    append = found.append
    last = len(body) - length
    left = count - len(found)
    while left and pos <= last:
        size_field, time, offset, key_field, key, value_field, value, headers = unpack(body, pos)
        if size_field != size_0 or key_field != key_0 or value_field != value_0 or headers:
            break
        # Two bytes of a varint are read as one little-endian number.
        if wide_time:
            if time & 0x8080 != 0x80:
                break
            time = time & 0x7F | time >> 1 & 0x3F80
        elif time > 0x7F:
            break
        if wide_offset:
            if offset & 0x8080 != 0x80:
                break
            offset = offset & 0x7F | offset >> 1 & 0x3F80
        elif offset > 0x7F:
            break
        append(
            Record(
                topic,
                partition,
                base_offset + ((offset >> 1) ^ -(offset & 1)),
                base_timestamp + ((time >> 1) ^ -(time & 1)) if fixed is None else fixed,
                key if has_key else None,
                value if has_value else None,
            )
        )
        pos += length
        left -= 1
    return pos


def _shape_at(body: bytes, pos: int) -> _Shape | None:
    """The shape of the record at `pos`; None if it has headers, fields too long for shapes, or makes no sense."""
    size, at = _uvarint(body, pos)
    size_bytes = at - pos
    time_bytes = _uvarint(body, at + 1)[1] - at - 1
    after_time = at + 1 + time_bytes
    offset_bytes = _uvarint(body, after_time)[1] - after_time
    key_at = after_time + offset_bytes
    key, content = _uvarint(body, key_at)
    key_length = key >> 1 if not key & 1 else 0
    value_at = content + key_length
    value, value_content = _uvarint(body, value_at)
    value_length = value >> 1 if not value & 1 else 0
    end = value_content + value_length
    key_bytes, value_bytes = content - key_at, value_content - value_at
    whole = end < len(body) and body[end] == 0 and end + 1 - at == size >> 1 and not size & 1
    if not whole or time_bytes > 2 or offset_bytes > 2 or key not in (1, key & ~1) or value not in (1, value & ~1):
        return None
    struct = _struct(size_bytes, time_bytes, offset_bytes, key_bytes, key_length, value_bytes, value_length)
    return _Shape(
        struct.unpack_from,
        struct.size,
        body[pos:at],
        body[key_at:content],
        body[value_at:value_content],
        time_bytes == 2,
        offset_bytes == 2,
        key != 1,
        value != 1,
    )


@lru_cache(maxsize=1024)
def _struct(size: int, time: int, offset: int, key_field: int, key: int, value_field: int, value: int) -> Struct:
    number = ("", "B", "H")
    return Struct(f"<{size}sx{number[time]}{number[offset]}{key_field}s{key}s{value_field}s{value}sB")


def _uvarint(body: bytes, pos: int) -> tuple[int, int]:
    """An unsigned varint and where it ends; beyond the end of the body, something that no shape fits."""
    found = shift = 0
    for byte in body[pos : pos + 5]:
        pos += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return found, pos


def _read_one(body: bytes, pos: int) -> tuple[int, tuple[int, int, bytes | None, bytes | None, Headers]]:
    """One record the careful way."""
    size, start = _uvarint(body, pos)
    end = start + (size >> 1)
    for raw in iter_raw(body[pos:end], 1):
        return end, raw
    raise KafkaError(Err.INVALID_RECORD, "records end in mid-record")
