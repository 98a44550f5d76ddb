"""From a folder to a Log: leftovers of interrupted work, checking what may be torn, setting damage aside.

Nothing that cannot be explained as an unfinished write is ever removed here; `docs/decisions/0002-quarantine.md`
says why.
"""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.records.batch import check_stored
from headrace.records.layout import HEADER_BYTES, LOG_OVERHEAD, BatchHeader
from headrace.replication.producers import ProducerStates
from headrace.storage import epochs as epoch_file
from headrace.storage.checking import checked_batches
from headrace.storage.checkpoints import (
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_partition_metadata,
)
from headrace.storage.durability import UNSYNCED, write_again
from headrace.storage.epochs import EpochCache
from headrace.storage.file_names import (
    CLEANED_SUFFIX,
    CORRUPT_SUFFIX,
    CUT_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    SWAP_SUFFIX,
    file_name,
    segment_bases,
)
from headrace.storage.files import NO_SPACE, Disk
from headrace.storage.first_read import Unchecked
from headrace.storage.holes import (
    Hole,
    RecoveryReport,
    is_whole,
    kept_places,
    leave_place,
    retire_place,
    set_segment_aside,
)
from headrace.storage.indexes import RELATIVE_OFFSET_MAX
from headrace.storage.joining import ManifestCheck, check_joins, end_of, note_segments, read_manifest
from headrace.storage.manifest import MANIFEST, Entry, Manifest
from headrace.storage.pool import FilePool
from headrace.storage.segment import WALK_BYTES, CorruptSegment, Segment
from headrace.storage.snapshots import Snapshots, load_producers
from headrace.storage.swap import finish_swaps


@dataclass(slots=True)
class LoadedFolder:
    """What is known of a folder before it becomes a Log."""

    segments: list[Segment]
    end_offset: int
    log_start_offset: int
    recovery_point: int
    epochs: EpochCache
    topic_id: bytes | None
    report: RecoveryReport
    snapshots: Snapshots
    manifest: Manifest
    producers_known: bool
    """See `load_producers`."""


def load_folder(
    pool: FilePool,
    path: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start: int,
    now_ms: int,
    producers: ProducerStates,
    producer_expiration_ms: int,
    committed: int | None,
    cleaned: int = 0,
    manifest_trusted: bool | None = False,
) -> LoadedFolder:
    """Bring a partition's folder into a state that may be served.

    `manifest_trusted` says that nobody else has written to the folder since its manifest was; None: it has none.
    """
    disk = pool.disk
    report = RecoveryReport(path, clean)
    disk.make_dirs(path)
    names = disk.list(path)
    deleted = segment_bases(names, ".log" + DELETED_SUFFIX)
    manifest = _trusted_manifest(disk, path, names, bool(manifest_trusted), report)
    names = finish_interrupted(disk, path, names, report, None if manifest is None else manifest.swap)
    epochs = _load_epochs(disk, path, report)
    topic_id = _load_topic_id(disk, path, report)
    segments = _load_segments(pool, path, names, now_ms, report)
    _set_up(segments, config)
    if segments and 0 < cleaned <= segments[-1].base_offset:
        # Apache Kafka compacts what it has not checkpointed as committed yet, and then notes how far it has come.
        committed = max(cleaned, committed or 0)
    else:
        cleaned = 0  # no more than a part of the log can be: it is said of another log that had this name
    report.synced_end = recovery_point
    if manifest is not None and manifest.entries:
        report.synced_end = max(recovery_point, manifest.end_offset)
        committed = max(committed or 0, manifest.end_offset)
    places = _find_holes(pool, path, names, segments, manifest, config, log_start, now_ms, report)
    if manifest is None and manifest_trusted is not None:
        until = segments[-1].base_offset if clean and segments else recovery_point
        check_joins(disk, path, segments, deleted, config, cleaned, until, report)
    snapshots = Snapshots(disk, path, names, producer_expiration_ms)
    unsynced = UNSYNCED in names
    clean = clean and not unsynced
    end_offset = _end_offset_if_whole(segments, report) if clean else None
    if end_offset is None:
        if clean:
            report.clean = clean = False
            recovery_point = segments[-1].base_offset
        _Recovery(pool, path, config, segments, epochs, report, producers, snapshots, committed, cleaned).run(
            recovery_point, now_ms
        )
        end_offset = end_of(segments[-1]) if segments else 0
    if unsynced:
        write_again(disk, path, segments, recovery_point)
        report.say("written to the disk again, since a sync had failed")
    if not segments:
        # Wherever it ended, never below what was committed: offsets are not given twice.
        end_offset = max([log_start, report.synced_end, committed or 0, *(hole.end_offset for hole in report.holes)])
        segments.append(Segment.create(pool, path, end_offset, config, now_ms))
        _add_known_holes(disk, dict([min(places.items())]) if places else {}, segments, report)
    first = min([segments[0].base_offset, *(hole.start_offset for hole in report.holes)])
    log_start = max(log_start, first)
    report.holes = [hole for hole in report.holes if hole.end_offset > log_start]
    if log_start > end_offset:
        # Records below the start were deleted on purpose, and the rest never reached the disk.
        report.say(f"ends at {end_offset}, below its start {log_start}: starts empty at {log_start}")
        _remove(disk, segments)
        segments[:] = [Segment.create(pool, path, log_start, config, now_ms)]
        end_offset = log_start
        epochs.clear()
    _leave_beside(epochs, snapshots, segments, report, log_start, end_offset)
    # From everything on disk: a client without an answer may still resend a record that was deleted since.
    producers_known = load_producers(producers, snapshots, segments, report.holes, end_offset, now_ms)
    _note_synced(segments, clean, recovery_point)
    _make_active(segments[-1], end_offset, config)
    recovery_point = end_offset if clean else min(recovery_point, end_offset)
    was_kept = manifest is not None
    manifest = manifest or Manifest(segments[0].base_offset, is_kept=manifest_trusted is not None)
    if manifest_trusted is not None:
        note_segments(disk, manifest, segments, report)
    if was_kept:
        manifest.save(disk, path)  # before anything is appended to what it names; a new one can wait for the next sync
    return LoadedFolder(
        segments,
        end_offset,
        log_start,
        recovery_point,
        epochs,
        topic_id,
        report,
        snapshots,
        manifest,
        producers_known,
    )


