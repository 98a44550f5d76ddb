"""The leader's rules: what commits, who is in sync, when acks=all is refused, and that the high watermark never goes
back."""

from random import Random

import pytest

from headrace.errors import Err, KafkaError
from headrace.replication.partition import LeaderState, always_eligible

LAG_MS = 10_000


def leader(
    isr: list[int], *, min_isr: int = 1, replicas: int | None = None, high_watermark: int = 0, epoch_start: int = 0,
    eligible: dict[int, int] | None = None,
) -> LeaderState:  # fmt: skip
    """Node 1 in epoch 5. `eligible`: the brokers that may stand in an ISR, with their epochs."""
    return LeaderState(
        1, 5, epoch_start, high_watermark, isr, min_isr,
        list(range(1, 1 + replicas)) if replicas is not None else isr,
        partition_epoch=7,
        eligible=always_eligible if eligible is None else lambda replica, epoch: eligible.get(replica) == epoch,
        lag_ms_max=LAG_MS,
    )  # fmt: skip


def fetch(
    state: LeaderState, replica: int, offset: int, *, end: int = 100, now_ms: int = 0, broker_epoch: int = 1
) -> bool:
    return state.fetched(state.followers[replica], offset, 0, broker_epoch, end, now_ms)


# ---- committing


def test_alone_what_it_has_is_committed() -> None:
    state = leader([1])
    assert state.own_reached(3) and state.high_watermark == 3
    assert not state.own_reached(3)
    assert state.own_reached(4) and state.high_watermark == 4


def test_the_slowest_replica_in_sync_decides() -> None:
    state = leader([1, 2, 3])
    assert not state.own_reached(10)
    assert not fetch(state, 2, 7)
    assert state.high_watermark == 0, "one of them has not said anything in this epoch"
    assert fetch(state, 3, 4) and state.high_watermark == 4
    assert fetch(state, 3, 9) and state.high_watermark == 7
    assert state.isr == (1, 2, 3)


def test_the_leader_itself_may_be_the_slowest() -> None:
    """Followers may have on their disks what the leader's own disk is still busy with."""
    state = leader([1, 2])
    assert not fetch(state, 2, 10)
    assert state.own_reached(6) and state.high_watermark == 6


def test_a_replica_out_of_sync_counts_for_nothing() -> None:
    state = leader([1], replicas=3, eligible={})
    assert not fetch(state, 2, 3)
    assert state.own_reached(5) and state.high_watermark == 5


def test_it_never_goes_back() -> None:
    """A replica may truncate, or a leader be told of an old position: what was shown stays shown."""
    state = leader([1, 2], high_watermark=50)
    assert not state.own_reached(20) and not fetch(state, 2, 20)
    assert state.high_watermark == 50


def test_below_the_minimum_nothing_commits_and_acks_all_is_refused() -> None:
    state = leader([1], min_isr=2, replicas=3)
    assert not state.own_reached(5)
    assert state.high_watermark == 0
    with pytest.raises(KafkaError) as refused:
        state.require_min_isr()
    assert refused.value.error == Err.NOT_ENOUGH_REPLICAS


def test_a_proposal_does_not_count_towards_the_minimum() -> None:
    state = leader([1], min_isr=2, replicas=2)
    state.own_reached(5)
    fetch(state, 2, 5, end=5)
    state.propose([1, 2])
    assert state.high_watermark == 0 and state.too_few
    assert state.assign([1, 2], [1, 2], 8) and state.high_watermark == 5
    state.require_min_isr()


def test_the_minimum_is_never_more_than_there_are_replicas() -> None:
    """min.insync.replicas=2 on a topic with one replica: Kafka takes it for 1, or nobody could ever read."""
    state = leader([1], min_isr=2, replicas=1)
    state.require_min_isr()
    assert state.own_reached(5) and state.high_watermark == 5
    state.configure(3)
    state.require_min_isr()


