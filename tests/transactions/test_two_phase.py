"""Two-phase commit (KIP-939) over the wire: what was prepared outlives its producer and its broker, and waits."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import Err
from headrace.testing.broker import TestBroker
from tests.broker.support import PATIENCE_S, create_topic, fetch_fields, produce_fields
from tests.compat.raw import Closed, Connection, Rec, batch

ID = "sink-1"
TRANSACTIONAL = 0x10
NEVER_MS = 0x7FFFFFFF
PASSING = (Err.COORDINATOR_NOT_AVAILABLE, Err.COORDINATOR_LOAD_IN_PROGRESS, Err.NOT_COORDINATOR)
INIT = "InitProducerId"
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker(settings={"transaction.two.phase.commit.enable": "true"}) as broker:
        create_topic(broker.port, "t", 3)
        yield broker


def ask(broker: TestBroker, api: str, version: int, **fields: Any) -> Any:
    """The answer of the coordinator, once it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with Connection(broker.port, PATIENCE_S) as wire:
            wire.ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": [ID]})
            answer = wire.ask(api, version, fields)
        code = answer.transaction_states[0].error_code if api == "DescribeTransactions" else answer.error_code
        if code not in PASSING:
            return answer
        assert time.monotonic() < deadline, Err(code)
        time.sleep(0.05)


def begin(broker: TestBroker, *, keep: bool = False, two_phase: bool = True, timeout_ms: int = 1_000) -> Any:
    return ask(
        broker, INIT, 6, transactional_id=ID, transaction_timeout_ms=timeout_ms, enable2_pc=two_phase,
        keep_prepared_txn=keep,
    )  # fmt: skip


def batch_of(producer: Any, value: bytes, sequence: int) -> bytes:
    who = producer.producer_id, producer.producer_epoch, sequence
    return batch(Rec(value), producer=who, attributes=TRANSACTIONAL, base_timestamp=int(time.time() * 1000))


def write(broker: TestBroker, producer: Any, value: bytes, partition: int = 0, sequence: int = 0) -> Err:
    data = batch_of(producer, value, sequence)
    with Connection(broker.port, PATIENCE_S) as wire:
        fields = produce_fields("t", partition, data) | {"transactional_id": ID}
        answer = wire.ask("Produce", 12, fields)
    return Err(answer.responses[0].partition_responses[0].error_code)


def end(broker: TestBroker, producer: Any, committed: bool) -> Any:
    return ask(
        broker, "EndTxn", 5, transactional_id=ID, producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch, committed=committed,
    )  # fmt: skip


def described(broker: TestBroker) -> Any:
    return ask(broker, "DescribeTransactions", 0, transactional_ids=[ID]).transaction_states[0]


def visible(broker: TestBroker, partition: int = 0) -> tuple[int, int]:
    """(last stable offset, aborted transactions) as a reader of committed records is told from the start."""
    with Connection(broker.port, PATIENCE_S) as wire:
        answer = wire.ask("Fetch", 12, fetch_fields("t", partition, 0, isolation_level=1))
    (row,) = answer.responses[0].partitions
    assert row.error_code == 0, Err(row.error_code)
    return row.last_stable_offset, len(row.aborted_transactions or ())


