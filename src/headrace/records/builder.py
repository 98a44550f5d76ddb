"""Write record batches: from records, or from another batch with its time or compression changed.

`BatchBuilder` takes gaps between offsets, so that compaction rebuilds batches with it too.
"""

from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from headrace.records.compression import Codec, compress
from headrace.records.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
)
from headrace.records.reader import Headers, Record

_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_PRODUCER = Struct(">qhi")
_PRODUCER_AT = 43
_NO_HEADERS: Headers = ()


def _encode_varint(zigzag: int) -> bytes:
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_VARINTS = tuple(_encode_varint(zigzag) for zigzag in range(4096))
_SHORT = 2000
"""Numbers below this, and records of so many bytes, have their varints in the table."""


def varint(number: int) -> bytes:
    """A zigzag varint; `number` lies within 64 bits."""
    zigzag = (number << 1) ^ (number >> 63)
    return _VARINTS[zigzag] if zigzag < 4096 else _encode_varint(zigzag)


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = _NO_HEADERS,
) -> bytes:
    """One record, its length in front."""
    if not headers and value is not None and 0 <= timestamp_delta < _SHORT and offset_delta < _SHORT:
        # As most are: the calls would cost more than all the rest.
        table = _VARINTS
        if key is None:
            if len(value) < _SHORT:
                body = b"".join((
                    b"\0", table[timestamp_delta << 1], table[offset_delta << 1], b"\x01",
                    table[len(value) << 1], value, b"\0",
                ))  # fmt: skip
                return table[len(body) << 1] + body
        elif len(key) + len(value) < _SHORT:
            body = b"".join((
                b"\0", table[timestamp_delta << 1], table[offset_delta << 1], table[len(key) << 1], key,
                table[len(value) << 1], value, b"\0",
            ))  # fmt: skip
            return table[len(body) << 1] + body
    parts = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    if key is None:
        parts.append(b"\x01")
    else:
        parts.append(varint(len(key)))
        parts.append(key)
    if value is None:
        parts.append(b"\x01")
    else:
        parts.append(varint(len(value)))
        parts.append(value)
    parts.append(varint(len(headers)))
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts.append(varint(len(encoded)))
        parts.append(encoded)
        if content is None:
            parts.append(b"\x01")
        else:
            parts.append(varint(len(content)))
            parts.append(content)
    body = b"".join(parts)
    return varint(len(body)) + body


