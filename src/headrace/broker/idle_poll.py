"""Keeps the loop awake for a moment while small requests follow one another closely.

A process that sleeps is woken in some 40 µs on a virtual machine, as long as all of a small request takes. Where the
next one has come within `POLL_S` nearly every time, asking the kernel over and over in between is quicker, and costs no
more: going to sleep and waking up are work too. A connection that spoke twice in a row is asked most often, and by
itself: that is quicker by some microseconds than a turn of the loop. Where requests are far apart, or so large that
nobody would notice, the loop sleeps as always; so it does while a thread syncs, which would have to wait for the
interpreter's lock.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Protocol

from headrace.platform import yield_processor

POLL_S = 300e-6
SMALL_BYTES = 4096
"""Of what came in one turn. Larger requests are about throughput: what they wait for is the copying."""
NEEDED, MOST, MISSED = 8, 16, 4
"""Points that polling needs, the most that are kept, and what one long pause takes: four pauses in five must be
short."""
BUSY_TURNS, BUSY_POINTS = 3, -64
"""So many connections at once keep the loop awake by themselves; it is looked at again some turns later."""


class Source(Protocol):
    """Where the next request may come from."""

    def receive_now(self) -> None:
        """Handle what is there already, if anything is."""
        ...


class IdlePoll:
    """Told of every turn of a connection; polls the loop when that pays."""

    __slots__ = ("_asked", "_clock", "_last", "_loop", "_points", "_polling", "_source", "_turns", "_until")

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._last = 0.0
        self._until = 0.0
        self._points = 0
        self._turns = 0
        self._polling = False
        self._source: Source | None = None  # of the last turn
        self._asked: Source | None = None  # by itself, since the turn before was its own, too

    def served(self, now: float, small: bool, source: Source | None = None) -> None:
        """A connection had its turn at `now`; `small` when the next one may be worth staying awake for."""
        self._turns += 1
        if not small:
            self._points = min(0, self._points)
        elif now - self._last > POLL_S:
            self._points = max(0, self._points - MISSED)
        elif self._points < MOST:
            self._points += 1
        self._last = now
        if self._points >= NEEDED:
            self._until = now + POLL_S
            self._asked = source if source is self._source else None
            self._source = source
            if not self._polling:
                self._polling = True
                self._turns = 0
                self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """As long as a callback is due, the loop looks for events without waiting for them."""
        if self._turns >= BUSY_TURNS:
            self._points = BUSY_POINTS
        if self._points < NEEDED or self._clock() >= self._until:
            self._polling = False
            self._source = self._asked = None
            return
        self._turns = 0
        yield_processor()  # whoever has work to do goes first
        self._loop.call_soon(self._poll)
        if self._asked is not None:
            self._asked.receive_now()
