"""Records of internal topics as readable text: cluster metadata, committed offsets and groups, transactions, share
groups."""

from collections.abc import Callable
from enum import StrEnum
from struct import Struct
from typing import Any

import msgspec

from headrace.metadata.records import decode_record
from headrace.protocol.api import GROUP_RECORDS, SHARE_RECORDS, TRANSACTION_RECORDS, RecordCodec
from headrace.protocol.primitives import ProtocolError
from headrace.records.batch import Record
from headrace.records.control import ControlType
from headrace.storage.checkpoints import encode_uuid

_VERSION = Struct(">h")

Describe = Callable[[Record], str]


class Decode(StrEnum):
    """What the records of a log mean."""

    METADATA = "metadata"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"
    SHARE = "share"


BY_TOPIC = {
    "__cluster_metadata": Decode.METADATA,
    "__consumer_offsets": Decode.OFFSETS,
    "__transaction_state": Decode.TRANSACTIONS,
    "__share_group_state": Decode.SHARE,
}
_COORDINATORS = {Decode.OFFSETS: GROUP_RECORDS, Decode.TRANSACTIONS: TRANSACTION_RECORDS, Decode.SHARE: SHARE_RECORDS}


def describer(decode: Decode) -> Describe:
    """A function from a record to its text. The text of one that cannot be read says why."""
    if decode is Decode.METADATA:
        return _guarded(_metadata)
    codecs = _COORDINATORS[decode]
    return _guarded(lambda record: _coordinator(record, codecs))


def _guarded(describe: Describe) -> Describe:
    def safely(record: Record) -> str:
        try:
            return describe(record)
        except ProtocolError as error:
            return f"cannot be read: {error}"

    return safely


def _metadata(record: Record) -> str:
    if record.value is None:
        return "no value"
    message, version = decode_record(record.value)
    return f"{type(message).__name__} v{version} {fields(message)}"


def _coordinator(record: Record, codecs: dict[int, RecordCodec]) -> str:
    if record.key is None or len(record.key) < _VERSION.size:
        return "no key"
    (kind,) = _VERSION.unpack_from(record.key)
    codec = codecs.get(kind)
    if codec is None:
        return f"record of type {kind}, which this version does not know"
    # The first number of a key is its type; the key itself has one version, 0.
    key, _ = codec.key.decoder(codec.key.min_version)(record.key, _VERSION.size, len(record.key))
    name = codec.key.name.removesuffix("Key")
    if record.value is None:
        return f"{name} {fields(key)} deleted"
    if len(record.value) < _VERSION.size:
        raise ProtocolError("the value has no version")
    (version,) = _VERSION.unpack_from(record.value)
    value, _ = codec.value.decoder(version)(record.value, _VERSION.size, len(record.value))
    return f"{name} {fields(key)} -> v{version} {fields(value)}"


def control_text(kind: int, message: Any) -> str:
    """One control record."""
    name = ControlType(kind).name if kind in ControlType._value2member_map_ else f"type {kind}"
    return f"control {name}" + (f" {fields(message)}" if message is not None else "")


def fields(message: Any) -> str:
    """`{name: value, ...}`, without fields that say nothing."""
    parts = []
    for name in type(message).__struct_fields__:
        value = getattr(message, name)
        if name != "unknown_tags":
            parts.append(f"{name}: {_value(value)}")
        elif value:
            parts.append(f"unknown_tags: {sorted(value)}")
    return "{" + ", ".join(parts) + "}"


def _value(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return fields(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bytes | bytearray | memoryview):
        # Sixteen bytes in these records are always an id.
        return encode_uuid(bytes(value)) if len(value) == 16 else f"0x{bytes(value).hex()}"
    return "null" if value is None else repr(value) if isinstance(value, str) else str(value)
