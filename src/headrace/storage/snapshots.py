"""Producer state on disk: `<offset>.snapshot` holds what all batches below the offset left behind.

One is kept at the start of each segment, and one at the end of a log that was closed, so that neither a start nor a
truncation has to read the whole log again.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from headrace.errors import KafkaError
from headrace.replication.producers import AbortedTransaction, ProducerStates
from headrace.storage.files import Disk
from headrace.storage.segment import CorruptSegment, Segment, file_name

SUFFIX = ".snapshot"
PRODUCER_EXPIRATION_MS = 86_400_000
RECALLED_ENTRIES = 6
"""How many entries of the index are gone back: more than five batches, however large or small they are."""


class Snapshots:
    """The snapshot files of one folder."""

    __slots__ = ("_folder", "disk", "expiration_ms", "offsets")

    def __init__(self, disk: Disk, folder: str, names: Sequence[str], expiration_ms: int) -> None:
        self.disk = disk
        self._folder = folder
        self.expiration_ms = expiration_ms
        stems = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
        self.offsets = sorted(int(stem) for stem in stems if stem.isdigit())

    def path(self, offset: int) -> str:
        return f"{self._folder}/{file_name(offset, SUFFIX)}"

    def write(self, producers: ProducerStates, offset: int) -> str | None:
        """Not synced: one that a power cut tears has a wrong CRC and is not used. None if there is one already."""
        if offset in self.offsets or offset == 0:
            return None
        file = self.disk.open(self.path(offset), create=True)
        try:
            file.truncate(0)
            file.append(producers.snapshot())
        finally:
            file.close()
        self.offsets.append(offset)
        self.offsets.sort()
        return self.path(offset)

    def load(self, producers: ProducerStates, end_offset: int, now_ms: int) -> int | None:
        """Load the latest snapshot at or below `end_offset` that is whole; returns its offset, None without one."""
        producers.clear()
        for offset in reversed(self.offsets[:]):
            if offset > end_offset:
                continue
            try:
                producers.load(self.disk.read_bytes(self.path(offset)), now_ms, self.expiration_ms)
            except (KafkaError, FileNotFoundError):
                self.remove(offset)
                continue
            return offset
        return None

    def remove(self, offset: int) -> None:
        self.offsets.remove(offset)
        try:
            self.disk.remove(self.path(offset))
        except FileNotFoundError:
            pass

    def remove_outside(self, start_offset: int, end_offset: int) -> None:
        """Those below the first segment say nothing that is still needed, those above the log's end something wrong."""
        for offset in self.offsets[:]:
            if offset > end_offset or offset < start_offset:
                self.remove(offset)

    def remove_strays(self, bases: Iterable[int]) -> None:
        """Keep those at a segment's start and the latest of all."""
        known = set(bases)
        for offset in self.offsets[:-1]:
            if offset not in known:
                self.remove(offset)

    def move(self, folder: str) -> None:
        self._folder = folder


def recall(producers: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    """Complete what a snapshot at `offset` said by what the log has just before it, if that can be read."""
    segment = next((one for one in reversed(segments) if one.base_offset < offset), None)
    if segment is None or not len(producers):
        return
    try:
        place = segment.find(offset)
        end = segment.size if place is None else place.position
        indexed = segment.offsets.positions
        entries = bisect_left(indexed, end)
        start = indexed[entries - RECALLED_ENTRIES] if entries >= RECALLED_ENTRIES else 0
        for _, header in segment.walk(start, end):
            if header.producer_id >= 0 and header.base_sequence >= 0 and not header.is_control:
                producers.recall(header)
    except CorruptSegment:
        pass  # whoever reads it will say so


def replay(
    producers: ProducerStates, segments: Sequence[Segment], start_offset: int, end_offset: int
) -> list[tuple[Segment, AbortedTransaction]]:
    """Tell the producers of every batch in a range; returns what belongs into transaction indexes.

    Only control batches are read whole: the headers say everything of the others.
    """
    aborted = []
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        if following <= start_offset or segment.base_offset >= end_offset:
            continue
        place = segment.find(max(start_offset, segment.base_offset))
        if place is None:
            continue
        for position, header in segment.walk(place.position, segment.size):
            if header.base_offset >= end_offset:
                break
            if header.producer_id < 0:
                continue
            data = segment.handle.open().read(header.size, position) if header.is_control else b""
            entry = producers.replay(data, 0, header)
            if entry is not None:
                aborted.append((segment, entry))
    return aborted
