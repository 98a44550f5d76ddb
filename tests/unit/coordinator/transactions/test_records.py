"""The records that transactions write by hand are those of the tables, byte by byte."""

import random
import struct

import pytest

from headrace.coordinator.transactions.records import CACHED_PARTITIONS, decode, key_of, transaction_record
from headrace.coordinator.transactions.transaction import NEVER_MS, State, Transaction
from headrace.protocol import messages as m
from headrace.protocol.api import TRANSACTION_RECORDS

CODEC = TRANSACTION_RECORDS[0]


def some_transaction(dice: random.Random) -> Transaction:
    state = dice.choice(list(State))
    count = dice.choice([0, 1, 2, 5, CACHED_PARTITIONS, CACHED_PARTITIONS + 1, 300])
    places = [(dice.choice(["a", "größer", "t" * 249]), dice.randrange(1_000)) for _ in range(count)]
    return Transaction(
        transactional_id=dice.choice(["a", "zahlungen-ü", "x" * 300]),
        producer_id=dice.choice([0, 7, (1 << 63) - 1]),
        producer_epoch=dice.choice([-1, 0, 0x7FFF]),
        timeout_ms=dice.choice([1, 60_000, NEVER_MS]),
        state=state,
        update_ms=dice.choice([0, 1_700_000_000_000]),
        previous_producer_id=dice.choice([-1, 0, 1 << 40]),
        next_producer_id=dice.choice([-1, 0, 1 << 40]),
        next_producer_epoch=dice.choice([-1, 0, 0x7FFE]),
        partitions=frozenset() if state is State.EMPTY else frozenset(places),
        start_ms=dice.choice([-1, 1_700_000_000_000]),
        client_version=dice.choice([0, 1, 2]),
    )


def by_tables(transaction: Transaction, version: int) -> bytes:
    V = m.TransactionLogValue
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    rows = [V.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]
    value = V(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is State.EMPTY else rows,
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
        value.next_producer_epoch = transaction.next_producer_epoch
    return struct.pack(">h", version) + CODEC.value.encode(value, version)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_record_has_the_bytes_of_the_tables(level: int) -> None:
    dice = random.Random(level)
    for _ in range(300):
        transaction = some_transaction(dice)
        record = transaction_record(transaction, level)
        assert record.value == by_tables(transaction, min(level, 1))
        key = m.TransactionLogKey(transactional_id=transaction.transactional_id)
        assert record.key == key_of(transaction.transactional_id) == b"\0\0" + CODEC.key.encode(key, 0)
        if level:
            assert decode(record.key, record.value) == (transaction.transactional_id, transaction)
