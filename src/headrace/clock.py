"""Time as an object, so that a whole cluster can run on a simulated one.

Pure code never reads a clock: it is handed `now_ms`. Only the shell holds a `Clock`.
"""

import time
from typing import Protocol


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
