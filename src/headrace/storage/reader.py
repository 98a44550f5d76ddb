"""The reading side of a log: finds batches by offset and time in ordered segments, and never skips one.

`Log` is this and the writing side.
"""

import errno
import os.path
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from headrace.errors import Err, KafkaError
from headrace.replication.producers import AbortedTransaction
from headrace.storage import lookup
from headrace.storage.aborted import aborted_in, aborted_of
from headrace.storage.file_names import CORRUPT_SUFFIX
from headrace.storage.files import Disk, File
from headrace.storage.holes import Hole, RecoveryReport, set_segment_aside
from headrace.storage.lookup import TimedOffset
from headrace.storage.manifest import Manifest
from headrace.storage.pool import Handle
from headrace.storage.retention import SegmentFacts
from headrace.storage.segment import NEVER, CorruptSegment, Segment
from headrace.storage.snapshots import Snapshots


class Slice:
    """Bytes of a log file for one reader. Holds its file open until released."""

    __slots__ = ("_handle", "file", "length", "position")

    def __init__(self, handle: Handle, file: File, position: int, length: int) -> None:
        self._handle: Handle | None = handle
        self.file = file
        self.position = position
        self.length = length

    @property
    def handle(self) -> Handle | None:
        return self._handle

    @property
    def fd(self) -> int:
        handle = self._handle
        if handle is not None and handle.cut:
            self._check()
        return self.file.fd

    def __len__(self) -> int:
        return self.length

    def read(self, length: int | None = None, at: int = 0) -> bytes:
        """Bytes from `at` within the slice. OSError once the log was cut: what stands there now is another history."""
        self._check()
        left = self.length - at
        return self.file.read(left if length is None or length > left else length, self.position + at)

    @property
    def is_unchecked(self) -> bool:
        """Whether part of it has not been checked since an earlier run wrote it."""
        handle = self._handle
        if handle is None or handle.unchecked is None:
            return False
        return not handle.unchecked.covers(self.position, self.position + self.length)

    def checked(self, length: int) -> None:
        """On the loop: so many bytes of it were found good."""
        handle = self._handle
        if (
            handle is not None
            and handle.unchecked is not None
            and handle.unchecked.add(self.position, self.position + length)
        ):
            handle.unchecked = None

    def _check(self) -> None:
        if self._handle is not None and self._handle.cut:
            raise OSError(errno.ESTALE, "the log was cut while it was read", self.file.path)

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.unpin()


