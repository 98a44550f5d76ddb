"""A broker's data folder seen from outside: which segments there are, and which bytes of them a query can need.

Opens files for reading only and asks no broker, so it works on a copy, on a folder whose broker is down, on a running
one's, and on Apache Kafka's. What it finds is what this replica's files hold.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import KafkaError
from headrace.metadata.names import CLUSTER_METADATA, INTERNAL
from headrace.records.layout import HEADER, HEADER_BYTES, LENGTH_MIN
from headrace.replication.producers import AbortedTransaction, ProducerStates
from headrace.spark.plain_errors import UserError
from headrace.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    decode_offsets,
)
from headrace.storage.file_names import SNAPSHOT_SUFFIX, SUMS_SUFFIX, file_name
from headrace.storage.index_sums import TAIL_BYTES, IndexSums
from headrace.storage.indexes import CorruptIndex, OffsetIndex, TimeIndex, decode_aborted

OFFSET_MAX = (1 << 63) - 1
_PARTITION = re.compile(r"(.+)-(\d+)")
_SEGMENT = re.compile(r"(\d{20})\.log(\.swap)?")


class CannotScan(UserError, ValueError):
    """The folder lacks something that the query needs. The message says what to do."""


class Bounds(NamedTuple):
    """What a query wants of a partition: offsets half open, and records no older than `start_ms`."""

    start_offset: int = 0
    end_offset: int = OFFSET_MAX
    start_ms: int = -1


@dataclass(frozen=True)
class Piece:
    """Bytes of one segment: whole batches from `position` on. The end of an active one is found when it is read."""

    topic: str
    partition: int
    path: str
    position: int
    end_position: int
    start_offset: int
    end_offset: int
    is_active: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


@dataclass(frozen=True)
class SegmentFile:
    """`end_offset` is the next segment's base; that of the active one is not known beforehand."""

    path: Path
    base_offset: int
    end_offset: int
    size_bytes: int
    is_active: bool


