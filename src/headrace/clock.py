"""Time as an object, so that a whole cluster can run on a simulated one, and a test can advance it.

Pure code never reads a clock: it is handed `now_ms`. Only the shell holds a `Clock`.
"""

import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Where the shell reads time from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970: record timestamps, retention. May jump either way."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back: timeouts and sessions."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class Cancellable(Protocol):
    """Something that is due later."""

    def cancel(self) -> None: ...


class Schedule(Protocol):
    """Timers of what users give times to: sessions, transactions, retention. What holds a cluster together keeps to the
    loop's own, so that a test can advance the one without upsetting the other."""

    def monotonic_ms(self) -> int:
        """The time that these timers go by."""
        ...

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> Cancellable: ...


class LoopSchedule:
    """The loop's timers, on the clock as it is."""

    def __init__(self, loop: AbstractEventLoop, clock: Clock) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self.call_later = loop.call_later
