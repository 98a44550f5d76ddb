"""Moving partitions from broker to broker (M26), and leadership back to where it belongs."""

from typing import Any

import pytest

from headrace.errors import Err
from headrace.metadata.image import Partition
from headrace.metadata.reassignment import list_reassignments
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from tests.unit.metadata.cases import create, new_topic
from tests.unit.metadata.paper_cluster import Cluster, alter, leaders, move, the_partition


def moving(cluster: Cluster, topics: Any = None) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    answer = list_reassignments(cluster.image, m.ListPartitionReassignmentsRequest(topics=topics))
    return {
        (topic.name, row.partition_index): (row.adding_replicas, row.removing_replicas)
        for topic in answer.topics
        for row in topic.partitions
    }


def replicas(cluster: Cluster) -> tuple[int, ...]:
    return the_partition(cluster).replicas


def cluster_of_four() -> Cluster:
    cluster = Cluster(4)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2])]), new_topic("u", -1, -1, (), [(0, [1, 2])])))
    return cluster


def test_a_move_adds_first_and_removes_once_all_new_replicas_are_in_sync() -> None:
    cluster = cluster_of_four()
    assert move(cluster, [3, 4]) == 0
    assert replicas(cluster) == (3, 4, 1, 2)
    assert moving(cluster) == {("t", 0): ([3, 4], [1, 2])}
    assert alter(cluster, [1, 2, 3]).error_code == 0
    assert replicas(cluster) == (3, 4, 1, 2), "4 is not in sync yet"
    # The leader is one of those that leave: it is told that another leads now.
    assert alter(cluster, [1, 2, 3, 4]).error_code == Err.NEW_LEADER_ELECTED
    assert replicas(cluster) == (3, 4) and leaders(cluster) == [(3, 1, (3, 4))]
    assert moving(cluster) == {} and not cluster.image.reassigning


def test_a_move_that_keeps_the_leader_goes_on_in_a_new_epoch() -> None:
    """A replica that was removed must not go on as if it still belonged."""
    cluster = cluster_of_four()
    assert move(cluster, [1, 3]) == 0
    answer = alter(cluster, [1, 2, 3])
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 1, 1)
    assert replicas(cluster) == (1, 3) and the_partition(cluster).isr == (1, 3)


def test_putting_replicas_in_another_order_is_done_at_once() -> None:
    cluster = cluster_of_four()
    assert move(cluster, [2, 1]) == 0
    assert replicas(cluster) == (2, 1) and moving(cluster) == {}
    assert list(cluster.image.imbalanced) == [(the_topic(cluster), 0)]


def the_topic(cluster: Cluster) -> bytes:
    topic = cluster.image.topic_named("t")
    assert topic is not None
    return topic.id


def test_a_move_can_be_taken_back() -> None:
    cluster = cluster_of_four()
    move(cluster, [3, 4])
    alter(cluster, [1, 2, 3])
    assert move(cluster, None) == 0
    assert replicas(cluster) == (1, 2) and the_partition(cluster).isr == (1, 2) and moving(cluster) == {}
    assert move(cluster, None) == Err.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("all_in_sync", [True, False])
def test_a_move_is_taken_back_by_naming_the_old_replicas(all_in_sync: bool) -> None:
    """Apache Kafka 4.3.1 waits forever for a replica to be in sync that it has just been told to remove."""
    cluster = cluster_of_four()
    move(cluster, [1, 3])
    if not all_in_sync:
        cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    assert move(cluster, [1, 2]) == 0
    if not all_in_sync:
        assert moving(cluster) == {("t", 0): ([], [3])}
        cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
        assert alter(cluster, [1, 2]).error_code == 0
    assert replicas(cluster) == (1, 2) and the_partition(cluster).isr == (1, 2) and moving(cluster) == {}


def test_a_move_to_all_replicas_keeps_those_that_were_to_go() -> None:
    cluster = cluster_of_four()
    move(cluster, [1, 3])
    assert move(cluster, [1, 3, 2]) == 0
    assert moving(cluster) == {("t", 0): ([3], [])}
    alter(cluster, [1, 2, 3])
    assert replicas(cluster) == (1, 3, 2) and moving(cluster) == {}


def test_taking_back_is_refused_when_only_new_replicas_are_in_sync() -> None:
    cluster = cluster_of_four()
    move(cluster, [3, 4])
    alter(cluster, [1, 2, 3])
    for broker in (1, 2):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    assert leaders(cluster) == [(3, 1, (3,))]
    assert move(cluster, None) == Err.INVALID_REPLICA_ASSIGNMENT