class PartitionFolder:
    """One partition's files."""

    def __init__(
        self, path: Path, topic: str, partition: int, log_start: int, recovery_point: int, committed: int
    ) -> None:
        self.path = path
        self.topic = topic
        self.partition = partition
        self.log_start = log_start
        self._recovery_point = recovery_point
        """Below it files and indexes were synced; an index above may end before its segment does."""
        self.committed = committed
        """The checkpointed high watermark: what lies above may still be taken back."""

    def segments(self) -> list[SegmentFile]:
        sizes: dict[int, tuple[Path, int]] = {}
        swapped: list[tuple[int, Path, int]] = []
        for entry in os.scandir(self.path):
            found = _SEGMENT.fullmatch(entry.name)
            if found is None:
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            if found[2]:
                swapped.append((int(found[1]), Path(entry.path), size))
            else:
                sizes[int(found[1])] = Path(entry.path), size
        for base, path, size in sorted(swapped):
            # Compaction that was cut short: the old segments may be gone already, and this one has all they had.
            end = _last_offset(path) + 1
            for old in [one for one in sizes if base <= one < end]:
                del sizes[old]
            sizes[base] = path, size
        bases = sorted(sizes)
        ends = [*bases[1:], OFFSET_MAX]
        return [
            SegmentFile(sizes[base][0], base, end, sizes[base][1], is_active=end == OFFSET_MAX)
            for base, end in zip(bases, ends)
        ]

    def pieces(self, bounds: Bounds, *, active_end: int, split_bytes: int, read_committed: bool) -> Iterator[Piece]:
        """What has to be read for a query within `bounds`, in order; of the active segment, what lies below
        `active_end`."""
        start_offset = max(bounds.start_offset, self.log_start)
        segments = self.segments()
        end_offset = bounds.end_offset
        aborted: list[AbortedTransaction] = []
        if read_committed:
            aborted = self._aborted(segments)
            end_offset = min(end_offset, self._stable_end(segments))
        for segment in segments:
            first = max(start_offset, segment.base_offset)
            last = min(end_offset, active_end if segment.is_active else segment.end_offset)
            if first >= last or not segment.size_bytes:
                continue
            within = tuple(one for one in aborted if one.first_offset < last and one.last_offset >= first)
            yield from self._cut(segment, Bounds(first, last, bounds.start_ms), split_bytes, within)

    def _cut(
        self, segment: SegmentFile, bounds: Bounds, split_bytes: int, aborted: tuple[AbortedTransaction, ...]
    ) -> Iterator[Piece]:
        index = self._offset_index(segment)
        first = bounds.start_offset
        if bounds.start_ms >= 0:
            young = self._first_young(segment, bounds.start_ms)
            if young is None:
                return
            first = max(first, young)
        starts = _starts(segment, index, first, bounds.end_offset, split_bytes)
        for position, end_position in pairwise(starts):
            yield Piece(
                self.topic,
                self.partition,
                str(segment.path),
                position,
                end_position,
                first,
                bounds.end_offset,
                segment.is_active,
                aborted,
            )

    def _offset_index(self, segment: SegmentFile) -> OffsetIndex | None:
        try:
            index = OffsetIndex.decode(_read_index(segment, ".index"))
            index.check(segment.size_bytes)
            return index
        except (OSError, CorruptIndex):
            return None

    def _first_young(self, segment: SegmentFile, start_ms: int) -> int | None:
        """An offset below which all records are older than `start_ms`; None when all of the segment's are."""
        try:
            index = TimeIndex.decode(_read_index(segment, ".timeindex"))
            index.check()
        except (OSError, CorruptIndex):
            return segment.base_offset
        if not len(index):
            return segment.base_offset
        is_whole = not segment.is_active and segment.end_offset <= self._recovery_point
        if is_whole and index.timestamps[-1] < start_ms:
            return None
        return segment.base_offset + index.offset_before(start_ms)

    def _aborted(self, segments: Sequence[SegmentFile]) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for segment in segments:
            try:
                found += decode_aborted(_read_index(segment, ".txnindex"), segment.base_offset)
            except CorruptIndex as error:
                raise CannotScan(
                    f"{_beside(segment.path, '.txnindex')} is damaged ({error}), which says what was aborted: start the"
                    " broker, which mends it when it is read, or set kafka.isolation.level to read_uncommitted to read"
                    " without"
                ) from None
        return found

    def _stable_end(self, segments: Sequence[SegmentFile]) -> int:
        """Where transactions begin that were open when the active segment began: nothing from there on is decided."""
        active = segments[-1].base_offset if segments else 0
        if len(segments) < 2:
            return active
        path = self.path / file_name(active, SNAPSHOT_SUFFIX)
        states = ProducerStates()
        try:
            states.load(path.read_bytes(), 0, OFFSET_MAX)
        except (OSError, KafkaError) as error:
            raise CannotScan(
                f"{path} cannot be read ({error}), which says what transactions are open: "
                "set kafka.isolation.level to read_uncommitted to read without"
            ) from None
        unstable = states.first_unstable_offset
        return active if unstable is None else min(active, unstable)


def partition_folders(roots: Sequence[str]) -> list[PartitionFolder]:
    """All partitions of some log dirs, or the one partition that a path is itself. Brokers' own topics are left out."""
    found: list[PartitionFolder] = []
    for root in roots:
        path = Path(root)
        if _is_partition(path):
            found += _folders(path.parent, [path])
        else:
            found += _folders(path, [Path(entry.path) for entry in os.scandir(path) if entry.is_dir()])
    return sorted(found, key=lambda one: (one.topic, one.partition))


def _folders(root: Path, paths: Sequence[Path]) -> list[PartitionFolder]:
    starts, recovered = _checkpoint(root / LOG_STARTS), _checkpoint(root / RECOVERY_POINTS)
    committed = _checkpoint(root / HIGH_WATERMARKS)
    is_clean = (root / CLEAN_SHUTDOWN).exists()
    folders = []
    for path in paths:
        name = _PARTITION.fullmatch(path.name)
        if name is None or not _is_partition(path) or name[1] == CLUSTER_METADATA or name[1] in INTERNAL:
            continue
        place = name[1], int(name[2])
        point = OFFSET_MAX if is_clean else recovered.get(place, 0)
        folders.append(PartitionFolder(path, *place, starts.get(place, 0), point, committed.get(place, 0)))
    return folders


