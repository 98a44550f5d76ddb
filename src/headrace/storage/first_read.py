"""Checks what an earlier run has written before it is first served: nobody has looked at it since.

A handle of such a file has an `Unchecked`, which is dropped once all of the file is checked: by readers, piece by
piece, or by a scrub. `check_piece` runs in the thread that brings a cold slice into memory.
"""

from bisect import bisect_left
from typing import Protocol

from crc32c import crc32c

from headrace.records.layout import CRC_AT, CRC_FROM, HEADER_BYTES, LENGTH_MIN, LOG_OVERHEAD, MAGIC_AT

READ_BYTES = 1 << 20


class Unchecked:
    """The parts of a file that were found good so far, as positions [start, end, start, end, ...]."""

    __slots__ = ("good", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.good: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        """Whether all of a range needs no check. What lies behind `size` was written in this run."""
        end = min(end, self.size)
        if start >= end:
            return True
        # An odd number of positions at or before the start: it lies within a good part.
        at = bisect_left(self.good, start + 1)
        return bool(at % 2) and self.good[at] >= end

    def add(self, start: int, end: int) -> bool:
        """Note a good part. True when nothing is left to be checked."""
        good = self.good
        first = bisect_left(good, start)
        last = bisect_left(good, end + 1)
        good[first:last] = ([start] if first % 2 == 0 else []) + ([end] if last % 2 == 0 else [])
        return self.covers(0, self.size)


class Piece(Protocol):
    """A slice of a log file that begins with a batch."""

    length: int

    def read(self, length: int | None = None, at: int = 0) -> bytes: ...


def check_piece(piece: Piece) -> tuple[int, str | None]:
    """(bytes of whole batches that are good, what is wrong behind them). A batch that is cut off at the end is not
    looked at.

    Where it begins again, the next reader finds it.
    """
    at = 0
    while at < piece.length:
        chunk = memoryview(piece.read(min(READ_BYTES, piece.length - at), at))
        used = 0
        while len(chunk) - used >= HEADER_BYTES:
            size = int.from_bytes(chunk[used + 8 : used + 12], "big", signed=True) + LOG_OVERHEAD
            if size < LENGTH_MIN + LOG_OVERHEAD or chunk[used + MAGIC_AT] != 2:
                return at + used, "no batch where the one before it ends"
            if size > len(chunk) - used:
                if used or at + size > piece.length:
                    break
                chunk = memoryview(piece.read(size, at))
                if len(chunk) < size:
                    return at, "the file ends inside a batch"
            crc = int.from_bytes(chunk[used + CRC_AT : used + CRC_FROM], "big")
            if crc32c(chunk[used + CRC_FROM : used + size]) != crc:
                return at + used, "CRC mismatch"
            used += size
        if not used:
            break
        at += used
    return at, None