def test_a_lower_minimum_commits_what_waited_for_it() -> None:
    state = leader([1, 2], min_isr=3, replicas=3)
    state.own_reached(9)
    fetch(state, 2, 6)
    assert state.high_watermark == 0
    assert state.configure(2) and state.high_watermark == 6
    assert not state.configure(2)
    assert not state.configure(3) and state.high_watermark == 6


def test_a_leader_is_in_sync_with_itself() -> None:
    with pytest.raises(ValueError, match="not among"):
        LeaderState(1, 0, 0, 0, [2, 3], 1, [1, 2, 3])


def test_a_new_epoch_takes_nothing_from_the_last_one() -> None:
    """Another leader may have been in between, and its follower may have cut what it had said it had."""
    state = leader([1, 2])
    state.own_reached(10)
    fetch(state, 2, 10)
    assert state.high_watermark == 10
    state.own_reached(20)
    fetch(state, 2, 15)
    assert not state.renew(7, 20, [1, 2], [1, 2], 9, now_ms=0)
    assert state.high_watermark == 15
    assert not state.own_reached(21), "follower 2 has not said anything in this epoch"
    assert fetch(state, 2, 20) and state.high_watermark == 20


# ---- joining


def test_one_that_has_all_that_is_committed_may_join() -> None:
    state = leader([1], replicas=2, high_watermark=10, epoch_start=12, eligible={2: 1})
    follower = state.followers[2]
    for offset, may in ((9, False), (10, False), (12, True)):
        fetch(state, 2, offset)
        assert state.may_join(follower) is may, "below the high watermark, or without anything of this epoch"
    fetch(state, 2, 12, broker_epoch=0)
    assert not state.may_join(follower), "another incarnation than the one that is registered"
    fetch(state, 2, 12)
    state.propose([1, 2])
    assert not state.may_join(follower), "it is asked for already"


def test_whoever_is_asked_for_counts_at_once() -> None:
    """The controller may have done it: from then on it may elect the newcomer, which must have everything shown."""
    state = leader([1], replicas=2, eligible={})
    state.own_reached(10)
    fetch(state, 2, 10)
    proposal = state.propose([1, 2])
    assert not state.own_reached(20) and state.high_watermark == 10
    assert state.maximal_isr == (1, 2)
    assert state.refused(proposal) and state.high_watermark == 20


def test_whoever_should_leave_counts_until_the_controller_says_so() -> None:
    state = leader([1, 2])
    state.own_reached(10)
    fetch(state, 2, 4)
    state.propose([1])
    assert not state.own_reached(12) and state.high_watermark == 4
    assert state.assign([1], [1, 2], 8) and state.high_watermark == 12
    assert state.partition_epoch == 8 and state.pending is None


def test_the_high_watermark_waits_for_one_about_to_join() -> None:
    """Or under load it would run ahead of a follower that is never more than a moment behind, for ever."""
    state = leader([1], replicas=2, eligible={2: 1})
    state.own_reached(10)
    fetch(state, 2, 10, end=10, now_ms=1000)
    assert not state.own_reached(20) and state.high_watermark == 10
    assert not state.forget_joining(20, 1000 + LAG_MS)
    assert state.forget_joining(20, 1001 + LAG_MS) and state.high_watermark == 20


def test_it_waits_for_nobody_who_may_not_join() -> None:
    brokers = {2: 1}
    state = leader([1], replicas=2, eligible=brokers)
    state.own_reached(10)
    fetch(state, 2, 10, end=10, now_ms=1000)
    assert not state.own_reached(20)
    del brokers[2]  # fenced
    assert state.forget_joining(20, 1000) and state.high_watermark == 20


# ---- leaving


def test_who_is_behind_for_too_long_has_to_leave() -> None:
    state = leader([1, 2, 3])
    fetch(state, 2, 100, now_ms=1000)
    fetch(state, 3, 100, now_ms=1000)
    assert state.out_of_sync(100, 1_000_000) == [], "silent, but it has everything"
    fetch(state, 3, 150, end=150, now_ms=5000)
    assert state.out_of_sync(150, 1000 + LAG_MS) == []
    assert state.out_of_sync(150, 1001 + LAG_MS) == [2]
    state.propose([1, 3])
    assert state.out_of_sync(150, 1_000_000) == [], "one change at a time"


