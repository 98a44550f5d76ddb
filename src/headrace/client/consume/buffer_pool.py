"""Memory that answers are read into, used again and again."""

import mmap

from headrace.platform import use_huge_pages
from headrace.records.layout import Buffer

HUGE_PAGE_BYTES = 2 << 20
SIZE_STEP = 1 << 16
"""Answers that are asked for with one size differ by a few bytes; the buffer of each should do for all."""


class BufferPool:
    """Memory that answers are read into, used again and again: fresh memory costs more than what is read into it.

    One thread may take while another gives back.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        while self._free:
            if len(buffer := self._free.pop()) >= size:
                return memoryview(buffer)[:size]
        return memoryview(_new_buffer(-(-size // SIZE_STEP) * SIZE_STEP))[:size]

    def give_back(self, part: Buffer) -> None:
        """Of what was taken, or of anything else, which is left alone."""
        if isinstance(part, memoryview) and isinstance(part.obj, mmap.mmap):
            self._free.append(part.obj)

    def trim(self, bytes_max: int) -> None:
        """Let go of what is free beyond so many bytes."""
        while sum(map(len, self._free)) > bytes_max:
            self._free.pop()


def _new_buffer(size: int) -> mmap.mmap:
    """Not a bytearray, which writes zeros to all of it at first; in a few large pages, where the system has them.

    Private: the system has no large pages for memory that processes share, which is what Python asks for by default.
    """
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE_BYTES:
        use_huge_pages(buffer)
    return buffer
