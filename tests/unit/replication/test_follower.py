"""A follower's rules: where its log is cut, which replica is read, how fast replicas are moved."""

import pytest

from headrace.replication.follower import cut_offset
from headrace.replication.selector import Candidate, in_rack
from headrace.replication.throttle import Throttle, is_throttled
from headrace.storage.epochs import EpochCache


def logs(text: str) -> tuple[EpochCache, int]:
    """A history such as "0:5 2:8", epochs with their ends."""
    cache, start = EpochCache(), 0
    for word in text.split():
        epoch, end = map(int, word.split(":"))
        cache.assign(epoch, start)
        start = end
    return cache, start


@pytest.mark.parametrize(
    ("leader", "follower", "shared"),
    [
        ("0:5 1:8", "0:5", 5),
        ("0:5 1:8", "0:7", 5),
        ("0:5 1:8", "0:5 1:8", 8),
        ("0:5 2:8", "0:5 1:9", 5),
        ("0:5 3:8", "0:4 1:6 2:9", 4),
        ("0:5 1:6 3:10", "0:5 1:9", 6),
        ("0:5 1:9 4:10", "0:5 1:6 2:8 3:12", 6),
        ("2:10", "0:4 1:9", 0),
    ],
)
def test_question_after_question_a_follower_ends_where_the_two_logs_part(
    leader: str, follower: str, shared: int
) -> None:
    """KIP-279: where the follower does not have the epoch it is told of, one question is not enough."""
    theirs, their_end = logs(leader)
    ours, our_end = logs(follower)
    for _ in range(10):
        last = ours.latest_epoch
        epoch, end = theirs.end_offset_for(last, their_end)
        if last < 0 or (epoch >= last and end >= our_end):
            break
        our_end = cut_offset(epoch, end, *ours.end_offset_for(epoch, our_end), our_end)
        ours.truncate_from_end(our_end)
    assert our_end == shared
    assert [entry for entry in ours.entries if entry not in theirs.entries] == []


def test_a_consumer_reads_in_its_rack() -> None:
    leader = Candidate(1, "a", 100, 0)
    near = [Candidate(2, "b", 90, 5), Candidate(3, "b", 95, 1), Candidate(4, "c", 99, 9)]
    assert in_rack("b", leader, near) == 3, "the one that is furthest on"
    assert in_rack("c", leader, near) == 4
    assert in_rack("a", leader, [*near, Candidate(5, "a", 100, 9)]) == 1, "the leader is as near as any"
    assert in_rack("", leader, near) == in_rack("d", leader, near) == 1


def test_a_rate_is_kept_over_time_whatever_the_pieces() -> None:
    throttle, now_ms, copied = Throttle(), 5_000, 0
    for piece in (100, 5000, 1, 30_000, 100, 100) * 20:
        wait_ms = throttle.wait_ms(10_000, now_ms)
        if wait_ms:
            assert throttle.wait_ms(10_000, now_ms + wait_ms - 2) > 0
            now_ms += wait_ms
            assert throttle.wait_ms(10_000, now_ms) == 0
        throttle.take(piece, 10_000, now_ms)
        copied += piece
    assert copied - 30_000 - 10_000 <= (now_ms - 5_000) * 10 <= copied


def test_a_rate_of_nothing_gives_nothing() -> None:
    throttle = Throttle()
    assert throttle.wait_ms(0, 1000) > 0 and throttle.wait_ms(0, 10**9) > 0


def test_throttled_replicas_are_named_one_by_one_or_all() -> None:
    assert not is_throttled((), 0, 1)
    assert is_throttled(("0:1", "2:3"), 2, 3) and not is_throttled(("0:1", "2:3"), 2, 1)
    assert is_throttled(("*",), 7, 7)
