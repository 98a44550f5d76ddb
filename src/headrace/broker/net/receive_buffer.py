"""What one connection has received and not handled yet, and the memory for it.

Every connection has a small buffer. More is taken from the budget that all share, by what has arrived and not by what
was announced. Frames of many megabytes get memory of their own (`frame_memory.py`).
"""

from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import cast

from headrace.broker.net.frame_memory import FrameMemory, reserve
from headrace.broker.net.limits import MemoryBudget
from headrace.broker.net.loop_time import CLEAR_S, LoopTime
from headrace.broker.net.request import NO_BYTES, NO_VIEW

BUFFER_BYTES = 16 * 1024
"""What every connection has; more is charged to the common budget."""
BUFFER_BYTES_BUSY = 512 * 1024
"""How far a connection's buffer grows just to receive more at a time."""
BUFFER_BYTES_KEPT = 4 << 20
"""A buffer may stay this large while its connection is busy. A larger frame gets memory of its own, until it is
handled."""
MAPPED_STEP_BYTES = 1 << 20
"""Such a frame takes so much of the common budget at a time."""

_int32 = Struct(">i").unpack_from


class ReceiveBuffer:
    """Bytes from `start` to `filled` wait to be handled; the next ones go from `filled` to `room`."""

    __slots__ = (
        "_budget",
        "_frame_memory",
        "_loop_time",
        "_room_again",
        "buf",
        "charged",
        "filled",
        "room",
        "start",
        "view",
    )

    def __init__(
        self, budget: MemoryBudget, frame_memory: FrameMemory, loop_time: LoopTime, room_again: Callable[[], None]
    ) -> None:
        """`room_again` is called when memory that was not there may be."""
        self._budget = budget
        self._frame_memory = frame_memory
        self._loop_time = loop_time
        self._room_again = room_again
        self.buf = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buf)
        self.room = BUFFER_BYTES
        """How much of the buffer may be used: all of it, but in a frame's own memory."""
        self.charged = 0
        """Bytes of the budget held for it."""
        self.start = 0
        self.filled = 0

    def make_room(self, progress: bool, is_waiting: bool) -> bool:
        """Leave room to read into. False: there is none, and nothing may be read until there is some.

        `progress`: frames were handled just now; `is_waiting`: the rest waits for something other than more bytes.
        """
        if progress and self.charged and self._budget.pressed:
            self._give_way()
        size = len(self.buf)
        if self.start == self.filled:
            was_full = self.filled == size
            self.start = self.filled = 0
            if size > BUFFER_BYTES_KEPT:
                self._replace(BUFFER_BYTES_BUSY)
            elif was_full and size < BUFFER_BYTES_BUSY:
                # The peer has more to say than fits.
                size = min(4 * size, BUFFER_BYTES_BUSY)
                if self._budget.has_room(size - len(self.buf)):
                    self._replace(size)
        elif is_waiting:
            # The rest waits for answers to leave; what the kernel still holds waits in the kernel.
            if self.filled == self.room:
                self._compact()
                return self.filled != self.room
        elif self.filled - self.start < 4:
            self._compact()
        else:
            (length,) = _int32(self.buf, self.start)
            if self.start + 4 + length > self.room:
                self._compact()
                return self.filled != self.room or self._grow(4 + length)
        return True

    def shrink(self) -> None:
        """Give back what a burst needed, if nothing is left of it."""
        if self.charged and self.start == self.filled:
            self.start = self.filled = 0
            self._replace(BUFFER_BYTES)

    def leave_line(self) -> None:
        """Nothing more is to be received: others who wait for memory come first."""
        self._budget.leave(self)

    def close(self) -> None:
        old, charged = self.buf, self.charged
        self.buf, self.view = NO_BYTES, NO_VIEW
        self.start = self.filled = self.room = self.charged = 0
        self._room_again = _nobody  # was the connection, which has this: neither should wait for the collector
        self._give_back(old, charged)

    def _grow(self, wanted: int) -> bool:
        """Room for more of a frame of `wanted` bytes. Raises OSError where the system does not give it."""
        room = self.room
        if room < BUFFER_BYTES_BUSY or wanted <= BUFFER_BYTES_KEPT:
            return self._replace(max(min(max(4 * room, BUFFER_BYTES_BUSY), wanted), min(4 * room, BUFFER_BYTES_BUSY)))
        step = min(MAPPED_STEP_BYTES, wanted - room)
        if not self._budget.take(self, step, self._room_again):
            return False
        self.charged += step
        self.room += step
        if len(self.buf) < wanted:
            self._move_to(cast(bytearray, reserve(wanted)))  # it reads and is written like a bytearray
        return True

    def _give_way(self) -> None:
        """Others wait for memory and this one has just handled a frame: it keeps what holds the rest, no more."""
        size = max(BUFFER_BYTES, self.filled - self.start)
        if size < self.room:
            self._replace(size)
        else:
            self._budget.leave(self)

    def _compact(self) -> None:
        if self.start:
            rest = self.filled - self.start
            self.view[:rest] = self.view[self.start : self.filled]
            self.start, self.filled = 0, rest

    def _replace(self, size: int) -> bool:
        """Change to a new buffer. Never resized in place: views of the old one may still be alive."""
        change = size - self.room
        if change > 0 and not self._budget.take(self, change, self._room_again):
            return False
        old = self.buf
        self._move_to(bytearray(size))
        self._loop_time.spent(size * CLEAR_S)
        self.charged += change
        self.room = size
        if change <= 0:
            self._give_back(old, -change)
        return True

    def _move_to(self, new: bytearray) -> None:
        rest = self.filled - self.start
        view = memoryview(new)
        view[:rest] = self.view[self.start : self.filled]
        self.buf, self.view = new, view
        self.start, self.filled = 0, rest

    def _give_back(self, old: bytearray, charged: int) -> None:
        """A buffer is no longer needed, nor is the place in line."""
        if isinstance(old, mmap):
            self._budget.leave(self)
            self._frame_memory.retire(old, charged)
        else:
            self._budget.give(self, charged)


def _nobody() -> None:
    """Who waits for room once all is over."""
