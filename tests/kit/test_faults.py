"""Faults on a real broker, as clients of other projects meet them: what they are told, and that they try again."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka as confluent
import pytest

from headrace.client.admin.admin import Admin
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.schema import StructSpec
from headrace.testing.broker import TestBroker
from headrace.testing.faults.error_answers import ERRORS, error_answer
from headrace.testing.records import TooFewRecords
from tests.librdkafka import STEADY
from tests.waiting import run

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def shared() -> Iterator[TestBroker]:
    with TestBroker(settings={"offsets.topic.num.partitions": "1"}) as broker:
        yield broker


@pytest.fixture
def broker(shared: TestBroker) -> Iterator[TestBroker]:
    yield shared
    shared.clear_faults()


def producer(broker: TestBroker, **options: Any) -> confluent.Producer:
    return confluent.Producer(
        {
            **STEADY,
            "bootstrap.servers": broker.bootstrap,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            **options,
        }
    )


def send(client: confluent.Producer, topic: str, *values: bytes) -> list[Any]:
    """What became of each: None, or the error."""
    results: list[Any] = []
    for value in values:
        client.produce(topic, value, on_delivery=lambda error, _: results.append(error))
    assert client.flush(PATIENCE_S) == 0
    return results


def values(broker: TestBroker, topic: str, count: int) -> list[bytes]:
    return [record.value for record in broker.consume(topic, count, timeout_s=PATIENCE_S)]


# -- errors


def test_a_producer_tries_again_until_the_leader_is_itself_again(broker: TestBroker) -> None:
    broker.produce("moved", b"made")
    fault = broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(producer(broker), "moved", b"a") == [None]
    assert fault.hits == 2
    assert values(broker, "moved", 2) == [b"made", b"a"]


def test_an_error_that_is_final_reaches_the_application(broker: TestBroker) -> None:
    broker.produce("refused", b"made")
    broker.inject("Produce", error="MESSAGE_TOO_LARGE")
    (error,) = send(producer(broker), "refused", b"a")
    assert error.code() == confluent.KafkaError.MSG_SIZE_TOO_LARGE
    assert values(broker, "refused", 1) == [b"made"], "a request that is refused is not handled"


def test_a_consumer_goes_on_behind_refused_fetches(broker: TestBroker) -> None:
    broker.produce("read", b"a", b"b")
    fault = broker.inject("Fetch", error="NOT_LEADER_OR_FOLLOWER", times=3)
    consumer = confluent.Consumer(
        {**STEADY, "bootstrap.servers": broker.bootstrap, "group.id": "read", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["read"])
    got = [message.value() for message in consumer.consume(2, PATIENCE_S)]
    consumer.close()
    assert got == [b"a", b"b"] and fault.hits == 3


def test_a_fetch_within_a_session_is_refused_too(broker: TestBroker) -> None:
    """Such a request names no partitions: its session is lost first, as by a broker that needs the room."""
    broker.produce("session", b"a")

    async def scenario() -> list[tuple[int, int]]:
        async with Admin(broker.bootstrap) as admin:
            topic, _, connection = await admin.cluster.leader("session", 0)
            R = m.FetchRequest

            def full(session_id: int, epoch: int, *, named: bool) -> Any:
                part = R.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
                rows = [R.FetchTopic(topic="session", topic_id=topic.topic_id, partitions=[part])] if named else []
                return R(max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=epoch, topics=rows)

            said = []
            first = await connection.request(ApiKey.FETCH, full(0, 0, named=True))
            assert first.error_code == 0 and first.session_id
            broker.inject("Fetch", error="NOT_LEADER_OR_FOLLOWER")
            lost = await connection.request(ApiKey.FETCH, full(first.session_id, 1, named=False))
            said.append((lost.error_code, len(lost.responses)))
            again = await connection.request(ApiKey.FETCH, full(0, 0, named=True))
            said.append((again.error_code, again.responses[0].partitions[0].error_code))
            good = await connection.request(ApiKey.FETCH, full(0, 0, named=True))
            said.append((good.error_code, good.responses[0].partitions[0].error_code))
            return said

    assert run(scenario()) == [(Err.FETCH_SESSION_ID_NOT_FOUND, 0), (0, Err.NOT_LEADER_OR_FOLLOWER), (0, 0)]


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_a_group_of_aiokafka_survives_a_coordinator_in_trouble(broker: TestBroker, api: str, error: str) -> None:
    topic = f"group-{api}"
    broker.produce(topic, b"a", b"b")
    fault = broker.inject(api, error=error, times=2, client_id="aiokafka*")

    async def scenario() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap, group_id=topic, auto_offset_reset="earliest",
            enable_auto_commit=False, retry_backoff_ms=20,
        )  # fmt: skip
        await consumer.start()
        try:
            got = [(await consumer.getone()).value for _ in range(2)]
            await consumer.commit()
            return got
        finally:
            await consumer.stop()

    assert run(scenario()) == [b"a", b"b"]
    assert fault.hits == 2


def test_metadata_that_is_refused_still_names_the_brokers(broker: TestBroker) -> None:
    broker.produce("described", b"made")
    fault = broker.inject("Metadata", error="LEADER_NOT_AVAILABLE", times=2, client_id="rdkafka")
    assert send(producer(broker), "described", b"a") == [None]
    assert fault.hits == 2


# -- lost connections and delays


def test_a_request_that_was_lost_is_sent_again(broker: TestBroker) -> None:
    broker.produce("lost", b"made")
    fault = broker.inject("Produce", drop="before")
    assert send(producer(broker), "lost", b"a") == [None]
    assert fault.hits == 1 and values(broker, "lost", 2) == [b"made", b"a"]


def test_an_idempotent_producer_whose_answer_was_lost_writes_once(broker: TestBroker) -> None:
    broker.produce("once", b"made")
    fault = broker.inject("Produce", drop="after")
    assert send(producer(broker, **{"enable.idempotence": True}), "once", b"a", b"b") == [None, None]
    assert fault.hits == 1 and values(broker, "once", 3) == [b"made", b"a", b"b"]


def test_a_plain_producer_whose_answer_was_lost_writes_twice(broker: TestBroker) -> None:
    """What tests with mocks do not find."""
    broker.produce("twice", b"made")
    broker.inject("Produce", drop="after")
    assert send(producer(broker, **{"enable.idempotence": False}), "twice", b"a") == [None]
    assert values(broker, "twice", 3) == [b"made", b"a", b"a"]


def test_a_delayed_request_is_handled_after_its_delay_and_nothing_overtakes_it(broker: TestBroker) -> None:
    broker.produce("slow", b"made")
    fault = broker.inject("Produce", delay_s=0.3)
    client = producer(broker, **{"linger.ms": 0, "enable.idempotence": True, "max.in.flight": 5})
    began = time.monotonic()
    results: list[Any] = []
    for number in range(20):
        client.produce("slow", b"%d" % number, on_delivery=lambda error, _: results.append(error))
        client.poll(0.001)
    assert client.flush(PATIENCE_S) == 0
    assert results == [None] * 20 and fault.hits == 1
    assert time.monotonic() - began >= 0.3
    assert values(broker, "slow", 21) == [b"made", *(b"%d" % number for number in range(20))]


def test_a_delay_longer_than_the_clients_patience_is_a_time_out(broker: TestBroker) -> None:
    broker.produce("late", b"made")
    with broker.inject("Produce", delay_s=30.0, times=None) as fault:
        client = producer(broker, **{"delivery.timeout.ms": 700, "socket.timeout.ms": 300, "request.timeout.ms": 300})
        (error,) = send(client, "late", b"a")
        assert error.code() == confluent.KafkaError._MSG_TIMED_OUT
        assert fault.hits >= 1
    assert send(producer(broker), "late", b"b") == [None]


def test_some_requests_may_pass_first(broker: TestBroker) -> None:
    broker.produce("skipped", b"made")
    broker.inject("Produce", error="MESSAGE_TOO_LARGE", skip=2)
    client = producer(broker)
    told = [send(client, "skipped", b"%d" % number)[0] for number in range(4)]
    assert [error is None for error in told] == [True, True, False, True]


# -- limits of it


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"api": "Produced", "error": "NOT_LEADER_OR_FOLLOWER"}, "did you mean Produce?"),
        ({"api": "Produce", "error": "NOT_LEADER"}, "did you mean NOT_LEADER_OR_FOLLOWER?"),
        ({"api": "Produce"}, "needs an error, a delay_s or a drop"),
        ({"api": "Produce", "drop": "during"}, "write 'before' or 'after'"),
        ({"api": "Produce", "drop": "before", "error": "MESSAGE_TOO_LARGE"}, "inject two faults"),
        ({"api": "Produce", "drop": "before", "times": 0}, "write a number from 1 on"),
        ({"api": "Produce", "delay_s": -1}, "write seconds from 0"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(broker: TestBroker, fault: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        broker.inject(**fault)


def test_too_few_records_are_a_failed_assertion_that_has_those_that_came(broker: TestBroker) -> None:
    broker.produce("few", ("key", "one"))
    with pytest.raises(TooFewRecords, match="1 of 2 records in few") as failed:
        broker.consume("few", 2, timeout_s=0.1)
    (record,) = failed.value.records
    assert (record.key, record.value, record.partition, record.offset) == (b"key", b"one", 0, 0)


@pytest.mark.parametrize("api", sorted(api.name for api in API.values() if "broker" in api.listeners))
def test_every_api_has_an_answer_that_says_an_error(api: str) -> None:
    (found,) = [each for each in API.values() if each.name == api]
    for version in range(found.min_version, found.latest_stable + 1):
        answer = error_answer(found, version, asking(found.request.root, version), Err.UNKNOWN_SERVER_ERROR)
        said = found.response.decode(found.response.encode(answer, version), version)
        assert Err.UNKNOWN_SERVER_ERROR in errors_in(said), f"v{version}: {said}"


def asking(spec: StructSpec, version: int) -> Any:
    """A request with one row in each list."""
    made = spec.cls()
    for field in spec.fields:
        if version not in field.versions:
            continue
        if field.is_array and field.struct is not None:
            setattr(made, field.name, [asking(field.struct, version)])
        elif field.is_array:
            setattr(made, field.name, {"string": ["a"], "uuid": [bytes(16)]}.get(field.element, [1]))
    return made


def errors_in(message: Any) -> set[int]:
    """All error codes, wherever they stand."""
    found = {getattr(message, name) for name in ERRORS if hasattr(message, name)}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        for row in value if isinstance(value, list) else ():
            found |= errors_in(row) if hasattr(row, "__struct_fields__") else set()
    return found


def test_an_error_names_what_was_asked_for() -> None:
    R = m.ProduceRequest
    parts = [R.PartitionProduceData(index=4), R.PartitionProduceData(index=7)]
    asked = R(acks=-1, topic_data=[R.TopicProduceData(name="orders", partition_data=parts)])
    (row,) = error_answer(API[ApiKey.PRODUCE], 9, asked, Err.NOT_LEADER_OR_FOLLOWER).responses
    assert row.name == "orders"
    assert [(part.index, part.error_code, part.base_offset) for part in row.partition_responses] == [
        (4, Err.NOT_LEADER_OR_FOLLOWER, -1),
        (7, Err.NOT_LEADER_OR_FOLLOWER, -1),
    ]


def test_a_broker_started_otherwise_takes_no_orders(broker: TestBroker) -> None:
    """The line has no address: what a broker listens on is Kafka's protocol and nothing else."""
    with socket.create_connection(("127.0.0.1", broker.port)) as wire:
        wire.sendall(b'{"action": "inject", "arguments": {}}\n')
        wire.settimeout(PATIENCE_S)
        assert wire.recv(1) == b"", "not Kafka's protocol"
    (length,) = struct.unpack(">i", b'{"ac')
    assert length > 100 << 20


def test_calls_work_on_an_event_loop_too(broker: TestBroker) -> None:
    async def scenario() -> None:
        assert broker.produce("inside", "a") == [0]
        assert [record.value for record in broker.consume("inside", 1)] == [b"a"]

    asyncio.run(scenario())
