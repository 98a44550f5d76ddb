"""Memory that a burst needed goes back to the system: by itself, neither Python nor the C library returns most of it.

The C library keeps freed pages that lie below one in use. Python keeps freed tuples, lists and dicts for the next of
their kind, up to two thousand of each size: few bytes, but spread over all that the burst had, and a megabyte is only
returned when nothing in it is left. A full collection lets go of them.
"""

import gc
import sys
from collections.abc import Callable
from typing import Self

from headrace.platform import return_freed_memory

LOOK_MS = 5_000
TRIM_EVERY = 6
"""Looks. Nothing to return costs a tenth of a millisecond, thirty megabytes two or three."""
BURST_BLOCKS = 50_000
"""Less than this is not worth a collection: some five megabytes."""
SETTLED_BLOCKS = 1_000
"""It is over when no more than this was freed since the last look: what is freed later would be kept again."""
COLLECT_BLOCKS_MAX = 100_000
"""Beyond what was there at the start: the more there is, the longer a collection holds the loop."""


class FreedMemory:
    """Looks at how much is in use, and returns what is not once it has become far less."""

    def __init__(self, in_use: Callable[[], int], collect: Callable[[], int], trim: Callable[[], None]) -> None:
        self._in_use = in_use
        """Blocks of memory that Python has given out."""
        self._collect = collect
        self._trim = trim
        self._at_start = self._most = self._last = 0
        self._looks = 0

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(sys.getallocatedblocks, gc.collect, return_freed_memory())

    def start(self) -> None:
        """What is in use now belongs to the broker itself, not to a burst."""
        self._at_start = self._most = self._last = self._in_use()

    async def run(self) -> None:
        """One look."""
        blocks = self._in_use()
        self._most = max(self._most, blocks)
        is_over = self._most - blocks >= BURST_BLOCKS and self._last - blocks <= SETTLED_BLOCKS
        self._last = blocks
        self._looks += 1
        if is_over and blocks - self._at_start <= COLLECT_BLOCKS_MAX:
            self._collect()
            self._most = self._last = self._in_use()
            self._trim()
        elif self._looks % TRIM_EVERY == 0:
            self._trim()
