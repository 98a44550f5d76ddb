"""Plans of moves: everything that has to move does, little else, racks and leaders stay spread."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import KafkaError
from headrace.metadata.balance.plans import (
    Placement,
    Racks,
    Replicas,
    TopicPartition,
    balance,
    drain,
    with_replication_factor,
)

RacksAndPlacement = tuple[dict[int, str | None], dict[TopicPartition, Replicas]]

NO_RACKS = {1: None, 2: None, 3: None, 4: None}


def applied(placement: Placement, changes: Placement) -> Placement:
    return {**placement, **changes}


def moved(placement: Placement, after: Placement) -> int:
    """Replicas that have to be copied."""
    return sum(len(set(after[at]) - set(placement[at])) for at in placement)


def test_draining_moves_exactly_what_the_broker_holds() -> None:
    placement = {("t", 0): (1, 2), ("t", 1): (2, 3), ("t", 2): (3, 1), ("u", 0): (2, 1)}
    changes = drain(placement, NO_RACKS, {1})
    assert set(changes) == {("t", 0), ("t", 2), ("u", 0)}
    after = applied(placement, changes)
    assert not any(1 in replicas for replicas in after.values())
    assert moved(placement, after) == 3


def test_draining_prefers_a_rack_that_the_partition_has_not() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "a"}
    assert drain({("t", 0): (1, 2)}, racks, {1}) == {("t", 0): (4, 2)}
    # With no other rack left, a crowded one is better than losing a copy.
    assert drain({("t", 0): (1, 2)}, {1: "a", 2: "b", 3: "b"}, {1}) == {("t", 0): (3, 2)}


def test_draining_is_refused_where_too_few_brokers_stay() -> None:
    with pytest.raises(KafkaError, match="t-0 has 3 replicas and there are not as many other brokers"):
        drain({("t", 0): (1, 2, 3)}, {1: None, 2: None, 3: None}, {3})


def test_balancing_moves_a_replica_to_a_rack_that_has_none() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    assert balance({("t", 0): (1, 2)}, racks) in ({("t", 0): (1, 3)}, {("t", 0): (3, 1)})


def test_of_equally_many_replicas_those_move_that_even_out_the_bytes() -> None:
    placement = {("t", n): (1,) for n in range(4)}
    sizes = {("t", 0): 100, ("t", 1): 10, ("t", 2): 10, ("t", 3): 80}
    after = applied(placement, balance(placement, {1: None, 2: None}, sizes))
    bytes_of = Counter[int]()
    for at, (node,) in after.items():
        bytes_of[node] += sizes[at]
    assert sorted(bytes_of.values()) == [90, 110]


def test_a_plan_of_few_moves_goes_on_where_the_last_one_ended() -> None:
    placement: Placement = {("t", n): (1,) for n in range(8)}
    whole = applied(placement, balance(placement, NO_RACKS))
    steps = 0
    while changes := balance(placement, NO_RACKS, moves_max=2):
        assert moved(placement, applied(placement, changes)) <= 2
        placement, steps = applied(placement, changes), steps + 1
    assert placement == whole and steps == 3


def test_a_new_broker_gets_its_share_of_replicas_and_leaders() -> None:
    placement = {("t", n): ((1, 2, 3)[n % 3], (1, 2, 3)[(n + 1) % 3]) for n in range(12)}
    after = applied(placement, balance(placement, NO_RACKS))
    assert Counter(node for replicas in after.values() for node in replicas) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert Counter(replicas[0] for replicas in after.values()) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert moved(placement, after) == 6


def test_nothing_moves_in_a_cluster_that_is_even() -> None:
    placement = {("t", n): ((1, 2, 3)[n % 3], (1, 2, 3)[(n + 1) % 3]) for n in range(12)}
    assert balance(placement, {1: None, 2: None, 3: None}) == {}


def test_the_replication_factor_goes_up_and_down_with_the_leader_in_place() -> None:
    placement = {("t", n): (n % 4 + 1,) for n in range(8)}
    up = applied(placement, with_replication_factor(placement, NO_RACKS, 3))
    assert {len(replicas) for replicas in up.values()} == {3}
    assert all(up[at][0] == placement[at][0] for at in placement)
    held = Counter(node for replicas in up.values() for node in replicas).values()
    assert max(held) - min(held) <= 2
    assert applied(up, with_replication_factor(up, NO_RACKS, 1)) == placement


@pytest.mark.parametrize(
    ("factor", "words"), [(0, "would keep nothing"), (5, "needs as many brokers, and there are 4")]
)
def test_impossible_replication_factors(factor: int, words: str) -> None:
    with pytest.raises(KafkaError, match=words):
        with_replication_factor({("t", 0): (1,)}, NO_RACKS, factor)


def test_a_gone_broker_is_dropped_first() -> None:
    assert with_replication_factor({("t", 0): (1, 9, 2)}, NO_RACKS, 2) == {("t", 0): (1, 2)}


@st.composite
def clusters(draw: st.DrawFn) -> RacksAndPlacement:
    racks = {node: draw(st.sampled_from([None, "a", "b", "c"])) for node in range(1, draw(st.integers(2, 8)) + 1)}
    placement = {}
    for index in range(draw(st.integers(1, 30))):
        nodes = draw(st.permutations(sorted(racks)))
        placement["t", index] = tuple(nodes[: draw(st.integers(1, min(3, len(nodes))))])
    return racks, placement


def crowding(racks: Racks, replicas: Sequence[int]) -> int:
    named = [racks[node] for node in replicas if racks[node] is not None]
    return len(named) - len(set(named))


@settings(max_examples=80, deadline=None)
@given(clusters())
def test_any_balance_keeps_copies_apart_and_racks_no_worse(
    cluster: RacksAndPlacement,
) -> None:
    racks, placement = cluster
    after = applied(placement, balance(placement, racks))
    before_load = Counter(node for replicas in placement.values() for node in replicas)
    load = Counter(node for replicas in after.values() for node in replicas)
    if all(crowding(racks, after[at]) == crowding(racks, placement[at]) for at in placement):
        assert max(load.values()) <= max(before_load.values()), "only a rack without a replica is worth more load"
    for at, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(placement[at])
        assert crowding(racks, replicas) <= crowding(racks, placement[at])


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_leaders_are_as_even_as_the_replicas_allow(cluster: RacksAndPlacement) -> None:
    racks, placement = cluster
    after = applied(placement, balance(placement, racks))
    leads = Counter(replicas[0] for replicas in after.values())
    # Who can hand a lead to whom, directly or by way of others.
    reach = {node: {to for replicas in after.values() if replicas[0] == node for to in replicas} for node in racks}
    for middle in racks:
        for node in racks:
            if middle in reach[node]:
                reach[node] |= reach[middle]
    assert all(leads[node] - leads[to] <= 1 for node in racks for to in reach[node])


@settings(max_examples=80, deadline=None)
@given(clusters(), st.data())
def test_any_drain_empties_the_broker(cluster: RacksAndPlacement, data: st.DataObject) -> None:
    racks, placement = cluster
    leaving = data.draw(st.sampled_from(sorted(racks)))
    if any(len(replicas) >= len(racks) for replicas in placement.values()):
        return
    after = applied(placement, drain(placement, racks, {leaving}))
    for at, replicas in after.items():
        assert leaving not in replicas
        assert len(set(replicas)) == len(replicas) == len(placement[at])
        assert set(placement[at]) - {leaving} <= set(replicas)
