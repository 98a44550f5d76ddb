"""What touches very many partitions is written in several batches, and a controller may die between any two of them.

Every such change is cut after each of its records. Then a new controller begins, and those concerned go on as they
would: they ask again, fall silent, or have changed their minds. In the end nobody leads who cannot, and whoever can
does.
"""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from headrace.errors import KafkaError
from headrace.metadata.image import NO_LEADER, Broker, Partition
from headrace.metadata.records import Record
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from tests.unit.metadata.cases import create, new_topic
from tests.unit.metadata.paper_cluster import DIRECTORY, Cluster, beat

SUBJECT = 3
"""The broker that comes or goes."""
ABSENT = 4
"""One that is fenced all the time, so that some partitions depend on the subject alone."""
DIRECTORIES = [DIRECTORY[:15] + bytes([SUBJECT]), DIRECTORY[:14] + b"xy"]

Step = Callable[[Cluster], object]


def cluster_before(elr: bool) -> Cluster:
    cluster = Cluster(4)
    if elr:
        cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.register(SUBJECT, incarnation=2, log_dirs=DIRECTORIES)
    cluster.commit(cluster.controller.unfence_broker(cluster.image, SUBJECT))
    for count in (1, 2, 3):
        replicas = [(n, list(ids)) for n, ids in enumerate(permutations((1, SUBJECT, ABSENT), count))]
        topic = new_topic(f"t{count}", -1, -1, [("min.insync.replicas", "2")], replicas)
        assert cluster.answer(create(topic)).topics[0].error_code == 0
    for topic_id, topic in cluster.image.topics.items():
        for number, partition in topic.partitions.items():
            if SUBJECT in partition.replicas:
                assigned = list(partition.directories)
                assigned[partition.replicas.index(SUBJECT)] = DIRECTORIES[number % 2]
                cluster.commit([
                    (m.PartitionChangeRecord(topic_id=topic_id, partition_id=number, directories=assigned), 2)
                ])  # fmt: skip
    cluster.commit(cluster.controller.fence_broker(cluster.image, ABSENT))
    return cluster


def request(cluster: Cluster, **fields: Any) -> list[Record]:
    broker = cluster.image.brokers[SUBJECT]
    asked = m.BrokerHeartbeatRequest(
        broker_id=SUBJECT, broker_epoch=broker.epoch, current_metadata_offset=cluster.image.offset, **fields
    )
    return cluster.controller.heartbeat(cluster.image, asked, lambda: True).records


def fenced(cluster: Cluster) -> None:
    """What the end of its session, or a closed port, leads to."""
    if SUBJECT in cluster.image.brokers and not cluster.image.brokers[SUBJECT].fenced:
        cluster.commit(cluster.controller.fence_broker(cluster.image, SUBJECT))


def alive(cluster: Cluster) -> None:
    if SUBJECT in cluster.image.brokers:
        beat(cluster, SUBJECT)


def leaves(cluster: Cluster) -> None:
    for _ in range(3):
        beat(cluster, SUBJECT, want_shut_down=True)
    assert cluster.image.brokers[SUBJECT].fenced, "it is let go"


def unregister(cluster: Cluster) -> list[Record]:
    return cluster.controller.unregister_broker(cluster.image, SUBJECT)


def unregistered(cluster: Cluster) -> None:
    try:
        cluster.commit(unregister(cluster))
    except KafkaError:
        assert SUBJECT not in cluster.image.brokers


def register(cluster: Cluster, clean: bool) -> list[Record]:
    previous = cluster.image.brokers[SUBJECT].epoch if clean else -1
    asked = cluster.request(SUBJECT, incarnation=9, log_dirs=DIRECTORIES, previous_broker_epoch=previous)
    return cluster.controller.register_broker(cluster.image, asked, cluster.offset, session_alive=False).records


def starts(cluster: Cluster) -> None:
    cluster.commit(register(cluster, clean=False))
    alive(cluster)


def without_a_directory(cluster: Cluster) -> None:
    for _ in range(2):
        beat(cluster, SUBJECT, offline_log_dirs=DIRECTORIES[:1])


CHANGES: dict[str, tuple[Step, Callable[[Cluster], list[Record]], dict[str, Step]]] = {
    "fence": (alive, lambda c: c.controller.fence_broker(c.image, SUBJECT), {"silent": fenced, "back": alive}),
    "unfence": (fenced, lambda c: request(c, want_fence=False), {"silent": fenced, "alive": alive}),
    "want fence": (alive, lambda c: request(c, want_fence=True), {"alive": alive, "silent": fenced}),
    "shutdown": (alive, lambda c: request(c, want_fence=False, want_shut_down=True), {"again": leaves,
    "silent": fenced}),
    "unregister": (alive, unregister, {"again": unregistered, "forgotten": alive, "silent": fenced}),
    "register, killed": (alive, lambda c: register(c, clean=False), {"again": starts, "silent": fenced}),
    "register, stopped": (alive, lambda c: register(c, clean=True), {"again": starts, "silent": fenced}),
    "lost directory": (
        alive,
        lambda c: request(c, want_fence=False, offline_log_dirs=DIRECTORIES[:1]),
        {"again": without_a_directory, "silent": fenced},
    ),
}  # fmt: skip


def assert_led(cluster: Cluster) -> None:
    for topic in cluster.image.topics.values():
        for p in topic.partitions.values():
            if p.leader != NO_LEADER:
                assert can_serve(cluster, p, p.leader), f"led by one that cannot: {p}"
            else:
                assert not any(can_serve(cluster, p, replica) for replica in p.isr or p.elr), (
                    f"could have a leader: {p}"
                )


def can_serve(cluster: Cluster, partition: Partition, replica: int) -> bool:
    broker: Broker | None = cluster.image.brokers.get(replica)
    return broker is not None and broker.active and broker.has_online_directory(partition.directory_of(replica))


@pytest.mark.parametrize("elr", [False, True], ids=["isr", "elr"])
@pytest.mark.parametrize(("change", "then"), [(c, t) for c, (_, _, thens) in CHANGES.items() for t in thens])
def test_the_next_controller_finishes_what_the_last_one_began(change: str, then: str, elr: bool) -> None:
    before, decide, thens = CHANGES[change]
    cut, count = 0, 1
    while cut <= count:
        cluster = cluster_before(elr)
        before(cluster)
        records = decide(cluster)
        count = len(records)
        assert count > 2, "nothing to cut"
        cluster.commit(records[:cut])
        cluster.commit(cluster.controller.elect_leaderless(cluster.image))
        thens[then](cluster)
        assert_led(cluster)
        cut += 1
