"""Which partition a record goes to: by its key as Kafka's clients choose, else wherever the last ones went.

Records with equal keys share a partition, also with those that Java clients wrote. Records without a key stay with one
partition for a batch's worth of bytes and then move on: fuller batches than going round record by record.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number."""
    length = len(data)
    whole = length & ~3
    mixed = SEED ^ length
    for pos in range(0, whole, 4):
        word = int.from_bytes(data[pos : pos + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        mixed = (mixed * MULTIPLIER & MASK) ^ word
    if whole < length:
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    mixed = (mixed ^ mixed >> 13) * MULTIPLIER & MASK
    return mixed ^ mixed >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class KeyPartitioner:
    """`partition_for_key` that remembers the hashes of keys it has seen: hashing costs more than all else of a send."""

    KEYS_MAX = 100_000
    KEY_BYTES_MAX = 256

    def __init__(self) -> None:
        self._hashes: dict[bytes, int] = {}

    def partition(self, key: bytes, partitions: int) -> int:
        hashed = self._hashes.get(key)
        if hashed is None:
            hashed = murmur2(key) & 0x7FFFFFFF
            if len(key) <= self.KEY_BYTES_MAX:
                if len(self._hashes) >= self.KEYS_MAX:
                    self._hashes.clear()
                self._hashes[key] = hashed
        return hashed % partitions


class RoundRobin:
    """One partition after the other, record by record."""

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def next(self, size_bytes: int, partitions: int) -> int:
        found = self._next % partitions
        self._next = found + 1
        return found


class Sticky:
    """Partitions for records without a key. Each is kept for `batch_bytes`, then comes another, at random."""

    def __init__(self, batch_bytes: int, rng: random.Random | None = None) -> None:
        self._batch_bytes = batch_bytes
        self._rng = rng or random.Random()
        self._current = -1
        self._filled_bytes = 0

    def next(self, size_bytes: int, partitions: int) -> int:
        """The partition of one record."""
        if not 0 <= self._current < partitions or self._filled_bytes >= self._batch_bytes:
            self._move(partitions)
        self._filled_bytes += size_bytes
        return self._current

    def runs(self, ends: Sequence[int], partitions: int) -> list[tuple[int, int]]:
        """Runs of records, as (end row, partition). `ends[i]` is the size of rows 0 to i together."""
        found: list[tuple[int, int]] = []
        row, before = 0, 0
        while row < len(ends):
            if not 0 <= self._current < partitions or self._filled_bytes >= self._batch_bytes:
                self._move(partitions)
            # A partition takes records until it is full, the one that fills it included.
            last = bisect_left(ends, before + self._batch_bytes - self._filled_bytes, lo=row)
            after = min(last + 1, len(ends))
            size_bytes = int(ends[after - 1]) - before
            self._filled_bytes += size_bytes
            row, before = after, before + size_bytes
            found.append((after, self._current))
        return found

    def _move(self, partitions: int) -> None:
        """To any partition but the current one, each as likely as the others."""
        self._filled_bytes = 0
        if not 0 <= self._current < partitions:
            self._current = self._rng.randrange(partitions)
        elif partitions > 1:
            step = self._rng.randrange(partitions - 1)
            self._current = step if step < self._current else step + 1
