"""The kit's faults on a cluster of three: leaders that move, nodes that refuse, time that passes for all."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import confluent_kafka as confluent
import pytest

from headrace.testing.cluster import TestCluster
from tests.librdkafka import STEADY
from tests.waiting import eventually

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with TestCluster(3, settings={"offsets.topic.num.partitions": "1"}) as running:
        yield running


def test_a_producer_follows_a_leader_that_moves(cluster: TestCluster) -> None:
    cluster.create_topic("moving")
    before = cluster.leader_of("moving")
    producer = confluent.Producer({**STEADY, "bootstrap.servers": cluster.bootstrap, "retry.backoff.ms": 20})
    told: list[Any] = []

    def send(value: bytes) -> None:
        producer.produce("moving", value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(PATIENCE_S) == 0

    send(b"before")
    after = cluster.move_leader("moving")
    assert after != before and cluster.leader_of("moving") == after
    send(b"after")
    assert cluster.move_leader("moving", to=before) == before
    send(b"back")
    assert told == [None] * 3
    assert [record.value for record in cluster.consume("moving", 3)] == [b"before", b"after", b"back"]


def test_a_fault_of_one_node_and_of_followers(cluster: TestCluster) -> None:
    cluster.create_topic("followed")
    leader = cluster.leader_of("followed")
    fault = cluster.inject(
        "Fetch", node=leader, drop="before", times=3, between_brokers=True, client_id="broker-*-fetcher"
    )
    cluster.produce("followed", b"a")
    eventually(lambda: fault.hits == 3, "followers meet it", PATIENCE_S)
    cluster.wait_in_sync("followed")
    assert [record.value for record in cluster.consume("followed", 1)] == [b"a"]


def test_clients_faults_leave_replication_alone(cluster: TestCluster) -> None:
    cluster.create_topic("replicated")
    with cluster.inject("Fetch", error="UNKNOWN_SERVER_ERROR", times=None) as fault:
        cluster.produce("replicated", b"a")  # acknowledged by all in-sync replicas, which fetch it
        assert fault.hits == 0


def test_time_passes_for_all_nodes_and_upsets_none(cluster: TestCluster) -> None:
    cluster.create_topic("aged")
    cluster.produce("aged", b"old")
    quorum = cluster.quorum()
    cluster.advance(timedelta(days=8))
    eventually(lambda: cluster.consume("aged") == [], "retention deletes it", PATIENCE_S)
    after = cluster.quorum()
    assert (after.leader_id, after.leader_epoch) == (quorum.leader_id, quorum.leader_epoch)
    assert set(cluster.partition("aged").isr) == {1, 2, 3}
    cluster.produce("aged", b"new")