def test_one_that_keeps_pace_is_in_sync_though_it_never_has_everything() -> None:
    """At each Fetch it has what there was at the one before."""
    state = leader([1, 2])
    for turn in range(1, 50):
        fetch(state, 2, 100 * (turn - 1), end=100 * turn, now_ms=1000 * turn)
        assert state.out_of_sync(100 * turn, 1000 * turn) == []
    for turn in range(1, 12):
        fetch(state, 2, 4800 + 50 * turn, end=5000 + 100 * turn, now_ms=50_000 + 1000 * turn)
    assert state.out_of_sync(6200, 62_000) == [2]


def test_one_that_was_idle_with_everything_has_its_time_from_its_last_fetch() -> None:
    state = leader([1, 2])
    fetch(state, 2, 100, now_ms=0)
    state.was_caught_up(state.followers[2], 500_000)
    assert state.out_of_sync(101, 500_000 + LAG_MS) == []
    assert state.out_of_sync(101, 500_001 + LAG_MS) == [2]


def test_in_sync_at_election_means_time_to_catch_up() -> None:
    state = LeaderState(1, 5, 0, 0, [1, 2], 1, [1, 2, 3], lag_ms_max=LAG_MS, now_ms=1_000_000)
    assert state.out_of_sync(10, 1_000_000 + LAG_MS) == []
    assert state.out_of_sync(10, 1_000_001 + LAG_MS) == [2]


def test_one_that_has_lost_committed_records_leaves_at_once() -> None:
    """A disk that was wiped, or did not keep what it had promised: it must not be elected."""
    state = leader([1, 2], high_watermark=50)
    fetch(state, 2, 50)
    assert state.out_of_sync(100, 0) == []
    fetch(state, 2, 0)
    assert state.has_lost(state.followers[2]) and state.out_of_sync(100, 0) == [2]


# ---- what the metadata says


def test_metadata_that_is_older_than_what_is_known_changes_nothing() -> None:
    state = leader([1, 2, 3])
    state.assign([1, 2], [1, 2, 3], 9)
    state.assign([1, 2, 3], [1, 2, 3], 8)
    assert state.isr == (1, 2) and state.partition_epoch == 9


def test_an_answer_that_comes_after_the_metadata_changes_nothing() -> None:
    state = leader([1, 2, 3])
    proposal = state.propose([1, 2])
    state.assign([1, 2, 3], [1, 2, 3, 4], 9)
    assert not state.refused(proposal)
    assert state.isr == (1, 2, 3) and list(state.followers) == [2, 3, 4]


def test_a_removed_replica_no_longer_holds_anybody_up() -> None:
    state = leader([1, 2, 3])
    state.own_reached(10)
    fetch(state, 2, 10)
    assert state.assign([1, 2], [1, 2], 8) and state.high_watermark == 10


@pytest.mark.parametrize("seed", range(20))
def test_it_is_always_the_minimum_of_what_they_said(seed: int) -> None:
    dice = Random(seed)
    isr = [1, *dice.sample(range(2, 6), dice.randint(0, 3))]
    state = leader(isr, min_isr=dice.randint(1, len(isr)), replicas=5, eligible={})
    ends = dict.fromkeys(isr, -1)
    for _ in range(200):
        replica = dice.randint(1, 5)
        end_offset = max(0, ends.get(replica, 0)) + dice.randint(0, 3)
        before = state.high_watermark
        moved = state.own_reached(end_offset) if replica == 1 else fetch(state, replica, end_offset, end=10_000)
        if replica in ends:
            ends[replica] = end_offset
        assert state.high_watermark == max(0, *[min(ends.values())])
        assert moved == (state.high_watermark > before)
