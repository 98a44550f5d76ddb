"""A clock that a test can advance: what users give times to is then due at once, and nothing has to sleep.

Wall time moves for the whole broker. Timers move for sessions of groups, transactions and chores such as retention.
What holds a cluster together (the quorum, sessions of brokers, requests in flight) keeps to the time that really
passes: it would take a jump for the death of all others.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace.broker.runtime import SystemRuntime


class AdvancedClock:
    """The machine's clock, some time ahead."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class _Timer:
    """One callback, and the loop's own timer for it."""

    __slots__ = ("callback", "deadline_ms", "handle", "schedule")

    def __init__(self, schedule: "AdvancedSchedule", deadline_ms: float, callback: Callable[[], object]) -> None:
        self.schedule = schedule
        self.deadline_ms = deadline_ms
        self.callback = callback
        self.handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
        delay_ms = max(0.0, self.deadline_ms - self.schedule.monotonic_ms())
        self.handle = self.schedule.loop.call_later(delay_ms / 1000, self._due)

    def _due(self) -> None:
        self.schedule.timers.pop(self, None)
        self.callback()

    def cancel(self) -> None:
        self.schedule.timers.pop(self, None)
        if self.handle is not None:
            self.handle.cancel()


class AdvancedSchedule:
    """headrace.clock.Schedule on an advanced clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: AdvancedClock) -> None:
        self.loop = loop
        self.timers: dict[_Timer, None] = {}
        self._clock = clock

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms() + self._clock.ahead_ms

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> _Timer:
        timer = _Timer(self, self.monotonic_ms() + delay_s * 1000, lambda: callback(*arguments))
        self.timers[timer] = None
        timer.arm()
        return timer

    def advance(self, ms: int) -> None:
        """Time passes: what is due by now is called in the order in which it was due."""
        self._clock.ahead_ms += ms
        for timer in sorted(self.timers, key=lambda timer: timer.deadline_ms):
            timer.arm()


class AdvancedRuntime(SystemRuntime):
    """The machine itself, at another time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead_ms: int) -> None:
        super().__init__(loop)
        clock = AdvancedClock(ahead_ms)
        self.clock = clock
        self.schedule = self.advanced = AdvancedSchedule(loop, clock)
