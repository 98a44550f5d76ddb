"""Records of `__transaction_state` in Kafka's own format: one per transactional id, the last one counts."""

import struct
from collections.abc import Iterable
from functools import lru_cache

from headrace.coordinator.outcome import Record
from headrace.coordinator.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    Transaction,
    TransactionState,
)
from headrace.protocol import messages as m
from headrace.protocol.api import TRANSACTION_RECORDS
from headrace.protocol.primitives import ProtocolError

TRANSACTION_LOG = 0
FLEXIBLE_FROM = 1
"""The transaction version from which values have tagged fields: producer ids before and after, the client's version."""

CACHED_PARTITIONS = 16

_INT16 = struct.Struct(">h")
_START = struct.Struct(">hqhib")
"""The version, and the fields before the partitions: producer id and epoch, time-out, state."""
_BEFORE_BYTES = _START.size - _INT16.size
_TIMES = struct.Struct(">qq")
_TAG_INT64, _TAG_INT16 = struct.Struct(">BBq"), struct.Struct(">BBh")
"""A tag, the size of its value, and the value."""
_CODEC = TRANSACTION_RECORDS[TRANSACTION_LOG]


def transaction_record(transaction: Transaction, transaction_version: int) -> Record:
    """What a step of a transaction writes, by the cluster's transaction version."""
    # The step itself travels with its record: `apply` need not read back what was just written.
    return Record(
        key_of(transaction.transactional_id),
        encode_value(transaction, transaction_version >= FLEXIBLE_FROM),
        TRANSACTION_LOG,
        transaction.transactional_id,
        transaction,
    )


def encode_value(transaction: Transaction, flexible: bool) -> bytes:
    """TransactionLogValue with its version. By hand, as each transaction writes three of them."""
    partitions = transaction.partitions
    if transaction.state is TransactionState.EMPTY:
        encoded = b"\x00" if flexible else b"\xff\xff\xff\xff"
    elif len(partitions) <= CACHED_PARTITIONS:
        encoded = _encode_few(partitions, flexible)
    else:
        encoded = _encode_partitions(partitions, flexible)
    start = _START.pack(
        1 if flexible else 0, transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms,
        transaction.state,
    )  # fmt: skip
    value = start + encoded + _TIMES.pack(transaction.update_ms, transaction.start_ms)
    return value + _tags(transaction) if flexible else value


def _tags(transaction: Transaction) -> bytes:
    """The tagged fields that are not as they are by default, by their tags."""
    tags = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_TAG_INT64.pack(0, 8, transaction.previous_producer_id))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append(_TAG_INT64.pack(1, 8, transaction.next_producer_id))
    if transaction.client_version:
        tags.append(_TAG_INT16.pack(2, 2, transaction.client_version))
    if transaction.next_producer_epoch != NO_PRODUCER_EPOCH:
        tags.append(_TAG_INT16.pack(3, 2, transaction.next_producer_epoch))
    return bytes((len(tags),)) + b"".join(tags)


def _encode_partitions(partitions: frozenset[TopicPartition], flexible: bool) -> bytes:
    """The field `transaction_partitions` alone: what stands between two fields of fixed size."""
    V = m.TransactionLogValue
    rows = [V.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic(partitions).items()]
    whole = _CODEC.value.encode(V(transaction_partitions=rows), 1 if flexible else 0)
    return whole[_BEFORE_BYTES : len(whole) - _TIMES.size - flexible]


_encode_few = lru_cache(maxsize=2_000)(_encode_partitions)
"""A producer writes to the same few partitions in one transaction after the other."""


def tombstone(transactional_id: str) -> Record:
    return Record(key_of(transactional_id), None, TRANSACTION_LOG, transactional_id, None)


@lru_cache(maxsize=2_000)
def key_of(transactional_id: str) -> bytes:
    key = m.TransactionLogKey(transactional_id=transactional_id)
    return _INT16.pack(TRANSACTION_LOG) + _CODEC.key.encode(key, 0)


def decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """(transactional id, what it is now, or None for a tombstone); None for a kind that this version does not know.

    Raises ProtocolError when the bytes are not what their kind promises.
    """
    if len(key) < 2:
        raise ProtocolError("the record's key is too short to name its kind")
    if _INT16.unpack_from(key)[0] != TRANSACTION_LOG:
        return None
    transactional_id: str = _CODEC.key.decode(key, 0, 2).transactional_id
    if value is None:
        return transactional_id, None
    if len(value) < 2:
        raise ProtocolError("the record's value is too short to name its version")
    version = _INT16.unpack_from(value)[0]
    if version not in (0, 1):
        return None
    found: m.TransactionLogValue = _CODEC.value.decode(value, version, 2)
    try:
        state = TransactionState(found.transaction_status)
    except ValueError:
        raise ProtocolError(f"no state of a transaction has the number {found.transaction_status}") from None
    return transactional_id, Transaction(
        transactional_id=transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=state,
        update_ms=found.transaction_last_update_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        next_producer_epoch=found.next_producer_epoch,
        partitions=frozenset(
            (topic.topic, index) for topic in found.transaction_partitions or () for index in topic.partition_ids
        ),
        start_ms=found.transaction_start_timestamp_ms,
        client_version=found.client_transaction_version,
    )


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Partitions as messages list them, in a repeatable order."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics
