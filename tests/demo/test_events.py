"""The feed: the same for the same seed, with every kind of dirt in it, and a truth that its values agree with."""

import json
from collections import Counter

import pytest

from headrace.demo.events import (
    DUPLICATE,
    GOOD,
    KINDS,
    LATE,
    LATE_MS_MAX,
    MALFORMED,
    STALE,
    TICK_MS,
    Shop,
    replay,
)
from headrace.demo.expected import STALE_AFTER_MS, WATERMARK_MS, WINDOW_MS, Totals, expect, window_of
from headrace.demo.feed import CATCH_UP, TICKS_AT_ONCE_MAX, pause_s
from headrace.demo.run import opened_ms

START_MS = 1_800_000_000_000
EVENTS = list(replay(7, START_MS, 1_000, 1_200))


def test_the_same_seed_gives_the_same_events_and_another_one_others() -> None:
    assert list(replay(7, START_MS, 1_000, 1_200)) == EVENTS
    assert list(replay(8, START_MS, 1_000, 1_200)) != EVENTS


def test_events_come_at_about_the_rate_and_in_the_order_of_their_time() -> None:
    assert 0.9 < len(EVENTS) / (1_200 * TICK_MS / 1000) / 1_000 < 1.3
    assert [event.number for event in sorted(EVENTS, key=lambda event: event.number)] == list(range(len(EVENTS)))
    ticks = [(event.timestamp_ms - START_MS) // TICK_MS for event in EVENTS]
    assert ticks == sorted(ticks)


def test_every_kind_of_dirt_is_there_and_most_events_are_good() -> None:
    kinds = Counter(event.kind for event in EVENTS)
    assert set(kinds) == set(KINDS) and kinds[GOOD] > 0.85 * len(EVENTS)


def test_values_say_what_the_truth_says() -> None:
    for event in EVENTS:
        if event.kind != MALFORMED:
            value = json.loads(event.value)
            assert (value["event_id"], value["event_time"]) == (event.event_id, event.event_time_ms)
            assert (value["category"], value["action"], value["cents"]) == (event.category, event.action, event.cents)
            assert event.key == b"customer-%d" % value["customer"]


def test_no_malformed_value_passes_for_an_event() -> None:
    for event in EVENTS:
        if event.kind == MALFORMED:
            try:
                value = json.loads(event.value)
            except ValueError:
                continue
            required = {"event_id", "event_time", "action", "category", "cents"}
            assert not required <= value.keys() or not isinstance(value["cents"], int)


def test_what_is_late_comes_before_the_watermark_gives_up_on_it_and_what_is_stale_never_does() -> None:
    for event in EVENTS:
        behind_ms = event.timestamp_ms - event.event_time_ms
        if event.kind == LATE:
            assert 0 < behind_ms <= LATE_MS_MAX < WATERMARK_MS
        elif event.kind == STALE:
            assert behind_ms > STALE_AFTER_MS
        elif event.kind == GOOD:
            assert behind_ms == 0


def test_a_duplicate_is_an_earlier_event_once_more() -> None:
    seen: dict[str, bytes] = {}
    for event in EVENTS:
        if event.kind == DUPLICATE:
            assert seen[event.event_id] == event.value
        elif event.kind != MALFORMED:
            assert event.event_id not in seen
            seen[event.event_id] = event.value


def test_the_expectation_counts_each_good_event_once() -> None:
    expected = expect(EVENTS)
    kinds = Counter(event.kind for event in EVENTS)
    assert sum(row.events for row in expected.windows.values()) == kinds[GOOD] + kinds[LATE]
    assert expected.rejected == [(event.key, event.value) for event in EVENTS if event.kind == MALFORMED]
    assert (expected.stale, expected.duplicates) == (kinds[STALE], kinds[DUPLICATE])
    one = next(event for event in EVENTS if event.kind == GOOD and event.action == "order")
    window = window_of(one.event_time_ms), one.category
    assert expect([one]).windows == {window: Totals(1, 1, one.cents)}


def test_the_closing_event_is_a_good_one_of_the_time_it_is_given() -> None:
    shop = Shop(1, START_MS, 100)
    shop.events_of(0)
    closing = shop.closing(START_MS + 60_000)
    assert closing.kind == GOOD and closing.event_time_ms == closing.timestamp_ms == START_MS + 60_000


ASKING_MS = 500
"""By how much the answers of brokers about the ends of partitions may lie apart while leaders change."""


def test_the_watermark_waits_for_whatever_a_failover_holds_back() -> None:
    ahead_ms = TICKS_AT_ONCE_MAX * TICK_MS + CATCH_UP * ASKING_MS
    assert LATE_MS_MAX + ahead_ms <= WATERMARK_MS


@pytest.mark.parametrize("started_ms", [START_MS, START_MS + 1, START_MS + WINDOW_MS // 2, START_MS + WINDOW_MS - 1])
def test_the_first_window_is_whole_and_has_ended_when_the_demo_starts(started_ms: int) -> None:
    first_ms = opened_ms(started_ms)
    assert window_of(first_ms) == first_ms, "events fill it from its beginning"
    assert started_ms - WINDOW_MS < first_ms + WINDOW_MS <= started_ms


def test_a_feed_that_stood_still_catches_up_but_not_at_once() -> None:
    assert pause_s(TICKS_AT_ONCE_MAX, 0.0) == TICKS_AT_ONCE_MAX * TICK_MS / 1000 / CATCH_UP
    assert pause_s(1, 0.010) < TICK_MS / 1000, "one tick at a time is on time"
    assert pause_s(TICKS_AT_ONCE_MAX, 5.0) == 0.0, "slow brokers are pause enough"
