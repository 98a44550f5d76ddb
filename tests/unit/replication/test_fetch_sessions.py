"""Fetch sessions, by the rules of KIP-227: epochs, what an incremental answer tells, and who is evicted for whom."""

from itertools import count
from typing import Any

from headrace.errors import Err
from headrace.replication.fetch_sessions import (
    EPOCH_MAX,
    EVICTION_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchContext,
    Session,
    SessionCache,
    Target,
)

NAME, ID = "t", bytes(range(16))


def cache(slots: int = 10) -> SessionCache:
    numbers = count(100)
    return SessionCache(slots, lambda: next(numbers))


def targets(*indexes: int, topic: str | bytes = NAME, offset: int = 0) -> list[Target]:
    return [Target(topic, index, offset, 1000) for index in indexes]


def create(
    sessions: SessionCache, size: int = 1, *, privileged: bool = False, by_id: bool = False, now_ms: int = 0
) -> Session:
    found = sessions.create(targets(*range(size), topic=ID if by_id else NAME), privileged, by_id, now_ms)
    assert found is not None
    return found


def indexes(context: FetchContext) -> list[int]:
    return [target.index for target in context.targets]


def go_on(
    sessions: SessionCache, session: Session, epoch: int, named: list[Target] | None = None,
    forgotten: list[int] | None = None, now_ms: int = 0,
) -> FetchContext:  # fmt: skip
    topic = ID if session.by_id else NAME
    gone = [(topic, index) for index in forgotten or ()]
    return sessions.open(session.id, epoch, named or [], gone, session.by_id, now_ms)


# ---- ids and epochs


def test_a_full_fetch_asks_for_a_session_and_a_final_one_does_not() -> None:
    sessions = cache()
    first = sessions.open(0, INITIAL_EPOCH, targets(1, 2), (), False, 0)
    assert first.wants_session and first.session is None and indexes(first) == [1, 2] and not first.error
    last = sessions.open(0, FINAL_EPOCH, targets(1), (), False, 0)
    assert not last.wants_session and indexes(last) == [1]


def test_any_full_fetch_closes_the_session_it_names() -> None:
    for epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        sessions = cache()
        session, other = create(sessions), create(sessions)
        sessions.open(session.id, epoch, targets(0), (), False, 0)
        assert len(sessions) == 1
        assert go_on(sessions, session, 1).error == Err.FETCH_SESSION_ID_NOT_FOUND
        assert not go_on(sessions, other, 1).error


def test_each_request_of_a_session_has_the_next_epoch() -> None:
    sessions = cache()
    session = create(sessions, 3)
    for epoch in (1, 2, 3):
        context = go_on(sessions, session, epoch)
        assert not context.error and indexes(context) == [0, 1, 2] and not context.superseded
    for wrong in (3, 5, 1):
        context = go_on(sessions, session, wrong)
        assert context.error == Err.INVALID_FETCH_SESSION_EPOCH and indexes(context) == []
    assert not go_on(sessions, session, 4).error, "a wrong epoch changes nothing"


def test_epochs_wrap_around_the_initial_one() -> None:
    sessions = cache()
    session = create(sessions)
    session.epoch = EPOCH_MAX
    assert not go_on(sessions, session, EPOCH_MAX).error
    assert session.epoch == 1


def test_ids_are_never_zero_and_never_taken() -> None:
    numbers = iter([0, 7, 7, 0, 7, 8])
    sessions = SessionCache(10, lambda: next(numbers))
    assert create(sessions).id == 7
    assert create(sessions).id == 8


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    sessions = cache()
    session = create(sessions)
    context = sessions.open(session.id, 1, [], (), True, 0)
    assert context.error == Err.FETCH_SESSION_TOPIC_ID_ERROR
    assert not go_on(sessions, session, 1).error, "and the session is still there"


def test_a_waiting_request_knows_when_its_session_has_moved_on() -> None:
    sessions = cache()
    session = create(sessions)
    waiting = go_on(sessions, session, 1)
    assert not waiting.superseded
    newer = go_on(sessions, session, 2)
    assert waiting.superseded and not newer.superseded


