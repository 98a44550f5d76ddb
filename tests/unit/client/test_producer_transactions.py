"""A producer's transactions: the steps and errors by themselves, then both protocols against a broker."""

from collections.abc import Iterator

import pytest

from headrace.client.errors import ClientError, ConnectionLost, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.client.net.coordinators import TRANSACTION, Coordinators
from headrace.client.produce import OutgoingBatch, ProducerCore
from headrace.client.produce.partition_queue import ProducerId
from headrace.client.produce.transactions import (
    ProducerTransactions,
    Severity,
    Step,
    TransactionSteps,
    WrongStep,
    end_transaction,
    severity_of,
)
from headrace.errors import Err
from headrace.records.batch import Record, build_batch
from headrace.testing.broker import TestBroker
from tests.committed import committed_records
from tests.waiting import run


def open_steps(*, is_version_2: bool) -> TransactionSteps:
    steps = TransactionSteps()
    steps.began(ProducerId(7, 0), is_version_2)
    steps.begin()
    return steps


def test_the_classic_protocol_adds_each_partition_once_and_version_2_none() -> None:
    classic = open_steps(is_version_2=False)
    assert classic.to_add([("t", 1), ("t", 0), ("t", 1)]) == [("t", 0), ("t", 1)]
    classic.added([("t", 0)])
    assert classic.to_add([("t", 0), ("t", 1)]) == [("t", 1)]
    assert open_steps(is_version_2=True).to_add([("t", 0)]) == []


def test_an_end_brings_the_next_epoch_and_forgets_the_partitions() -> None:
    steps = open_steps(is_version_2=True)
    steps.added([("t", 0)])
    steps.end(True)
    steps.ended(ProducerId(7, 1))
    assert (steps.step, steps.producer, steps.is_empty) == (Step.READY, ProducerId(7, 1), True)


def test_calls_out_of_turn_are_refused_in_words() -> None:
    steps = TransactionSteps()
    with pytest.raises(WrongStep, match="cannot begin a transaction: it has no producer id yet"):
        steps.begin()
    steps.began(ProducerId(7, 0), True)
    with pytest.raises(WrongStep, match="cannot commit a transaction: no transaction is open"):
        steps.end(True)
    with pytest.raises(WrongStep, match="cannot write in a transaction: no transaction is open"):
        steps.to_add([("t", 0)])


def test_after_an_abortable_error_only_an_abort_goes_on() -> None:
    steps = open_steps(is_version_2=True)
    error = RequestFailed("produce", Err.TRANSACTION_ABORTABLE)
    assert steps.failed(error, by_coordinator=False) is Severity.ABORTABLE
    with pytest.raises(RequestFailed) as caught:
        steps.end(True)
    assert caught.value is error
    steps.end(False)
    steps.ended(ProducerId(7, 1))
    steps.begin()


def test_after_a_fatal_error_nothing_goes_on() -> None:
    steps = open_steps(is_version_2=False)
    assert steps.failed(RequestFailed("end", Err.PRODUCER_FENCED), by_coordinator=True) is Severity.FATAL
    for step in (steps.begin, lambda: steps.end(False), lambda: steps.to_add([("t", 0)])):
        with pytest.raises(RequestFailed, match="PRODUCER_FENCED"):
            step()


@pytest.mark.parametrize(
    ("error", "by_coordinator", "severity"),
    [
        (RequestFailed("", Err.CONCURRENT_TRANSACTIONS), True, Severity.RETRIABLE),
        (RequestFailed("", Err.NOT_COORDINATOR), True, Severity.RETRIABLE),
        (ConnectionLost(""), True, Severity.RETRIABLE),
        (RequestFailed("", Err.INVALID_PRODUCER_EPOCH), True, Severity.FATAL),
        (RequestFailed("", Err.INVALID_PRODUCER_EPOCH), False, Severity.ABORTABLE),
        (RequestFailed("", Err.INVALID_TXN_STATE), True, Severity.FATAL),
        (RequestFailed("", Err.INVALID_TXN_STATE), False, Severity.ABORTABLE),
        (RequestFailed("", Err.INVALID_PRODUCER_ID_MAPPING), True, Severity.ABORTABLE),
        (RequestFailed("", Err.OUT_OF_ORDER_SEQUENCE_NUMBER), False, Severity.ABORTABLE),
        (RequestFailed("", Err.TOPIC_AUTHORIZATION_FAILED), True, Severity.ABORTABLE),
        (RequestFailed("", Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), True, Severity.FATAL),
    ],
)
def test_what_an_error_leaves_to_do(error: ClientError, by_coordinator: bool, severity: Severity) -> None:
    assert severity_of(error, by_coordinator=by_coordinator) is severity