def _is_partition(path: Path) -> bool:
    if _PARTITION.fullmatch(path.name) is None or not path.is_dir():
        return False
    return any(_SEGMENT.fullmatch(entry.name) for entry in os.scandir(path))


def _checkpoint(path: Path) -> dict[tuple[str, int], int]:
    try:
        return decode_offsets(path.read_bytes())
    except (OSError, CorruptCheckpoint):
        return {}


def _beside(log: Path, suffix: str) -> Path:
    """A segment's index; that of a swap file is one too."""
    name = log.name
    swap = ".swap" if name.endswith(".swap") else ""
    return log.with_name(name.removesuffix(".swap").removesuffix(".log") + suffix + swap)


def _is_batch(fd: int, position: int, segment: SegmentFile) -> bool:
    head = os.pread(fd, HEADER_BYTES, position) if 0 <= position < segment.size_bytes else b""
    if len(head) < HEADER_BYTES:
        return False
    base_offset, length, _, magic, *_ = HEADER.unpack(head)
    return bool(magic == 2 and length >= LENGTH_MIN and segment.base_offset <= base_offset < segment.end_offset)


def _read_index(segment: SegmentFile, suffix: str) -> bytes:
    """An index file; CorruptIndex if the checksums beside a closed segment speak against it. Apache Kafka writes
    none."""
    try:
        data = _beside(segment.path, suffix).read_bytes()
    except FileNotFoundError:
        if suffix != ".txnindex":
            raise
        data = b""
    try:
        sums = None if segment.is_active else IndexSums.decode(_beside(segment.path, SUMS_SUFFIX).read_bytes())
    except FileNotFoundError:
        sums = None
    if sums is None:
        return data
    with segment.path.open("rb") as file:
        at = max(0, segment.size_bytes - TAIL_BYTES)
        tail = os.pread(file.fileno(), segment.size_bytes - at, at)
    expected = {".index": sums.offsets_crc, ".timeindex": sums.times_crc, ".txnindex": sums.aborted_crc}[suffix]
    if crc32c(data) != expected or not sums.is_of(segment.base_offset, segment.size_bytes, tail):
        raise CorruptIndex(f"{_beside(segment.path, suffix)} is not what was written")
    return data


def _starts(segment: SegmentFile, index: OffsetIndex | None, first: int, end: int, split_bytes: int) -> list[int]:
    """Positions at which pieces begin, and where the last one ends."""
    whole = [0, segment.size_bytes]
    if index is None or not len(index):
        return whole
    begin, stop = index.position_before(first - segment.base_offset), segment.size_bytes
    # An entry names the last offset of its batch: behind the first that reaches `end` nothing is wanted.
    behind = bisect_left(index.offsets, end - segment.base_offset) + 1 if end < segment.end_offset else len(index)
    if behind < len(index):
        stop = index.positions[behind]
    starts = [begin]
    for position in index.positions:
        if position - starts[-1] >= split_bytes and stop - position >= split_bytes // 2:
            starts.append(position)
    # What an index says has to lead to a batch: one that lies would lose records.
    with segment.path.open("rb") as file:
        used = starts if stop == segment.size_bytes else [*starts, stop]
        if not all(_is_batch(file.fileno(), position, segment) for position in used):
            return whole
    return [*starts, stop]


def _last_offset(path: Path) -> int:
    """The last offset in a file of whole batches."""
    last = -1
    with path.open("rb") as file:
        position = 0
        while len(head := os.pread(file.fileno(), HEADER_BYTES, position)) == HEADER_BYTES:
            base_offset, length, _, magic, _, _, delta, *_ = HEADER.unpack(head)
            if magic != 2 or length < LENGTH_MIN:
                break
            last = base_offset + delta
            position += length + 12
    return last
