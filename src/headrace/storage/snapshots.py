"""Producer state on disk: `<offset>.snapshot` holds what all batches below the offset left behind.

One is kept at the start of each segment, and one at the end of a log that was closed, so that neither a start nor a
truncation has to read the whole log again.

`replication/producer_snapshot.py` has the format.
"""

import os.path
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from headrace.errors import Err, KafkaError
from headrace.replication.producer_snapshot import decode_rows, is_sealed, seal
from headrace.replication.producers import AbortedTransaction, ProducerStates
from headrace.storage.file_names import SNAPSHOT_SUFFIX, file_name
from headrace.storage.files import OUT_OF_DESCRIPTORS, Disk
from headrace.storage.holes import Hole, is_whole
from headrace.storage.segment import CorruptSegment, Segment

PRODUCER_EXPIRATION_MS = 86_400_000
RECALLED_ENTRIES = 6
"""How many entries of the index are gone back: more than five batches, however large or small they are."""

SNAPSHOT_BYTES_MAX = 1 << 30
"""No broker has so many producers: a larger file must not be read into memory."""


class Snapshots:
    """The snapshot files of one folder."""

    __slots__ = ("_folder", "_name", "disk", "expiration_ms", "offsets", "sealed")

    def __init__(self, disk: Disk, folder: str, names: Sequence[str], expiration_ms: int) -> None:
        self.disk = disk
        self._folder = folder
        self.expiration_ms = expiration_ms
        stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX)]
        self.offsets = sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())
        self.sealed = False
        """Whether the one loaded last says itself that it is the one it has the name of."""
        self._name = os.path.basename(folder)

    def path(self, offset: int) -> str:
        return f"{self._folder}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def write(self, producers: ProducerStates, offset: int) -> str | None:
        """Not synced: one that a power cut tears has a wrong CRC and is not used. None if there is one already."""
        if offset in self.offsets or offset == 0:
            return None
        file = self.disk.open(self.path(offset), create=True)
        try:
            file.truncate(0)
            file.append(seal(producers.snapshot(), self._name, offset))
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
                data = self._read(offset)
                producers.load(data, now_ms, self.expiration_ms)
                self.sealed = is_sealed(data, self._name, offset)
                if not producers.is_before(offset):
                    raise KafkaError(Err.CORRUPT_MESSAGE, "producer snapshot of a later offset")
            except (KafkaError, OSError) as error:
                if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                    raise
                # Not a failed disk either: what it said is in the log too, or in an older one and the log behind it.
                self.remove(offset)
                producers.clear()
                continue
            return offset
        return None

    def first_open(self, offset: int) -> int | None:
        """Where the earliest transaction began that was open at `offset`; `offset` if none was. None without a snapshot
        that says itself that it is the one of this offset."""
        if offset not in self.offsets:
            return offset if not offset else None
        try:
            data = self._read(offset)
            if not is_sealed(data, self._name, offset):
                return None
            return min((row[-1] for row in decode_rows(data) if row[-1] >= 0), default=offset)
        except (KafkaError, OSError):
            return None

    def _read(self, offset: int) -> bytes:
        path = self.path(offset)
        if self.disk.size(path) > SNAPSHOT_BYTES_MAX:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"{path} is larger than any producer snapshot")
        return self.disk.read_bytes(path)

    def remove(self, offset: int) -> None:
        self.offsets.remove(offset)
        with suppress(OSError):
            self.disk.remove(self.path(offset))

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


def load_producers(
    producers: ProducerStates,
    snapshots: Snapshots,
    segments: Sequence[Segment],
    holes: Sequence[Hole],
    end_offset: int,
    now_ms: int,
) -> bool:
    """All that the log up to `end_offset` says of its producers, from the latest snapshot that agrees with it on.

    False if some of what would have to be read is missing: a transaction may have begun or ended there.
    """
    since_ms = now_ms - snapshots.expiration_ms
    while (loaded := snapshots.load(producers, end_offset, now_ms)) is not None:
        if recall(producers, segments, loaded, since_ms) or snapshots.sealed or not now_ms:
            break
        snapshots.remove(loaded)
    replay(producers, segments, loaded or 0, end_offset, lenient=True)
    return is_whole(holes, loaded or 0, end_offset)


def recall(producers: ProducerStates, segments: Sequence[Segment], offset: int, since_ms: int) -> bool:
    """Complete what a snapshot at `offset` said by what the log has just before it, if that can be read.

    False if the log has a batch there, written after `since_ms`, of which the snapshot does not know: the producer has
    not expired, so the snapshot is an older one.
    """
    agrees = True
    segment = next((one for one in reversed(segments) if one.base_offset < offset), None)
    if segment is None:
        return True
    try:
        place = segment.find(offset)
        end = segment.size if place is None else place.position
        indexed = segment.offsets.positions
        entries = bisect_left(indexed, end)
        start = indexed[entries - RECALLED_ENTRIES] if entries >= RECALLED_ENTRIES else 0
        for _, header in segment.walk(start, end):
            if header.producer_id >= 0 and header.base_sequence >= 0 and not header.is_control:
                agrees = agrees and (header.max_timestamp <= since_ms or producers.has_seen(header))
                producers.recall(header)
    except CorruptSegment:
        pass  # its reader will report it
    return agrees


def replay(
    producers: ProducerStates, segments: Sequence[Segment], start_offset: int, end_offset: int, *, lenient: bool = False
) -> list[tuple[Segment, AbortedTransaction]]:
    """Tell the producers of every batch in a range; returns what belongs into transaction indexes.

    Only control batches are read whole: the headers say everything of the others. If `lenient`, what follows damage in
    a segment is left out: producers are then remembered as far as the log can tell.
    """
    aborted: list[tuple[Segment, AbortedTransaction]] = []
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        if following <= start_offset or segment.base_offset >= end_offset:
            continue
        try:
            aborted += ((segment, entry) for entry in _replay_one(producers, segment, start_offset, end_offset))
        except (CorruptSegment, KafkaError):
            if not lenient:
                raise
    return aborted


def _replay_one(
    producers: ProducerStates, segment: Segment, start_offset: int, end_offset: int
) -> Iterator[AbortedTransaction]:
    place = segment.find(max(start_offset, segment.base_offset))
    if place is None:
        return
    for position, header in segment.walk(place.position, segment.size):
        if header.base_offset >= end_offset:
            return
        if header.producer_id < 0:
            continue
        data = segment.handle.open().read(header.size, position) if header.is_control else b""
        entry = producers.replay(data, 0, header)
        if entry is not None:
            yield entry
