"""Nodes lost, frozen, restarted and wiped under load: nothing acknowledged is lost or doubled, nothing uncommitted is
read."""

import time
from typing import Any

import confluent_kafka as confluent
import pytest

from headrace.client.admin.operations import Operations
from headrace.testing.cluster import TestCluster
from tests.cluster.history import (
    WRITERS,
    AiokafkaWriter,
    ConfluentWriter,
    Reader,
    assert_replicas_identical,
    judge,
    read_log,
)
from tests.librdkafka import STEADY

PARTITIONS = 2
SOME = 150
"""Records that show that writing goes on."""


@pytest.mark.parametrize("library", WRITERS)
def test_kill_9_of_the_leader_under_load(cluster: TestCluster, library: str) -> None:
    topic = f"kill-{library}"
    cluster.create_topic(topic, PARTITIONS, 3)
    with (
        Reader(cluster.bootstrap, topic, PARTITIONS) as reader,
        WRITERS[library](cluster.bootstrap, topic, PARTITIONS, "a") as writer,
    ):
        writer.wait_acked(SOME)
        victim = cluster.leader_of(topic)
        cluster.kill(victim)
        writer.wait_acked(SOME)
        assert cluster.leader_of(topic, other_than=victim) != victim
        cluster.start(victim)
        cluster.wait_in_sync(topic)
        writer.wait_acked(SOME)
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, topic), writer.book, reader=reader)
    assert_replicas_identical(cluster, topic)


def test_kill_9_of_the_controller_under_load(cluster: TestCluster) -> None:
    cluster.create_topic("controller", PARTITIONS, 3)
    with ConfluentWriter(cluster.bootstrap, "controller", PARTITIONS) as writer:
        writer.wait_acked(SOME)
        victim, epoch = cluster.quorum_leader(), cluster.quorum().leader_epoch
        cluster.kill(victim)
        assert cluster.quorum_leader(other_than=victim) != victim
        assert cluster.quorum().leader_epoch > epoch
        # The new one decides: topics can be made, and by a broker that has to forward.
        cluster.ask(lambda admin: admin.create_topic("after-controller", 3, 2))
        writer.wait_acked(SOME)
        cluster.start(victim)
        cluster.wait_in_sync()
        writer.stop()
    judge(read_log(cluster.bootstrap, "controller"), writer.book)
    assert_replicas_identical(cluster, "controller")


def test_a_frozen_leader_is_replaced_and_follows_when_it_wakes(cluster: TestCluster) -> None:
    cluster.create_topic("frozen", 1, 3)
    # A client waits half a minute for an answer to what it sent; from a frozen broker none comes.
    patience: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000}
    with (
        Reader(cluster.bootstrap, "frozen", 1) as reader,
        ConfluentWriter(cluster.bootstrap, "frozen", 1, **patience) as writer,
    ):
        writer.wait_acked(SOME)
        victim = cluster.leader_of("frozen")
        cluster.freeze(victim)
        # Writers go on once the frozen leader's session is over and another one leads.
        writer.wait_acked(SOME)
        cluster.thaw(victim)
        cluster.wait_isr("frozen", 0, [1, 2, 3])
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, "frozen"), writer.book, reader=reader)
    assert_replicas_identical(cluster, "frozen")


def test_a_rolling_restart_shows_no_error_to_any_client(cluster: TestCluster) -> None:
    cluster.create_topic("rolling", PARTITIONS, 3)
    with (
        Reader(cluster.bootstrap, "rolling", PARTITIONS) as reader,
        ConfluentWriter(cluster.bootstrap, "rolling", PARTITIONS, "c") as one,
        AiokafkaWriter(cluster.bootstrap, "rolling", PARTITIONS, "a") as other,
    ):
        for node in list(cluster.nodes):
            one.wait_acked(50)
            other.wait_acked(50)
            cluster.restart(node)
            cluster.wait_in_sync()
        one.stop()
        other.stop()
        reader.wait_for(lambda: set(one.book.acked) | set(other.book.acked))
    judge(read_log(cluster.bootstrap, "rolling"), one.book, other.book, reader=reader)
    assert_replicas_identical(cluster, "rolling")