def until_stable(broker: TestBroker, offset: int, partition: int = 0) -> int:
    """How many aborted transactions there are once all markers are written."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := visible(broker, partition))[0] < offset:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found[1]


@pytest.mark.parametrize("committed", [True, False])
def test_what_was_prepared_outlives_the_broker_and_is_ended_by_who_comes_back(
    broker: TestBroker, committed: bool
) -> None:
    first = begin(broker)
    assert first.error_code == 0 and first.ongoing_txn_producer_id == -1
    assert write(broker, first, b"one") is Err.NONE
    assert write(broker, first, b"two", partition=1) is Err.NONE
    shown = described(broker)
    assert (shown.transaction_state, shown.transaction_timeout_ms) == ("Ongoing", NEVER_MS)
    broker.kill()
    broker.start()
    assert described(broker).transaction_state == "Ongoing"
    assert visible(broker) == (0, 0), "held back until somebody decides"
    back = begin(broker, keep=True)
    assert back.error_code == 0
    assert (back.ongoing_txn_producer_id, back.ongoing_txn_producer_epoch) == (first.producer_id, first.producer_epoch)
    assert back.producer_epoch > first.producer_epoch
    assert end(broker, first, True).error_code == Err.PRODUCER_FENCED
    assert write(broker, first, b"late", partition=2) is not Err.NONE, "no partition joins any more"
    broker.restart()
    again = begin(broker, keep=True)
    assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == (
        first.producer_id,
        first.producer_epoch,
    )
    assert end(broker, back, committed).error_code == Err.PRODUCER_FENCED
    ended = end(broker, again, committed)
    assert ended.error_code == 0
    for partition in (0, 1):
        assert until_stable(broker, 2, partition) == (0 if committed else 1)
    assert end(broker, again, committed).error_code == 0, "asked again"
    assert write(broker, ended, b"next") is Err.NONE
    assert end(broker, ended, True).error_code == 0
    assert until_stable(broker, 4) == (0 if committed else 1)
    nothing = begin(broker, keep=True)
    assert (nothing.error_code, nothing.ongoing_txn_producer_id, nothing.ongoing_txn_producer_epoch) == (0, -1, -1)


def test_it_does_not_time_out_and_an_administrator_can_end_it(broker: TestBroker) -> None:
    owner = begin(broker, timeout_ms=1)
    assert write(broker, owner, b"one") is Err.NONE
    # Another id's transaction has the same time-out without two phases, and is aborted: time has passed.
    with Connection(broker.port, PATIENCE_S) as wire:
        for timeout_ms in (1, 100, 10_000):
            plain = wire.ask(INIT, 5, {"transactional_id": "plain", "transaction_timeout_ms": timeout_ms})
            fields = produce_fields("t", 1, batch_of(plain, b"x", 0)) | {"transactional_id": "plain"}
            written = wire.ask("Produce", 12, fields).responses[0].partition_responses[0]
            if written.error_code != Err.INVALID_PRODUCER_EPOCH:  # else it was over before the record was appended
                break
        assert written.error_code == 0
    assert until_stable(broker, written.base_offset + 2, 1) == 1
    assert described(broker).transaction_state == "Ongoing" and visible(broker) == (0, 0)
    # As `headrace transaction abort` and Kafka's forceTerminateTransaction do.
    fenced = ask(broker, INIT, 5, transactional_id=ID, transaction_timeout_ms=60_000)
    assert fenced.error_code == 0
    assert until_stable(broker, 2) == 1
    assert end(broker, owner, True).error_code == Err.PRODUCER_FENCED


def test_what_is_not_granted_is_refused_in_kafkas_words(broker: TestBroker) -> None:
    with Connection(broker.port, PATIENCE_S) as wire:
        served = {api.api_key: api.max_version for api in wire.ask("ApiVersions", 3, SOFTWARE).api_keys}
    assert served[22] == 6
    assert begin(broker, keep=True, two_phase=False).error_code == Err.UNSUPPORTED_VERSION
    assert begin(broker, two_phase=False, timeout_ms=NEVER_MS).error_code == Err.INVALID_TRANSACTION_TIMEOUT
    broker.settings.clear()
    broker.restart()
    with Connection(broker.port, PATIENCE_S) as wire:
        served = {api.api_key: api.max_version for api in wire.ask("ApiVersions", 3, SOFTWARE).api_keys}
        assert served[22] == 5, "not advertised unless it is switched on"
        with pytest.raises(Closed):
            wire.ask(INIT, 6, {"transactional_id": ID, "transaction_timeout_ms": 1_000, "enable2_pc": True})