class LogReader:
    """See the module. `end_offset` is exclusive."""

    topic: str
    partition: int
    disk: Disk

    def __init__(
        self,
        segments: list[Segment],
        log_start_offset: int,
        end_offset: int,
        snapshots: Snapshots,
        recovery: RecoveryReport,
        manifest: Manifest,
    ) -> None:
        self.segments = segments
        self.active = segments[-1]
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.snapshots = snapshots
        self.recovery = recovery
        self.manifest = manifest
        self.holes = recovery.holes
        self.on_hole: Callable[[], None] | None = None
        """Told, in whichever thread, when a damaged segment was set aside."""
        self.failed: OSError | None = None
        self._bases = [segment.base_offset for segment in segments]
        self._bound_offset = -1
        self._bound_position = -1
        self._bound_segment: Segment | None = None

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool = True) -> Slice | None:
        """Bytes from the batch that holds `offset`, none of a batch that reaches `end_offset` (HW or LSO).

        None when there is nothing yet. The last batch may be cut by `max_bytes`, but with `min_one` never the first.
        """
        if offset >= end_offset or offset < self.log_start_offset:
            if offset < self.log_start_offset or offset > self.end_offset:
                raise KafkaError(
                    Err.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} of {self.topic}-{self.partition} is outside "
                    f"{self.log_start_offset} to {self.end_offset}",
                )
            return None
        segment = self.active
        if offset >= segment.tail_from:
            # The tail, which most readers are at: found without the disk, and without an index.
            last_offsets = segment.tail_last_offsets
            slot = bisect_left(last_offsets, offset)
            if slot == len(last_offsets):
                return None
            positions = segment.tail_positions
            position = positions[slot]
            slot += 1
            batch_end = positions[slot] if slot < len(positions) else segment.size
            if end_offset == self.end_offset:
                limit = segment.size
            else:
                limit = self._limit(segment, len(self._bases), end_offset)
        else:
            found = self._find(offset, end_offset)
            if found is None:
                return None
            segment, position, batch_end, limit = found
        length = limit - position
        if length <= 0:
            return None
        if length > max_bytes:
            length = max_bytes
            if length < batch_end - position:
                if not min_one:
                    return None
                length = batch_end - position
        handle = segment.handle
        file = handle.file
        if file is None:
            file = handle.open()
        handle.used = True
        handle.pins += 1
        return Slice(handle, file, position, length)

    def bytes_written(self, piece: Slice) -> int:
        """How far the file of a slice is written by now; of one that is not written to any more, more than it can
        have."""
        active = self.active
        return active.size if piece.file is active.handle.file else NEVER

    def _find(self, offset: int, end_offset: int) -> tuple[Segment, int, int, int] | None:
        """(segment, batch position, batch end, limit) of the first batch that reaches `offset`."""
        bases = self._bases
        # A start that lies below the first segment: what was between is compacted away, or set aside.
        at = bisect_right(bases, offset) or 1
        try:
            while True:
                segment = self.segments[at - 1]
                if self.holes:
                    self._check_holes(offset, segment.base_offset)
                place = segment.find(offset)
                if place is not None:
                    limit = self._limit(segment, at, end_offset)
                    return segment, place.position, place.position + place.size, limit
                if at == len(bases):
                    return None
                at += 1  # the rest of this segment was compacted away
        except CorruptSegment as error:
            self.set_aside(segment, error.reason)
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, str(error)) from error

    def _check_holes(self, offset: int, base_offset: int) -> None:
        """Refuse to step over a segment that was set aside: skipping records in silence would be losing them."""
        for hole in self.holes:
            in_hole = hole.start_offset <= offset < hole.end_offset
            if in_hole or offset < hole.start_offset < base_offset:
                raise KafkaError(
                    Err.KAFKA_STORAGE_ERROR,
                    f"offsets {hole.start_offset} to {hole.end_offset} of {self.topic}-{self.partition} "
                    f"are damaged or missing; {hole.path} keeps their place",
                )

    def _limit(self, segment: Segment, at: int, end_offset: int) -> int:
        """Where in a segment the bytes below `end_offset` end. Remembered, since many readers share one bound."""
        bases = self._bases
        if end_offset >= self.end_offset or (at < len(bases) and bases[at] <= end_offset):
            return segment.size
        if end_offset == self._bound_offset and segment is self._bound_segment:
            return self._bound_position
        limit = segment.position_of(end_offset)
        self._bound_offset = end_offset
        self._bound_segment = segment
        self._bound_position = limit
        return limit

    def bytes_after(self, offset: int, end_offset: int) -> int:
        """About how many bytes a reader at `offset` could get: for min_bytes, so no disk is touched for it."""
        if offset >= end_offset:
            return 0
        active = self.active
        if offset >= active.tail_from:
            place = active.find(offset)
            if place is None:
                return 0
            limit = active.size if end_offset >= self.end_offset else active.position_of(end_offset)
            return max(0, limit - place.position)
        total = 0
        for at in range(max(1, bisect_right(self._bases, offset)), len(self._bases) + 1):
            segment = self.segments[at - 1]
            first = segment.base_offset
            last = self._bases[at] if at < len(self._bases) else self.end_offset
            if first >= end_offset:
                break
            span = min(last, end_offset) - max(first, offset)
            total += segment.size * span // max(1, last - first)
        return max(1, total)

    def offset_for_timestamp(self, timestamp: int, end_offset: int) -> TimedOffset | None:
        """The first record whose timestamp is at least this, if it lies below `end_offset` (HW or LSO)."""
        found = lookup.first_at_or_after(self.segments, timestamp, self.log_start_offset)
        return found if found is not None and found.offset < end_offset else None

    def max_timestamp_offset(self) -> TimedOffset | None:
        """The first record with the largest timestamp of the log."""
        return lookup.with_max_timestamp(self.segments)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of each aborted transaction with records in the range."""
        return aborted_in(self, bisect_right(self._bases, start_offset) or 1, start_offset, end_offset)

    def offset_behind(self, offset: int, piece: Slice) -> int:
        """One above all that is in a slice read from `offset` on; not far above, as far as the index tells."""
        end = piece.position + piece.length
        for at in range(bisect_right(self._bases, offset) or 1, len(self._bases) + 1):
            segment = self.segments[at - 1]
            if segment.handle is piece.handle:
                index = segment.offsets
                slot = bisect_left(index.positions, end)
                if slot < len(index) and segment.is_index_checked:
                    return segment.base_offset + index.offsets[slot] + 1
                return self._bases[at] if at < len(self._bases) else self.end_offset
        return self.end_offset

    def aborted_of(self, segment: Segment) -> list[AbortedTransaction]:
        """The transaction index of a segment; from the log where the file is not what was written."""
        return aborted_of(self, segment)

    @property
    def size(self) -> int:
        """Bytes in log files."""
        return sum(segment.size for segment in self.segments)

    def facts(self) -> list[SegmentFacts]:
        """Every segment as retention sees it."""
        ends = [*self._bases[1:], self.end_offset]
        found = []
        damaged = []
        for segment, end_offset in zip(self.segments, ends):
            try:
                timestamp = segment.max_timestamp
            except CorruptSegment as damage:
                damaged.append((segment, damage.reason))
                continue
            if timestamp < 0:
                timestamp = self.disk.modified_ms(segment.handle.path)
            found.append(SegmentFacts(segment.base_offset, end_offset, segment.size, timestamp))
        for segment, reason in damaged:
            self.set_aside(segment, reason)
        return found

    def set_aside(self, segment: Segment, reason: str) -> None:
        """Take a damaged segment out of service, whole and unchanged; its offsets are an error from now on."""
        if segment is self.active:
            try:
                self._close_damaged(segment)
            except OSError as error:
                self.failed = OSError(f"{segment.handle.path}: {reason}; and it cannot be set aside: {error}")
                return
        at = self.segments.index(segment)
        edges = [self._bases[at + 1], *(hole.start_offset for hole in self.holes)]
        end_offset = min(edge for edge in edges if edge > segment.base_offset)
        path = set_segment_aside(self.disk, segment, CORRUPT_SUFFIX)
        self.holes.append(Hole(segment.base_offset, end_offset, path))
        self.manifest.mark_lost(segment.base_offset)
        self.recovery.say(f"set {os.path.basename(path)} aside: {reason}")
        del self.segments[at]
        del self._bases[at]
        segment.close()
        self._bound_segment = None
        if self.on_hole is not None:
            self.on_hole()

    def _close_damaged(self, segment: Segment) -> None:
        """Have another segment be the active one."""
        raise NotImplementedError

    def insert_segment(self, segment: Segment) -> None:
        """Read a segment that is in place again, where a hole was."""
        at = bisect_left(self._bases, segment.base_offset)
        if self._bases[at] == segment.base_offset:  # an empty one, whose records were lost
            assert not self.segments[at].size and self.segments[at] is not self.active
            self.segments[at].close()
            del self.segments[at], self._bases[at]
        self.segments.insert(at, segment)
        self._bases.insert(at, segment.base_offset)
        self._bound_segment = None
