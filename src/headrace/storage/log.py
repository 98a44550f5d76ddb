"""One partition's log: append, truncate, and what of it is durable. `reader` has the other half.

All calls are made on the loop. `append` and `read` are the hot path: they touch the disk once or not at all.
`recovery` builds a Log from a folder; `durability` syncs.
"""

import os.path
from contextlib import suppress
from threading import Lock

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.layout import BatchHeader, iter_headers
from headrace.replication.producers import AbortedTransaction, ProducerStates
from headrace.storage import epochs as epoch_file
from headrace.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from headrace.storage.durability import DirtyPaths, SegmentSync, SyncPlan
from headrace.storage.epochs import EpochCache
from headrace.storage.file_names import INDEX_SUFFIXES
from headrace.storage.files import Buffer, Disk, File
from headrace.storage.holes import Hole, RecoveryReport, leave_place
from headrace.storage.indexes import RELATIVE_OFFSET_MAX
from headrace.storage.joining import covered_until
from headrace.storage.manifest import Manifest, lost_entry
from headrace.storage.mending import close_damaged
from headrace.storage.pool import FilePool
from headrace.storage.reader import Slice
from headrace.storage.recovery import load_folder
from headrace.storage.segment import Segment
from headrace.storage.shrinking import ShrinkingLog
from headrace.storage.snapshots import PRODUCER_EXPIRATION_MS, Snapshots

__all__ = ["Log", "Slice"]


