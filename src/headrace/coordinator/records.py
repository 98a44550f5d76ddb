"""Records of `__consumer_offsets` in Kafka's own format: made with the versions Kafka 4.3 writes, read in all of them.

A key starts with the number of its kind, a value with its version. The offset commit, by far the most frequent,
has a fast path for both directions; all others go through the protocol's codecs.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from sys import intern
from typing import Any

from headrace.coordinator.outcome import Record
from headrace.protocol import messages as m
from headrace.protocol.api import GROUP_RECORDS
from headrace.protocol.codec import CODECS
from headrace.protocol.primitives import ProtocolError, encode_uvarint

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_KIND_LENGTH = struct.Struct(">hh")
_VERSION_OFFSET_EPOCH = struct.Struct(">hqi")
_PLAIN = struct.Struct(">hqibq")
_PLAIN_BYTES = _PLAIN.size + 1
"""A value of version 4 without metadata (one byte of length) and without tags (one byte of count)."""
_PLAIN_WITH_ID = struct.Struct(">hqibq3s16s")
_NO_TAGS = b"\0"
_TOPIC_ID_TAG = b"\1\0\x10"

NO_TOPIC_ID = bytes(16)

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2
CONSUMER_KINDS = frozenset({3, 4, 5, 6, 7, 8, 16})

OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1
"""Later versions have no field for a retention time that the client chose (OffsetCommit v2 to v4)."""

REMEMBERED_LENGTH_MAX = 256
"""Of a group's name: longer ones are rare, unless somebody wants to fill the memory."""

BATCH_HEADER_BYTES = 61
RECORD_OVERHEAD_BYTES_MAX = 21
"""Lengths, attributes and deltas of one record, at their longest."""
OFFSET_COMMIT_BYTES_MIN = 10 + _PLAIN_BYTES + RECORD_OVERHEAD_BYTES_MAX
"""What `batch_bytes` counts for one at least: no names, no metadata, no topic id."""


def record(key_message: Any, value_message: Any | None, value_version: int = 0) -> Record:
    """A record from its key message (m.ConsumerGroupMetadataKey(...)) and value message; None is a tombstone."""
    key_codec = CODECS[type(key_message).__name__]
    kind = key_codec.key
    key = _INT16.pack(kind) + key_codec.encode(key_message, 0)
    if value_message is None:
        return Record(key, None, kind, key_message, None)
    value = _INT16.pack(value_version) + GROUP_RECORDS[kind].value.encode(value_message, value_version)
    return Record(key, value, kind, key_message, value_message)


@lru_cache(maxsize=1024)
def _key_prefix(group: str, topic: str) -> bytes:
    """All but the partition: a group commits the same few topics over and over."""
    group_bytes, topic_bytes = group.encode(), topic.encode()
    return b"".join(
        (
            _KIND_LENGTH.pack(OFFSET_COMMIT, len(group_bytes)),
            group_bytes,
            _INT16.pack(len(topic_bytes)),
            topic_bytes,
        )
    )


def offset_commit(group: str, topic: str, partition: int, value: m.OffsetCommitValue | None) -> Record:
    """An offset commit, or the tombstone of one."""
    return next_offset_commit(
        m.OffsetCommitKey(group, topic, partition), offset_commit_key(group, topic, partition), value
    )


def next_offset_commit(key_message: m.OffsetCommitKey, key: bytes, value: m.OffsetCommitValue | None) -> Record:
    """The same, where the key has been encoded before."""
    if value is None:
        return Record(key, None, OFFSET_COMMIT, key_message, None)
    if value.expire_timestamp != -1:
        return record(key_message, value, OFFSET_COMMIT_VERSION_WITH_EXPIRY)
    if not value.metadata and value.topic_id != NO_TOPIC_ID:
        encoded = _PLAIN_WITH_ID.pack(
            OFFSET_COMMIT_VERSION,
            value.offset,
            value.leader_epoch,
            1,
            value.commit_timestamp,
            _TOPIC_ID_TAG,
            value.topic_id,
        )
        return Record(key, encoded, OFFSET_COMMIT, key_message, value)
    metadata = value.metadata.encode()
    encoded = b"".join(
        (
            _VERSION_OFFSET_EPOCH.pack(OFFSET_COMMIT_VERSION, value.offset, value.leader_epoch),
            encode_uvarint(len(metadata) + 1),
            metadata,
            _INT64.pack(value.commit_timestamp),
            _NO_TAGS if value.topic_id == NO_TOPIC_ID else _TOPIC_ID_TAG + value.topic_id,
        )
    )
    return Record(key, encoded, OFFSET_COMMIT, key_message, value)