def _find_holes(
    pool: FilePool,
    path: str,
    names: Sequence[str],
    segments: list[Segment],
    manifest: Manifest | None,
    config: LogConfig,
    log_start: int,
    now_ms: int,
    report: RecoveryReport,
) -> dict[int, str]:
    """Those that an earlier start has marked, and where there is a manifest what it misses. Returns the marks."""
    if manifest is None:
        places = kept_places(path, names)
    else:
        check = ManifestCheck(pool.disk, path, segments, names, manifest, config, log_start, report)
        check.run()
        places = check.places
        _leave_closed(pool, path, segments, manifest, config, now_ms)
    _add_known_holes(pool.disk, places, segments, report)
    return places


def _leave_beside(
    epochs: EpochCache,
    snapshots: Snapshots,
    segments: list[Segment],
    report: RecoveryReport,
    log_start: int,
    end_offset: int,
) -> None:
    """Of the files beside the segments, what fits them."""
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(log_start)
    snapshots.remove_outside(segments[0].base_offset, end_offset)
    snapshots.remove_strays([one.base_offset for one in segments] + [hole.start_offset for hole in report.holes])


def _trusted_manifest(
    disk: Disk, path: str, names: Sequence[str], is_trusted: bool, report: RecoveryReport
) -> Manifest | None:
    manifest = read_manifest(disk, path, names, report) if is_trusted else None
    if manifest is None and MANIFEST in names:
        # First of all, and for good: once this run has written its checkpoints, they would vouch for it.
        disk.remove(f"{path}/{MANIFEST}")
        disk.sync_dir(path)
    return manifest


def _set_up(segments: Sequence[Segment], config: LogConfig) -> None:
    for segment in segments:
        segment.index_interval_bytes = config.index_interval_bytes
        if segment.size:
            segment.handle.unchecked = Unchecked(segment.size)


def _leave_closed(
    pool: FilePool, path: str, segments: list[Segment], manifest: Manifest, config: LogConfig, now_ms: int
) -> None:
    """Where the active segment is gone, or never got to the disk: nothing is appended to one that is closed."""
    if segments and (last := manifest.get(segments[-1].base_offset)) is not None:
        segments.append(Segment.create(pool, path, last.end_offset, config, now_ms))


