"""Memory for frames of many megabytes: addresses are reserved at once, and the kernel adds pages as bytes arrive.

A bytearray is cleared when it is made and copied when it grows: 57 ms for one of 99 MB. A mapping costs nothing at
first, and then some 0.5 ms for each megabyte that comes. To unmap it takes 5 ms, so that is done in portions as well,
one in a turn.
"""

import mmap
from asyncio import AbstractEventLoop
from collections import deque

from headrace.broker.net.limits import MemoryBudget

FREED_BYTES = 8 << 20
"""What is given back to the kernel in one turn of the loop: half a millisecond."""
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


def reserve(size: int) -> mmap.mmap:
    """Addresses for a frame of `size` bytes. Raises OSError where the system does not give out more than it has."""
    return mmap.mmap(-1, size, flags=_FLAGS)


class FrameMemory:
    """Takes mappings back, and returns them to the kernel and to the budget little by little."""

    def __init__(self, loop: AbstractEventLoop, budget: MemoryBudget) -> None:
        self._loop = loop
        self._budget = budget
        self._retired: deque[tuple[mmap.mmap, int]] = deque()

    def retire(self, mapping: mmap.mmap, charged: int) -> None:
        """Nobody needs it any more; `charged` bytes of the budget were held for it, from its start."""
        if not self._retired:
            self._loop.call_soon(self._free)
        self._retired.append((mapping, charged))

    def _free(self) -> None:
        mapping, charged = self._retired.popleft()
        rest = charged - FREED_BYTES
        if rest > 0:
            try:
                mapping.resize(rest)
            except (BufferError, OSError, SystemError, ValueError):
                # Somebody still has a view of it, and it lives as long as that; or this system cannot do it.
                rest = 0
        if rest > 0:
            self._retired.appendleft((mapping, rest))
        # The last part goes with the last reference: this one.
        self._budget.give(self, charged - max(rest, 0))
        if self._retired:
            self._loop.call_soon(self._free)