def test_a_wiped_disk_is_filled_again_and_has_no_vote(cluster: TestCluster) -> None:
    cluster.create_topic("wiped", 1, 3)
    with ConfluentWriter(cluster.bootstrap, "wiped", 1) as writer:
        writer.wait_acked(SOME)
        victim = next(
            node for node in cluster.nodes if node not in (cluster.leader_of("wiped"), cluster.quorum_leader())
        )
        before = {voter.node_id: voter.directory_id for voter in cluster.quorum().voters}
        cluster.kill(victim)
        cluster.wipe(victim)
        cluster.start(victim)
        cluster.wait_in_sync("wiped")
        writer.stop()
    judge(read_log(cluster.bootstrap, "wiped"), writer.book)
    assert_replicas_identical(cluster, "wiped")
    quorum = cluster.quorum()
    assert {voter.node_id: voter.directory_id for voter in quorum.voters} == before
    (observer,) = [o for o in quorum.observers if o.node_id == victim]
    assert observer.directory_id != before[victim], "the new disk is not the voter that the old one was"
    # The way back: the lost voter goes, the new one is added.
    node = cluster[victim].node
    cluster.ask(lambda admin: Operations(admin).remove_voter(victim, before[victim]))
    cluster.ask(
        lambda admin: Operations(admin).add_voter(
            victim, observer.directory_id, ("CONTROLLER", "127.0.0.1", node.controller_port)
        )
    )
    assert {v.node_id: v.directory_id for v in cluster.quorum().voters} == {**before, victim: observer.directory_id}


def test_a_slow_follower_leaves_the_in_sync_replicas_and_comes_back(cluster: TestCluster) -> None:
    cluster.create_topic("slow", 1, 3)
    with ConfluentWriter(cluster.bootstrap, "slow", 1) as writer:
        writer.wait_acked(50)
        leader = cluster.leader_of("slow")
        slow = next(node for node in cluster.nodes if node not in (leader, cluster.quorum_leader()))
        cluster.freeze(slow)
        cluster.wait_isr("slow", 0, set(cluster.nodes) - {slow})
        writer.wait_acked(SOME)
        cluster.thaw(slow)
        cluster.wait_isr("slow", 0, set(cluster.nodes))
        writer.stop()
    judge(read_log(cluster.bootstrap, "slow"), writer.book)
    assert_replicas_identical(cluster, "slow")


def test_two_leaders_lost_one_after_the_other(cluster: TestCluster) -> None:
    cluster.create_topic("twice", 1, 3)
    with Reader(cluster.bootstrap, "twice", 1) as reader, ConfluentWriter(cluster.bootstrap, "twice", 1) as writer:
        for _ in range(2):
            writer.wait_acked(50)
            victim = cluster.leader_of("twice")
            cluster.kill(victim)
            cluster.leader_of("twice", other_than=victim)
            cluster.start(victim)
            cluster.wait_in_sync("twice")
        writer.wait_acked(50)
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, "twice"), writer.book, reader=reader)
    assert_replicas_identical(cluster, "twice")


def test_a_group_keeps_its_offsets_when_its_coordinator_dies(cluster: TestCluster) -> None:
    cluster.create_topic("grouped", 1, 3)
    producer = confluent.Producer({**STEADY, "bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in range(100):
        producer.produce("grouped", b"%d" % number)
    assert producer.flush(30) == 0
    settings = {
        **STEADY, "bootstrap.servers": cluster.bootstrap, "group.id": "survivors", "auto.offset.reset": "earliest",
        "log_level": 0,
        "enable.auto.commit": False, "session.timeout.ms": 30_000,
    }  # fmt: skip
    consumer = confluent.Consumer(settings)
    try:
        consumer.subscribe(["grouped"])
        seen = _take(consumer, 60)
        consumer.commit(asynchronous=False)
        cluster.kill(_coordinator(cluster, "survivors"))
        seen += _take(consumer, 40)
        _commit(consumer)
        assert seen == [b"%d" % number for number in range(100)]
        (found,) = consumer.committed([confluent.TopicPartition("grouped", 0)], timeout=30)
        assert found.offset == 100
    finally:
        consumer.close()


def _take(consumer: confluent.Consumer, count: int) -> list[bytes]:
    deadline = time.monotonic() + 60
    found: list[bytes] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append(message.value())
    return found


def _commit(consumer: confluent.Consumer) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            consumer.commit(asynchronous=False)
            return
        except confluent.KafkaException as error:
            assert error.args[0].retriable() and time.monotonic() < deadline, error
            time.sleep(0.2)


def _coordinator(cluster: TestCluster, group: str) -> int:
    from headrace.client.admin.groups import Groups

    found: int = cluster.ask(lambda admin: Groups(admin).coordinator(group))
    return found
