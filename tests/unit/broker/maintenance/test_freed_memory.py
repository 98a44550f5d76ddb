"""When memory goes back to the system: after a burst, when little is left to look through, and now and then."""

import asyncio
import os
import platform

import pytest

from headrace.broker.maintenance.freed_memory import (
    BURST_BLOCKS,
    COLLECT_BLOCKS_MAX,
    TRIM_EVERY,
    FreedMemory,
)
from headrace.platform import IS_PORTABLE, return_freed_memory
from tests.broker.support import rss_bytes


class Watched:
    """A process with so many blocks in use."""

    def __init__(self) -> None:
        self.blocks = 200_000
        self.trims = 0
        self.collections = 0
        self.freed = FreedMemory(lambda: self.blocks, self._collect, self._trim)
        self.freed.start()

    def _collect(self) -> int:
        self.collections += 1
        return 0

    def _trim(self) -> None:
        self.trims += 1

    def looks(self, *blocks: int) -> tuple[int, int]:
        """(collections, trims) once it was seen with so many in use."""
        for self.blocks in blocks:
            asyncio.run(self.freed.run())
        return self.collections, self.trims


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_burst_that_is_over_is_cleared_away_once(watched: Watched) -> None:
    assert watched.looks(200_000 + BURST_BLOCKS) == (0, 0)
    assert watched.looks(200_000) == (0, 0), "more may be freed yet"
    assert watched.looks(200_000) == (1, 1)
    assert watched.looks(200_000) == (1, 1)
    assert watched.looks(200_000 + BURST_BLOCKS, 200_000, 200_000) == (2, 3)


def test_what_goes_up_and_down_a_little_is_left_alone(watched: Watched) -> None:
    assert watched.looks(*[200_000, 200_000 + BURST_BLOCKS - 1] * 2) == (0, 0)


def test_much_that_is_in_use_is_never_looked_through(watched: Watched) -> None:
    large = 200_000 + COLLECT_BLOCKS_MAX + 1
    assert watched.looks(5_000_000, large, large) == (0, 0)
    assert watched.looks(large - 1) == (1, 1)


def test_the_c_library_is_asked_now_and_then(watched: Watched) -> None:
    assert watched.looks(*[200_000] * TRIM_EVERY * 3) == (0, 3)


@pytest.mark.skipif(IS_PORTABLE or platform.libc_ver()[0] != "glibc", reason="the only one that is asked")
def test_the_c_library_returns_what_is_free() -> None:
    burst = [b"%04000d" % number for number in range(10_000)]
    above = b"%04000d" % 0  # in use, so that what is below would stay
    del burst
    before = rss_bytes(os.getpid())
    return_freed_memory()()
    assert before - rss_bytes(os.getpid()) > 20_000_000
    assert above
