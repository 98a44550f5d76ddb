"""One request that names tens of thousands of things: it is answered, and no turn of the loop is long meanwhile."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.net.large_requests import ROWS_MAX
from headrace.errors import Err
from tests.broker.loop_probe import ProbedBroker
from tests.broker.support import PATIENCE_S, create_topic, fetch_fields, produce, produce_fields
from tests.compat.raw import Closed, Connection, batch, decode_response, encode_request
from tests.waiting import eventually

MANY = 30_000
TURN_MS = 60
"""CPU time; a quiet machine needs a fifth of it. In one piece, each of these takes from 80 ms to seconds."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedBroker]:
    with ProbedBroker(tmp_path_factory.mktemp("large"), offsets_topic_num_partitions=1) as process:
        create_topic(process.port, "t", partitions=10)
        with Connection(process.port, PATIENCE_S) as wire:
            eventually(lambda: wire.ask("FindCoordinator", 2, {"key": "g"}).error_code == 0, "a coordinator")
            query = {"group_id": "g", "topics": []}
            eventually(lambda: wire.ask("OffsetFetch", 3, query).error_code == 0, "which has loaded")
        yield process


def ask(broker: ProbedBroker, api: str, version: int, fields: dict[str, Any]) -> Any:
    """The answer; another client is served while it is made."""
    request = encode_request(api, version, fields)
    broker.reset()
    with Connection(broker.port, PATIENCE_S) as wire, Connection(broker.port, PATIENCE_S) as other:
        wire.send(request)
        for _ in range(5):
            assert produce(other, "t", 1, b"in between")[0] == 0
        answer = decode_response(api, version, wire.receive())
    assert broker.longest_turn_ms() < TURN_MS
    return answer


def test_metadata(broker: ProbedBroker) -> None:
    names = [f"unknown-{number}" for number in range(MANY)]
    names[MANY // 2] = "t"
    fields = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    answer = ask(broker, "Metadata", 9, fields)
    assert [topic.name for topic in answer.topics] == names
    assert len(answer.topics[MANY // 2].partitions) == 10


def test_describe_configs(broker: ProbedBroker) -> None:
    """The same broker again and again would make an answer of gigabytes: it is told once."""
    resources = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None} for _ in range(MANY)]
    resources += [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]
    answer = ask(broker, "DescribeConfigs", 4, {"resources": resources})
    assert [(row.resource_type, row.resource_name, row.error_code) for row in answer.results] == [
        (4, "1", 0),
        (2, "t", 0),
    ]
    assert len(answer.results[0].configs) > 300


def test_find_coordinator(broker: ProbedBroker) -> None:
    keys = [f"g{number}" for number in range(MANY)]
    answer = ask(broker, "FindCoordinator", 4, {"key_type": 0, "coordinator_keys": keys})
    assert [(row.key, row.error_code) for row in answer.coordinators] == [(key, 0) for key in keys]


def test_describe_groups(broker: ProbedBroker) -> None:
    answer = ask(broker, "DescribeGroups", 5, {"groups": [f"g{number}" for number in range(MANY)]})
    assert [row.group_id for row in answer.groups] == [f"g{number}" for number in range(MANY)]


def test_offset_commit_and_fetch(broker: ProbedBroker) -> None:
    rows = [{"partition_index": number % 10, "committed_offset": number} for number in range(MANY)]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": rows}]}
    answer = ask(broker, "OffsetCommit", 5, fields)
    (topic,) = answer.topics
    assert [row.partition_index for row in topic.partitions] == [number % 10 for number in range(MANY)]
    assert not any(row.error_code for row in topic.partitions)
    wanted = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(MANY))}]}
    answer = ask(broker, "OffsetFetch", 5, wanted)
    (topic,) = answer.topics
    assert [row.committed_offset for row in topic.partitions[:11]] == [*range(MANY - 10, MANY), -1]
    assert len(topic.partitions) == MANY


def test_elections_and_moves_of_partitions(broker: ProbedBroker) -> None:
    rows = [{"topic": "t", "partitions": list(range(MANY))}]
    answer = ask(broker, "ElectLeaders", 2, {"election_type": 0, "topic_partitions": rows, "timeout_ms": 1_000})
    (topic,) = answer.replica_election_results
    assert answer.error_code == 0 and [row.partition_id for row in topic.partition_result] == list(range(MANY))
    assert {row.error_code for row in topic.partition_result[10:]} == {Err.UNKNOWN_TOPIC_OR_PARTITION}
    moves = [{"partition_index": number, "replicas": [1]} for number in range(MANY)]
    fields = {"timeout_ms": 1_000, "topics": [{"name": "t", "partitions": moves}]}
    answer = ask(broker, "AlterPartitionReassignments", 0, fields)
    (topic,) = answer.responses
    assert [row.error_code for row in topic.partitions[:11]] == [Err.NONE] * 10 + [Err.UNKNOWN_TOPIC_OR_PARTITION]
    assert answer.error_code == 0 and len(topic.partitions) == MANY


