"""The leader's rules: what commits, when acks=all is refused, and that the high watermark never goes back."""

from random import Random

import pytest

from headrace.errors import Err, KafkaError
from headrace.replication.partition import LeaderState


def leader(isr: list[int], *, min_isr: int = 1, replicas: int | None = None, high_watermark: int = 0) -> LeaderState:
    return LeaderState(1, 5, 0, high_watermark, isr, min_isr, replicas if replicas is not None else len(isr))


def test_alone_what_it_has_is_committed() -> None:
    state = leader([1])
    assert state.replica_reached(1, 3) and state.high_watermark == 3
    assert not state.replica_reached(1, 3)
    assert state.replica_reached(1, 4) and state.high_watermark == 4


def test_the_slowest_replica_in_sync_decides() -> None:
    state = leader([1, 2, 3])
    assert not state.replica_reached(1, 10)
    assert not state.replica_reached(2, 7)
    assert state.high_watermark == 0, "one of them has not said anything in this epoch"
    assert state.replica_reached(3, 4) and state.high_watermark == 4
    assert state.replica_reached(3, 9) and state.high_watermark == 7
    assert state.isr == [1, 2, 3]


def test_a_replica_out_of_sync_counts_for_nothing() -> None:
    state = leader([1], replicas=3)
    assert not state.replica_reached(2, 100)
    assert state.high_watermark == 0
    assert state.replica_reached(1, 5) and state.high_watermark == 5


def test_it_never_goes_back() -> None:
    """A replica may truncate, or a leader be told of an old position: what was shown stays shown."""
    state = leader([1, 2], high_watermark=50)
    assert not state.replica_reached(1, 20) and not state.replica_reached(2, 20)
    assert state.high_watermark == 50


def test_below_the_minimum_nothing_commits_and_acks_all_is_refused() -> None:
    state = leader([1], min_isr=2, replicas=3)
    assert not state.replica_reached(1, 5)
    assert state.high_watermark == 0
    with pytest.raises(KafkaError) as refused:
        state.require_min_isr()
    assert refused.value.error == Err.NOT_ENOUGH_REPLICAS


def test_the_minimum_is_never_more_than_there_are_replicas() -> None:
    """min.insync.replicas=2 on a topic with one replica: Kafka takes it for 1, or nobody could ever read."""
    state = leader([1], min_isr=2, replicas=1)
    state.require_min_isr()
    assert state.replica_reached(1, 5) and state.high_watermark == 5
    state.configure(3)
    state.require_min_isr()


def test_a_lower_minimum_commits_what_waited_for_it() -> None:
    state = leader([1, 2], min_isr=3, replicas=3)
    state.replica_reached(1, 9)
    state.replica_reached(2, 6)
    assert state.high_watermark == 0
    assert state.configure(2) and state.high_watermark == 6
    assert not state.configure(2)
    assert not state.configure(3) and state.high_watermark == 6


def test_a_leader_is_in_sync_with_itself() -> None:
    with pytest.raises(ValueError, match="not among"):
        LeaderState(1, 0, 0, 0, [2, 3], 1, 3)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_always_the_minimum_of_what_they_said(seed: int) -> None:
    dice = Random(seed)
    isr = [1, *dice.sample(range(2, 6), dice.randint(0, 3))]
    state = leader(isr, min_isr=dice.randint(1, len(isr)), replicas=5)
    ends = dict.fromkeys(isr, -1)
    for _ in range(200):
        replica = dice.randint(1, 5)
        end_offset = max(0, ends.get(replica, 0)) + dice.randint(0, 3)
        before = state.high_watermark
        moved = state.replica_reached(replica, end_offset)
        if replica in ends:
            ends[replica] = end_offset
        assert state.high_watermark == max(0, *[min(ends.values())])
        assert moved == (state.high_watermark > before)
