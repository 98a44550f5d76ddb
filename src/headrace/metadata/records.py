"""Metadata records as bytes: a frame of three unsigned varints (frame version, record type, version), then the message.

In the log each is the value of a record with a null key. A `Record` is the pair (message struct, version).
"""

from collections.abc import Callable, Iterable
from typing import Any

from headrace.protocol.api import METADATA_RECORDS
from headrace.protocol.primitives import ProtocolError, decode_uvarint, encode_uvarint

FRAME_VERSION = 1

Record = tuple[Any, int]
"""A message struct of the metadata record table, and the version to write it in."""

_KEYS: dict[type, int] = {codec.struct: key for key, codec in METADATA_RECORDS.items() if isinstance(key, int)}
_ENCODERS: dict[tuple[type, int], tuple[bytes, Callable[..., Any]]] = {}
"""Frame and compiled encoder by struct and version: a snapshot of a large cluster asks a million times."""


def _encoder(kind: type, version: int) -> tuple[bytes, Callable[..., Any]]:
    key = _KEYS[kind]
    codec = METADATA_RECORDS[key]
    if not codec.min_version <= version <= codec.max_version:
        raise ValueError(f"{codec.name} has no version {version}")
    head = encode_uvarint(FRAME_VERSION) + encode_uvarint(key) + encode_uvarint(version)
    found = _ENCODERS[kind, version] = head, codec.encoder(version)
    return found


def encode_record(message: Any, version: int) -> bytes:
    """The bytes of one record's value."""
    kind = type(message)
    head, encode = _ENCODERS.get((kind, version)) or _encoder(kind, version)
    chunks = [head]
    encode(message, chunks.append)
    return b"".join(chunks)


def decode_record(value: bytes | memoryview) -> Record:
    """The message and version in one record's value. Raises ProtocolError for what this build does not know."""
    end = len(value)
    if end > 3 and value[0] == FRAME_VERSION and value[1] < 0x80 and value[2] < 0x80:
        key, version, pos = value[1], value[2], 3
    else:
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
