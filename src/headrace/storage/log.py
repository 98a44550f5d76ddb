"""One partition's log: append, read, truncate, and what of it is durable.

All calls are made on the loop. `append` and `read` are the hot path: they touch the disk once or not at all.
`recovery` builds a Log from a folder; `lookup` finds timestamps; `durability` syncs.
"""

import os.path
from bisect import bisect_right
from collections.abc import Iterable

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.layout import iter_headers
from headrace.storage import epochs as epoch_file
from headrace.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from headrace.storage.durability import SegmentSync, SyncPlan
from headrace.storage.epochs import EpochCache
from headrace.storage.files import Buffer, Disk, File, start_writeback
from headrace.storage.pool import FilePool, Handle
from headrace.storage.recovery import RecoveryReport, load_folder
from headrace.storage.segment import CorruptSegment, Segment


class Slice:
    """Bytes of a log file for one reader. Holds its file open until released."""

    __slots__ = ("_handle", "file", "length", "position")

    def __init__(self, handle: Handle, file: File, position: int, length: int) -> None:
        self._handle: Handle | None = handle
        self.file = file
        self.position = position
        self.length = length

    @property
    def fd(self) -> int:
        return self.file.fd

    def __len__(self) -> int:
        return self.length

    def read(self, length: int | None = None, at: int = 0) -> bytes:
        """Bytes from `at` within the slice."""
        left = self.length - at
        return self.file.read(left if length is None or length > left else length, self.position + at)

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.unpin()