# ---- what a session fetches


def test_partitions_are_added_changed_and_forgotten() -> None:
    sessions = cache()
    session = create(sessions, 2)
    context = go_on(sessions, session, 1, targets(5))
    assert indexes(context) == [0, 1, 5]
    context = go_on(sessions, session, 2, targets(1, offset=42))
    assert [(t.index, t.offset) for t in context.targets] == [(0, 0), (1, 42), (5, 0)]
    context = go_on(sessions, session, 3, forgotten=[0, 5, 77])
    assert indexes(context) == [1]
    # Named and forgotten in one request: forgotten.
    context = go_on(sessions, session, 4, targets(9), forgotten=[9])
    assert indexes(context) == [1]


def test_every_field_of_a_target_follows_the_client() -> None:
    sessions = cache()
    session = create(sessions)
    go_on(sessions, session, 1, [Target(NAME, 0, 11, 22, 33, 44, 55)])
    (target,) = session.targets.values()
    assert (target.offset, target.max_bytes, target.leader_epoch, target.last_fetched_epoch,
        target.log_start_offset) == (
        11, 22, 33, 44, 55,
    )  # fmt: skip


def test_a_session_with_nothing_left_is_closed_and_answered_without() -> None:
    sessions = cache()
    session = create(sessions, 2)
    context = go_on(sessions, session, 1, forgotten=[0, 1])
    assert context.session is None and not context.error and not context.wants_session and len(sessions) == 0


def test_a_session_may_begin_with_nothing() -> None:
    sessions = cache()
    session = sessions.create([], False, False, 0)
    assert session is not None
    assert list(sessions.open(session.id, 1, [Target(NAME, 0, 0, 1)], (), False, 0).targets), "and be filled later"


# ---- what an answer tells


def tell(session: Session, index: int, *, error: int = 0, high_watermark: int = 10, log_start: int = 0, length: int = 0,
         special: bool = False) -> bool:  # fmt: skip
    return session.must_tell(session.targets[NAME, index], error, high_watermark, log_start, length, special)


def test_only_what_changed_is_told() -> None:
    session = create(cache(), 2)
    assert tell(session, 0), "the first time"
    assert not tell(session, 0)
    assert tell(session, 0, high_watermark=11) and not tell(session, 0, high_watermark=11)
    assert tell(session, 0, high_watermark=11, log_start=3) and not tell(session, 0, high_watermark=11, log_start=3)
    assert tell(session, 0, high_watermark=11, log_start=3, length=5), "records are always told"
    assert not tell(session, 0, high_watermark=11, log_start=3)


def test_errors_are_told_every_time_and_so_is_their_end() -> None:
    session = create(cache())
    assert tell(session, 0) and not tell(session, 0)
    for _ in range(3):
        assert tell(session, 0, error=Err.NOT_LEADER_OR_FOLLOWER, high_watermark=-1, log_start=-1)
    assert tell(session, 0) and not tell(session, 0)


def test_diverging_epochs_are_told_every_time_and_so_is_their_end() -> None:
    session = create(cache())
    tell(session, 0)
    assert tell(session, 0, special=True) and tell(session, 0, special=True)
    assert tell(session, 0) and not tell(session, 0)


def test_those_who_were_served_go_to_the_end_of_the_line() -> None:
    sessions = cache()
    session = create(sessions, 4)
    tell(session, 1, length=100)
    assert indexes(go_on(sessions, session, 1)) == [0, 2, 3, 1]
    tell(session, 0, length=100)
    tell(session, 3)
    assert indexes(go_on(sessions, session, 2)) == [2, 3, 1, 0]


def test_a_forgotten_partition_does_not_come_back_by_being_told() -> None:
    sessions = cache()
    session = create(sessions, 2)
    target = session.targets[NAME, 1]
    go_on(sessions, session, 1, forgotten=[1])
    session.must_tell(target, 0, 10, 0, 100, False)
    assert indexes(go_on(sessions, session, 2)) == [0]


# ---- eviction