def offset_commit_key(group: str, topic: str, partition: int) -> bytes:
    prefix = _key_prefix(group, topic) if len(group) <= REMEMBERED_LENGTH_MAX else _key_prefix.__wrapped__(group, topic)
    return prefix + _INT32.pack(partition)


def decode_offset_commit(key: bytes, value: bytes | None) -> tuple[str, str, int, m.OffsetCommitValue | None]:
    """Group, topic, partition and value of a record of kind 1, as most of a log is.

    Names are shared between records, since a million of them name few groups and topics.
    """
    names = key[:-4]
    group, topic = _names(names) if len(names) <= REMEMBERED_LENGTH_MAX else _names.__wrapped__(names)
    partition = int.from_bytes(key[-4:], "big", signed=True)
    if value is None:
        return group, topic, partition, None
    size = len(value)
    if size == _PLAIN_WITH_ID.size:
        version, offset, leader_epoch, length, timestamp, tag, topic_id = _PLAIN_WITH_ID.unpack(value)
        if version == OFFSET_COMMIT_VERSION and length == 1 and tag == _TOPIC_ID_TAG:
            return group, topic, partition, m.OffsetCommitValue(offset, leader_epoch, "", timestamp, -1, topic_id)
    elif size == _PLAIN_BYTES and value[14] == 1 and value[23] == 0 and value[:2] == b"\0\4":
        _, offset, leader_epoch, _, timestamp = _PLAIN.unpack_from(value)
        return group, topic, partition, m.OffsetCommitValue(offset, leader_epoch, "", timestamp)
    return group, topic, partition, _decode_value(OFFSET_COMMIT, value)


@lru_cache(maxsize=1024)
def _names(key: bytes) -> tuple[str, str]:
    """Group and topic in the key of an offset commit, which is without its partition here."""
    try:
        topic_at = 6 + _INT16.unpack_from(key, 2)[0]
        end = topic_at + _INT16.unpack_from(key, topic_at - 2)[0]
        group = intern(str(key[4 : topic_at - 2], "utf-8"))
        topic = intern(str(key[topic_at:end], "utf-8"))
    except (struct.error, UnicodeDecodeError) as e:
        raise ProtocolError(f"not the key of an offset commit: {e}") from e
    if end != len(key):
        raise ProtocolError("the key of an offset commit does not fill its bytes")
    return group, topic


def _decode_value(kind: int, value: bytes) -> Any:
    if len(value) < 2:
        raise ProtocolError(f"the value of a record of kind {kind} is too short to name its version")
    return GROUP_RECORDS[kind].value.decode(value, _INT16.unpack_from(value)[0], 2)


def decode(key: bytes, value: bytes | None) -> Record | None:
    """What a record of the log says; None for a kind this version of Headrace does not know, to be skipped.

    Raises ProtocolError when the bytes are not what their kind promises.
    """
    if len(key) < 2:
        raise ProtocolError("the record's key is too short to name its kind")
    codec = GROUP_RECORDS.get(_INT16.unpack_from(key)[0])
    if codec is None:
        return None
    key_message = codec.key.decode(key, 0, 2)
    if value is None:
        return Record(key, None, codec.kind, key_message, None)
    return Record(key, value, codec.kind, key_message, _decode_value(codec.kind, value))


def batch_bytes(records: Iterable[Record]) -> int:
    """At least what a batch of these records takes, uncompressed."""
    total = BATCH_HEADER_BYTES
    for r in records:
        total += len(r.key) + len(r.value or b"") + RECORD_OVERHEAD_BYTES_MAX
    return total
