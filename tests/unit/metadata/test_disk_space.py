"""Brokers with full log dirs: who leads instead, who is in sync, and how it goes back."""

from typing import Any

import pytest

from headrace.errors import Err
from headrace.metadata.heartbeats import BrokerState
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.private_fields.disk_space import (
    NO_RECORDS,
    NOTHING,
    FullDirectories,
    Space,
    full_in,
    full_tagged,
    space_in,
    space_tagged,
)
from tests.unit.metadata.cases import create, more, new_topic
from tests.unit.metadata.paper_cluster import DIRECTORY, Cluster, alter, beat, leaders

ONE, TWO = DIRECTORY[:15] + b"\xa1", DIRECTORY[:15] + b"\xa2"


def three(*assignments: list[int], topic: str = "t") -> Cluster:
    cluster = Cluster(3)
    cluster.answer(create(new_topic(topic, -1, -1, (), list(enumerate(assignments or ([1, 2, 3],))))))
    return cluster


def say(cluster: Cluster, broker: int, *, level: int = NO_RECORDS, **fields: Any) -> BrokerState:
    """A heartbeat of a broker whose only log dir is full; level 0: it has room."""
    (directory,) = cluster.image.brokers[broker].log_dirs
    full = FullDirectories({directory: level}, level) if level else FullDirectories({})
    return beat(cluster, broker, unknown_tags=full_tagged(full), **fields)


def balance(cluster: Cluster) -> None:
    cluster.commit(cluster.controller.balance_leaders(cluster.image, 100))


def test_a_full_leader_hands_over_at_once_and_leads_again_when_it_has_space() -> None:
    cluster = three()
    assert say(cluster, 1) is BrokerState.UNFENCED
    assert leaders(cluster) == [(2, 1, (2, 3))]
    before = cluster.offset
    say(cluster, 1)
    balance(cluster)
    assert cluster.offset == before, "told again, nothing changes; and it is not given back to who is full"
    say(cluster, 1, level=0)
    assert alter(cluster, [2, 3, 1], sender=2).error_code == 0
    balance(cluster)
    assert leaders(cluster)[0][0] == 1


def test_a_full_follower_leaves_the_isr_at_once_and_is_not_let_in_while_it_is_full() -> None:
    cluster = three()
    say(cluster, 3)
    assert leaders(cluster) == [(1, 0, (1, 2))]
    assert alter(cluster, [1, 2, 3]).error_code == Err.INELIGIBLE_REPLICA
    say(cluster, 3, level=0)
    assert alter(cluster, [1, 2, 3]).error_code == 0


def test_the_last_in_sync_leads_although_it_is_full_until_another_can() -> None:
    cluster = three()
    for broker in (2, 3):
        cluster.commit(cluster.controller.fence_broker(cluster.image, broker))
    before = cluster.offset
    say(cluster, 1)
    assert cluster.offset == before
    assert leaders(cluster)[0][::2] == (1, (1,))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    assert alter(cluster, [1, 2]).error_code == Err.NEW_LEADER_ELECTED, "it has caught up: it leads"
    assert leaders(cluster)[0][::2] == (2, (1, 2))
    say(cluster, 1)
    assert leaders(cluster)[0][::2] == (2, (2,))


def test_where_all_are_full_nothing_moves() -> None:
    cluster = three([1, 2, 3], [2, 3, 1], [3, 1, 2])
    say(cluster, 1)
    say(cluster, 2)
    assert leaders(cluster) == [(3, 2, (3,)), (3, 1, (3,)), (3, 0, (3,))]
    before = cluster.offset
    say(cluster, 3)
    balance(cluster)
    assert cluster.offset == before


def test_elections_pass_over_who_is_full() -> None:
    cluster = three([1, 2, 3])
    cluster.commit(cluster.controller.fence_broker(cluster.image, 2))
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 2))
    say(cluster, 2)
    cluster.answer(more(("t", 2, [[1, 2, 3]])))
    assert leaders(cluster)[1] == (1, 0, (1, 3)), "a new partition begins without it"
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    assert [leader for leader, _, _ in leaders(cluster)] == [3, 3]
    answer = cluster.do(
        cluster.controller.elect_leaders(cluster.image, m.ElectLeadersRequest(election_type=0, topic_partitions=None))
    )
    assert {r.error_code for t in answer.replica_election_results for r in t.partition_result} == {
        Err.PREFERRED_LEADER_NOT_AVAILABLE
    }


