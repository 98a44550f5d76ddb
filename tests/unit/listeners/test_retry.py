"""What a failure leads to, and the headers that tell of it."""

import pytest
from hypothesis import given, strategies as st

from headrace.listeners.core import headers as h
from headrace.listeners.core.retry import (
    Again,
    DeadLetter,
    Fatal,
    Leave,
    ListenerRefused,
    Retry,
    Skip,
    Stop,
    ToRetryTopic,
    Undecodable,
    decide,
    delay_of,
)

ERROR = ValueError("no such table")


def test_attempts_then_retry_topics_then_dead_letters() -> None:
    retry = Retry(attempts=2, delay_s=1, topics=("10s", "1m"))
    assert decide(ERROR, retry, attempt=1, dead_letter=True) == Again(1.0)
    assert decide(ERROR, retry, attempt=2, dead_letter=True) == ToRetryTopic(1, 10.0)
    assert decide(ERROR, retry, attempt=2, stage=1, dead_letter=True) == ToRetryTopic(2, 60.0)
    assert decide(ERROR, retry, attempt=2, stage=2, dead_letter=True) == DeadLetter()


def test_without_dead_letters_the_listener_ends_unless_told_to_skip() -> None:
    assert decide(ERROR, Retry(attempts=1), attempt=1, dead_letter=False) == Stop()
    assert decide(ERROR, Retry(attempts=1), attempt=1, dead_letter=False, skip=True) == Leave()


@pytest.mark.parametrize("error", [Undecodable("x"), Fatal("x"), KeyError("x")])
def test_what_trying_again_cannot_cure_is_not_tried_again(error: Exception) -> None:
    assert decide(error, Retry(never=(KeyError,), topics=("1s",)), attempt=1, dead_letter=True) == DeadLetter()


def test_only_the_named_errors_are_tried_again() -> None:
    retry = Retry(on=(ConnectionError,))
    assert isinstance(decide(ConnectionError(), retry, attempt=1, dead_letter=True), Again)
    assert decide(ERROR, retry, attempt=1, dead_letter=True) == DeadLetter()


def test_a_skipped_record_goes_nowhere() -> None:
    assert decide(Skip(), Retry(), attempt=1, dead_letter=True) == Leave()


@given(st.integers(1, 10_000), st.floats(0, 100), st.floats(1, 10), st.floats(0, 1000))
def test_delays_grow_up_to_their_limit(attempt: int, delay_s: float, factor: float, limit: float) -> None:
    retry = Retry(attempts=None, delay_s=delay_s, factor=factor, delay_s_max=limit)
    assert 0 <= retry.delay_after(attempt) <= retry.delay_after(attempt + 1) <= limit
    assert isinstance(decide(ERROR, retry, attempt=attempt, dead_letter=True), Again)


@pytest.mark.parametrize("wrong", ["", "10", "s", "0s", "-1s", "1.5s", "10 s", "1w"])
def test_a_delay_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ListenerRefused, match="write such as"):
        delay_of(wrong)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ListenerRefused, match="attempts=None"):
        Retry(attempts=None, topics=("1s",))
    with pytest.raises(ListenerRefused, match="1 or more"):
        Retry(attempts=0)


ORIGIN = h.Origin("orders", 3, 42, 1_700_000_000_000, "billing")


def test_headers_say_where_a_record_was_and_why_it_failed() -> None:
    told = h.failure_headers((("trace", b"1"),), ORIGIN, ERROR, listener="bill", attempts=3)
    found = h.failure_of(told)
    assert found.origin == ORIGIN
    assert (found.exception, found.message, found.listener, found.attempts) == (
        "builtins.ValueError",
        "no such table",
        "bill",
        3,
    )
    assert told[0] == ("trace", b"1")
    assert dict(told)["kafka_dlt-original-offset"] == (42).to_bytes(8, "big")


def test_the_first_origin_is_kept_through_retry_topics() -> None:
    first = h.failure_headers((), ORIGIN, ERROR, listener="bill", attempts=1, stage=1, due_ms=5_000)
    assert (h.stage_of(first), h.due_ms_of(first), h.attempts_of(first)) == (1, 5_000, 1)
    there = h.Origin("orders.billing.retry-10s", 0, 7, 0, "billing")
    second = h.failure_headers(first, there, KeyError("x"), listener="bill", attempts=2)
    found = h.failure_of(second)
    assert found.origin == ORIGIN and found.attempts == 2 and found.exception == "builtins.KeyError"
    assert h.stage_of(second) == 0
    assert len([name for name, _ in second if name == h.ATTEMPTS]) == 1


def test_a_replayed_record_has_its_own_headers_and_how_often_it_came_back() -> None:
    told = h.failure_headers((("trace", b"1"),), ORIGIN, ERROR, listener="bill", attempts=3)
    once = h.replay_headers(told)
    assert once == (("trace", b"1"), ("headrace-replays", b"1"))
    assert h.replay_headers(once)[-1] == ("headrace-replays", b"2")


def test_a_long_message_does_not_make_a_record_too_large() -> None:
    told = h.failure_headers((), ORIGIN, ValueError("x" * 1_000_000), listener="bill", attempts=1)
    assert sum(len(content or b"") for _, content in told) < 20_000


@given(st.binary(max_size=30))
def test_headers_of_others_are_read_as_far_as_they_make_sense(content: bytes) -> None:
    for name in (h.ATTEMPTS, h.RETRY_STAGE, h.RETRY_DUE_MS, h.REPLAYS, h.ORIGINAL_TOPIC, h.ORIGINAL_PARTITION):
        h.failure_of(((h.ORIGINAL_TOPIC, b"t"), (name, content)))
        assert h.attempts_of(((name, content),)) >= 0
