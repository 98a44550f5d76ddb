"""How a log loses records: truncated to match its leader, deleted from its start, compacted, given up where damaged.

An entry leaves the manifest before its files go. Only deletion may rename the files first: their new names say what
became of them, until `forget_deleted` has updated the manifest and removes them.
"""

import errno
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Lock

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.replication.producers import ProducerStates
from headrace.storage.durability import DirtyPaths
from headrace.storage.epochs import EpochCache
from headrace.storage.file_names import DELETED_SUFFIX
from headrace.storage.files import NO_SPACE
from headrace.storage.holes import Hole, put_away
from headrace.storage.pool import FilePool
from headrace.storage.reader import LogReader
from headrace.storage.retention import expired_segments
from headrace.storage.segment import NEVER, CorruptSegment, Segment
from headrace.storage.snapshots import load_producers


class ShrinkingLog(LogReader):
    """See the module. `Log` is this and the writing side."""

    path: str
    config: LogConfig
    pool: FilePool
    durable_end: int
    recovery_point: int
    epochs: EpochCache
    producers: ProducerStates
    producers_known: bool
    abandoned: bool
    folder_lock: Lock
    _generation: int
    _opened_clean_at: int
    _dirty_folders: DirtyPaths

    def roll(self, now_ms: int) -> None:
        raise NotImplementedError

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on, and the whole batch it falls into. Never called below the HW.

        The recovery point on disk may now be too high: the caller has it checkpointed before it appends again,
        which is what `LogManager.truncate_to` does.
        """
        if offset >= self.end_offset:
            # One that led without writing anything has noted an epoch here that nobody else has heard of.
            self.epochs.truncate_from_end(offset)
            return
        if offset < self._bases[0]:
            self.truncate_fully(offset)
            return
        self._shrinking()
        at = bisect_right(self._bases, offset)
        if self.manifest.drop(self._bases[at - 1], NEVER):
            self.manifest.save(self.disk, self.path)
        self._drop_from_end(self.segments[at:])
        active = self.segments[-1]
        active.synced = False
        try:
            self.aborted_of(active)
            offset = active.truncate(offset)
        except CorruptSegment as damage:
            # Nobody knows where to cut. That is this log's trouble, and not its disk's.
            self.failed = OSError(errno.EINVAL, str(damage), active.handle.path)
            raise self.failed from damage
        active.configure(self.config)
        self._shrunk(active, offset)
        self._forget_holes([hole for hole in self.holes if hole.end_offset > offset])

    def unchanged_below(self, offset: int) -> int:
        """Up to where a cut at `offset` changes no file: the start of the segment that it goes through."""
        if offset >= self.end_offset:
            return offset
        return min(offset, self._bases[max(0, bisect_right(self._bases, offset) - 1)])

    def truncate_fully(self, new_start: int) -> None:
        """Drop everything and go on at `new_start`: nothing here was of use to anybody."""
        self._shrinking()
        self.manifest.drop(0, NEVER)
        self.manifest.begin_at(new_start)
        self.manifest.save(self.disk, self.path)
        self._drop_from_end(list(self.segments))
        active = Segment.create(self.pool, self.path, new_start, self.config, self.active.created_ms)
        self.segments.append(active)
        self._bases.append(new_start)
        self.epochs.clear()
        self._forget_holes(list(self.holes))
        self.log_start_offset = new_start
        self._shrunk(active, new_start)

    def _forget_holes(self, holes: list[Hole]) -> None:
        """What was set aside there is no longer part of the log: deleted, or about to be written anew."""
        for hole in holes:
            self.manifest.drop(hole.start_offset, hole.end_offset)
            here = self.manifest.get(self._bases[max(0, bisect_right(self._bases, hole.start_offset) - 1)])
            if here is not None and here.lost:  # only its end is missing: the next start names what is left of it
                self.manifest.drop(here.base_offset, here.base_offset + 1)
            self.forget_hole(hole)
        if holes:
            self.manifest.save(self.disk, self.path)

    def forget_hole(self, hole: Hole) -> None:
        put_away(self.disk, hole.path)
        self.holes.remove(hole)
        self._dirty_folders.add(self.path)

    def _shrinking(self) -> None:
        if self.failed is not None:
            raise self.failed
        self._generation += 1
        self.manifest.truncated(self._generation)

    def _shrunk(self, active: Segment, end_offset: int) -> None:
        self.active = active
        self.end_offset = end_offset
        self.durable_end = min(self.durable_end, end_offset)
        # A power cut may bring the end of the file back that was cut off: the next start has to look at all of it.
        self.recovery_point = min(self.recovery_point, active.base_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self._opened_clean_at = -1
        self._bound_segment = None
        self._dirty_folders.add(self.path)
        self.epochs.truncate_from_end(end_offset)
        self.snapshots.remove_outside(self._bases[0], end_offset)
        if len(self.producers):
            self.load_producers()

    def load_producers(self) -> None:
        """Read again what the log says of its producers. What was derived while more of it was missing is not kept."""
        self.producers_known = load_producers(
            self.producers, self.snapshots, self.segments, self.holes, self.end_offset, 0
        )

    def advance_log_start(self, offset: int) -> bool:
        """DeleteRecords, or retention: readers no longer see what lies below. Files go when retention runs."""
        if offset <= self.log_start_offset:
            return False
        if offset > self.end_offset:
            raise KafkaError(Err.OFFSET_OUT_OF_RANGE, f"{offset} is above the end {self.end_offset}")
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.producers.advance_log_start(offset)
        self._forget_holes([hole for hole in self.holes if hole.end_offset <= offset])
        return True

    def delete_segments(self, count: int, now_ms: int) -> list[str]:
        """Take the oldest segments out of the log; returns renamed files to remove after `file.delete.delay.ms`."""
        if count >= len(self.segments):
            try:
                self.roll(now_ms)
            except OSError as error:
                if error.errno not in NO_SPACE or self.failed is not None:
                    raise
                # The disk is full: the older ones can go without a new one, and make room for it.
            count = len(self.segments) - 1
        gone = self.segments[:count]
        if not gone:
            return []
        self.advance_log_start(self._bases[count])
        del self.segments[:count]
        del self._bases[:count]
        self.manifest.begin_at(self._bases[0])
        self._bound_segment = None
        self._dirty_folders.add(self.path)
        removed = []
        for segment in gone:
            segment.close()
            paths = segment.paths()
            if segment.base_offset in self.snapshots.offsets:
                self.snapshots.offsets.remove(segment.base_offset)
                paths.append(self.snapshots.path(segment.base_offset))
            for path in paths:
                self.disk.rename(path, path + DELETED_SUFFIX)
                removed.append(path + DELETED_SUFFIX)
        return removed

    def apply_retention(self, high_watermark: int, now_ms: int) -> tuple[list[str], str]:
        """(files to remove later, why)."""
        expired = expired_segments(
            self.facts(),
            self.config,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        return (self.delete_segments(expired.segments, now_ms), expired.reason) if expired.segments else ([], "")

    def replace_segments(self, old: Sequence[Segment], base_offset: int, size: int) -> None:
        """Read a compacted segment, already under its name on disk, in the place of those it was made from."""
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == list(old) and self.active not in old
        segment = Segment(self.pool, self.path, base_offset, size, old[-1].created_ms)
        segment.index_interval_bytes = self.config.index_interval_bytes
        segment.synced = True
        segment.synced_size = size
        self.segments[at : at + len(old)] = [segment]
        self._bases[at : at + len(old)] = [base_offset]
        self._bound_segment = None
        for gone in old:
            gone.close()

    def _drop_from_end(self, segments: Sequence[Segment]) -> None:
        """The newest first, each for good before the next: one that a power cut brings back must not have a gap before
        it, which a compacted log would take for records cleaned away."""
        for segment in reversed(segments):
            self._drop_segments([segment])
            self.disk.sync_dir(self.path)

    def _drop_segments(self, segments: Iterable[Segment]) -> None:
        """Take segments out of the log and remove their files at once."""
        for segment in segments:
            at = self.segments.index(segment)
            del self.segments[at]
            del self._bases[at]
            segment.close()
            for path in segment.paths():
                self.disk.remove(path)
        self._dirty_folders.add(self.path)
        self._bound_segment = None

    def forget_deleted(self, paths: Sequence[str]) -> None:
        """In a thread, some time after `delete_segments` or a swap: remove the files that it returned."""
        with self.folder_lock:
            if self.abandoned:
                # By name: once the log is deleted, the name may be another's, for which its files still have to speak.
                return
            self.manifest.save(self.disk, self.path)
        for path in paths:
            if not self.abandoned:
                with suppress(FileNotFoundError):
                    self.disk.remove(path)