# -- against a broker


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with TestBroker(settings={"num.partitions": "2", "transaction.state.log.num.partitions": "2"}) as broker:
        yield broker.bootstrap


def batch_of(topic: str, partition: int, *values: bytes) -> OutgoingBatch:
    records = [Record(0, 1000, None, value) for value in values]
    view = memoryview(bytearray(build_batch(records, transactional=True)))
    return OutgoingBatch(topic, partition, view, len(values))


async def committed(bootstrap: str, topic: str) -> set[bytes]:
    """What a read_committed reader finds, once all markers are there."""
    found = await committed_records(bootstrap, topic)
    return {record.value or b"" for records in found.values() for record in records}


async def producing(cluster: Cluster, name: str, *, classic: bool) -> tuple[ProducerTransactions, ProducerCore]:
    transactions = ProducerTransactions(cluster, name)
    producer = ProducerCore(cluster, transactions=transactions)
    producer.producer = await transactions.init()
    assert transactions.steps.is_version_2
    transactions.steps.is_version_2 = not classic
    return transactions, producer


@pytest.mark.parametrize("classic", [False, True], ids=["version 2", "classic"])
def test_both_protocols_commit_and_abort(bootstrap: str, classic: bool) -> None:
    topic = f"both-{classic}"

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            for end in ("abort", "commit"):
                transactions, producer = await producing(cluster, f"{topic}-{end}", classic=classic)
                await producer.partition_count(topic)
                transactions.begin()
                await producer.send([batch_of(topic, 0, b"%s 0" % end.encode()), batch_of(topic, 1, end.encode())])
                await producer.flush()
                before = transactions.producer
                after = await (transactions.commit() if end == "commit" else transactions.abort())
                assert (after == before) is (classic and end == "commit"), "a new epoch but for classic commits"
                await producer.close()
            assert await committed(bootstrap, topic) == {b"commit 0", b"commit"}

    run(work())


@pytest.mark.parametrize("classic", [False, True], ids=["version 2", "classic"])
def test_another_process_ends_what_this_one_has_written_as_often_as_it_likes(bootstrap: str, classic: bool) -> None:
    topic = f"elsewhere-{classic}"

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            transactions, producer = await producing(cluster, topic, classic=classic)
            await producer.partition_count(topic)
            transactions.begin()
            await producer.send([batch_of(topic, 0, b"one"), batch_of(topic, 1, b"two")])
            await producer.flush()
            await producer.close()
        async with Cluster(bootstrap) as cluster:
            coordinators = Coordinators(cluster, TRANSACTION, "transactional id")
            for _ in range(3):
                await end_transaction(
                    coordinators, topic, transactions.producer, committed=True, is_version_2=not classic
                )
            assert await committed(bootstrap, topic) == {b"one", b"two"}
            with pytest.raises(RequestFailed, match="INVALID_TXN_STATE"):
                await end_transaction(
                    coordinators, topic, transactions.producer, committed=False, is_version_2=not classic
                )

    run(work())


@pytest.mark.parametrize("classic", [False, True], ids=["version 2", "classic"])
def test_a_second_owner_of_the_id_fences_the_first(bootstrap: str, classic: bool) -> None:
    topic = f"fenced-{classic}"

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            first, producer = await producing(cluster, topic, classic=classic)
            await producer.partition_count(topic)
            first.begin()
            await producer.send([batch_of(topic, 0, b"lost")])
            await producer.flush()
            second, other = await producing(cluster, topic, classic=classic)
            with pytest.raises(RequestFailed, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
                await first.commit()
            assert first.steps.step is Step.FATAL
            second.begin()
            await other.send([batch_of(topic, 1, b"kept")])
            await other.flush()
            await second.commit()
            assert await committed(bootstrap, topic) == {b"kept"}
            await producer.close()
            await other.close()

    run(work())


def test_a_time_out_that_brokers_refuse_is_named(bootstrap: str) -> None:
    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            with pytest.raises(RequestFailed, match="brokers allow no transaction of 3600000 ms: set"):
                await ProducerTransactions(cluster, "slow", timeout_ms=3_600_000).init()

    run(work())
