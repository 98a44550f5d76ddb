"""The controller's decisions, compared field by field with those of Apache Kafka 4.3.1."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.unit.metadata.cases import CASES, Case, create, delete, incremental, more, new_topic, summary
from tests.unit.metadata.paper_cluster import DIRECTORY, Cluster, leaders

GOLDEN = json.loads((Path(__file__).parent / "golden/controller-kafka-4.3.1.json").read_text())


def refused(case: Case, error: KafkaError) -> Any:
    """What a handler makes of a request that is refused as a whole."""
    if case.api is ApiKey.CREATE_TOPICS:
        result = m.CreateTopicsResponse.CreatableTopicResult
        return m.CreateTopicsResponse(
            topics=[
                result(name=t.name, error_code=error.error, error_message=error.message) for t in case.request.topics
            ]
        )
    if case.api is ApiKey.CREATE_PARTITIONS:
        item = m.CreatePartitionsResponse.CreatePartitionsTopicResult
        return m.CreatePartitionsResponse(
            results=[item(name=t.name, error_code=error.error) for t in case.request.topics]
        )
    if case.api is ApiKey.DESCRIBE_CLIENT_QUOTAS:
        return m.DescribeClientQuotasResponse(error_code=error.error, entries=None)
    raise error


DIFFERENT = {
    CASES.index(case): why
    for case, why in (
        (
            incremental((2, "plain", [("retention.ms", 0, None)]), (2, "set", [("retention.ms", 9, "5")])),
            (
                "Kafka answers UNKNOWN_SERVER_ERROR to an unknown operation, since it trips over it; we say"
                " INVALID_REQUEST"
            ),
        ),
    )
}


def test_answers_equal_kafkas() -> None:
    cluster = Cluster()
    wrong = []
    for number, (case, expected) in enumerate(zip(CASES, GOLDEN, strict=True)):
        try:
            response = cluster.answer(case)
        except KafkaError as error:
            response = refused(case, error)
        got = json.loads(json.dumps(summary(case.api, response)))
        if (got != expected) != (number in DIFFERENT):
            wrong.append((number, case.api.name, got, expected))
    assert not wrong, "\n".join(f"{n} {api}\n  ours   {got}\n  Kafka's {expected}" for n, api, got, expected in wrong)


# --- several brokers --------------------------------------------------------------------------------------------------


def test_create_spreads_leaders_and_names_directories() -> None:
    cluster = Cluster(3)
    cluster.answer(create(new_topic("t", 6, 3)))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    leaders = [p.leader for p in topic.partitions.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    for partition in topic.partitions.values():
        assert partition.isr == partition.replicas
        assert partition.directories == tuple(DIRECTORY[:15] + bytes([r]) for r in partition.replicas)


def test_fenced_brokers_get_replicas_but_no_isr() -> None:
    cluster = Cluster(2)
    cluster.register(3)
    cluster.answer(create(new_topic("t", 3, 3)))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    for partition in topic.partitions.values():
        assert 3 in partition.replicas and 3 not in partition.isr and partition.leader != 3


def test_all_fenced_is_an_invalid_replication_factor() -> None:
    cluster = Cluster(0)
    cluster.register(1)
    response = cluster.answer(create(new_topic("t")))
    assert response.topics[0].error_code == Err.INVALID_REPLICATION_FACTOR
    response = cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1])])))
    assert response.topics[0].error_code == Err.INVALID_REPLICA_ASSIGNMENT


def test_fencing_moves_leadership_within_the_isr() -> None:
    """M12."""
    cluster = Cluster(3)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2, 3]), (1, [2, 3, 1])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert leaders(cluster) == [(2, 1, (2, 3)), (2, 0, (2, 3))]
    assert cluster.image.brokers[1].fenced
    assert set(cluster.image.broker_partitions) == {2, 3}
    # Coming back does not put it into the ISR: it has to catch up first.
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    assert leaders(cluster) == [(2, 1, (2, 3)), (2, 0, (2, 3))]


def test_the_last_in_sync_replica_keeps_its_place() -> None:
    """Unavailable rather than wrong."""
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert leaders(cluster) == [(-1, 1, (1,))]
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert leaders(cluster) == [(-1, 1, (1,))], "2 is not in sync and must not lead"
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    assert leaders(cluster) == [(1, 2, (1,))]


def test_unclean_election_only_when_asked_and_then_reported() -> None:
    cluster = Cluster(2)
    unclean = [("unclean.leader.election.enable", "true")]
    cluster.answer(create(new_topic("t", -1, -1, unclean, [(0, [1, 2])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert leaders(cluster) == [(2, 2, (2,))]
    topic = cluster.image.topic_named("t")
    assert topic is not None and topic.partitions[0].recovery_state == 1


def test_controlled_shutdown_moves_leaders_first() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2])])))
    cluster.commit(cluster.controller.controlled_shutdown(cluster.image, 1))
    assert cluster.image.brokers[1].in_controlled_shutdown and not cluster.image.brokers[1].fenced
    assert leaders(cluster) == [(2, 1, (2,))]
    response = cluster.answer(create(new_topic("u", 1, 2)))
    assert response.topics[0].error_code == Err.INVALID_REPLICATION_FACTOR


def test_a_replica_on_an_offline_directory_is_not_elected() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2])])))
    cluster.commit([(m.BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=3, log_dirs=[bytes(12) + b"else"]), 2)])
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert leaders(cluster) == [(-1, 1, (2,))]


# --- registration -----------------------------------------------------------------------------------------------------


def test_registration_epochs() -> None:
    cluster = Cluster(0)
    first = cluster.register(1)
    assert first == 1, "the offset at which its records begin"
    assert cluster.register(1) == first, "the same incarnation keeps its epoch"
    again = cluster.register(1, 2)
    assert again > first
    assert cluster.image.brokers[1].fenced


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "other"}, Err.INCONSISTENT_CLUSTER_ID),
        ({"log_dirs": []}, Err.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(16)]}, Err.INVALID_REGISTRATION),
        ({"log_dirs": [b"d" * 16, b"d" * 16]}, Err.INVALID_REGISTRATION),
        ({"log_dirs": [DIRECTORY[:15] + b"\x02"]}, Err.INVALID_REGISTRATION),
        ({"is_migrating_zk_broker": True}, Err.BROKER_ID_NOT_REGISTERED),
        ({"features": []}, Err.INVALID_REGISTRATION),
    ],
)
def test_registrations_that_are_refused(fields: dict[str, Any], error: Err) -> None:
    cluster = Cluster(2)
    request = cluster.request(1, 2)
    for name, value in fields.items():
        setattr(request, name, value)
    with pytest.raises(KafkaError) as refusal:
        cluster.controller.register_broker(cluster.image, request, 9, session_alive=False)
    assert refusal.value.error is error


def test_another_incarnation_waits_for_the_session_to_end() -> None:
    cluster = Cluster(1)
    with pytest.raises(KafkaError) as refusal:
        cluster.register(1, 2, session_alive=True)
    assert refusal.value.error is Err.DUPLICATE_BROKER_REGISTRATION
    cluster.register(1, 1, session_alive=True)


def test_a_broker_that_cannot_read_the_metadata_is_refused() -> None:
    cluster = Cluster(0)
    request = cluster.request(1)
    request.features = [
        m.BrokerRegistrationRequest.Feature(name="metadata.version", min_supported_version=7, max_supported_version=29)
    ]
    with pytest.raises(KafkaError) as refusal:
        cluster.controller.register_broker(cluster.image, request, 0, session_alive=False)
    assert refusal.value.error is Err.UNSUPPORTED_VERSION


def test_unregistering() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [2, 1])])))
    cluster.commit(cluster.controller.unregister_broker(cluster.image, 2))
    assert 2 not in cluster.image.brokers
    assert leaders(cluster) == [(1, 1, (1,))]
    with pytest.raises(KafkaError) as refusal:
        cluster.controller.unregister_broker(cluster.image, 2)
    assert refusal.value.error is Err.BROKER_ID_NOT_REGISTERED


# --- producer ids, deletion, rights -----------------------------------------------------------------------------------


def test_producer_id_blocks_are_never_given_twice() -> None:
    cluster = Cluster(1)
    epoch = cluster.image.brokers[1].epoch
    request = m.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
    starts = []
    for _ in range(3):
        response = cluster.do(cluster.controller.allocate_producer_ids(cluster.image, request))
        assert response.producer_id_len == 1000
        starts.append(response.producer_id_start)
    assert starts == [0, 1000, 2000]
    for broker, wrong in ((1, epoch + 1), (9, epoch)):
        stale = m.AllocateProducerIdsRequest(broker_id=broker, broker_epoch=wrong)
        with pytest.raises(KafkaError) as refusal:
            cluster.controller.allocate_producer_ids(cluster.image, stale)
        assert refusal.value.error is Err.STALE_BROKER_EPOCH
    cluster.commit([(m.ProducerIdsRecord(next_producer_id=(1 << 63) - 5), 0)])
    with pytest.raises(KafkaError):
        cluster.controller.allocate_producer_ids(cluster.image, request)


@pytest.mark.parametrize(("version", "error"), [(2, Err.INVALID_REQUEST), (3, Err.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_switched_off(version: int, error: Err) -> None:
    cluster = Cluster(1, **{"delete.topic.enable": "false"})
    request = m.DeleteTopicsRequest(topic_names=["t"])
    with pytest.raises(KafkaError) as refusal:
        cluster.controller.delete_topics(cluster.image, request, version)
    assert refusal.value.error is error


def test_delete_by_id_and_by_name_of_the_same_topic() -> None:
    cluster = Cluster(1)
    cluster.answer(create(new_topic("t"), new_topic("u")))
    topic_id = cluster.image.topic_ids["t"]
    response = cluster.answer(delete("t", topic_id))
    assert [r.error_code for r in response.responses] == [Err.INVALID_REQUEST]
    assert "t" in cluster.image.topic_ids
    response = cluster.answer(delete(topic_id))
    assert [(r.name, r.error_code) for r in response.responses] == [("t", Err.NONE)]
    assert list(cluster.image.topic_ids) == ["u"]


def test_rights_are_asked_for() -> None:
    cluster = Cluster(1)
    cluster.answer(create(new_topic("seen"), new_topic("hidden")))
    hidden_id = cluster.image.topic_ids["hidden"]
    request = delete("seen", "hidden", "missing").request
    outcome = cluster.controller.delete_topics(
        cluster.image, request, 6, describable=lambda n: n == "seen", deletable=lambda n: False
    )
    assert outcome.records == []
    assert {r.error_code for r in outcome.response.responses} == {Err.TOPIC_AUTHORIZATION_FAILED}
    by_id = cluster.controller.delete_topics(
        cluster.image, delete(hidden_id).request, 6, describable=lambda n: False, deletable=lambda n: False
    )
    assert by_id.response.responses[0].name is None, "the name of a hidden topic is not told"
    created = cluster.controller.create_topics(cluster.image, create(new_topic("x")).request, lambda n: False)
    assert created.response.topics[0].topic_config_error_code == Err.TOPIC_AUTHORIZATION_FAILED
    assert not created.response.topics[0].configs
    grown = cluster.controller.create_partitions(cluster.image, more(("seen", 9, None)).request, lambda n: False)
    assert grown.response.results[0].error_code == Err.TOPIC_AUTHORIZATION_FAILED


def test_dynamic_defaults_reach_new_topics() -> None:
    """What the cluster has changed while running is what a new topic answers with."""
    cluster = Cluster(1)
    cluster.answer(incremental((4, "", [("log.retention.ms", 0, "424242")])))
    response = cluster.answer(create(new_topic("t")))
    found = {c.name: (c.value, c.config_source) for c in response.topics[0].configs}
    assert found["retention.ms"] == ("424242", 3)


# --- elections --------------------------------------------------------------------------------------------------------


def elect(cluster: Cluster, kind: int, topics: list[tuple[str, list[int]]] | None) -> list[tuple[str, int, int]]:
    request = m.ElectLeadersRequest(
        election_type=kind,
        topic_partitions=(
            None
            if topics is None
            else [m.ElectLeadersRequest.TopicPartitions(topic=t, partitions=p) for t, p in topics]
        ),
    )
    response = cluster.do(cluster.controller.elect_leaders(cluster.image, request))
    return [
        (topic.topic, result.partition_id, result.error_code)
        for topic in response.replica_election_results
        for result in topic.partition_result
    ]


def test_preferred_leaders_are_elected_once_they_are_back_in_sync() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2]), (1, [2, 1])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert elect(cluster, 0, [("t", [0, 1, 7]), ("no", [0])]) == [
        ("t", 0, Err.PREFERRED_LEADER_NOT_AVAILABLE),
        ("t", 1, Err.ELECTION_NOT_NEEDED),
        ("t", 7, Err.UNKNOWN_TOPIC_OR_PARTITION),
        ("no", 0, Err.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    topic_id = cluster.image.topic_ids["t"]
    cluster.commit([(m.PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[2, 1]), 2)])
    assert elect(cluster, 0, None) == [("t", 0, Err.NONE)]
    assert leaders(cluster)[0][0] == 1
    with pytest.raises(KafkaError):
        elect(cluster, 5, None)


def test_unclean_election_by_request() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert elect(cluster, 1, [("t", [0])]) == [("t", 0, Err.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert elect(cluster, 1, [("t", [0])]) == [("t", 0, Err.NONE)]
    assert leaders(cluster)[0][0] == 2
    assert elect(cluster, 1, [("t", [0])]) == [("t", 0, Err.ELECTION_NOT_NEEDED)]


def many_topics(count: int) -> m.CreateTopicsRequest:
    kind = m.CreateTopicsRequest
    topics = [kind.CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1) for number in range(count)]
    return kind(topics=topics, timeout_ms=1000, validate_only=True)


def test_options_that_many_topics_share_are_described_once() -> None:
    cluster = Cluster(3)
    found = cluster.controller.create_topics(cluster.image, many_topics(50)).response.topics
    assert len(found) == 50 and len(found[0].configs or ()) > 20
    assert all(topic.configs is found[0].configs for topic in found)


def test_a_request_for_too_many_topics_is_refused_before_anything_is_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(3)
    monkeypatch.setattr("headrace.metadata.topics._create_topic", lambda *_: pytest.fail("worked out"))
    with pytest.raises(KafkaError) as refused:
        cluster.controller.create_topics(cluster.image, many_topics(10_001))
    assert refused.value.error is Err.POLICY_VIOLATION
