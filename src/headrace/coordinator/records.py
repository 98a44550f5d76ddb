"""Records of `__consumer_offsets` in Kafka's own format: made with the versions Kafka 4.3 writes, read in all of them."""

import struct
from typing import Any

from headrace.coordinator.outcome import Record
from headrace.protocol.api import GROUP_RECORDS
from headrace.protocol.codec import CODECS

_INT16 = struct.Struct(">h")


def record(key_message: Any, value_message: Any | None, value_version: int = 0) -> Record:
    """A record from its key message (m.ConsumerGroupMetadataKey(...)) and value message; None is a tombstone."""
    key_codec = CODECS[type(key_message).__name__]
    kind = key_codec.key
    key = _INT16.pack(kind) + key_codec.encode(key_message, 0)
    if value_message is None:
        return Record(key, None, kind, key_message, None)
    value = _INT16.pack(value_version) + GROUP_RECORDS[kind].value.encode(value_message, value_version)
    return Record(key, value, kind, key_message, value_message)