def test_a_move_survives_the_loss_of_the_leader() -> None:
    cluster = cluster_of_four()
    move(cluster, [3, 4])
    alter(cluster, [1, 2, 3])
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    leader = the_partition(cluster).leader
    assert leader in (2, 3)
    alter(cluster, [2, 3, 4], sender=leader)
    assert replicas(cluster) == (3, 4) and moving(cluster) == {}


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ([3, 9], Err.INVALID_REPLICA_ASSIGNMENT),
        ([3, 3], Err.INVALID_REPLICA_ASSIGNMENT),
        ([], Err.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_moves_to_nowhere_are_refused(target: list[int], error: Err) -> None:
    cluster = cluster_of_four()
    before = cluster.offset
    assert move(cluster, target) == error
    assert cluster.offset == before


def test_strange_partitions_are_refused() -> None:
    cluster = cluster_of_four()
    assert move(cluster, [3, 4], topic="nowhere") == Err.UNKNOWN_TOPIC_OR_PARTITION
    assert move(cluster, [3, 4], index=5) == Err.UNKNOWN_TOPIC_OR_PARTITION


def test_the_replication_factor_can_be_held_fixed() -> None:
    """KIP-860."""
    cluster = cluster_of_four()
    assert move(cluster, [3], allow_replication_factor_change=False) == Err.INVALID_REPLICATION_FACTOR
    assert move(cluster, [3, 4], allow_replication_factor_change=False) == 0
    assert move(cluster, [2, 4], allow_replication_factor_change=False) == 0
    assert move(cluster_of_four(), [1, 2, 3]) == 0


def test_listing_names_only_what_is_asked_for() -> None:
    cluster = cluster_of_four()
    move(cluster, [3, 4])
    move(cluster, [2, 3], topic="u")
    kind = m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    assert set(moving(cluster)) == {("t", 0), ("u", 0)}
    assert set(moving(cluster, [kind(name="u", partition_indexes=[0, 1]), kind(name="x", partition_indexes=[0])])) == {
        ("u", 0)
    }
    assert moving(cluster, []) == {}


# --- leadership goes back ---------------------------------------------------------------------------------------------


def test_leadership_goes_back_to_preferred_replicas_that_are_in_sync_again() -> None:
    cluster = cluster_of_four()
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    assert len(cluster.image.imbalanced) == 2
    assert cluster.controller.balance_leaders(cluster.image, 10) == [], "1 is not in sync yet"
    alter(cluster, [2, 1], sender=2)
    cluster.commit(cluster.controller.balance_leaders(cluster.image, 10))
    assert leaders(cluster) == [(1, 2, (2, 1))]
    assert [p for p in map(partition_of(cluster), cluster.image.imbalanced) if p.leader == 1] == []


def partition_of(cluster: Cluster) -> Any:
    def find(key: tuple[bytes, int]) -> Partition:
        found = cluster.image.partition(*key)
        assert found is not None
        return found

    return find


def test_balancing_stops_at_its_limit() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, (), [(n, [1, 2]) for n in range(20)])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    Row = m.AlterPartitionRequest
    rows = [
        Row.PartitionData(
            partition_index=n, leader_epoch=p.leader_epoch, partition_epoch=p.partition_epoch,
            new_isr_with_epochs=[Row.BrokerState(broker_id=b, broker_epoch=-1) for b in (2, 1)],
        )
        for n, p in topic.partitions.items()
    ]  # fmt: skip
    request = Row(
        broker_id=2,
        broker_epoch=cluster.image.brokers[2].epoch,
        topics=[Row.TopicData(topic_id=topic.id, partitions=rows)],
    )
    cluster.do(cluster.controller.alter_partition(cluster.image, request, 3))
    assert len(cluster.controller.balance_leaders(cluster.image, 7)) == 7
    assert len(cluster.controller.balance_leaders(cluster.image, 100)) == 20


def test_partitions_without_a_leader_get_an_unclean_one_only_where_their_topic_says_so() -> None:
    cluster = cluster_of_four()
    for broker in (2, 1):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert cluster.controller.elect_leaderless(cluster.image) == []
    cluster.commit(
        [(m.ConfigRecord(resource_type=2, resource_name="t", name="unclean.leader.election.enable", value="true"), 0)]
    )
    cluster.commit(cluster.controller.elect_leaderless(cluster.image))
    assert leaders(cluster) == [(2, 2, (2,))] and leaders(cluster, "u")[0][0] == -1


def cluster_with_eligible_leaders(replicas: list[int]) -> Cluster:
    cluster = Cluster(4)
    cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", "2")], [(0, replicas)])))
    return cluster


def test_one_that_was_moved_away_is_not_eligible_when_it_comes_back() -> None:
    """Its log is gone. Elected, it would have all others delete theirs."""
    cluster = cluster_with_eligible_leaders([1])
    assert move(cluster, [2]) == 0
    assert alter(cluster, [1, 2]).error_code == Err.NEW_LEADER_ELECTED
    assert (replicas(cluster), the_partition(cluster).elr) == ((2,), ())
    assert move(cluster, [1]) == 0
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    assert leaders(cluster)[0][0] == -1, "only 2 has the records"
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert leaders(cluster)[0][0] == 2


def test_one_whose_move_was_called_off_is_not_eligible_when_it_comes_again() -> None:
    cluster = cluster_with_eligible_leaders([1, 2])
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    assert move(cluster, [3, 4]) == 0
    assert alter(cluster, [1, 3]).error_code == 0
    assert move(cluster, None) == 0
    assert (replicas(cluster), the_partition(cluster).isr, the_partition(cluster).elr) == ((1, 2), (1,), ())
    assert move(cluster, [3, 4]) == 0
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert leaders(cluster)[0][0] == -1, "3 has begun anew"


def test_a_last_leader_that_was_moved_away_is_not_elected() -> None:
    cluster = cluster_with_eligible_leaders([1, 2])
    topic_id = cluster.image.topic_ids["t"]
    change = m.PartitionChangeRecord(
        topic_id=topic_id, partition_id=0, leader=-1, isr=[], eligible_leader_replicas=[], last_known_elr=[3]
    )
    cluster.commit([(change, 2)])  # as a controller of Apache Kafka may have left it
    assert cluster.controller.elect_leaderless(cluster.image) == []