class BatchBuilder:
    """Collects records and ends as one batch. All arguments are header fields; -1 means none, as on disk."""

    __slots__ = (
        "_attributes",
        "_base_offset",
        "_base_sequence",
        "_base_timestamp",
        "_codec",
        "_last_offset",
        "_leader_epoch",
        "_level",
        "_log_append_time_ms",
        "_max_timestamp",
        "_parts",
        "_producer_epoch",
        "_producer_id",
        "count",
        "size_bytes",
    )

    def __init__(
        self,
        *,
        base_offset: int = 0,
        compression: int = Codec.NONE,
        level: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        log_append_time_ms: int | None = None,
        delete_horizon_ms: int | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> None:
        self._base_offset = base_offset
        self._last_offset = base_offset - 1
        self._codec = int(compression)
        self._level = level
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._leader_epoch = leader_epoch
        self._log_append_time_ms = log_append_time_ms
        self._attributes = (
            (TRANSACTIONAL if transactional else 0)
            | (CONTROL if control else 0)
            | (LOG_APPEND_TIME if log_append_time_ms is not None else 0)
            | (DELETE_HORIZON if delete_horizon_ms is not None else 0)
        )
        # With a delete horizon the base timestamp is the horizon; else that of the first record.
        self._base_timestamp = delete_horizon_ms
        self._max_timestamp = NO_TIMESTAMP
        self._parts: list[bytes] = []
        self.count = 0
        self.size_bytes = HEADER_BYTES
        """Bytes of the batch so far, before compression."""

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = _NO_HEADERS,
        *,
        offset: int | None = None,
    ) -> None:
        """Add a record at the next offset, or at a later one."""
        if offset is None:
            offset = self._last_offset + 1
        assert offset > self._last_offset, "offsets of a batch only grow"
        base_timestamp = self._base_timestamp
        if base_timestamp is None:
            base_timestamp = self._base_timestamp = timestamp
        record = encode_record(offset - self._base_offset, timestamp - base_timestamp, key, value, headers)
        self._parts.append(record)
        self._last_offset = offset
        self.count += 1
        self.size_bytes += len(record)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp

    def build(self, *, last_offset: int | None = None, max_timestamp: int | None = None) -> bytes:
        """The batch. `last_offset` beyond the last record and the old `max_timestamp` serve compaction."""
        if last_offset is None:
            last_offset = self._last_offset
        assert last_offset >= self._last_offset, "a batch ends at or after its last record"
        attributes = self._attributes
        base_timestamp = self._base_timestamp
        body = b"".join(self._parts)
        if not self.count:
            # An emptied batch is its header alone: no compression, no horizon, no first timestamp.
            attributes &= ~DELETE_HORIZON
            base_timestamp = NO_TIMESTAMP
        elif self._codec:
            attributes |= self._codec
            body = compress(self._codec, body, self._level)
        if max_timestamp is None:
            max_timestamp = self._max_timestamp if self._log_append_time_ms is None else self._log_append_time_ms
        assert base_timestamp is not None
        return seal(
            body,
            base_offset=self._base_offset,
            leader_epoch=self._leader_epoch,
            attributes=attributes,
            last_offset_delta=last_offset - self._base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._base_sequence,
            count=self.count,
        )


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    keep_offsets: bool = False,
    compression: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """A batch of `records` at consecutive offsets from `base_offset`, or at their own with `keep_offsets`."""
    builder = BatchBuilder(
        base_offset=base_offset,
        compression=compression,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        log_append_time_ms=log_append_time_ms,
        delete_horizon_ms=delete_horizon_ms,
        leader_epoch=leader_epoch,
    )
    for record in records:
        offset = record.offset if keep_offsets else None
        builder.append(record.timestamp, record.key, record.value, record.headers, offset=offset)
    return builder.build()


def seal(
    body: bytes,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """Header, CRC and body of records that are already encoded (and compressed)."""
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_BYTES - LOG_OVERHEAD + len(body),
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    batch += body
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_AT, crc32c(view[CRC_FROM:]))
    return bytes(batch)


def rewrite(
    header: BatchHeader,
    body: bytes,
    *,
    max_timestamp: int,
    log_append_time: bool,
    compression: int,
    level: int | None = None,
) -> bytes:
    """A client's batch with the broker's time or compression: `body` is its records as `validate_records` gave them.

    With `log_append_time`, `max_timestamp` is the time of the append and stands for the timestamp of every record.
    """
    attributes = header.attributes & ~(CODEC_MASK | LOG_APPEND_TIME) | int(compression)
    if log_append_time:
        attributes |= LOG_APPEND_TIME
    return seal(
        compress(compression, body, level),
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=header.count,
    )


_KNOWN_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL | CONTROL | DELETE_HORIZON


def set_max_timestamp(
    buf: bytearray | memoryview, pos: int, header: BatchHeader, max_timestamp: int, *, log_append_time: bool
) -> None:
    """Change the maximum timestamp and its type in place, and the CRC with them; records stay as they are."""
    if bool(header.attributes & LOG_APPEND_TIME) == log_append_time and max_timestamp == header.max_timestamp:
        return
    # Kafka drops bits without a meaning here, and only here.
    attributes = header.attributes & _KNOWN_ATTRIBUTES | (LOG_APPEND_TIME if log_append_time else 0)
    _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(buf, pos + _MAX_TIMESTAMP_AT, max_timestamp)
    with memoryview(buf) as view:
        _CRC.pack_into(buf, pos + CRC_AT, crc32c(view[pos + CRC_FROM : pos + header.size]))


def set_producer(batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give a whole batch its producer and sequence in place, and the CRC that covers them."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_AT, crc32c(view[CRC_FROM:]))
