"""Timers that are pushed back again and again, in a loop and on a clock that the test moves."""

import heapq
from collections.abc import Callable
from typing import Any

from headrace.broker.coordinators.timers import GRACE_MS_MAX, SWEEP_AT, Timers, TimerSet


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clockwork:
    """A loop with timers and a clock; `stand_still` is a process that was stopped."""

    def __init__(self) -> None:
        self.now = 0
        self._due: list[tuple[int, int, Handle, Callable[[], object]]] = []
        self._count = 0

    def monotonic_ms(self) -> int:
        return self.now

    def perf_counter(self) -> float:
        return self.now / 1000

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> Any:
        handle = Handle()
        self._count += 1
        heapq.heappush(self._due, (self.now + round(seconds * 1000), self._count, handle, lambda: callback(*arguments)))
        return handle

    def advance(self, ms: int) -> None:
        end = self.now + ms
        while self._due and self._due[0][0] <= end:
            at, _, handle, callback = heapq.heappop(self._due)
            self.now = max(self.now, at)
            if not handle.cancelled:
                callback()
        self.now = end

    def stand_still(self, ms: int) -> None:
        self.now += ms


def made() -> tuple[Clockwork, Timers, TimerSet, list[Any]]:
    clock = Clockwork()
    timers = Timers(clock, clock.perf_counter)
    fired: list[Any] = []
    return clock, timers, TimerSet(timers, lambda key: fired.append((clock.now, key))), fired


def test_fires_once_at_its_time() -> None:
    clock, _, owner, fired = made()
    owner.arm("a", 100)
    owner.arm("b", 50)
    clock.advance(99)
    assert fired == [(50, "b")]
    clock.advance(1000)
    assert fired == [(50, "b"), (100, "a")]


def test_a_heartbeat_pushes_a_session_back_without_filling_the_heap() -> None:
    clock, timers, owner, fired = made()
    for _ in range(50):
        owner.arm("session", 45_000)
        clock.advance(3_000)
    assert not fired and len(timers._heap) <= 2
    clock.advance(45_000)
    assert fired == [(50 * 3_000 + 42_000, "session")]


def test_an_earlier_deadline_replaces_a_later_one() -> None:
    clock, _, owner, fired = made()
    owner.arm("a", 1000)
    owner.arm("a", 10)
    clock.advance(5000)
    assert fired == [(10, "a")]


def test_cancelled_and_cleared_timers_stay_silent_and_can_be_armed_again() -> None:
    clock, timers, owner, fired = made()
    other = TimerSet(timers, lambda key: fired.append((clock.now, key)))
    owner.arm("a", 10)
    owner.arm("b", 10)
    other.arm("c", 10)
    owner.cancel("a")
    owner.cancel("unknown")
    assert len(owner) == 1
    owner.arm("a", 20)
    other.clear()
    clock.advance(100)
    assert fired == [(10, "b"), (20, "a")]


def test_a_timer_may_arm_others_from_within() -> None:
    clock, timers, _, _ = made()
    fired: list[Any] = []

    def again(key: Any) -> None:
        fired.append((clock.now, key))
        if len(fired) < 4:
            owner.arm(key, 10)

    owner = TimerSet(timers, again)
    owner.arm("a", 10)
    clock.advance(1000)
    assert [at for at, _ in fired] == [10, 20, 30, 40]


def test_members_get_a_grace_after_the_broker_itself_stood_still() -> None:
    clock, _, owner, fired = made()
    owner.arm("silent", 2_000)
    owner.arm("alive", 2_000)
    clock.stand_still(8_000)
    clock.advance(0)
    assert not fired, "the heartbeats of the last seconds may still lie in the sockets"
    owner.arm("alive", 2_000 + 6_000)
    clock.advance(7_000)
    assert [key for _, key in fired] == ["silent"]
    owner.arm("later", 1)
    clock.stand_still(10 * GRACE_MS_MAX)
    clock.advance(GRACE_MS_MAX)
    assert "later" in [key for _, key in fired], "the grace has an end"


def test_timers_that_were_cancelled_do_not_pile_up() -> None:
    clock, timers, owner, fired = made()
    for number in range(10_000):
        owner.arm(number, 10**9)
        owner.cancel(number)
    assert len(timers._heap) == len(owner._by_key) <= SWEEP_AT
    assert len(timers._heap) < 500, "each holds the names of a group and a member that may be long gone"
    owner.arm("real", 5)
    clock.advance(10)
    assert fired == [(5, "real")]
