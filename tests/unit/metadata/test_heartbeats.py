"""What heartbeats change: fencing, unfencing, controlled shutdown, lost log dirs."""

from typing import Any

import pytest

from headrace.errors import Err, KafkaError
from headrace.metadata.heartbeats import BrokerState
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from tests.unit.metadata.cases import create, features, incremental, new_topic
from tests.unit.metadata.paper_cluster import DIRECTORY, Cluster, beat, leaders


def test_a_broker_is_unfenced_once_it_has_read_its_own_registration() -> None:
    cluster = Cluster(1)
    epoch = cluster.register(2)
    assert beat(cluster, 2, want_fence=True) is BrokerState.FENCED
    assert beat(cluster, 2, offset=epoch - 1) is BrokerState.FENCED
    assert cluster.image.brokers[2].fenced
    assert beat(cluster, 2, offset=epoch) is BrokerState.UNFENCED
    assert not cluster.image.brokers[2].fenced


def test_the_epoch_is_where_the_registration_stands_behind_what_it_means_for_partitions() -> None:
    """Else one that has read half of it would be unfenced without knowing that it is registered."""
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(n, [2, 1]) for n in range(3)])))
    asked = cluster.request(2, incarnation=2)
    records, epoch = cluster.controller.register_broker(cluster.image, asked, cluster.offset, session_alive=False)
    assert isinstance(records[epoch - cluster.offset][0], m.RegisterBrokerRecord) and epoch == cluster.offset + 3


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    cluster = Cluster(2)
    before = cluster.offset
    assert beat(cluster, 1) is BrokerState.UNFENCED
    assert cluster.offset == before


def test_unfencing_gives_leaders_to_partitions_that_wait() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [2])])))
    assert beat(cluster, 2, want_fence=True) is BrokerState.FENCED
    assert leaders(cluster) == [(-1, 1, (2,))]
    assert beat(cluster, 2) is BrokerState.UNFENCED
    assert leaders(cluster) == [(2, 2, (2,))]


def test_a_controlled_shutdown_in_its_steps() -> None:
    cluster = Cluster(3)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2, 3])])))
    assert beat(cluster, 1, want_shut_down=True) is BrokerState.CONTROLLED_SHUTDOWN
    assert leaders(cluster) == [(2, 1, (2, 3))], "leadership moves while the broker still answers"
    registered = cluster.image.brokers[1]
    assert registered.in_controlled_shutdown and not registered.fenced
    # Others still send it requests until they have read that it leads no more.
    assert beat(cluster, 1, others_know=False, want_shut_down=True) is BrokerState.CONTROLLED_SHUTDOWN
    assert beat(cluster, 1, want_shut_down=True) is BrokerState.SHUTDOWN_NOW
    assert cluster.image.brokers[1].fenced


def test_a_broker_without_leadership_may_go_at_once() -> None:
    cluster = Cluster(2)
    assert beat(cluster, 1, want_shut_down=True) is BrokerState.SHUTDOWN_NOW
    assert cluster.image.brokers[1].fenced
    before = cluster.offset
    assert beat(cluster, 1, want_shut_down=True) is BrokerState.SHUTDOWN_NOW
    assert cluster.offset == before, "it is fenced already"


@pytest.mark.parametrize("epoch", [0, 99])
def test_another_incarnation_is_not_listened_to(epoch: int) -> None:
    cluster = Cluster(1)
    with pytest.raises(KafkaError) as refused:
        beat(cluster, 1, epoch=epoch)
    assert refused.value.error is Err.STALE_BROKER_EPOCH


def test_a_lost_log_dir_moves_only_the_partitions_in_it() -> None:
    cluster = Cluster(2)
    one, two = DIRECTORY[:15] + b"\xa1", DIRECTORY[:15] + b"\xa2"
    cluster.register(3, log_dirs=[one, two])
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 3))
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [3, 1]), (1, [3, 2])])))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    kind = m.AssignReplicasToDirsRequest
    request = kind(
        broker_id=3,
        broker_epoch=cluster.image.brokers[3].epoch,
        directories=[
            kind.DirectoryData(
                id=directory,
                topics=[kind.TopicData(topic_id=topic.id, partitions=[kind.PartitionData(partition_index=number)])],
            )
            for number, directory in enumerate((one, two))
        ],
    )
    answer = cluster.do(cluster.controller.assign_replicas(cluster.image, request))
    assert [row.error_code for d in answer.directories for t in d.topics for row in t.partitions] == [0, 0]
    assert beat(cluster, 3, offline_log_dirs=[one]) is BrokerState.UNFENCED
    assert leaders(cluster) == [(1, 1, (1,)), (3, 0, (3, 2))]
    assert cluster.image.brokers[3].log_dirs == (two,)
    before = cluster.offset
    beat(cluster, 3, offline_log_dirs=[one])
    assert cluster.offset == before, "told again, nothing changes again"


