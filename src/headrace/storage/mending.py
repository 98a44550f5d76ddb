"""Put batches back into the place of a hole, so that a crash leaves the hole or the batches, never half of either.

A hole is a file `<offset>.log.corrupt` without a segment of the same name: it reaches up to the next segment. What goes
into it was written and synced as `.cleaned` files, which a start removes. Each step below is durable before the next:

    0. the manifest says that the segment was lost: a start then looks at what is there instead
    1. where the new segment ends before the hole does, `<end>.log.corrupt` marks what is still missing
    2. its indexes and then its log file get their names: from here on the hole is closed up to its end
    3. where it is whole, the file set aside is renamed `.cut`: no longer part of the log, and never deleted

A power cut may undo the latest renames in any combination. An index without its log is removed by a start, a log
without its index gets a new one, and a `.corrupt` file beside a segment of its name is no hole any more.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.storage.file_names import CLEANED_SUFFIX, SEGMENT_SUFFIXES, file_name
from headrace.storage.files import Disk
from headrace.storage.holes import Hole, leave_place
from headrace.storage.manifest import entry_of
from headrace.storage.salvage import Part
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log import Log


class Mending:
    """One part's way into a hole of its log: made on the loop, `run` in a thread, `finish` on the loop."""

    def __init__(self, log: "Log", hole: Hole, part: Part) -> None:
        self._log = log
        self._hole = hole
        self._part = part
        self._marker: str | None = None
        self.done = False

    def run(self) -> None:
        """Rename and sync, blocking. After an OSError only a restart knows what is there: the log has failed."""
        log, hole, part = self._log, self._hole, self._part
        with log.folder_lock:  # the folder may be renamed meanwhile, and a new log made under its name
            if log.abandoned:
                return
            # Before anything is in the place of a segment that was set aside: it would look like another file there.
            log.manifest.save(log.disk, log.path)
            if part.end_offset < hole.end_offset:
                self._marker = leave_place(log.disk, log.path, part.end_offset)
            put_in_place(log.disk, log.path, part.base_offset)
            self.done = True

    def finish(self) -> None:
        """Let readers see the batches."""
        log, hole, part = self._log, self._hole, self._part
        if log.abandoned:
            return
        if not self.done:
            log.failed = log.failed or OSError(f"{log.path}: a repair did not finish")
            raise log.failed
        segment = Segment(log.pool, log.path, part.base_offset, part.size, log.active.created_ms)
        segment.index_interval_bytes = log.config.index_interval_bytes
        segment.synced = True
        segment.synced_size = part.size
        log.insert_segment(segment)
        if part.end_offset < hole.end_offset:
            assert self._marker is not None
            log.holes.append(Hole(part.end_offset, hole.end_offset, self._marker))
        hole.end_offset = part.base_offset
        if hole.end_offset <= hole.start_offset:
            _note_mended(log)
            log.forget_hole(hole)
        _look_again(log)


def begin_mending(log: "Log", hole: Hole, part: Part) -> Mending | None:
    """None when the log is no longer what the part was made for: its files are then removed."""
    fits = hole in log.holes and hole.start_offset <= part.base_offset < part.end_offset <= hole.end_offset
    if not fits or log.failed is not None or log.abandoned:
        if not log.abandoned:
            discard_part(log.disk, log.path, part.base_offset)
        return None
    return Mending(log, hole, part)


def put_in_place(disk: Disk, folder: str, base_offset: int) -> None:
    """Give `.cleaned` files their names; the log file last, since a start goes by it."""
    for suffix in SEGMENT_SUFFIXES:
        path = f"{folder}/{file_name(base_offset, suffix)}"
        if disk.exists(path + CLEANED_SUFFIX):
            disk.rename(path + CLEANED_SUFFIX, path)
    disk.sync_dir(folder)


def discard_part(disk: Disk, folder: str, base_offset: int) -> None:
    """Forget what was written to be put in place."""
    for suffix in SEGMENT_SUFFIXES:
        path = f"{folder}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}"
        if disk.exists(path):
            disk.remove(path)


def close_damaged(log: "Log", segment: Segment) -> None:
    """Go on behind a damaged active segment, so that it can be set aside like any other. OSError if that cannot be
    done.

    All that was appended to it counts as it did before, so it has to be on the disk; and so has its successor, or a
    start would take the log for one that ends where the damaged segment begins.
    """
    segment.handle.open().sync()
    segment.reset_indexes()
    log.roll(segment.created_ms)
    log.disk.sync_dir(log.path)


def _note_mended(log: "Log") -> None:
    """Where nothing is missing any more of a segment that was lost, the manifest names what is in its place.

    Before the file that kept the place goes: without it a start would take the rest for given up.
    """
    manifest = log.manifest
    for entry in manifest.entries:
        holes = [hole for hole in log.holes if hole.start_offset < hole.end_offset]
        if not entry.lost or any(h.start_offset < entry.end_offset and entry.base_offset < h.end_offset for h in holes):
            continue
        manifest.drop(entry.base_offset, entry.base_offset + 1)
        for segment, following in pairwise(log.segments):
            if entry.base_offset <= segment.base_offset < entry.end_offset:
                end_offset = min(following.base_offset, entry.end_offset)
                manifest.add(entry_of(log.disk, segment.path(".log"), segment.base_offset, end_offset, segment.size))
    manifest.save(log.disk, log.path)


def _look_again(log: "Log") -> None:
    """More of the log is there than before: what was derived without it may be wrong for what was put back."""
    for other in log.holes:
        other.open_from = None
    for segment in log.segments:
        if segment.aborted_guessed:
            segment.doubt_aborted()
    if not log.producers_known:
        log.load_producers()
    log.active.aborted_guessed = not log.producers_known
