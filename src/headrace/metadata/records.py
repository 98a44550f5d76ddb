"""Metadata records as bytes: a frame of three unsigned varints (frame version, record type, version), then the message.

In the log each is the value of a record with a null key. A `Record` is the pair (message struct, version).
"""

from collections.abc import Iterable
from typing import Any

from headrace.protocol.api import METADATA_RECORDS
from headrace.protocol.primitives import ProtocolError, decode_uvarint, encode_uvarint

FRAME_VERSION = 1

Record = tuple[Any, int]
"""A message struct of the metadata record table, and the version to write it in."""

_KEYS: dict[type, int] = {
    codec.struct: key for key, codec in METADATA_RECORDS.items() if isinstance(key, int)
}


def encode_record(message: Any, version: int) -> bytes:
    """The bytes of one record's value."""
    key = _KEYS[type(message)]
    codec = METADATA_RECORDS[key]
    if not codec.min_version <= version <= codec.max_version:
        raise ValueError(f"{codec.name} has no version {version}")
    head = encode_uvarint(FRAME_VERSION) + encode_uvarint(key) + encode_uvarint(version)
    return head + codec.encode(message, version)


def decode_record(value: bytes | memoryview) -> Record:
    """The message and version in one record's value. Raises ProtocolError for what this build does not know."""
    end = len(value)
    frame, pos = decode_uvarint(value, 0, end)
    if frame != FRAME_VERSION:
        raise ProtocolError(f"metadata record in frame version {frame}; only {FRAME_VERSION} is known")
    key, pos = decode_uvarint(value, pos, end)
    version, pos = decode_uvarint(value, pos, end)
    codec = METADATA_RECORDS.get(key)
    if codec is None:
        raise ProtocolError(f"metadata record of unknown type {key}; it was written by a newer version")
    if not codec.min_version <= version <= codec.max_version:
        raise ProtocolError(
            f"{codec.name} version {version}; versions {codec.min_version} to {codec.max_version} are known"
        )
    return codec.decode(value, version, pos, end), version


def encode_records(records: Iterable[Record]) -> list[bytes]:
    return [encode_record(message, version) for message, version in records]


def decode_records(values: Iterable[bytes | memoryview]) -> list[Record]:
    return [decode_record(value) for value in values]