def test_directories_of_strange_partitions_are_answered_one_by_one() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1])])))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    kind = m.AssignReplicasToDirsRequest
    request = kind(
        broker_id=2,
        broker_epoch=cluster.image.brokers[2].epoch,
        directories=[
            kind.DirectoryData(
                id=DIRECTORY,
                topics=[
                    kind.TopicData(topic_id=topic_id, partitions=[kind.PartitionData(partition_index=number)])
                    for topic_id, number in ((topic.id, 0), (topic.id, 5), (bytes(15) + b"x", 0))
                ],
            )
        ],
    )
    answer = cluster.do(cluster.controller.assign_replicas(cluster.image, request))
    assert [row.error_code for t in answer.directories[0].topics for row in t.partitions] == [
        Err.NOT_LEADER_OR_FOLLOWER,
        Err.UNKNOWN_TOPIC_OR_PARTITION,
        Err.UNKNOWN_TOPIC_ID,
    ]


def test_a_broker_that_wants_no_new_replicas_gets_none() -> None:
    cluster = Cluster(2)
    beat(cluster, 2, cordoned_log_dirs=list(cluster.image.brokers[2].log_dirs))
    response = cluster.answer(create(new_topic("t", 4, 1)))
    assert response.topics[0].error_code == 0
    assert {leader for leader, _, _ in leaders(cluster)} == {1}


def test_eligible_leaders_are_kept_while_the_isr_is_below_its_minimum() -> None:
    """KIP-966: the last in sync may die; who left before it with everything committed may lead."""
    cluster = Cluster(3)
    cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", "2")], [(0, [1, 2, 3])])))
    for broker in (3, 2, 1):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    partition = topic.partitions[0]
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), (1, 2)), "3 left while two were in sync"
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 3))
    assert leaders(cluster)[0][0] == -1, "3 may lack what was committed after it left"
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert leaders(cluster)[0][0] == 2
    partition = cluster.image.topics[topic.id].partitions[0]
    assert partition.recovery_state == 0, "nothing was lost"


def test_eligible_leaders_need_one_minimum_and_forget_when_it_changes() -> None:
    cluster = Cluster(3)
    cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", "2")], [(0, [1, 2, 3])])))
    cluster.answer(incremental((4, "1", [("min.insync.replicas", 0, "3")])))
    assert cluster.answer(features((ELR_VERSION, 1, 1))).error_code == 0
    assert cluster.image.config(4, "") == {"min.insync.replicas": "1"} and not cluster.image.config(4, "1")
    for broker in (3, 2):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    topic = cluster.image.topic_named("t")
    assert topic is not None and topic.partitions[0].elr == (2,)
    assert cluster.answer(incremental((2, "t", [("min.insync.replicas", 0, "1")]))).responses[0].error_code == 0
    assert cluster.image.topics[topic.id].partitions[0].elr == ()


@pytest.mark.parametrize("leads", [True, False])
def test_who_was_eligible_before_that_was_switched_off_is_so_only_if_nobody_has_led_since(leads: bool) -> None:
    """While it is off, a leader commits alone what the others never get."""
    cluster = Cluster(3)
    cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", "2")], [(0, [1, 2, 3])])))
    for broker in (3, 2) if leads else (3, 2, 1):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    assert cluster.answer(features((ELR_VERSION, 0, 2))).error_code == 0
    cluster.commit(
        cluster.controller.unfence_broker(cluster.image, 3)
    )  # it left while two were in sync, and may lack something
    assert leaders(cluster)[0][0] == (1 if leads else -1)
    assert cluster.answer(features((ELR_VERSION, 1, 1))).error_code == 0
    if leads:
        cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert leaders(cluster)[0][0] == (-1 if leads else 2)
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    assert leaders(cluster)[0][0] == (1 if leads else 2)


def test_nobody_is_elected_for_having_been_eligible_while_that_is_switched_off() -> None:
    cluster = Cluster(2)
    cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", "2")], [(0, [1, 2])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    assert cluster.answer(features((ELR_VERSION, 0, 2))).error_code == 0
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert leaders(cluster) == [(-1, 1, (1,))], "1 may have committed alone"
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    assert leaders(cluster) == [(1, 2, (1,))]


@pytest.mark.parametrize("whole", [False, True])
def test_a_single_replica_that_was_killed_leads_again(whole: bool) -> None:
    """The records that Apache Kafka 4.3.1 writes for its only broker after kill -9; and of one that vouches for its
    log."""
    cluster = Cluster(1)
    cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1])])))
    epoch = cluster.image.brokers[1].epoch
    fenced = cluster.controller.fence_broker(cluster.image, 1)
    cluster.commit(fenced)
    again = cluster.request(1, incarnation=2, previous_broker_epoch=epoch if whole else -1)
    registered = cluster.controller.register_broker(cluster.image, again, cluster.offset, session_alive=False).records
    cluster.commit(registered)
    unfenced = cluster.controller.unfence_broker(cluster.image, 1)
    names = ("isr", "leader", "eligible_leader_replicas", "last_known_elr", "leader_recovery_state")

    def change(records: list[Any]) -> tuple[Any, ...] | None:
        found = [record for record, _ in records if isinstance(record, m.PartitionChangeRecord)]
        return tuple(getattr(found[0], name) for name in names) if found else None

    assert change(fenced) == ([], -1, [1], [1], -1)
    assert change(registered) == (None if whole else (None, -2, [], None, -1))
    assert change(unfenced) == ([1], 1, [] if whole else None, [], -1 if whole else 1)