def test_a_new_topic_is_led_by_who_has_space() -> None:
    cluster = three()
    say(cluster, 1)
    for name, replicas, expected in (("u", [1, 2, 3], (2, (2, 3))), ("v", [1], (1, (1,)))):
        cluster.answer(create(new_topic(name, -1, -1, (), [(0, replicas)])))
        topic = cluster.image.topic_named(name)
        assert topic is not None
        assert (topic.partitions[0].leader, topic.partitions[0].isr) == expected


def test_new_replicas_go_to_brokers_with_space_as_far_as_there_are_enough() -> None:
    cluster = three()
    say(cluster, 2)

    def replicas(name: str) -> list[set[int]]:
        found = cluster.image.topic_named(name)
        assert found is not None
        return [set(partition.replicas) for partition in found.partitions.values()]

    cluster.answer(create(new_topic("two", 6, 2), new_topic("three", 2, 3)))
    assert replicas("two") == [{1, 3}] * 6
    assert replicas("three") == [{1, 2, 3}] * 2, "a full one rather than none"
    cluster.answer(more(("two", 8, None)))
    assert replicas("two") == [{1, 3}] * 8
    say(cluster, 2, level=0)
    cluster.answer(create(new_topic("later", 6, 2)))
    assert any(2 in chosen for chosen in replicas("later")), "there is room again"


def test_offsets_of_groups_stay_until_there_is_no_room_at_all() -> None:
    """The reserve is for them."""
    cluster = three(topic=OFFSETS_TOPIC)
    before = cluster.offset
    say(cluster, 1)
    assert cluster.offset == before
    say(cluster, 1, level=NOTHING)
    topic = cluster.image.topic_named(OFFSETS_TOPIC)
    assert topic is not None
    assert (topic.partitions[0].leader, topic.partitions[0].isr) == (2, (2, 3))


@pytest.mark.parametrize("everywhere", [False, True])
def test_only_partitions_in_a_full_dir_move(everywhere: bool) -> None:
    """Of those whose dir nobody has named yet nothing is known, unless all dirs are full."""
    cluster = Cluster(2)
    cluster.register(3, log_dirs=[ONE, TWO])
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 3))
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [3, 1]), (1, [3, 2]), (2, [3, 1])])))
    topic = cluster.image.topic_named("t")
    assert topic is not None
    for number, directory in enumerate((ONE, TWO)):
        (other,) = cluster.image.brokers[number + 1].log_dirs
        change = m.PartitionChangeRecord(topic_id=topic.id, partition_id=number, directories=[directory, other])
        cluster.commit([(change, 2)])
    levels = {ONE: NO_RECORDS, TWO: NO_RECORDS} if everywhere else {ONE: NO_RECORDS}
    beat(cluster, 3, unknown_tags=full_tagged(FullDirectories(levels, NO_RECORDS if everywhere else 0)))
    assert [leader for leader, _, _ in leaders(cluster)] == ([1, 2, 1] if everywhere else [1, 3, 3])


def test_what_an_earlier_life_said_holds_no_longer() -> None:
    cluster = three([1, 2, 3], [2, 1, 3])
    say(cluster, 1)
    cluster.register(1, incarnation=2)
    cluster.commit(cluster.controller.unfence_broker(cluster.image, 1))
    assert alter(cluster, [2, 3, 1], sender=2).error_code == 0
    balance(cluster)
    assert leaders(cluster)[0][0] == 1


def test_one_that_starts_full_is_given_nothing_when_it_is_unfenced() -> None:
    cluster = three([1, 2])
    cluster.commit(cluster.controller.fence_broker(cluster.image, 1))
    say(cluster, 1, want_fence=True)
    assert say(cluster, 1) is BrokerState.UNFENCED
    assert alter(cluster, [2, 1], sender=2).error_code == Err.INELIGIBLE_REPLICA
    assert leaders(cluster)[0][::2] == (2, (2,))


def test_what_is_told_is_read_and_what_is_not_ours_is_passed_over() -> None:
    full = FullDirectories({ONE: NO_RECORDS, TWO: NOTHING}, NO_RECORDS)
    assert full_in(full_tagged(full)) == full
    for tags in (None, {}, {5: b"x"}, {18_516: b""}, {18_516: b"\x00" * 5}):
        assert full_in(tags) == FullDirectories({})
        assert space_in(tags) is None
    space = Space(NO_RECORDS, 1 << 28, -5, 3_600_000)
    assert space_in(space_tagged(space)) == space
