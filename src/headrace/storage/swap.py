"""Put a compacted segment in the place of the ones it was made from, so that a crash leaves the old or the new.

    .cleaned   being written, or written and not decided on: a start removes it
    .swap      decided on: a start puts it in place and removes what it replaces
    .deleted   replaced: a start removes it

Each step is durable before the next begins. Renames that share one directory sync may survive a power cut in any
combination, and every combination must mean one thing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.records.layout import HEADER, HEADER_BYTES, BatchHeader
from headrace.storage.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    file_name,
)
from headrace.storage.files import Disk
from headrace.storage.manifest import Entry, entry_of, is_file_of

if TYPE_CHECKING:
    from headrace.storage.log import Log
    from headrace.storage.segment import Segment


class Cleaned(NamedTuple):
    """A group of segments made into one, lying beside them as `.cleaned` files that are synced."""

    base_offset: int
    old_segments: tuple[tuple[int, int], ...]
    """(base offset, size) of each."""
    size: int
    clean_until: int
    """Once all groups of a round are in place, the log is clean below this offset."""
    records_read: int
    records_kept: int


class Swap:
    """One group's way into its log: made on the loop, `run` in a thread, `finish` on the loop.

    Until `finish`, readers go on with the old segments through the files they hold open. Meanwhile nobody else may
    touch segments of this log below the active one: retention waits, and so does a truncation that goes so deep.
    """

    def __init__(
        self, log: "Log", cleaned: Cleaned, segments: "list[Segment]", end_offset: int, snapshots: list[int]
    ) -> None:
        self.log = log
        self.cleaned = cleaned
        self.end_offset = end_offset
        """Where the segment behind those that are replaced begins."""
        self.segments = segments
        self._snapshots = snapshots
        self._deleted: list[str] = []
        self._done = False

    def run(self) -> None:
        """Rename and sync, blocking. After an OSError only a restart knows what is there: the log has failed."""
        log, cleaned = self.log, self.cleaned
        old_bases = [base for base, _ in cleaned.old_segments]
        # The folder may be renamed meanwhile, and a new log made under its name: its files are not ours to move.
        with log.folder_lock:
            if log.abandoned:
                return
            path = _path(log.path, cleaned.base_offset, ".log") + CLEANED_SUFFIX
            # First: whatever a crash leaves, the old or the new, is known to be what should be there.
            log.manifest.begin_swap(entry_of(log.disk, path, cleaned.base_offset, self.end_offset, cleaned.size))
            log.manifest.save(log.disk, log.path)
            self._deleted = swap_files(log.disk, log.path, cleaned.base_offset, old_bases, self._snapshots)
            log.manifest.end_swap(True)
            log.manifest.save(log.disk, log.path)
            self._done = True

    def finish(self) -> list[str]:
        """Let readers see the new segment; returns files to remove after `file.delete.delay.ms`."""
        for segment in self.segments:
            segment.handle.unpin()
        if not self._done:
            self.log.failed = self.log.failed or OSError(f"{self.log.path}: a compaction did not finish")
            raise self.log.failed
        self.log.replace_segments(self.segments, self.cleaned.base_offset, self.cleaned.size)
        for offset in self._snapshots:
            self.log.snapshots.offsets.remove(offset)
        return self._deleted


def begin_swap(log: "Log", cleaned: Cleaned) -> Swap | None:
    """Pin what readers need while the files change names; None when the log is no longer what was compacted."""
    by_base = {segment.base_offset: segment for segment in log.segments[:-1]}
    segments = [by_base.get(base) for base, _ in cleaned.old_segments]
    found = [segment for segment in segments if segment is not None]
    sizes = tuple((segment.base_offset, segment.size) for segment in found)
    if sizes != cleaned.old_segments or log.failed is not None:
        discard(log.disk, log.path)
        return None
    for segment in found:
        segment.handle.pin()
        # Indexes are read by name when first asked for, and for a while there will be none.
        _ = segment.offsets, segment.times, log.aborted_of(segment), segment.max_timestamp
    replaced = [segment.base_offset for segment in found if segment.base_offset != cleaned.base_offset]
    snapshots = [offset for offset in replaced if offset in log.snapshots.offsets]
    end_offset = log.segments[log.segments.index(found[-1]) + 1].base_offset
    return Swap(log, cleaned, found, end_offset, snapshots)


def swap_files(
    disk: Disk, folder: str, base_offset: int, old_bases: Sequence[int], snapshots: Sequence[int] = ()
) -> list[str]:
    """The renames, in three durable steps; returns the files left as `.deleted`."""
    new = [path for path in _paths(folder, base_offset) if disk.exists(path + CLEANED_SUFFIX)]
    for path in new:
        disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    disk.sync_dir(folder)
    # From here on the swap will be completed, now or by the next start.
    deleted = []
    old = [path for base in old_bases for path in _paths(folder, base)]
    old += [_path(folder, offset, SNAPSHOT_SUFFIX) for offset in snapshots]
    for path in old:
        if disk.exists(path):
            disk.rename(path, path + DELETED_SUFFIX)
            deleted.append(path + DELETED_SUFFIX)
    # A new log file beside old ones that came back would be two logs in one.
    disk.sync_dir(folder)
    for path in new:
        disk.rename(path + SWAP_SUFFIX, path)
    disk.sync_dir(folder)
    return deleted


def finish_swaps(disk: Disk, folder: str, noted: Entry | None = None) -> None:
    """At a start: complete the swaps that were decided on, and forget compactions that were not.

    `noted` is the manifest's line about a swap that was under way.
    """
    cleaned = _named(disk, folder, CLEANED_SUFFIX)
    undecided = min(map(_offset, cleaned), default=None)
    for name in cleaned:
        disk.remove(f"{folder}/{name}")
    swaps = []
    for name in _named(disk, folder, SWAP_SUFFIX):
        if undecided is not None and _offset(name) >= undecided:
            # Beside a `.cleaned` of the same segment: a first step cut in half.
            disk.remove(f"{folder}/{name}")
        else:
            swaps.append(name)
    disk.sync_dir(folder)
    for name in swaps:
        if name.endswith(".log" + SWAP_SUFFIX):
            _remove_replaced(disk, folder, _offset(name), _replaced_until(disk, f"{folder}/{name}", noted))
    disk.sync_dir(folder)
    for name in swaps:
        path = f"{folder}/{name}"
        disk.rename(path, path.removesuffix(SWAP_SUFFIX))
    disk.sync_dir(folder)


def discard(disk: Disk, folder: str) -> None:
    """Forget a compaction that nobody has decided on."""
    for name in _named(disk, folder, CLEANED_SUFFIX):
        disk.remove(f"{folder}/{name}")


def _replaced_until(disk: Disk, path: str, noted: Entry | None) -> int:
    """Where the segments end that the `.log.swap` file at `path` replaces.

    The manifest knows. The file itself tells only where its last batch ends: the segments behind that are part of the
    swap too where nothing of them was kept. Without a manifest they stay until the next compaction: what they hold is
    obsolete, not wrong.
    """
    base_offset = _offset(path.rpartition("/")[2])
    if noted is not None and noted.base_offset == base_offset and is_file_of(disk, path, noted):
        return noted.end_offset
    return max(base_offset + 1, _end_offset(disk, path, base_offset))


def _remove_replaced(disk: Disk, folder: str, base_offset: int, end_offset: int) -> None:
    """Remove the segments that a swap replaces. Its own producer snapshot stays: the state before it is the same."""
    for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
        for name in _named(disk, folder, suffix):
            offset = _offset(name)
            replaced = base_offset <= offset < end_offset
            if (
                replaced
                and len(name) == OFFSET_DIGITS + len(suffix)
                and (suffix, offset) != (SNAPSHOT_SUFFIX, base_offset)
            ):
                disk.remove(f"{folder}/{name}")


def _end_offset(disk: Disk, path: str, base_offset: int) -> int:
    """Offset behind the last batch of a log file that was synced before it got this name."""
    end_offset = base_offset
    file = disk.open(path, readonly=True)
    try:
        position, size = 0, file.size()
        while position + HEADER_BYTES <= size:
            header = BatchHeader._make(HEADER.unpack(file.read(HEADER_BYTES, position)))
            if header.magic != 2 or header.length <= 0:
                raise OSError(f"{path} at byte {position}: no batch in a compacted segment")
            end_offset = header.end_offset
            position += header.size
    finally:
        file.close()
    return end_offset


def _path(folder: str, offset: int, suffix: str) -> str:
    return f"{folder}/{file_name(offset, suffix)}"


def _paths(folder: str, offset: int) -> list[str]:
    return [_path(folder, offset, suffix) for suffix in SEGMENT_SUFFIXES]


def _offset(name: str) -> int:
    return int(name[:OFFSET_DIGITS])


def _named(disk: Disk, folder: str, suffix: str) -> list[str]:
    """Files with this suffix that are named after an offset: no other is ours to touch."""
    return [
        name
        for name in disk.list(folder)
        if name.endswith(suffix) and name[:OFFSET_DIGITS].isdigit() and name[OFFSET_DIGITS : OFFSET_DIGITS + 1] == "."
    ]