class Log(ShrinkingLog):
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
        producers: ProducerStates,
        producers_known: bool,
        snapshots: Snapshots,
        recovery: RecoveryReport,
        manifest: Manifest,
    ) -> None:
        super().__init__(segments, log_start_offset, end_offset, snapshots, recovery, manifest)
        name = os.path.basename(path)
        topic, _, partition = name.rpartition("-")
        self.topic = topic
        self.partition = int(partition)
        self.topic_id = topic_id
        self.path = path
        self.config = config
        self.pool = pool
        self.disk = pool.disk
        self.durable_end = durable_end
        """Below it every byte survives a power cut: synced, and reachable through synced directory entries."""
        self.recovery_point = recovery_point
        """Segments below it are whole on disk with their indexes; recovery starts here."""
        self.epochs = epochs
        self.producers = producers
        self.producers_known = producers_known
        """Whether nothing was missing where they were read from. Else no snapshot is taken of them, and no transaction
        index that was made with them is vouched for."""
        self.active.aborted_guessed = self.active.aborted_guessed or not producers_known
        self.abandoned = False
        """Its files are let go of: nothing is read, written or synced any more."""
        self.folder_lock = Lock()
        """Held while a thread renames files by their path (a swap), since others may rename the folder."""
        self._generation = 0
        self._opened_clean_at = end_offset if recovery.clean else -1
        """Where the log ended when it was opened with all its files in order: nothing to write if it still does."""
        self._dirty_folders = DirtyPaths()
        self._dirty_files = DirtyPaths()

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
        producers: ProducerStates | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        committed: int | None = None,
        cleaned: int = 0,
        manifest_trusted: bool | None = False,
    ) -> "Log":
        """Open or create a partition's folder. `recovery` then says what had to be done.

        `clean` promises that the last run closed this log; otherwise everything from the recovery point on is
        checked. Below `committed`, where known, damage is never taken for an unfinished write, and below `cleaned` no
        gap for damage. The folder's own topic id wins; `topic_id` is written where there is none. `manifest_trusted`:
        see `recovery.load_folder`.
        """
        if pool is None:
            pool = FilePool(disk)
        if producers is None:
            producers = ProducerStates()
        is_new = not disk.exists(path)
        loaded = load_folder(
            pool,
            path,
            config,
            clean=clean and not is_new,
            recovery_point=recovery_point,
            log_start=log_start,
            now_ms=now_ms,
            producers=producers,
            producer_expiration_ms=producer_expiration_ms,
            committed=max(committed or 0, recovery_point) if committed is not None or recovery_point else None,
            cleaned=cleaned,
            manifest_trusted=manifest_trusted,
        )
        log = cls(
            pool,
            path,
            config,
            loaded.segments,
            log_start_offset=loaded.log_start_offset,
            end_offset=loaded.end_offset,
            durable_end=loaded.recovery_point,
            recovery_point=loaded.recovery_point,
            epochs=loaded.epochs,
            topic_id=loaded.topic_id,
            producers=producers,
            producers_known=loaded.producers_known,
            snapshots=loaded.snapshots,
            recovery=loaded.report,
            manifest=loaded.manifest,
        )
        if is_new or not loaded.report.clean:
            # A process killed right after it made the folder has left a name that no sync has reached.
            log._dirty_folders.add(os.path.dirname(path), path)
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
        # Records that a leader has cleaned away before this batch leave their gap within a segment: between two of them
        # it would look like an end that a power cut has taken.
        is_near = last_offset - self.end_offset <= RELATIVE_OFFSET_MAX
        return self._roll(self.end_offset if is_near else base_offset, now_ms)

    def _append_failed(self, file: File, error: OSError) -> None:
        """Decide whether the failed write left the file as it was. If half a batch stayed, nothing may follow it."""
        try:
            torn = file.size() != self.active.size
        except OSError:
            torn = True
        if torn:
            self.failed = error

    def append_batches(self, view: Buffer, now_ms: int) -> None:
        """Stamped batches as a follower gets them, in one write: offsets may have gaps, but never go back.

        Tells producers, epochs and the transaction index. A batch that is cut short at the end is left out.
        """
        view = memoryview(view)
        batches = list(iter_headers(view))
        expected = self.end_offset
        for _, header in batches:
            if header.base_offset < expected:
                raise KafkaError(
                    Err.CORRUPT_MESSAGE,
                    f"{self.path}: batch at offset {header.base_offset} where {expected} comes next",
                )
            expected = header.end_offset
        if batches:
            self.append_checked(view, batches, now_ms)

    def append_checked(self, view: memoryview, batches: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Like `append_batches`, for batches that were found to come next, one behind the other in `view`."""
        first, last = batches[0][0], batches[-1][1]
        length = batches[-1][0] + last.size - first
        latest = max(header.max_timestamp for _, header in batches)
        if len(batches) > 1 and not self.active.must_roll(length, last.last_offset, latest, now_ms):
            if first:
                view = view[first:]
                batches = [(position - first, header) for position, header in batches]
            self._append_together(view[:length], batches)
        else:
            for position, header in batches:
                batch = view[position : position + header.size]
                self.append(
                    batch, header.base_offset, header.last_offset, header.leader_epoch, header.max_timestamp, now_ms
                )
                self._replay(view, position, header)

    def _append_together(self, view: memoryview, batches: list[tuple[int, BatchHeader]]) -> None:
        active = self.active
        file = active.handle.open()
        size = active.size
        try:
            file.append(view)
        except OSError as error:
            self._append_failed(file, error)
            raise
        for position, header in batches:
            active.note_batch(size + position, header.size, header.last_offset, header.max_timestamp)
            active.tail_last_offsets.append(header.last_offset)
            active.tail_positions.append(size + position)
            if header.leader_epoch > self.epochs.latest_epoch:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            self.end_offset = header.end_offset
            self._replay(view, position, header)
        if size == 0 or active.index_full(self.config):
            active.configure(self.config)

    def _replay(self, view: memoryview, position: int, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            aborted = self.producers.replay(view, position, header)
            if aborted is not None:
                self.add_aborted(aborted)

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """The marker just appended ended a transaction that readers have to skip."""
        known = self.aborted_of(self.active)
        if known and known[-1].last_offset == entry.last_offset:
            return  # it was just read from the log
        with suppress(OSError):
            # A full disk: the marker is in the log and cannot be refused any more. Readers skip what it aborted all the
            # same, and the file is made again from the log.
            self.active.add_aborted(entry)
            self._dirty_files.add(self.active.path(".txnindex"))
            self._dirty_folders.add(self.path)

    def roll(self, now_ms: int) -> None:
        """Start a new segment at the end offset, unless the active one is empty."""
        if self.active.size:
            self._roll(self.end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """On OSError (a full disk) the old segment is still the active one."""
        old = self.active
        if old.size:
            old.write_indexes()
            self._write_snapshot(base_offset)
        segment = Segment.create(self.pool, self.path, base_offset, self.config, now_ms)
        first = self.producers.first_undecided_offset
        segment.open_from = base_offset if first is None else first
        segment.aborted_guessed = not self.producers_known
        self.segments.append(segment)
        self._bases.append(base_offset)
        self.active = segment
        self._dirty_folders.add(self.path)
        if not old.size:
            # The next batch was too far from its base for a relative offset.
            self._drop_segments([old])
        return segment

    def leave_end(self, end_offset: int, now_ms: int) -> None:
        """The log went on up to `end_offset`, and these records are gone for good: their offsets are not given again.

        Readers get an error there, as for any hole, and what is written from now on comes behind it. Blocking.
        """
        start = self.end_offset
        assert end_offset > start and self.failed is None
        path = leave_place(self.disk, self.path, start)
        # Before the next segment begins behind them: a start that finds it must know why.
        self.manifest.add(lost_entry(start, end_offset))
        self.manifest.save(self.disk, self.path)
        self.holes.append(Hole(start, end_offset, path))
        self._roll(end_offset, now_ms)
        self.end_offset = end_offset
        self.flush()

    def _write_snapshot(self, offset: int) -> None:
        path = self.snapshots.write(self.producers, offset) if self.producers_known else None
        if path is not None:
            self._dirty_files.add(path)
            self._dirty_folders.add(self.path)

    # -- durability

    def sync_plan(self) -> SyncPlan | None:
        """What a thread has to do until all that was appended so far is durable; None when it is already."""
        if self.abandoned:
            return None
        if self.failed is not None:
            raise self.failed
        epochs = None
        if self.epochs.dirty:
            epochs = (f"{self.path}/{epoch_file.FILE_NAME}", self.epochs.encode())
            self.epochs.dirty = False
        elif (
            self.durable_end == self.end_offset
            and not self._dirty_folders
            and not self._dirty_files
            and not self.manifest.is_dirty
        ):
            return None
        parts = []
        active = self.active
        for segment in self._unsynced_segments():
            rolled = segment is not active
            paths: tuple[str, ...] = ()
            end_offset = -1
            if rolled:
                paths = tuple(segment.path(suffix) for suffix in INDEX_SUFFIXES)
                end_offset = covered_until(segment, self.segments[self.segments.index(segment) + 1], self.holes)
            parts.append(
                SegmentSync(segment, segment.handle, segment.handle.pin(), segment.size, rolled, paths, end_offset)
            )
        return SyncPlan(
            self.disk,
            self.end_offset,
            self._generation,
            parts,
            self._dirty_files.seen(),
            self._dirty_folders.seen(),
            epochs,
            self,
        )

    def _unsynced_segments(self) -> list[Segment]:
        return [
            segment
            for segment in self.segments[self._first_unsynced() :]
            if segment is not self.active or segment.is_dirty()
        ]

    def _first_unsynced(self) -> int:
        """Unsynced segments are always the newest ones, and few."""
        segments = self.segments
        at = len(segments) - 1
        while at and not segments[at - 1].synced:
            at -= 1
        return at

    def mark_durable(self, plan: SyncPlan) -> None:
        """On the loop, after `plan.run()` has returned or raised. Raises what the run raised: the log has failed."""
        parts = plan.segments
        plan.release()
        if self.abandoned:
            return  # its folder may have been renamed under the sync, and nobody waits for it any more
        if plan.error is not None or not plan.done:
            self.failed = plan.error or OSError("the sync was abandoned")
            raise self.failed
        # The race that generations prevent, on a follower:
        #   1. Offsets 10 to 19 are appended, and a plan is taken that ends at 20.
        #   2. A thread begins to sync the files of the plan.
        #   3. The next leader never had them: the log is cut to 10, and that leader's 10 to 14 are appended.
        #   4. The thread is done. The bytes that it has synced are those of step 1.
        # Were all below 20 called durable now, the records of step 3 would count as such, and a power cut could take
        # them. A truncation begins a new generation, and a plan of an older one says nothing about it.
        if plan.generation != self._generation:
            # Another plan will say what is durable now.
            self.epochs.dirty = True
            return
        for part in parts:
            part.segment.synced_size = max(part.segment.synced_size, part.size)
            if part.rolled:
                part.segment.synced = True
        self._dirty_files.synced(plan.files)
        self._dirty_folders.synced(plan.folders)
        if plan.end_offset > self.durable_end:
            self.durable_end = plan.end_offset
        if plan.epochs_missing:
            self.epochs.dirty = True
        if self.epochs.dirty:
            return  # recovery has to read them from the batches
        # Whole segments only: recovery checks a segment from its first byte, and rebuilds its indexes.
        self.recovery_point = max(self.recovery_point, min(self.durable_end, self._bases[self._first_unsynced()]))

    def _close_damaged(self, segment: Segment) -> None:
        close_damaged(self, segment)

    # -- folder

    def reconfigure(self, config: LogConfig) -> None:
        """Take changed topic options; rolling thresholds count from the next append."""
        self.config = config
        self.active.configure(config)

    def write_topic_id(self, topic_id: bytes) -> None:
        """Create `partition.metadata`; like a new segment it becomes durable with the next sync."""
        self.topic_id = topic_id
        path = f"{self.path}/{PARTITION_METADATA}"
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            file.append(encode_partition_metadata(topic_id, os.path.basename(self.path)))
        finally:
            file.close()
        self._dirty_files.add(path)
        self._dirty_folders.add(self.path)

    def flush(self) -> None:
        """Make everything durable now, blocking."""
        plan = self.sync_plan()
        if plan is not None:
            self._run(plan)

    def _run(self, plan: SyncPlan) -> None:
        with suppress(OSError):
            plan.run()
        self.mark_durable(plan)  # raises what the run did

    def close_plan(self) -> SyncPlan | None:
        """Bring indexes and the producer snapshot up to date; the plan then leaves nothing to check at a start."""
        if self.end_offset != self._opened_clean_at:
            active = self.active
            active.write_indexes()
            self._dirty_files.add(*(active.path(suffix) for suffix in INDEX_SUFFIXES if suffix != ".txnindex"))
            self._dirty_folders.add(self.path)
            self._write_snapshot(self.end_offset)
            self.snapshots.remove_strays([*self._bases, *(hole.start_offset for hole in self.holes)])
        return self.sync_plan()

    def close(self) -> None:
        """Close cleanly, blocking. After a failure the files are let go of, and the next start recovers them."""
        try:
            plan = self.close_plan()
            if plan is not None:
                self._run(plan)
            self.recovery_point = self.end_offset
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files without a word to the disk: the log dir has failed, or the folder goes."""
        self.abandoned = True
        for segment in self.segments:
            segment.close()

    def move_folder(self, path: str) -> None:
        """Go on under another name, as after a rename to `-delete` or from `-future`."""
        with self.folder_lock:
            self.disk.rename(self.path, path)
            self.path = path
        self._dirty_folders.clear()
        self._dirty_folders.add(os.path.dirname(path), path)
        self._dirty_files.clear()
        self.snapshots.move(path)
        for segment in self.segments:
            segment.move(path)
