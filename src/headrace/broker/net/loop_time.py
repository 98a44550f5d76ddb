"""Shares a turn of the event loop among connections: once it has taken long, the rest waits for the next turn.

A turn serves every socket that is ready. Each of them does little, but there may be thousands: then timers, heartbeats
and elections would wait for all of them. Here the work of a turn is added up, and the rest is done in turns to come,
first come, first served.
"""

from asyncio import AbstractEventLoop
from collections import deque
from typing import Protocol

SHARE_S = 0.005
"""A connection's share of one turn. All of them together have twice as much, and whatever one request takes."""
CLEAR_S = 0.5e-9
"""What a byte of a new buffer costs."""


class Waiting(Protocol):
    """A connection that has something to do."""

    def next_turn(self) -> None:
        """It may now."""
        ...


class LoopTime:
    """Told of the work that was done. `used_up` says that the rest has to wait."""

    __slots__ = ("_busy_s", "_loop", "_marked", "_queue", "used_up")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._busy_s = 0.0
        self._marked = False
        self._queue: deque[Waiting] = deque()
        self.used_up = False

    def spent(self, seconds: float) -> None:
        """Something took so long.

        Where turns begin costs a callback to find out, so that is asked only after some work: what was added up until
        then may belong to several turns, what is added up afterwards belongs to this one.
        """
        self._busy_s += seconds
        if self._busy_s > SHARE_S:
            self._busy_s = 0.0
            if self._marked:
                self.used_up = True
            else:
                self._mark()

    def wait(self, connection: Waiting) -> None:
        """`next_turn` is called once, in a turn to come."""
        self._queue.append(connection)
        if not self._marked:
            self._mark()

    def _mark(self) -> None:
        self._marked = True
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """A new turn."""
        self._marked = self.used_up = False
        self._busy_s = 0.0
        queue = self._queue
        for _ in range(len(queue)):
            queue.popleft().next_turn()
            if self.used_up:
                break
        if queue and not self._marked:
            self._mark()
