"""Is a range of a file in the page cache? Sending it would otherwise stop the whole loop for a disk read.

Linux 6.5 has cachestat for this; where it is missing, everything but the recent tail counts as cold.
"""

import os
from collections.abc import Iterable

from headrace.platform import page_counter, will_need
from headrace.storage.files import File
from headrace.storage.log import Slice

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RECENT_BYTES = 8 << 20
"""What was written last is in memory: it has just been written."""
READ_BYTES = 1 << 20
AHEAD = 8
"""So many times what a reader takes now are looked up for one that reads on."""
KNOWN_S = 1.0
"""How long that counts: memory is taken first from what was not used for long."""


def _unknown(fd: int, position: int, length: int) -> int | None:
    """Where the kernel has no way to ask."""
    return None


class PageCache:
    """Asks the kernel which pages it holds."""

    def __init__(self) -> None:
        counter = page_counter()
        self.supported = counter is not None
        self._cached_pages = counter or _unknown

    def holds(self, piece: Slice, file_bytes: int) -> bool:
        """Is all of `piece`, of a file of `file_bytes`, in memory?"""
        if piece.fd < 0 or piece.position >= file_bytes - RECENT_BYTES:
            return True
        if not self.supported:
            return False
        return self.has(piece.fd, piece.position, piece.length)

    def has(self, fd: int, position: int, length: int) -> bool:
        """Is this part of a file in memory, as far as is known?"""
        first = position // PAGE_BYTES
        pages = (position + length - 1) // PAGE_BYTES - first + 1
        cached = self._cached_pages(fd, first * PAGE_BYTES, pages * PAGE_BYTES)
        return cached is not None and cached >= pages


class CachedAhead:
    """What one reader that reads on is known to find in memory, so that not each of its requests has to ask."""

    __slots__ = ("_cache", "_end", "_file", "_start", "_until")

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self._file: File | None = None
        self._start = self._end = 0
        self._until = 0.0

    def holds(self, piece: Slice, file_bytes: int, now: float) -> bool:
        """As `PageCache.holds`; `now` in seconds."""
        start, length = piece.position, piece.length
        if piece.file is self._file and self._start <= start and start + length <= self._end and now < self._until:
            return True
        cache = self._cache
        is_recent = start >= file_bytes - RECENT_BYTES
        if not is_recent and cache.supported and cache.has(piece.fd, start, AHEAD * length):
            self._file, self._start, self._end, self._until = piece.file, start, start + AHEAD * length, now + KNOWN_S
            return True
        return cache.holds(piece, file_bytes)


def read_ahead(pieces: Iterable[Slice]) -> list[Slice]:
    """In a thread: bring slices into the page cache. Returns those that the disk could not give."""
    unreadable = []
    for piece in pieces:
        will_need(piece.fd, piece.position, piece.length)
    for piece in pieces:
        at = 0
        try:
            while at < piece.length and piece.read(min(READ_BYTES, piece.length - at), at):
                at += READ_BYTES
        except OSError:
            unreadable.append(piece)
    return unreadable