def test_no_room_and_nobody_old_enough() -> None:
    sessions = cache(2)
    create(sessions), create(sessions)
    assert sessions.create(targets(*range(50)), False, False, EVICTION_MS) is None
    assert sessions.evictions == 0


def test_the_one_unused_for_longest_goes_first() -> None:
    sessions = cache(3)
    first, second, third = create(sessions), create(sessions), create(sessions)
    for session in (first, third):
        go_on(sessions, session, 1, now_ms=EVICTION_MS)
    create(sessions, now_ms=EVICTION_MS + 1)
    assert go_on(sessions, second, 1).error == Err.FETCH_SESSION_ID_NOT_FOUND
    assert not go_on(sessions, first, 2).error and not go_on(sessions, third, 2).error
    assert sessions.evictions == 1


def test_a_larger_session_takes_the_place_of_a_settled_smaller_one() -> None:
    sessions = cache(2)
    small, large = create(sessions, 2), create(sessions, 5)
    for session in (small, large):
        go_on(sessions, session, 1, now_ms=EVICTION_MS)
    later = EVICTION_MS + 10
    for session in (small, large):
        go_on(sessions, session, 2, now_ms=later)
    assert sessions.create(targets(0), False, False, later) is None, "smaller"
    # Of the same size: the one that is there stays, or equals would drive each other out for ever.
    assert sessions.create(targets(0, 1), False, False, later) is None
    create(sessions, 3, now_ms=later)
    assert go_on(sessions, small, 3).error == Err.FETCH_SESSION_ID_NOT_FOUND
    assert not go_on(sessions, large, 3).error


def test_followers_come_before_consumers() -> None:
    sessions = cache(2)
    consumers = [create(sessions, 9), create(sessions, 8)]
    follower = create(sessions, 1, privileged=True, now_ms=1)
    assert go_on(sessions, consumers[1], 1).error, "the smaller consumer went, though it was new"
    create(sessions, 1, privileged=True, now_ms=2)
    assert go_on(sessions, consumers[0], 1).error
    # Followers do not drive out followers that are new, nor do consumers ever.
    assert sessions.create(targets(*range(50)), True, False, 3) is None
    assert sessions.create(targets(*range(50)), False, False, 3) is None
    settled = 2 * EVICTION_MS
    for session in list(sessions._sessions.values()):
        go_on(sessions, session, session.epoch, now_ms=settled)
    assert sessions.create(targets(*range(50)), False, False, settled) is None
    assert sessions.create(targets(*range(50)), True, False, settled) is not None
    assert follower.id not in sessions._sessions or len(sessions) == 2


def test_equals_do_not_drive_each_other_out() -> None:
    """A thousand and one consumers alike on a thousand slots: one goes without, the others keep their sessions."""
    sessions = cache(5)
    alive = [create(sessions, 3) for _ in range(5)]
    now_ms = 0
    for _ in range(10):
        now_ms += EVICTION_MS - 1
        for session in alive:
            assert not go_on(sessions, session, session.epoch, now_ms=now_ms).error
        assert sessions.create(targets(0, 1, 2), False, False, now_ms) is None
    assert sessions.evictions == 0


def test_no_slots_means_no_sessions() -> None:
    assert cache(0).create(targets(1), True, False, 10 * EVICTION_MS) is None


def test_a_full_cache_is_not_searched_for_every_fetch() -> None:
    sessions = cache(100)
    for _ in range(100):
        create(sessions, 3)
    now_ms = EVICTION_MS - 1
    for session in list(sessions._sessions.values()):
        go_on(sessions, session, 1, now_ms=now_ms)
    now_ms += 2
    assert sessions.create(targets(0, 1), False, False, now_ms) is None
    sessions._sessions = counting = Counting(sessions._sessions)
    for _ in range(50):
        assert sessions.create(targets(0), False, False, now_ms) is None
    assert counting.walks <= 50
    # What would be worth a place is looked for at once, and in a second so is everything.
    assert sessions.create(targets(0, 1, 2, 3), False, False, now_ms) is not None


class Counting(dict[int, Session]):
    """Counts how many sessions were looked at."""

    walks = 0

    def values(self) -> Any:
        for value in super().values():
            self.walks += 1
            yield value