def test_quotas(broker: ProbedBroker) -> None:
    ops = [{"key": "consumer_byte_rate", "value": 1.0, "remove": False}]
    entries = [{"entity": [{"entity_type": "user", "entity_name": f"u{n}"}], "ops": ops} for n in range(5_000)]
    answer = ask(broker, "AlterClientQuotas", 1, {"entries": entries, "validate_only": True})
    assert [row.entity[0].entity_name for row in answer.entries] == [f"u{n}" for n in range(5_000)]
    assert {row.error_code for row in answer.entries} == {Err.NONE}


def test_transactions(broker: ProbedBroker) -> None:
    ids = [f"id-{number}" for number in range(MANY)]
    answer = ask(broker, "DescribeTransactions", 0, {"transactional_ids": ids})
    assert [row.transactional_id for row in answer.transaction_states] == ids
    markers = [
        {"producer_id": number, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
         "topics": [{"name": "none", "partition_indexes": [0]}]}
        for number in range(MANY // 2)
    ]  # fmt: skip
    answer = ask(broker, "WriteTxnMarkers", 1, {"markers": markers})
    assert [row.producer_id for row in answer.markers] == list(range(MANY // 2))
    added = {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 0, "v3_and_below_producer_epoch": 0}
    added |= {"v3_and_below_topics": [{"name": "t", "partitions": list(range(ROWS_MAX - 1))}]}
    answer = ask(broker, "AddPartitionsToTxn", 3, added)
    rows = answer.results_by_topic_v3_and_below[0].results_by_partition
    assert [row.partition_error_code for row in rows[9:11]] == [
        Err.OPERATION_NOT_ATTEMPTED,
        Err.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_thousands_of_topics_created_and_deleted(broker: ProbedBroker) -> None:
    names = [f"new-{number}" for number in range(4_500)]
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in [*names, "new-7"]]
    fields = {"topics": rows, "timeout_ms": 30_000, "validate_only": True}
    answer = ask(broker, "CreateTopics", 5, fields)
    errors = {row.name: row.error_code for row in answer.topics}
    assert errors.pop("new-7") == Err.INVALID_REQUEST, "named twice, however far apart"
    assert set(errors) == set(names) - {"new-7"} and set(errors.values()) == {Err.NONE}
    fields["topics"] = [{**row, "num_partitions": 2} for row in rows]
    answer = ask(broker, "CreateTopics", 5, fields)
    assert {row.error_code for row in answer.topics} == {Err.POLICY_VIOLATION}, "too many changes, as a whole"
    answer = ask(broker, "DeleteTopics", 5, {"topic_names": [*names, "new-9"], "timeout_ms": 30_000})
    errors = {row.name: row.error_code for row in answer.responses}
    assert errors.pop("new-9") == Err.INVALID_REQUEST and set(errors.values()) == {Err.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_member_that_names_thousands_of_topics(broker: ProbedBroker) -> None:
    names = [f"unknown-{number}" for number in range(20_000)]
    fields = {"group_id": "many", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 30_000}
    answer = ask(
        broker, "ConsumerGroupHeartbeat", 0, fields | {"subscribed_topic_names": [*names, "t"], "topic_partitions": []}
    )
    assert answer.error_code == 0 and len(answer.assignment.topic_partitions[0].partitions) == 10


def test_members_that_leave_and_offsets_that_go(broker: ProbedBroker) -> None:
    members = [{"member_id": f"m{number}", "group_instance_id": None} for number in range(MANY)]
    answer = ask(broker, "LeaveGroup", 4, {"group_id": "g", "members": members})
    assert len(answer.members) == len(members) and answer.members[-1].member_id == members[-1]["member_id"]
    assert {row.error_code for row in answer.members} == {Err.UNKNOWN_MEMBER_ID}
    rows = [{"partition_index": number % 10} for number in range(300_000)]
    answer = ask(broker, "OffsetDelete", 0, {"group_id": "g", "topics": [{"name": "t", "partitions": rows}]})
    assert answer.error_code == 0 and len(answer.topics[0].partitions) == len(rows)
    wanted = [{"name": f"none-{number}", "partition_indexes": [0]} for number in range(120_000)]
    answer = ask(broker, "ListPartitionReassignments", 0, {"topics": wanted, "timeout_ms": 1_000})
    assert answer.error_code == 0 and not answer.topics


def test_offsets_in_a_transaction(broker: ProbedBroker) -> None:
    who = {"transactional_id": "large", "producer_id": -1, "producer_epoch": -1}
    producer: Any = None
    with Connection(broker.port, PATIENCE_S) as wire:

        def began() -> bool:
            nonlocal producer
            wire.ask("FindCoordinator", 2, {"key": "large", "key_type": 1})  # makes the topic
            producer = wire.ask("InitProducerId", 3, who | {"transaction_timeout_ms": 30_000})
            return not producer.error_code

        eventually(began, "a producer id")
        who |= {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        assert wire.ask("AddOffsetsToTxn", 2, who | {"group_id": "in-transaction"}).error_code == 0
        rows = [{"partition_index": number % 10, "committed_offset": number} for number in range(100_000)]
        fields = who | {"group_id": "in-transaction", "topics": [{"name": "t", "partitions": rows}]}
        answer = ask(broker, "TxnOffsetCommit", 2, fields)
        assert [row.partition_index for row in answer.topics[0].partitions] == [n % 10 for n in range(100_000)]
        assert not any(row.error_code for row in answer.topics[0].partitions)
        assert wire.ask("EndTxn", 2, who | {"committed": True}).error_code == 0
        wanted = {"group_id": "in-transaction", "topics": [{"name": "t", "partition_indexes": [0, 9]}]}

        def committed() -> list[int]:
            (topic,) = wire.ask("OffsetFetch", 5, wanted).topics
            return [row.committed_offset for row in topic.partitions]

        eventually(lambda: committed() == [99_990, 99_999], "the marker makes them count")


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("ConsumerGroupHeartbeat", 0, {"group_id": "g", "member_id": "m", "member_epoch": 0,
         "topic_partitions": [], "subscribed_topic_names": [f"t{n}" for n in range(200_000)]}),
        ("AddPartitionsToTxn", 3, {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 0,
         "v3_and_below_producer_epoch": 0,
         "v3_and_below_topics": [{"name": "t", "partitions": list(range(10)) * 50_000}]}),
        ("DescribeTopicPartitions", 0, {"topics": [{"name": f"t{n}"} for n in range(200_000)],
         "response_partition_limit": 2_000, "cursor": None}),
        ("DescribeLogDirs", 1, {"topics": [{"topic": f"t{n}", "partitions": [0]} for n in range(200_000)]}),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused(broker: ProbedBroker, api: str, version: int, fields: Any) -> None:
    request = encode_request(api, version, fields)
    broker.reset()
    with Connection(broker.port, PATIENCE_S) as wire:
        wire.send(request)
        with pytest.raises(Closed):
            wire.receive()
    assert broker.longest_turn_ms() < TURN_MS


def test_a_topic_of_thousands_of_partitions_goes(broker: ProbedBroker) -> None:
    create_topic(broker.port, "wide", partitions=4_000)
    eventually(lambda: broker.call(lambda: broker.broker.deltas.is_empty), "all of it is there")
    answer = ask(broker, "DeleteTopics", 5, {"topic_names": ["wide"], "timeout_ms": 30_000})
    assert not answer.responses[0].error_code
    eventually(lambda: broker.call(lambda: broker.broker.deltas.is_empty), "all of it is gone")
    assert broker.longest_turn_ms() < TURN_MS


def test_bytes_that_are_no_request_close_the_connection(broker: ProbedBroker) -> None:
    request = encode_request("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["key"] * 10_000})
    with Connection(broker.port, PATIENCE_S) as wire:
        wire.send(request[:-100])
        with pytest.raises(Closed):
            wire.receive()


def test_no_client_names_more_partitions_than_there_are(broker: ProbedBroker) -> None:
    """A million tiny batches, or a Fetch of a million partitions: seconds of work, refused at a glance."""
    rows = [{"index": 0, "records": batch(b"x")} for _ in range(MANY)]
    produced = produce_fields("t", 0, b"") | {"topic_data": [{"name": "t", "partition_data": rows}]}
    partitions = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1} for number in range(MANY)]
    fetched = fetch_fields("t", 0, 0) | {"topics": [{"topic": "t", "partitions": partitions}]}
    for request in (encode_request("Produce", 9, produced), encode_request("Fetch", 12, fetched)):
        broker.reset()
        with Connection(broker.port, PATIENCE_S) as wire:
            wire.send(request)
            with pytest.raises(Closed):
                wire.receive()
        assert broker.longest_turn_ms() < TURN_MS


def test_the_largest_of_requests_are_produces(broker: ProbedBroker) -> None:
    with Connection(broker.port, PATIENCE_S) as wire:
        wire.send_bytes(struct.pack(">ihhih", 20 << 20, 3, 9, 1, -1))
        with pytest.raises(Closed):
            wire.receive()
    with Connection(broker.port, PATIENCE_S) as wire:
        rows = [{"index": number, "records": batch(bytes(1_000_000))} for number in range(10)]
        fields = produce_fields("t", 0, b"") | {"topic_data": [{"name": "t", "partition_data": rows * 2}]}
        answer = wire.ask("Produce", 9, fields)
        assert [row.error_code for row in answer.responses[0].partition_responses] == [Err.NONE] * 20
