"""Replica placement: the documents' own, and Kafka 4.3's striped one."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

from headrace.errors import Err, KafkaError
from headrace.metadata.placement import PLACERS, UsableBroker, place

GOLDEN = json.loads((Path(__file__).parent / "golden/placement-kafka-4.3.1.json").read_text())
DICE = (lambda n: 0, lambda n: n - 1, lambda n: n // 2)


def flat(count: int) -> list[UsableBroker]:
    return [UsableBroker(i, None, False) for i in range(count)]


def test_equals_kafkas_striped_placer() -> None:
    for case in GOLDEN:
        brokers = [UsableBroker(*broker) for broker in case["brokers"]]
        try:
            placed: object = place(
                brokers, case["partitions"], case["replication_factor"], DICE[case["dice"]], "striped"
            )
        except KafkaError as error:
            placed = error.error.name
        assert placed == case["placed"], case


def in_order(sides: int) -> int:
    """A dice that leaves every list as it is."""
    return sides - 1


def racked(racks: str, fenced: str = "") -> list[UsableBroker]:
    """Brokers 1, 2, 3, ... in these racks, one letter each."""
    return [UsableBroker(i, rack, str(i) in fenced) for i, rack in enumerate(racks, 1)]


@pytest.mark.parametrize(("placer", "dice"), [("shifted", in_order), ("striped", lambda n: 0)])
def test_leaders_go_round_robin_and_followers_are_shifted(placer: str, dice: Callable[[int], int]) -> None:
    assert place(flat(4), 4, 3, dice, placer) == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]


def test_over_racks_followers_are_shifted_along_the_list_that_alternates_racks() -> None:
    placed = place(racked("aabbcc"), 6, 3, in_order)
    ring = [1, 3, 5, 2, 4, 6]
    assert placed == [[ring[n], ring[(n + 1) % 6], ring[(n + 2) % 6]] for n in range(6)]


def test_the_start_and_the_order_are_random() -> None:
    random = Random(1)
    leaders = {place(flat(4), 1, 2, random.randrange)[0][0] for _ in range(100)}
    followers = {place(flat(4), 1, 2, random.randrange)[0][1] for _ in range(100)}
    assert leaders == followers == {0, 1, 2, 3}


def test_a_rack_without_a_replica_is_taken_before_one_that_has_one_even_if_its_broker_is_fenced() -> None:
    for replicas in place(racked("aaab", fenced="4"), 6, 2, Random(3).randrange):
        assert replicas[1] == 4


def test_followers_of_what_one_broker_leads_change_with_every_round() -> None:
    placed = place(flat(4), 12, 2, in_order)
    assert [replicas[1] for replicas in placed if replicas[0] == 0] == [1, 2, 3]


def test_leaders_are_even_under_uneven_racks_where_striping_has_the_small_rack_lead_half() -> None:
    def most(placer: str) -> int:
        leads = Counter(replicas[0] for replicas in place(racked("aaab"), 40, 2, Random(5).randrange, placer))
        return max(leads.values())

    assert (most("shifted"), most("striped")) == (10, 20)


def test_two_brokers_four_partitions_two_replicas_from_a_fixed_start() -> None:
    placed = place(flat(2), 4, 2, lambda n: 0)
    assert Counter(replicas[0] for replicas in placed) == {0: 2, 1: 2}
    assert all(sorted(replicas) == [0, 1] for replicas in placed)


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
    st.sampled_from(sorted(PLACERS)),
)
def test_properties(
    kinds: list[tuple[str | None, bool]], partitions: int, factor: int, random: Random, placer: str
) -> None:
    brokers = [UsableBroker(i, rack, fenced) for i, (rack, fenced) in enumerate(kinds)]
    fenced = {b.id for b in brokers if b.fenced}
    if factor > len(brokers) or len(fenced) == len(brokers):
        with pytest.raises(KafkaError) as refused:
            place(brokers, partitions, factor, random.randrange, placer)
        assert refused.value.error is Err.INVALID_REPLICATION_FACTOR
        return
    placed = place(brokers, partitions, factor, random.randrange, placer)
    racks = {broker.id: broker.rack for broker in brokers}
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor, "two replicas on one broker"
        assert replicas[0] not in fenced, "a fenced broker leads"
        reached = {racks[broker] for broker in replicas}
        assert len(reached) == min(factor, len(set(racks.values()))), "two in one rack while another has none"
    if placer == "shifted" or not any(rack for rack, _ in kinds):
        leaders = Counter(replicas[0] for replicas in placed)
        assert max(leaders.values()) - min(leaders[b.id] for b in brokers if not b.fenced) <= 1


@pytest.mark.parametrize("factor", [0, -1])
def test_factor_must_be_positive(factor: int) -> None:
    with pytest.raises(KafkaError) as refused:
        place(flat(3), 1, factor, lambda n: 0)
    assert refused.value.error is Err.INVALID_REPLICATION_FACTOR