def _remove(disk: Disk, segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.close()
        for file in segment.paths():
            disk.remove(file)


def _note_synced(segments: Sequence[Segment], clean: bool, recovery_point: int) -> None:
    """After a clean stop all was synced; after another, what lies below the recovery point was."""
    for segment, following in pairwise(segments):
        segment.synced = clean or following.base_offset <= recovery_point
        segment.synced_size = segment.size if segment.synced else 0
    segments[-1].synced_size = segments[-1].size if clean else 0


def _make_active(segment: Segment, end_offset: int, config: LogConfig) -> None:
    """The last segment is the one that records are appended to."""
    segment.forget_tail(end_offset)
    assert segment.max_timestamp >= -1
    segment.bytes_since_index = segment.size - (segment.offsets.positions[-1] if len(segment.offsets) else 0)
    segment.configure(config)


# -- what interrupted work left behind


def finish_interrupted(
    disk: Disk, path: str, names: Sequence[str], report: RecoveryReport, swap: Entry | None
) -> Sequence[str]:
    """Complete deletions and compaction swaps that a crash cut short; returns the names that are there then. `swap` is
    the one that the manifest names."""
    deleted = [
        name for name in names if name.endswith(DELETED_SUFFIX) and not name.endswith(".checkpoint" + DELETED_SUFFIX)
    ]
    for name in deleted:
        disk.remove(f"{path}/{name}")
    if any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        finish_swaps(disk, path, swap)
        report.say("finished an interrupted compaction")
    elif not deleted:
        return names
    return disk.list(path)


def _load_segments(
    pool: FilePool, path: str, names: Sequence[str], now_ms: int, report: RecoveryReport
) -> list[Segment]:
    bases = segment_bases(names, ".log")
    known = set(bases)
    for suffix in INDEX_SUFFIXES:
        for base in segment_bases(names, suffix):
            if base not in known:
                # Derived from a log file that is gone, so it can say nothing.
                pool.disk.remove(f"{path}/{file_name(base, suffix)}")
                report.say(f"removed {file_name(base, suffix)}, which had no log file")
    return [
        Segment(pool, path, base, pool.disk.size(f"{path}/{file_name(base, '.log')}"), now_ms) for base in sorted(bases)
    ]


def _add_known_holes(disk: Disk, places: Mapping[int, str], segments: list[Segment], report: RecoveryReport) -> None:
    """What was set aside in an earlier run: a hole reaches up to the next segment that is there, or the next hole.

    One whose segment is in place again was mended.
    """
    known = {hole.start_offset for hole in report.holes}
    mended = {segment.base_offset for segment in segments if segment.size}
    missing = sorted(set(places) - mended)
    for base, path in sorted(places.items()):
        if base in mended:
            retire_place(disk, path)
        elif base not in known and segments and base < segments[-1].base_offset:
            edges = [segment.base_offset for segment in segments] + missing
            report.holes.append(Hole(base, min(offset for offset in edges if offset > base), path))


def _load_epochs(disk: Disk, path: str, report: RecoveryReport) -> EpochCache:
    try:
        return EpochCache.decode(disk.read_bytes(f"{path}/{epoch_file.FILE_NAME}"))
    except FileNotFoundError:
        return EpochCache()
    except CorruptCheckpoint as error:
        report.say(f"{epoch_file.FILE_NAME} is unreadable ({error}), starting without it")
        return EpochCache()


def _load_topic_id(disk: Disk, path: str, report: RecoveryReport) -> bytes | None:
    try:
        data = disk.read_bytes(f"{path}/{PARTITION_METADATA}")
        return decode_partition_metadata(data, os.path.basename(path)) if data else None
    except FileNotFoundError:
        return None
    except CorruptCheckpoint as error:
        report.say(f"{PARTITION_METADATA} is unreadable ({error})")
        return None


def _end_offset_if_whole(segments: list[Segment], report: RecoveryReport) -> int | None:
    """Where a log that was closed in order ends; None if its last segment is not whole any more, or another's."""
    if not segments:
        return 0
    active = segments[-1]
    try:
        if active.size and active.header_at(0).base_offset < active.base_offset:
            raise CorruptSegment(active.handle.path, 0, f"offset {active.header_at(0).base_offset} in its first batch")
        return end_of(active)
    except CorruptSegment as damage:
        report.say(f"was closed in order, but is damaged now: {damage}")
        return None


class _Recovery:
    """Check every segment at or above the recovery point, in order."""

    def __init__(
        self,
        pool: FilePool,
        path: str,
        config: LogConfig,
        segments: list[Segment],
        epochs: EpochCache,
        report: RecoveryReport,
        producers: ProducerStates,
        snapshots: Snapshots,
        committed: int | None,
        cleaned: int,
    ) -> None:
        self.pool = pool
        self.disk = pool.disk
        self.path = path
        self.config = config
        self.segments = segments
        self.epochs = epochs
        self.report = report
        self.producers = producers
        self._producers_known = True
        self.snapshots = snapshots
        self.next_offset = 0
        self.committed = committed
        self.cleaned = cleaned

    def run(self, recovery_point: int, now_ms: int) -> None:
        segments = self.segments
        if not segments:
            return
        first = 0
        while first + 1 < len(segments) and segments[first + 1].base_offset <= recovery_point:
            first += 1
        self.next_offset = base = segments[first].base_offset
        # Aborted transactions are found again from the producers' state at the first segment that is checked.
        self._producers_known = load_producers(
            self.producers, self.snapshots, segments[:first], self.report.holes, base, now_ms
        )
        for segment in segments[first:]:
            if segment not in segments:
                continue  # set aside together with an earlier one
            reason = self._misplaced(segment)
            if reason is not None:
                self._cut_off(segment, reason)
                continue
            if self.next_offset < segment.base_offset and self._is_missed(segment.base_offset):
                self._leave_hole(segment.base_offset)
            self._enter(segment, now_ms)
            try:
                self._check(segment)
            except CorruptSegment as damage:
                self._handle_damage(segment, damage)

    def _enter(self, segment: Segment, now_ms: int) -> None:
        """Behind a hole, only a snapshot tells what happened to transactions in it; without one, nothing that is
        derived from here on is kept."""
        base = segment.base_offset
        if not is_whole(self.report.holes, self.next_offset - 1, base) or not self._producers_known:
            if base in self.snapshots.offsets:
                states = ProducerStates()
                self._producers_known = self.snapshots.load(states, base, now_ms) == base
                if self._producers_known:
                    self.snapshots.load(self.producers, base, now_ms)
            else:
                self._producers_known = False
        if self._producers_known:
            self.snapshots.write(self.producers, base)
        segment.aborted_guessed = not self._producers_known

    def _misplaced(self, segment: Segment) -> str | None:
        """Whether a power cut lost what came between the segment before and this one, and why it looks so."""
        if segment.base_offset < self.next_offset:
            # A truncation that was undone in part. What was written after it wins.
            return f"overlaps with the segment before it, which ends at {self.next_offset}"
        if self.config.compact and self.committed is None:
            return None  # compaction leaves gaps too, but only below what was checkpointed as committed before it
        gap = segment.base_offset - self.next_offset
        if gap > 0 and self.report.covers(self.next_offset, segment.base_offset):
            return None  # known to be missing
        later = self._later(segment)
        nothing_follows = not segment.size and not later and not self.config.compact
        if 0 < gap <= RELATIVE_OFFSET_MAX and (nothing_follows or self._may_be_torn(1 + len(later))):
            return f"the segment before it ends at {self.next_offset}: its end did not reach the disk"
        return None

    def _is_missed(self, end_offset: int) -> bool:
        """Whether a gap up to there cannot be compaction's: not in a log that is compacted, nor where it once was."""
        return not self.config.compact and self.committed is not None and end_offset > self.cleaned

    def _may_be_torn(self, segments_behind: int) -> bool:
        """Whether what is wrong at `next_offset` can be an unfinished write, so that nobody was promised what
        follows."""
        if self.committed is None:
            return segments_behind <= 1
        return self.next_offset >= self.committed

    def _later(self, segment: Segment) -> list[Segment]:
        at = self.segments.index(segment) + 1
        return [other for other in self.segments[at:] if other.size]

    def _check(self, segment: Segment) -> None:
        """Validate a segment and build its indexes as if its batches were appended now."""
        size = segment.size
        segment.reset_indexes()
        segment.replace_aborted([])
        self.report.segments_checked += 1
        file = segment.handle.pin()
        first = max(self.next_offset, segment.base_offset)
        try:
            for position, fields, batch in checked_batches(file, segment.base_offset, size, first):
                base_offset, _, leader_epoch, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = fields
                last_offset = base_offset + delta
                segment.note_batch(position, len(batch), last_offset, max_timestamp)
                if leader_epoch > self.epochs.latest_epoch:
                    self.epochs.assign(leader_epoch, base_offset)
                if producer_id >= 0:
                    aborted = self.producers.replay(batch, 0, BatchHeader._make(fields))
                    if aborted is not None:
                        segment.add_aborted(aborted)
                self.next_offset = last_offset + 1
        finally:
            segment.size = size
            segment.handle.unpin()
            self.report.bytes_checked += size
        segment.handle.unchecked = None
        self._keep_indexes(segment)

    def _keep_indexes(self, segment: Segment) -> None:
        """Those of the active segment stay in memory until it is rolled or closed."""
        if segment is self.segments[-1]:
            segment.index_dirty = True
            return
        try:
            segment.write_indexes()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            segment.index_dirty = True  # a full disk: readers do without the files, and the next start looks again

    def _handle_damage(self, segment: Segment, damage: CorruptSegment) -> None:
        """A torn tail ends the log here; anything else is set aside and leaves a hole. See decision 0002."""
        later = self._later(segment)
        if later and not self._may_be_torn(len(later)):
            self._quarantine(segment, damage)
            return
        for other in self.segments[self.segments.index(segment) + 1 :]:
            self._cut_off(other, f"{os.path.basename(damage.path)} before it is torn")
        self._truncate(segment, damage)

    def _truncate(self, segment: Segment, damage: CorruptSegment) -> None:
        """The usual end of a crash: a batch that was being written. Whatever follows it goes with it."""
        cut = segment.size - damage.position
        if _valid_batch_after(segment, damage.position):
            # Not a torn write: whole batches lie behind the bad one. Their bytes are kept for a person to look at.
            copy = f"{segment.handle.path}.{damage.position}{CUT_SUFFIX}"
            self._copy_tail(segment, damage.position, copy)
            self.report.say(f"kept the {cut} bytes cut off as {os.path.basename(copy)}")
        segment.handle.open().truncate(damage.position)
        segment.size = damage.position
        self._keep_indexes(segment)
        self.report.bytes_truncated += cut
        self.report.say(
            f"cut {cut} bytes off {os.path.basename(damage.path)} at byte {damage.position} "
            f"(offset {max(self.next_offset, segment.base_offset)}): {damage.reason}"
        )

    def _quarantine(self, segment: Segment, damage: CorruptSegment) -> None:
        following = self.segments[self.segments.index(segment) + 1].base_offset
        path = self._set_aside(segment, CORRUPT_SUFFIX, f"{damage.reason} at byte {damage.position}")
        self.report.holes.append(Hole(segment.base_offset, following, path))
        self.report.quarantined = True
        self.next_offset = max(self.next_offset, following)

    def _leave_hole(self, end_offset: int) -> None:
        """Records that were committed are gone without a trace: an empty file keeps their place, as one set aside
        would."""
        if self.report.covers(self.next_offset, end_offset):
            return  # known already
        hole = Hole(self.next_offset, end_offset, leave_place(self.disk, self.path, self.next_offset))
        self.report.found_hole(hole, "they were committed, and are gone", file_name(self.next_offset, ".log"))

    def _cut_off(self, segment: Segment, reason: str) -> None:
        self.report.bytes_truncated += segment.size
        self._set_aside(segment, CUT_SUFFIX, reason)

    def _set_aside(self, segment: Segment, suffix: str, reason: str) -> str:
        self.segments.remove(segment)
        segment.close()
        path = set_segment_aside(self.disk, segment, suffix)
        self.report.say(f"set {file_name(segment.base_offset, '.log')} aside as {os.path.basename(path)}: {reason}")
        return path

    def _copy_tail(self, segment: Segment, position: int, path: str) -> None:
        file = segment.handle.open()
        copy = self.disk.open(path, create=True)
        try:
            copy.truncate(0)
            while position < segment.size:
                data = file.read(WALK_BYTES, position)
                copy.append(data)
                position += len(data)
            copy.sync()
        finally:
            copy.close()
        self.disk.sync_dir(self.path)


def _valid_batch_after(segment: Segment, position: int) -> bool:
    """Whether the batch after the one at `position` is whole: then the damage is not the end of a torn write."""
    file = segment.handle.open()
    head = file.read(HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return False
    position += int.from_bytes(head[8:12], "big", signed=True) + LOG_OVERHEAD
    if position <= 0 or position + HEADER_BYTES > segment.size:
        return False
    length = int.from_bytes(file.read(4, position + 8), "big", signed=True) + LOG_OVERHEAD
    if length < HEADER_BYTES or position + length > segment.size:
        return False
    data = file.read(length, position)
    try:
        check_stored(memoryview(data), 0, len(data))
    except KafkaError:
        return False
    return True
