"""Records of `__transaction_state` in Kafka's own format: one per transactional id, the last one counts."""

import struct
from collections.abc import Iterable

from headrace.coordinator.outcome import Record
from headrace.coordinator.transactions.transaction import Transaction, TransactionState
from headrace.protocol import messages as m
from headrace.protocol.api import TRANSACTION_RECORDS
from headrace.protocol.primitives import ProtocolError

TRANSACTION_LOG = 0
FLEXIBLE_FROM = 1
"""The transaction version from which values have tagged fields: producer ids before and after, the client's version."""

_INT16 = struct.Struct(">h")
_CODEC = TRANSACTION_RECORDS[TRANSACTION_LOG]


def transaction_record(transaction: Transaction, transaction_version: int) -> Record:
    """What a step of a transaction writes, by the cluster's transaction version."""
    V = m.TransactionLogValue
    value = V(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None
        if transaction.state is TransactionState.EMPTY
        else [
            V.PartitionsSchema(topic=topic, partition_ids=ids)
            for topic, ids in by_topic(transaction.partitions).items()
        ],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    version = 1 if transaction_version >= FLEXIBLE_FROM else 0
    if version:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
        value.next_producer_epoch = transaction.next_producer_epoch
    encoded = _INT16.pack(version) + _CODEC.value.encode(value, version)
    # The step itself travels with its record: `apply` need not read back what was just written.
    return Record(
        key_of(transaction.transactional_id), encoded, TRANSACTION_LOG, transaction.transactional_id, transaction
    )


def tombstone(transactional_id: str) -> Record:
    return Record(key_of(transactional_id), None, TRANSACTION_LOG, transactional_id, None)


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
