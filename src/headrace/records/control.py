"""Control batches: the records that brokers and controllers write for themselves, never clients.

A control record's key is (version, type); its value is one of the protocol's data messages, which this maps types to.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from headrace.errors import Err, KafkaError
from headrace.protocol.api import DATA
from headrace.protocol.primitives import ProtocolError
from headrace.records.builder import BatchBuilder
from headrace.records.layout import NO_LEADER_EPOCH, BatchHeader, Buffer
from headrace.records.reader import Record, read_records

_KEY = Struct(">hh")
_END_TXN_VALUE = Struct(">hi")


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


MESSAGES = {
    ControlType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlType.KRAFT_VOTERS: "VotersRecord",
}
"""The protocol's data message in each control record of the quorum."""

MESSAGE_VERSION = 0
"""Kafka 4.3 writes and reads all of these as version 0, LeaderChange too although it has a version 1."""


class Marker(NamedTuple):
    """The end of a transaction in one partition."""

    committed: bool
    coordinator_epoch: int


class ControlRecord(NamedTuple):
    """A decoded control record; `message` is None for types this version does not know."""

    offset: int
    type: int
    message: Any


def encode_marker(
    marker: Marker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The batch that ends a producer's transaction."""
    builder = BatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )
    kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
    builder.append(timestamp, _KEY.pack(0, kind), _END_TXN_VALUE.pack(0, marker.coordinator_epoch))
    return builder.build()


def decode_marker(buf: Buffer, pos: int, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None when compaction has emptied it or it is no end of a transaction."""
    for record in read_records(buf, pos, header):
        kind = control_type(record)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        value = record.value
        if value is None or len(value) < _END_TXN_VALUE.size:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"transaction marker at offset {record.offset} without a value")
        version, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
        if version < 0:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"transaction marker at offset {record.offset} of version {version}")
        return Marker(kind == ControlType.COMMIT, coordinator_epoch)
    return None


def control_type(record: Record) -> int:
    """The type in a control record's key. Later versions of the key may be longer, never different."""
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"control record at offset {record.offset} without a key")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"control record at offset {record.offset} of version {version}")
    return int(kind)


def encode_control(
    messages: Sequence[tuple[ControlType, Any]],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """A control batch of the quorum."""
    builder = BatchBuilder(base_offset=base_offset, control=True, leader_epoch=leader_epoch)
    for kind, message in messages:
        value = DATA[MESSAGES[kind]].encode(message, MESSAGE_VERSION)
        builder.append(timestamp, _KEY.pack(0, kind), value)
    return builder.build()


def decode_control(buf: Buffer, pos: int, header: BatchHeader) -> list[ControlRecord]:
    """The quorum's control records of a batch. Unknown types are kept by number: a newer node may have written them."""
    decoded = []
    for record in read_records(buf, pos, header):
        kind = control_type(record)
        message = None
        if kind in MESSAGES:
            message = _decode_message(ControlType(kind), record)
        decoded.append(ControlRecord(record.offset, kind, message))
    return decoded


def _decode_message(kind: ControlType, record: Record) -> Any:
    value = record.value
    if value is None:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"control record at offset {record.offset} without a value")
    try:
        message, _ = DATA[MESSAGES[kind]].decoder(MESSAGE_VERSION)(value, 0, len(value))
        return message
    except ProtocolError as error:
        raise KafkaError(
            Err.CORRUPT_MESSAGE, f"{kind.name} control record at offset {record.offset}: {error}"
        ) from error
