"""Records of `__consumer_offsets` in Kafka's own format: made with the versions Kafka 4.3 writes, read in all of them.

A key starts with the number of its kind, a value with its version. The offset commit, by far the most frequent,
has a fast path for both directions; all others go through the protocol's codecs.
"""

import struct
from collections.abc import Iterable
from typing import Any

from headrace.coordinator.outcome import Record
from headrace.protocol import messages as m
from headrace.protocol.api import GROUP_RECORDS
from headrace.protocol.codec import CODECS
from headrace.protocol.primitives import ProtocolError

_INT16 = struct.Struct(">h")

OFFSET_COMMIT = 1
GROUP_METADATA = 2
CONSUMER_KINDS = frozenset({3, 4, 5, 6, 7, 8, 16})

OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1
"""Later versions have no field for a retention time that the client chose (OffsetCommit v2 to v4)."""

BATCH_HEADER_BYTES = 61
RECORD_OVERHEAD_BYTES_MAX = 21
"""Lengths, attributes and deltas of one record, at their longest."""


def record(key_message: Any, value_message: Any | None, value_version: int = 0) -> Record:
    """A record from its key message (m.ConsumerGroupMetadataKey(...)) and value message; None is a tombstone."""
    key_codec = CODECS[type(key_message).__name__]
    kind = key_codec.key
    key = _INT16.pack(kind) + key_codec.encode(key_message, 0)
    if value_message is None:
        return Record(key, None, kind, key_message, None)
    value = _INT16.pack(value_version) + GROUP_RECORDS[kind].value.encode(value_message, value_version)
    return Record(key, value, kind, key_message, value_message)


def offset_commit(group: str, topic: str, partition: int, value: m.OffsetCommitValue | None) -> Record:
    """An offset commit, or the tombstone of one."""
    key = m.OffsetCommitKey(group=group, topic=topic, partition=partition)
    if value is None:
        return record(key, None)
    expires = value.expire_timestamp != -1
    return record(key, value, OFFSET_COMMIT_VERSION_WITH_EXPIRY if expires else OFFSET_COMMIT_VERSION)


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
    if len(value) < 2:
        raise ProtocolError(f"the value of a record of kind {codec.kind} is too short to name its version")
    version = _INT16.unpack_from(value)[0]
    return Record(key, value, codec.kind, key_message, codec.value.decode(value, version, 2))


def batch_bytes(records: Iterable[Record]) -> int:
    """At least what a batch of these records takes, uncompressed."""
    total = BATCH_HEADER_BYTES
    for r in records:
        total += len(r.key) + len(r.value or b"") + RECORD_OVERHEAD_BYTES_MAX
    return total