class Log:
    """See the module. `end_offset` and `durable_end` are exclusive."""

    def __init__(
        self,
        pool: FilePool,
        path: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        end_offset: int,
        durable_end: int,
        recovery_point: int,
        epochs: EpochCache,
        topic_id: bytes | None,
        recovery: RecoveryReport,
    ) -> None:
        name = os.path.basename(path)
        topic, _, partition = name.rpartition("-")
        self.topic = topic
        self.partition = int(partition)
        self.topic_id = topic_id
        self.path = path
        self.config = config
        self.pool = pool
        self.disk = pool.disk
        self.segments = segments
        self.active = segments[-1]
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.durable_end = durable_end
        """Below it every byte survives a power cut: synced, and reachable through synced directory entries."""
        self.recovery_point = recovery_point
        """Segments below it are whole on disk with their indexes; recovery starts here."""
        self.epochs = epochs
        self.recovery = recovery
        self.failed: OSError | None = None
        self._bases = [segment.base_offset for segment in segments]
        self._generation = 0
        self._dirty_folders: set[str] = set()
        self._dirty_files: set[str] = set()
        self._bound_offset = -1
        self._bound_position = -1
        self._bound_segment: Segment | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        config: LogConfig,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start: int = 0,
        now_ms: int,
        topic_id: bytes | None = None,
        pool: FilePool | None = None,
    ) -> "Log":
        """Open or create a partition's folder. `recovery` then says what had to be done.

        `clean` promises that the last life closed this log; otherwise everything from the recovery point on is
        checked. The folder's own topic id wins; `topic_id` is written where there is none.
        """
        if pool is None:
            pool = FilePool(disk)
        is_new = not disk.exists(path)
        loaded = load_folder(
            pool,
            path,
            config,
            clean=clean and not is_new,
            recovery_point=recovery_point,
            log_start=log_start,
            now_ms=now_ms,
        )
        log = cls(
            pool,
            path,
            config,
            loaded.segments,
            log_start_offset=loaded.log_start_offset,
            end_offset=loaded.end_offset,
            durable_end=loaded.end_offset if clean and not is_new else min(loaded.recovery_point, loaded.end_offset),
            recovery_point=loaded.recovery_point,
            epochs=loaded.epochs,
            topic_id=loaded.topic_id,
            recovery=loaded.report,
        )
        if is_new:
            log._dirty_folders.update((os.path.dirname(path), path))
        elif not clean:
            log._dirty_folders.add(path)
        if log.topic_id is None and topic_id is not None:
            log.write_topic_id(topic_id)
        return log

    # -- writing

    def append(
        self,
        view: Buffer,
        base_offset: int,
        last_offset: int,
        leader_epoch: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """One validated, stamped batch. The caller updates the producers afterwards.

        On OSError the log is as it was before, unless `failed` says otherwise.
        """
        length = len(view)
        active = self.active
        size = active.size
        if (
            size > active.roll_at_bytes - length
            or max_timestamp > active.roll_at_timestamp
            or last_offset > active.max_offset
            or now_ms > active.roll_at_now_ms
        ):
            active = self._roll_for(base_offset, last_offset, now_ms)
            size = active.size
        handle = active.handle
        handle.used = True
        file = handle.file
        if file is None:
            file = handle.open()
        try:
            file.append(view)
        except OSError as error:
            self._append_failed(file, error)
            raise
        active.tail_last_offsets.append(last_offset)
        active.tail_positions.append(size)
        active.size = size + length
        if max_timestamp > active._max_timestamp:
            active._max_timestamp = max_timestamp
            active.max_timestamp_offset = last_offset
        since = active.bytes_since_index
        if since > active.index_interval_bytes:
            active.add_index_entry(last_offset, size)
            if active.index_full(self.config):
                active.roll_at_bytes = -1
            since = 0
        active.bytes_since_index = since + length
        if size == 0:
            active.first_timestamp = max_timestamp
            active.configure(self.config)
        if leader_epoch > self.epochs.latest_epoch:
            self.epochs.assign(leader_epoch, base_offset)
        self.end_offset = last_offset + 1

    def _roll_for(self, base_offset: int, last_offset: int, now_ms: int) -> Segment:
        active = self.active
        if active.size == 0 and last_offset <= active.max_offset:
            return active  # one batch larger than a whole segment gets a segment of its own
        return self._roll(base_offset, now_ms)

    def _append_failed(self, file: File, error: OSError) -> None:
        """Decide whether the failed write left the file as it was. If half a batch stayed, nothing may follow it."""
        try:
            torn = file.size() != self.active.size
        except OSError:
            torn = True
        if torn:
            self.failed = error

    def append_batches(self, view: Buffer, now_ms: int) -> None:
        """Stamped batches as a follower gets them: offsets may have gaps, but never go back."""
        view = memoryview(view)
        for position, header in iter_headers(view):
            if header.base_offset < self.end_offset:
                raise KafkaError(
                    Err.CORRUPT_MESSAGE,
                    f"{self.path}: batch at offset {header.base_offset} where {self.end_offset} comes next",
                )
            self.append(
                view[position : position + header.size],
                header.base_offset,
                header.last_offset,
                header.leader_epoch,
                header.max_timestamp,
                now_ms,
            )

    def roll(self, now_ms: int) -> None:
        """Start a new segment at the end offset, unless the active one is empty."""
        if self.active.size:
            self._roll(self.end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        old = self.active
        if old.size == 0:
            # Nothing in it, and the next batch is too far from it for a relative offset.
            self._drop_segments([old])
        else:
            old.write_indexes()
        segment = Segment.create(self.pool, self.path, base_offset, self.config, now_ms)
        self.segments.append(segment)
        self._bases.append(base_offset)
        self.active = segment
        self._dirty_folders.add(self.path)
        return segment

    # -- reading

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
        active = self.active
        if offset >= active.base_offset:
            segment = active
            at = len(self._bases)
        else:
            at = bisect_right(self._bases, offset)
            segment = self.segments[at - 1] if at else self.segments[0]
            at = at or 1
        while True:
            try:
                place = segment.find(offset)
                if place is not None:
                    limit = segment.size if end_offset == self.end_offset else self._limit(segment, at, end_offset)
                    break
            except CorruptSegment as error:
                raise KafkaError(Err.KAFKA_STORAGE_ERROR, str(error)) from error
            if at == len(self._bases):
                return None
            # The rest of this segment was compacted away.
            segment = self.segments[at]
            at += 1
        position = place.position
        if position >= limit:
            return None
        length = limit - position
        if length > max_bytes:
            length = max_bytes
            if length < place.size:
                if not min_one:
                    return None
                length = place.size
        handle = segment.handle
        file = handle.file
        if file is None:
            file = handle.open()
        handle.used = True
        handle.pins += 1
        return Slice(handle, file, position, length)

    def _limit(self, segment: Segment, at: int, end_offset: int) -> int:
        """Where in a segment the bytes below `end_offset` end. Remembered, since many readers share one bound."""
        bases = self._bases
        if at < len(bases) and bases[at] <= end_offset:
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

    # -- durability

    def sync_plan(self) -> SyncPlan | None:
        """What a thread has to do until all that was appended so far is durable; None when it is already."""
        if self.failed is not None:
            raise self.failed
        epochs = None
        if self.epochs.dirty:
            epochs = (f"{self.path}/{epoch_file.FILE_NAME}", self.epochs.encode())
            self.epochs.dirty = False
        elif self.durable_end == self.end_offset and not self._dirty_folders and not self._dirty_files:
            return None
        parts = []
        active = self.active
        for segment in self._unsynced_segments():
            rolled = segment is not active
            beside = (".index", ".timeindex", ".txnindex") if rolled else (".txnindex",)
            paths = tuple(segment.path(suffix) for suffix in beside)
            parts.append(SegmentSync(segment, segment.handle, segment.handle.pin(), segment.size, rolled, paths))
        return SyncPlan(
            self.disk,
            self.end_offset,
            self._generation,
            parts,
            sorted(self._dirty_files),
            sorted(self._dirty_folders),
            epochs,
        )

    def _unsynced_segments(self) -> list[Segment]:
        segments = self.segments
        at = len(segments)
        while at and not segments[at - 1].synced:
            at -= 1
        return [segment for segment in segments[at:] if segment is not self.active or segment.is_dirty()]

    def mark_durable(self, plan: SyncPlan) -> None:
        """On the loop, after `plan.run()` has returned or raised. Raises what the run raised: the log has failed."""
        parts = plan.segments
        plan.release()
        if plan.error is not None or not plan.done:
            self.failed = plan.error or OSError("the sync was abandoned")
            raise self.failed
        if plan.generation != self._generation:
            # Truncated meanwhile: another plan will say what is durable now.
            self.epochs.dirty = True
            return
        for part in parts:
            part.segment.synced_size = max(part.segment.synced_size, part.size)
            if part.rolled:
                part.segment.synced = True
        self._dirty_files.difference_update(plan.files)
        self._dirty_folders.difference_update(plan.folders)
        if plan.end_offset > self.durable_end:
            self.durable_end = plan.end_offset
        # Whole segments only: recovery checks a segment from its first byte, and rebuilds its indexes.
        self.recovery_point = max(self.recovery_point, min(self.durable_end, self._first_unsynced_base()))

    def _first_unsynced_base(self) -> int:
        for segment in self.segments:
            if not segment.synced:
                return segment.base_offset
        return self.active.base_offset

    def start_writeback(self, from_size: int) -> int:
        """Ask the kernel to write out the active segment from `from_size` on; returns its size now."""
        active = self.active
        if active.handle.file is not None and active.size > from_size:
            start_writeback(active.handle.file, from_size, active.size - from_size)
        return active.size

    # -- deleting

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

    def write_topic_id(self, topic_id: bytes) -> None:
        """Create `partition.metadata`; like a new segment it becomes durable with the next sync."""
        self.topic_id = topic_id
        path = f"{self.path}/{PARTITION_METADATA}"
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            file.append(encode_partition_metadata(topic_id))
        finally:
            file.close()
        self._dirty_files.add(path)
        self._dirty_folders.add(self.path)
