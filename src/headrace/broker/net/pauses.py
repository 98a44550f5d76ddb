"""Long work on the loop, a little at a time: whoever does it asks after each step whether others should have a turn."""

import asyncio
from collections.abc import Callable

WORK_S = 0.002
"""What is worked without a pause."""


class Pauses:
    """`if pauses.due: await pauses.take()`, as often as it costs little."""

    __slots__ = ("_end", "_perf_counter", "count")

    def __init__(self, perf_counter: Callable[[], float]) -> None:
        self._perf_counter = perf_counter
        self._end = perf_counter() + WORK_S
        self.count = 0
        """Of those that were taken."""

    @property
    def due(self) -> bool:
        return self._perf_counter() > self._end

    async def take(self) -> None:
        """Let everything else on the loop that is ready come first."""
        await asyncio.sleep(0)
        self.count += 1
        self._end = self._perf_counter() + WORK_S
