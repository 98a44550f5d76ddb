"""AlterPartition: who gets into an ISR, and what leaders are told otherwise."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import Err, KafkaError
from tests.unit.metadata.cases import create, new_topic
from tests.unit.metadata.paper_cluster import Cluster, alter, leaders, the_partition


def cluster_of_three() -> Cluster:
    """Broker 3 has left the ISR and come back."""
    cluster = Cluster(3)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2, 3])])))
    cluster.commit(cluster.controller.fence_broker(cluster.image, 3))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 3))
    return cluster


@pytest.mark.parametrize("version", [2, 3])
def test_a_follower_that_has_caught_up_joins(version: int) -> None:
    cluster = cluster_of_three()
    before = the_partition(cluster)
    answer = alter(cluster, [1, 2, 3], version)
    assert (answer.error_code, answer.isr, answer.leader_id) == (0, [1, 2, 3], 1)
    assert (answer.partition_epoch, answer.leader_epoch) == (before.partition_epoch + 1, before.leader_epoch)
    after = the_partition(cluster)
    assert (after.isr, after.partition_epoch, after.leader_epoch) == (
        (1, 2, 3), answer.partition_epoch, answer.leader_epoch,
    )  # fmt: skip


def test_a_slow_follower_leaves_without_a_new_leader_epoch() -> None:
    cluster = cluster_of_three()
    epoch = the_partition(cluster).leader_epoch
    assert alter(cluster, [1]).isr == [1]
    assert the_partition(cluster).leader_epoch == epoch


def test_what_is_already_so_is_confirmed_and_not_written() -> None:
    cluster = cluster_of_three()
    before = cluster.offset
    assert alter(cluster, [1, 2]).error_code == 0
    assert cluster.offset == before


def test_a_leader_that_is_behind_is_told_so() -> None:
    cluster = cluster_of_three()
    now = the_partition(cluster)
    for fields, error in (
        ({"leader_epoch": now.leader_epoch - 1}, Err.FENCED_LEADER_EPOCH),
        ({"leader_epoch": now.leader_epoch + 1}, Err.NOT_CONTROLLER),
        ({"partition_epoch": now.partition_epoch - 1}, Err.INVALID_UPDATE_VERSION),
        ({"partition_epoch": now.partition_epoch + 1}, Err.NOT_CONTROLLER),
        ({"sender": 2}, Err.INVALID_REQUEST),
        ({"index": 7}, Err.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": bytes(15) + b"z"}, Err.UNKNOWN_TOPIC_ID),
        ({"recovery_state": 1}, Err.INVALID_REQUEST),
    ):
        before = cluster.offset
        assert alter(cluster, [1, 2, 3], **fields).error_code == error, fields
        assert cluster.offset == before


@pytest.mark.parametrize("isr", [[2, 3], [1, 1], [1, 2, (9, 5)], []])
def test_an_isr_that_cannot_be_is_refused(isr: list[Any]) -> None:
    assert alter(cluster_of_three(), isr).error_code == Err.INVALID_REQUEST


def test_a_fenced_broker_and_one_that_restarted_are_not_in_sync() -> None:
    cluster = cluster_of_three()
    assert alter(cluster, [1, 2, (3, 1)]).error_code == Err.INELIGIBLE_REPLICA, "what it fetched may be lost to it"
    assert alter(cluster, [1, 2, (3, -1)]).error_code == 0
    cluster = cluster_of_three()
    cluster.commit(cluster.controller.fence_broker(cluster.image, 3))
    assert alter(cluster, [1, 2, 3]).error_code == Err.INELIGIBLE_REPLICA
    cluster = cluster_of_three()
    cluster.commit(cluster.controller.controlled_shutdown(cluster.image, 3))
    assert alter(cluster, [1, 2, 3], 2).error_code == Err.INELIGIBLE_REPLICA


def test_a_stale_broker_is_refused_as_a_whole() -> None:
    with pytest.raises(KafkaError) as refused:
        alter(cluster_of_three(), [1], broker_epoch=0)
    assert refused.value.error is Err.STALE_BROKER_EPOCH


def test_recovery_after_an_unclean_election_ends_before_others_join() -> None:
    cluster = Cluster(2)
    cluster.answer(create(new_topic("t", -1, -1, [("unclean.leader.election.enable", "true")], [(0, [1, 2])])))
    for broker in (2, 1):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    for broker in (2, 1):
        cluster.commit(cluster.controller.unfence_broker(cluster.image, broker))
    assert leaders(cluster) == [(2, 2, (2,))] and the_partition(cluster).recovery_state == 1
    assert alter(cluster, [1, 2], sender=2).error_code == Err.INVALID_REQUEST
    assert alter(cluster, [2], sender=2, recovery_state=0).error_code == 0
    assert alter(cluster, [1, 2], sender=2).error_code == 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("alter"), st.sets(st.integers(1, 4), min_size=1)),
            st.tuples(st.sampled_from(["fence", "unfence"]), st.integers(1, 4)),
        ),
        max_size=25,
    )
)
def test_isrs_stay_sound_whatever_happens(steps: list[tuple[str, Any]]) -> None:
    """A leader is in its ISR, alive and a replica; epochs only grow; the ISR is never empty without ELR."""
    cluster = Cluster(4)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2, 3])])))
    before = the_partition(cluster)
    for what, argument in steps:
        if what == "alter":
            leader = the_partition(cluster).leader
            if leader >= 0:
                alter(cluster, sorted(argument), sender=leader)
        else:
            fenced = cluster.image.brokers[argument].fenced
            if what == "fence" and not fenced:
                cluster.commit(cluster.controller.fence_broker(cluster.image, argument))
            elif what == "unfence" and fenced:
                cluster.commit(cluster.controller.unfence_broker(cluster.image, argument))
        now = the_partition(cluster)
        assert now.isr and set(now.isr) <= set(now.replicas)
        if now.leader >= 0:
            assert now.leader in now.isr and not cluster.image.brokers[now.leader].fenced
        else:
            assert all(cluster.image.brokers[b].fenced for b in now.isr)
        assert now.leader_epoch >= before.leader_epoch and now.partition_epoch >= before.partition_epoch
        assert (now.leader == before.leader) or now.leader_epoch > before.leader_epoch
        before = now
