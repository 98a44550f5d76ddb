"""Replica placement: M7, M8 and M21 of the mission, and Kafka's own placer."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

from headrace.errors import Err, KafkaError
from headrace.metadata.placement import UsableBroker, place

GOLDEN = json.loads((Path(__file__).parent / "golden/placement-kafka-4.3.1.json").read_text())
DICE = (lambda n: 0, lambda n: n - 1, lambda n: n // 2)


def flat(count: int) -> list[UsableBroker]:
    return [UsableBroker(i, None, False) for i in range(count)]


def test_equals_kafkas_striped_placer() -> None:
    for case in GOLDEN:
        brokers = [UsableBroker(*broker) for broker in case["brokers"]]
        try:
            placed: object = place(brokers, case["partitions"], case["replication_factor"], DICE[case["dice"]])
        except KafkaError as error:
            placed = error.error.name
        assert placed == case["placed"], case


def test_leaders_go_round_robin_and_followers_are_shifted() -> None:
    assert place(flat(4), 4, 3, lambda n: 0) == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]


def test_neighbours_are_in_different_racks() -> None:
    brokers = [UsableBroker(i, f"rack-{i // 2}", False) for i in range(6)]
    for replicas in place(brokers, 6, 3, lambda n: 0):
        assert len({broker // 2 for broker in replicas}) == 3


def test_two_brokers_four_partitions_two_replicas_from_a_fixed_start() -> None:
    placed = place(flat(2), 4, 2, lambda n: 0)
    assert Counter(replicas[0] for replicas in placed) == {0: 2, 1: 2}
    assert all(sorted(replicas) == [0, 1] for replicas in placed)


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_properties(kinds: list[tuple[str | None, bool]], partitions: int, factor: int, random: Random) -> None:
    brokers = [UsableBroker(i, rack, fenced) for i, (rack, fenced) in enumerate(kinds)]
    fenced = {b.id for b in brokers if b.fenced}
    if factor > len(brokers) or len(fenced) == len(brokers):
        with pytest.raises(KafkaError) as refused:
            place(brokers, partitions, factor, random.randrange)
        assert refused.value.error is Err.INVALID_REPLICATION_FACTOR
        return
    placed = place(brokers, partitions, factor, random.randrange)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor, "two replicas on one broker"
        assert replicas[0] not in fenced, "a fenced broker leads"
    if not any(rack for rack, _ in kinds):
        leaders = Counter(replicas[0] for replicas in placed)
        assert max(leaders.values()) - min(leaders[b.id] for b in brokers if not b.fenced) <= 1


@pytest.mark.parametrize("factor", [0, -1])
def test_factor_must_be_positive(factor: int) -> None:
    with pytest.raises(KafkaError) as refused:
        place(flat(3), 1, factor, lambda n: 0)
    assert refused.value.error is Err.INVALID_REPLICATION_FACTOR
