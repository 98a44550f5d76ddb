"""Who sent and who got which record, offset by offset, in a few bytes each: what the verdict is found from.

The feed is alone in its topic and every batch is written once, so what it sends to a partition has the offsets 0, 1, 2
and so on: whether that holds is part of what is checked.
"""

import zlib
from array import array

import msgspec


def digest(key: bytes | None, value: bytes | None) -> int:
    return zlib.crc32(value or b"", zlib.crc32(key or b""))


class Ledger:
    """What was sent: a checksum per offset and partition."""

    def __init__(self, partitions: int) -> None:
        self.sums = [array("L") for _ in range(partitions)]

    def sent(self, partition: int, key: bytes, value: bytes) -> None:
        self.sums[partition].append(digest(key, value))

    @property
    def ends(self) -> list[int]:
        return [len(sums) for sums in self.sums]

    @property
    def total(self) -> int:
        return sum(map(len, self.sums))


class Book:
    """What one group has got, all its members together."""

    def __init__(self, partitions: int) -> None:
        self.sums = [array("L") for _ in range(partitions)]
        self.times = [bytearray() for _ in range(partitions)]
        self.total = 0
        self.backwards = 0
        """How often an offset came that was not above the one before it."""

    def got(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        sums, times = self.sums[partition], self.times[partition]
        if offset < len(sums):
            self.backwards += 1
        while len(sums) <= offset:
            sums.append(0)
            times.append(0)
        sums[offset] = digest(key, value)
        times[offset] = min(times[offset] + 1, 255)
        self.total += 1


class Comparison(msgspec.Struct, frozen=True):
    """How what a group got differs from what was sent."""

    sent: int
    got: int
    missing: int
    changed: int
    unknown: int
    repeated: int
    backwards: int

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.changed or self.unknown or self.repeated or self.backwards)


def compare(ledger: Ledger, book: Book) -> Comparison:
    missing = changed = unknown = repeated = 0
    for wanted, found, times in zip(ledger.sums, book.sums, book.times, strict=True):
        end = len(wanted)
        missing += sum(count == 0 for count in times[:end]) + max(0, end - len(times))
        changed += sum(a != b for a, b, count in zip(wanted, found, times) if count)
        unknown += sum(count > 0 for count in times[end:])
        repeated += sum(count - 1 for count in times if count > 1)
    return Comparison(ledger.total, book.total, missing, changed, unknown, repeated, book.backwards)
