"""Reads segments that nobody has asked for, to find damage while other replicas still have the records.

It needs nothing but a disk, so it runs in another process, and leaves the page cache as it found it: pages that were
not in memory before are given back at once. `Log.set_aside` takes what it finds.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from headrace.platform import drop_cached, read_cached, read_no_further
from headrace.records.layout import HEADER_BYTES
from headrace.storage.checking import OldFormat, checked_batches
from headrace.storage.files import Disk, File
from headrace.storage.segment import CorruptSegment

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
DIGEST_BYTES = 8
CELL_OFFSETS = 1 << 12
"""Replicas compare digests of ranges of offsets: their segments need not begin at the same ones."""
EVERYTHING = 1 << 62


class Target(NamedTuple):
    """A log file, or the first bytes of one that is still written to."""

    path: str
    base_offset: int
    end_offset: int
    """All of its offsets are below; how far is not said."""
    size: int


class Checked(NamedTuple):
    """What became of one target."""

    target: Target
    bytes_read: int
    damage: str | None
    """What is wrong, in words."""
    is_gone: bool
    """Deleted, compacted or set aside meanwhile: nothing is known of it, and nothing has to be."""
    cells: tuple[tuple[int, int], ...]
    """(number, digest) of each range of `CELL_OFFSETS` offsets that it has batches of. Digests of parts add up."""


class QuietFile:
    """A file that is read without a trace in the page cache. Only reads."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path
        self.fd = file.fd
        if self.fd >= 0:
            # What is read ahead would look as if it had been there before.
            read_no_further(self.fd)

    def read(self, length: int, position: int) -> bytes:
        if self.fd < 0:
            return self._file.read(length, position)
        cached = read_cached(self.fd, length, position)
        if cached is not None:
            return cached
        data = self._file.read(length, position)
        first = position // PAGE_BYTES * PAGE_BYTES
        drop_cached(self.fd, first, position + length - first)
        return data

    def size(self) -> int:
        return self._file.size()

    def append(self, data: object) -> None:
        raise NotImplementedError

    def write_at(self, data: object, position: int) -> None:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._file.close()


def scrub(disk: Disk, targets: Sequence[Target], pace: Callable[[int], None]) -> Iterator[Checked]:
    """Check each target; `pace` is told of the bytes that were read."""
    for target in targets:
        yield check(disk, target, pace)


def check(disk: Disk, target: Target, pace: Callable[[int], None] = lambda _: None) -> Checked:
    """Every CRC, and whether offsets and epochs are in order, which no CRC covers."""
    try:
        file = QuietFile(disk.open(target.path, readonly=True))
    except FileNotFoundError:
        return Checked(target, 0, None, True, ())
    sums: dict[int, int] = {}
    read = 0
    damage = None
    try:
        epoch, next_offset = -1, target.base_offset
        for position, fields, batch in checked_batches(file, target.base_offset, target.size, target.base_offset):
            base_offset, leader_epoch, delta = fields[0], fields[2], fields[6]
            next_offset = base_offset + delta + 1
            if leader_epoch < epoch:
                raise CorruptSegment(target.path, position, f"leader epoch {leader_epoch} after {epoch}")
            if next_offset > target.end_offset:
                raise CorruptSegment(
                    target.path, position, f"offset {next_offset - 1} where {target.end_offset} is in another segment"
                )
            epoch = leader_epoch
            cell = base_offset // CELL_OFFSETS
            digest = blake2b(batch[:HEADER_BYTES], digest_size=DIGEST_BYTES).digest()
            sums[cell] = (sums.get(cell, 0) + int.from_bytes(digest, "big")) % (1 << (8 * DIGEST_BYTES))
            pace(len(batch))
            read += len(batch)
    except CorruptSegment as error:
        damage = f"{error.reason} at byte {error.position}"
    except OldFormat as error:
        damage = str(error)  # no log that is in use has them: a byte that was zeroed looks like that
    except OSError as error:
        damage = f"cannot be read: {error.strerror or error}"
    finally:
        file.close()
    return Checked(target, read, damage, False, tuple(sorted(sums.items())) if damage is None else ())
