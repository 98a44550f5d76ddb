"""A cluster whose metadata moves to the other quorum: what clients can ask for before and after."""

from pathlib import Path
from typing import NamedTuple

import confluent_kafka as confluent

from headrace.client.admin.admin import Resource
from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK
from tests.librdkafka import STEADY

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 3
SOME = 150
SETTINGS = {**QUICK, "transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "3"}


class State(NamedTuple):
    """What clients can ask for."""

    cluster_id: str
    topic_ids: dict[str, bytes]
    replicas: dict[tuple[str, int], tuple[int, ...]]
    leader_epochs: dict[tuple[str, int], int]
    option: str
    committed: list[tuple[int, int]]
    quorum_epoch: int


def state(cluster: TestCluster) -> State:
    cluster.wait_in_sync()
    topics = {name: cluster.topic(name) for name in (TOPIC, "__consumer_offsets")}
    places = {(name, n): p for name, topic in topics.items() for n, p in topic.partitions.items()}
    (option,) = cluster.ask(lambda admin: admin.describe_configs(Resource.TOPIC, TOPIC, ["retention.ms"]))
    return State(
        cluster.cluster_id,
        {name: topic.topic_id for name, topic in topics.items()},
        {place: tuple(p.replicas) for place, p in places.items()},
        {place: p.leader_epoch for place, p in places.items()},
        option.value,
        committed(cluster.bootstrap),
        cluster.quorum().leader_epoch,
    )


def member(bootstrap: str) -> confluent.Consumer:
    return confluent.Consumer(
        {**STEADY, "bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False}
    )


def commit(bootstrap: str, offset: int) -> None:
    consumer = member(bootstrap)
    places = [confluent.TopicPartition(TOPIC, n, offset + n) for n in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(bootstrap: str) -> list[tuple[int, int]]:
    consumer = member(bootstrap)
    found = consumer.committed([confluent.TopicPartition(TOPIC, n) for n in range(PARTITIONS)], timeout=30)
    consumer.close()
    return [(one.partition, one.offset) for one in found]


def assert_same_cluster(before: State, after: State) -> None:
    same = after._replace(leader_epochs=before.leader_epochs, quorum_epoch=before.quorum_epoch)
    assert same == before
    for place, epoch in before.leader_epochs.items():
        assert after.leader_epochs[place] >= epoch, f"the leader epoch of {place} went back"
    assert after.quorum_epoch > before.quorum_epoch


def migrate(folder: Path, to: str, *more: str, code: int = 0) -> str:
    return headrace("cluster", "migrate", "--to", to, "--data", str(folder), *more, code=code)
