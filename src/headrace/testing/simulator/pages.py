"""One file's bytes as two copies: what the page cache shows and what the platter holds.

Writes and truncations stay volatile until a sync; a power cut decides, effect by effect, what had reached the
platter anyway. Sizes and positions are bytes.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

SECTOR_BYTES = 512


class CrashMode(Enum):
    """How unkind a power cut is to what was not synced."""

    RANDOM = "random"
    """Each effect decided by itself: lost, kept or torn; directory changes in any order POSIX allows."""
    JOURNALED = "journaled"
    """As RANDOM for bytes, but directory changes survive as a prefix, as on ext4 and XFS."""
    LOSE = "lose"
    """Nothing unsynced survives."""
    KEEP = "keep"
    """Everything survives, as if the kernel had written it all back just in time."""


@dataclass(slots=True, frozen=True)
class Write:
    position: int
    data: bytes

    def apply(self, target: bytearray) -> None:
        if self.position > len(target):
            target.extend(bytes(self.position - len(target)))
        target[self.position : self.position + len(self.data)] = self.data


@dataclass(slots=True, frozen=True)
class Truncate:
    size: int

    def apply(self, target: bytearray) -> None:
        if self.size < len(target):
            del target[self.size :]
        else:
            target.extend(bytes(self.size - len(target)))


Effect = Write | Truncate


class Pages:
    """The bytes of one inode. Invariant: without a failed sync, `durable` plus `pending` in order is `cached`."""

    __slots__ = ("cached", "durable", "pending")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[Effect] = []

    def copy(self) -> "Pages":
        twin = Pages()
        twin.cached = bytearray(self.cached)
        twin.durable = bytearray(self.durable)
        twin.pending = list(self.pending)
        return twin

    def write(self, position: int, data: bytes) -> None:
        effect = Write(position, data)
        effect.apply(self.cached)
        self.pending.append(effect)

    def truncate(self, size: int) -> None:
        effect = Truncate(size)
        effect.apply(self.cached)
        self.pending.append(effect)

    def sync(self) -> None:
        for effect in self.pending:
            effect.apply(self.durable)
        self.pending.clear()

    def fail_sync(self) -> None:
        """Linux marks pages clean after a failed writeback: readers still see the bytes, no later sync writes them."""
        self.pending.clear()

    def flip(self, position: int, bit: int) -> None:
        """Rot one bit wherever the byte is kept."""
        if not 0 <= position < len(self.cached):
            raise IndexError(f"no byte at {position}: the file has {len(self.cached)}")
        self.cached[position] ^= 1 << bit
        if self.pending:
            self.pending.append(Write(position, bytes((self.cached[position],))))
        if position < len(self.durable):
            self.durable[position] ^= 1 << bit

    def crash(self, rng: Random, mode: CrashMode) -> None:
        """Power cut: settle what survived and forget the page cache."""
        if self.pending and mode is not CrashMode.LOSE:
            if mode is CrashMode.KEEP:
                self.sync()
            else:
                self.durable = self._survivors(rng)
        self.pending.clear()
        self.cached = bytearray(self.durable)

    def _survivors(self, rng: Random) -> bytearray:
        fate = rng.randrange(6)
        if fate == 0:
            return self.durable
        if fate == 1:
            return self._prefix(rng, whole=len(self.pending), tear=False)
        if fate <= 3:
            return self._prefix(rng, whole=rng.randrange(len(self.pending) + 1), tear=True)
        return self._scattered_sectors(rng)

    def _prefix(self, rng: Random, *, whole: int, tear: bool) -> bytearray:
        """The first `whole` effects, then a piece of the next one cut at any byte or at a sector."""
        result = bytearray(self.durable)
        for effect in self.pending[:whole]:
            effect.apply(result)
        if tear and whole < len(self.pending):
            torn = self.pending[whole]
            if isinstance(torn, Write):
                length = rng.randrange(len(torn.data) + 1)
                if rng.random() < 0.5:
                    end = (torn.position + length) // SECTOR_BYTES * SECTOR_BYTES
                    length = max(0, end - torn.position)
                if length:
                    Write(torn.position, torn.data[:length]).apply(result)
        return result

    def _scattered_sectors(self, rng: Random) -> bytearray:
        """Writeback in any order: each dirty sector as of some moment, the size as of another, zeros in the holes.

        A truncation is no barrier: a block rewritten in place after it may reach the disk before the new size does.
        """
        sectors = sorted(self._dirty_sectors())
        last = len(self.pending)
        bias = rng.random()
        versions: dict[int, list[int]] = {}
        for sector in sectors:
            version = rng.choice((0, rng.randint(0, last))) if rng.random() < bias else last
            versions.setdefault(version, []).append(sector)
        size_version = last if rng.random() < 0.5 else rng.randint(0, last)
        state = bytearray(self.durable)
        size = len(state)
        chosen: list[tuple[int, bytes]] = []
        for version in range(last + 1):
            if version:
                self.pending[version - 1].apply(state)
            if version == size_version:
                size = len(state)
            for sector in versions.get(version, ()):
                start = sector * SECTOR_BYTES
                chosen.append((start, bytes(state[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")))
        result = bytearray(self.durable)
        for start, data in chosen:
            Write(start, data).apply(result)
        Truncate(size).apply(result)
        return result

    def _dirty_sectors(self) -> set[int]:
        dirty: set[int] = set()
        size = len(self.durable)
        for effect in self.pending:
            if isinstance(effect, Write):
                # Writing past the end also zeroes the gap.
                start, size_after = min(effect.position, size), max(size, effect.position + len(effect.data))
                end = effect.position + len(effect.data)
            else:
                start, end, size_after = min(effect.size, size), max(effect.size, size), effect.size
            dirty.update(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)))
            size = size_after
        return dirty
