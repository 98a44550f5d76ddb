"""Log compaction: keep the last record of each key, and everything that offsets, producers and transactions need.

`dirty_range` says what is worth compacting, `plan` freezes it into a job, `compact` does the job: it needs nothing but
a disk, so it runs in a process of its own (`serve`) or inline. Its groups enter the log through `swap`.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.errors import KafkaError
from headrace.records.batch import check_stored
from headrace.records.builder import seal, varint
from headrace.records.compression import compress
from headrace.records.control import decode_marker
from headrace.records.layout import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
)
from headrace.records.reader import Span, iter_spans, read_body
from headrace.replication.producers import AbortedTransaction
from headrace.storage.file_names import file_name
from headrace.storage.files import Disk, RealDisk
from headrace.storage.indexes import OFFSET_ENTRY_BYTES, RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES
from headrace.storage.segment_writer import SegmentWriter, TooLarge
from headrace.storage.swap import Cleaned, Swap, begin_swap, discard, finish_swaps

if TYPE_CHECKING:
    from headrace.storage.log import Log

__all__ = [
    "Cleaned",
    "Compaction",
    "CompactionFailed",
    "Dirty",
    "Swap",
    "begin_swap",
    "compact",
    "dirty_range",
    "discard",
    "finish_swaps",
    "plan",
    "serve",
]

READ_BYTES = 1 << 20
KEY_BYTES_MAX = 32
"""Longer keys are remembered by a digest of 16 bytes."""
ENTRY_BYTES = 192
"""What one key of 32 bytes costs in the offset map at worst, while the map grows; measured."""
LOAD_FACTOR = 0.9
INT64_MIN = -(1 << 63)
DEDUPE_BYTES_DEFAULT = 128 * 1024 * 1024


class CompactionFailed(Exception):
    """The log cannot be compacted as it is: damaged, or changed under way. It stays as it was."""


# -- what to compact


class Dirty(NamedTuple):
    """How much of a log has not been compacted yet."""

    first_dirty_offset: int
    end_offset: int
    """The first offset that may not be compacted: always the start of a segment."""
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """How long the oldest dirty record has been waiting beyond `max.compaction.lag.ms`."""
    checkpoint_was_wrong: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_cleanable_dirty_ratio: float) -> bool:
        return self.dirty_bytes > 0 and (self.overdue_ms > 0 or self.ratio > min_cleanable_dirty_ratio)


def dirty_range(log: "Log", checkpoint: int | None, last_stable_offset: int, now_ms: int) -> Dirty:
    """What of a log is dirty. `checkpoint` is its line in `cleaner-offset-checkpoint`, None without one."""
    config = log.config
    known = log.facts()  # first of all: a segment that it finds damaged is no longer one of the log's
    segments = log.segments[:-1]
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    # A checkpoint beyond the log tells of a truncation; then nothing is known to be clean.
    wrong = not log.log_start_offset <= first_dirty <= log.end_offset
    if wrong:
        first_dirty = log.log_start_offset
    end_offset = min(log.active.base_offset, last_stable_offset)
    young_ms = now_ms - config.min_compaction_lag_ms
    for segment, facts in zip(segments, known):
        # Files that are not durable yet must not be replaced by ones that are.
        too_young = (
            config.min_compaction_lag_ms > 0 and facts.end_offset > first_dirty and facts.max_timestamp > young_ms
        )
        if too_young or not segment.synced:
            end_offset = min(end_offset, segment.base_offset)
    # Whole segments only: the one that holds the first offset not to be touched stays as it is.
    bases = [segment.base_offset for segment in log.segments]
    end_offset = max((base for base in bases if base <= end_offset), default=bases[0])
    clean_bytes = dirty_bytes = overdue_ms = 0
    for segment, following in zip(segments, bases[1:]):
        if segment.base_offset < first_dirty:
            clean_bytes += segment.size
        if following > first_dirty and segment.base_offset < end_offset:
            dirty_bytes += segment.size
            waiting_since = segment.first_batch_timestamp()
            if waiting_since > 0:
                overdue_ms = max(overdue_ms, now_ms - config.max_compaction_lag_ms - waiting_since)
    return Dirty(first_dirty, end_offset, clean_bytes, dirty_bytes, overdue_ms, wrong)


class Compaction(msgspec.Struct, frozen=True):
    """One round of work on one log, complete in itself so that it can be sent to another process."""

    folder: str
    segments: tuple[tuple[int, int], ...]
    """(base offset, size) of every segment below `end_offset`."""
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    producers: dict[int, tuple[int, int]]
    """`ProducerStates.last_records` of the log."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Every aborted transaction with records below `end_offset`, wherever its marker lies."""
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    delete_retention_ms: int = 86_400_000
    dedupe_bytes: int = DEDUPE_BYTES_DEFAULT


def plan(log: "Log", dirty: Dirty, now_ms: int, dedupe_bytes: int = DEDUPE_BYTES_DEFAULT) -> Compaction | None:
    """The job for a dirty log; None when there is nothing to do, or the log has holes whose extent must not blur."""
    end_offset = dirty.end_offset
    segments = [segment for segment in log.segments[:-1] if segment.base_offset < end_offset]
    if not segments or log.holes or dirty.first_dirty_offset >= end_offset:
        return None
    aborted = [
        entry for segment in log.segments for entry in log.aborted_of(segment) if entry.first_offset < end_offset
    ]
    config = log.config
    return Compaction(
        folder=log.path,
        segments=tuple((segment.base_offset, segment.size) for segment in segments),
        first_dirty_offset=dirty.first_dirty_offset,
        end_offset=end_offset,
        now_ms=now_ms,
        producers=log.producers.last_records(),
        aborted=tuple(aborted),
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        dedupe_bytes=dedupe_bytes,
    )


# -- doing it


def compact(disk: Disk, job: Compaction, pace: Callable[[int], None] | None = None) -> Iterator[Cleaned]:
    """Write each group's `.cleaned` files and yield it; the log itself is untouched. CompactionFailed ends it.

    The caller takes the next group only once this one is in place, so at most one lies beside the log. `pace` is told
    of bytes read and written, and may sleep.
    """
    pace = pace or _no_pace
    try:
        last_offsets, clean_until = _map_keys(disk, job, pace)
        work = _Filter(job, last_offsets, clean_until)
        for group in _groups(job, clean_until):
            yield _clean_group(disk, job, group, work, pace)
    except (KafkaError, TooLarge) as error:
        raise CompactionFailed(f"{job.folder}: {error}") from error
    except FileNotFoundError as error:
        raise CompactionFailed(f"{job.folder}: a segment was removed under way: {error}") from error


def serve(connection: Any, job: Compaction, pace: Callable[[int], None] | None = None) -> None:
    """`compact` at the far end of a pipe: sends groups, waits for True after each, ends with None or an exception."""
    try:
        for cleaned in compact(RealDisk(), job, pace):
            connection.send(cleaned)
            if not connection.recv():
                return
    except (CompactionFailed, OSError) as error:
        connection.send(error)
    else:
        connection.send(None)


def _no_pace(length: int) -> None:
    pass


def _map_keys(disk: Disk, job: Compaction, pace: Callable[[int], None]) -> tuple[dict[bytes, int], int]:
    """Last offset of each key in the dirty part, and where the map ends: there, or where it was full."""
    last_offsets: dict[bytes, int] = {}
    full_at = max(1, int(job.dedupe_bytes * LOAD_FACTOR) // ENTRY_BYTES)
    start = job.first_dirty_offset
    transactions = _Transactions([entry for entry in job.aborted if entry.last_offset >= start])
    for base_offset, _ in job.segments:
        if _end_of(job, base_offset) <= start:
            continue
        for header, batch in _batches(disk, job, base_offset, pace):
            if header.last_offset < start:
                continue
            if len(last_offsets) >= full_at:
                # The rest is for the next round; what lies behind this offset is kept as it is.
                return last_offsets, header.base_offset
            if header.is_control:
                transactions.ended(header, batch)
            elif not transactions.wrote(header):
                base = header.base_offset
                for _, _, _, _, offset_delta, key, _ in iter_spans(read_body(batch, 0, header), header.count):
                    offset = base + offset_delta
                    if key is not None and offset >= start:
                        last_offsets[key if len(key) <= KEY_BYTES_MAX else _digest(key)] = offset
    return last_offsets, job.end_offset


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16, person=b"compaction").digest()


def _groups(job: Compaction, clean_until: int) -> Iterator[list[tuple[int, int]]]:
    """Segments to make into one each: small ones together, so that a log does not end as a thousand tiny files."""
    segments = [segment for segment in job.segments if segment[0] < clean_until]
    group: list[tuple[int, int]] = []
    log_bytes = index_bytes = 0
    for base_offset, size in segments:
        # The denser index of the two has an entry of 12 bytes for each interval at most.
        own_index_bytes = (size // max(1, job.index_interval_bytes) + 1) * max(TIME_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
        if group and (
            log_bytes + size > job.segment_bytes
            or index_bytes + own_index_bytes > job.segment_index_bytes
            or (size and _end_of(job, base_offset) - 1 - group[0][0] > RELATIVE_OFFSET_MAX)
        ):
            yield group
            group, log_bytes, index_bytes = [], 0, 0
        group.append((base_offset, size))
        log_bytes += size
        index_bytes += own_index_bytes
    if group:
        yield group


def _clean_group(
    disk: Disk, job: Compaction, group: list[tuple[int, int]], work: "_Filter", pace: Callable[[int], None]
) -> Cleaned:
    writer = SegmentWriter(disk, job.folder, group[0][0], job.index_interval_bytes, aborted_known=True)
    read, kept = work.records_read, work.records_kept
    try:
        for base_offset, _ in group:
            for header, batch in _batches(disk, job, base_offset, pace):
                entry, result = work.batch(header, batch)
                if entry is not None:
                    writer.aborted.append(entry)
                if result is not None:
                    new_header, data = result
                    writer.append(new_header, data)
                    pace(len(data))
        size = writer.finish()
    finally:
        writer.close()
    disk.sync_dir(job.folder)
    return Cleaned(
        group[0][0], tuple(group), size, work.clean_until, work.records_read - read, work.records_kept - kept
    )


def _end_of(job: Compaction, base_offset: int) -> int:
    """Where the segment after the one at `base_offset` begins."""
    return next((base for base, _ in job.segments if base > base_offset), job.end_offset)


def _batches(
    disk: Disk, job: Compaction, base_offset: int, pace: Callable[[int], None]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch of a segment, its CRC and its place in order checked: a copy of damage would look whole."""
    path = f"{job.folder}/{file_name(base_offset, '.log')}"
    size = dict(job.segments)[base_offset]
    next_offset, end_offset = base_offset, _end_of(job, base_offset)
    file = disk.open(path, readonly=True)
    try:
        position = 0
        wanted = READ_BYTES
        while position < size:
            chunk = memoryview(file.read(min(wanted, size - position), position))
            pace(len(chunk))
            at = 0
            while len(chunk) - at >= HEADER_BYTES:
                length = int.from_bytes(chunk[at + 8 : at + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
                if HEADER_BYTES <= length <= size - position - at and length > len(chunk) - at:
                    break
                header = check_stored(chunk, at, len(chunk))
                if header.base_offset < next_offset or header.last_offset >= end_offset:
                    # Base offsets lie outside the CRC.
                    raise CompactionFailed(
                        f"{path} at byte {position + at}: offsets {header.base_offset} to {header.last_offset}"
                        f" where {next_offset} to {end_offset} may follow"
                    )
                yield header, chunk[at : at + length]
                next_offset = header.end_offset
                at += length
            if at == 0:
                if wanted >= size - position:
                    raise CompactionFailed(f"{path} at byte {position}: the file ends inside a batch")
                wanted *= 4
                continue
            position += at
            wanted = READ_BYTES
    finally:
        file.close()


class _Transactions:
    """Which batches and markers belong to transactions, while a walk goes over them in order."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._aborted = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._ongoing_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Producer -> (its aborted transaction, whether a batch of it was met)."""
        self._ongoing_committed: set[int] = set()

    def wrote(self, header: BatchHeader) -> bool:
        """A data batch: whether it was aborted, so that nobody will ever read it."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._ongoing_aborted.get(header.producer_id)
        if ongoing is None:
            self._ongoing_committed.add(header.producer_id)
            return False
        self._ongoing_aborted[header.producer_id] = (ongoing[0], True)
        return True

    def ended(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTransaction | None]:
        """A control batch: (whether nothing of its transaction was met, entry to keep in the transaction index)."""
        self._begin_up_to(header.last_offset)
        if header.count == 0:
            return True, None
        marker = decode_marker(batch, 0, header)
        if marker is None:
            return False, None
        if marker.committed:
            if header.producer_id in self._ongoing_committed:
                self._ongoing_committed.remove(header.producer_id)
                return False, None
            return True, None
        entry, met = self._ongoing_aborted.pop(header.producer_id, (None, False))
        return (False, entry) if met else (True, None)

    def _begin_up_to(self, offset: int) -> None:
        aborted = self._aborted
        while aborted and aborted[-1].first_offset <= offset:
            entry = aborted.pop()
            self._ongoing_aborted.setdefault(entry.producer_id, (entry, False))


class _Filter:
    """What of each batch stays."""

    def __init__(self, job: Compaction, last_offsets: dict[bytes, int], clean_until: int) -> None:
        self.job = job
        self.clean_until = clean_until
        self.records_read = 0
        self.records_kept = 0
        self._last_offsets = last_offsets
        self._transactions = _Transactions(list(job.aborted))

    def batch(
        self, header: BatchHeader, batch: memoryview
    ) -> tuple[AbortedTransaction | None, tuple[BatchHeader, bytes | memoryview] | None]:
        """(entry for the transaction index, the batch as it stays or None)."""
        entry = None
        horizon_ms = header.delete_horizon_ms
        if header.is_control:
            nothing_left, entry = self._transactions.ended(header, batch)
            # A marker outlives its records by delete.retention.ms: a reader may still hold some of them.
            drop_records = nothing_left and horizon_ms is not None and horizon_ms <= self.job.now_ms
        else:
            nothing_left = False
            drop_records = self._transactions.wrote(header)
        self.records_read += header.count
        if drop_records:
            return entry, (_emptied(header) if self._must_stay(header) else None)
        body = read_body(batch, 0, header)
        spans = list(iter_spans(body, header.count))
        kept = spans if header.is_control else self._kept(header, spans)
        if not kept:
            return entry, (_emptied(header) if self._must_stay(header) else None)
        self.records_kept += len(kept)
        has_tombstone = not header.is_control and not all(has_value for *_, has_value in kept)
        if horizon_ms is None and (has_tombstone or nothing_left):
            horizon_ms = self.job.now_ms + self.job.delete_retention_ms
            if all(header.base_timestamp + delta - horizon_ms >= INT64_MIN for _, _, _, delta, *_ in kept):
                return entry, _rewritten(header, body, kept, horizon_ms)
            horizon_ms = None  # a timestamp so far back cannot be told relative to it
        if len(kept) == len(spans):
            return entry, (header, batch)
        return entry, _rewritten(header, body, kept, horizon_ms)

    def _kept(self, header: BatchHeader, spans: list[Span]) -> list[Span]:
        """Records that are the last of their key; tombstones only up to their horizon."""
        last_offset_of = self._last_offsets.get
        base_offset, clean_until = header.base_offset, self.clean_until
        horizon_ms = header.delete_horizon_ms
        with_tombstones = horizon_ms is None or self.job.now_ms < horizon_ms
        kept = []
        for span in spans:
            _, _, _, _, offset_delta, key, has_value = span
            offset = base_offset + offset_delta
            if offset < clean_until:
                if key is None or not (has_value or with_tombstones):
                    continue
                if offset < last_offset_of(key if len(key) <= KEY_BYTES_MAX else _digest(key), -1):
                    continue
            kept.append(span)
        return kept

    def _must_stay(self, header: BatchHeader) -> bool:
        """Even with no record in it: for the producer's sequence or epoch, or for where the round ended."""
        if header.end_offset == self.job.end_offset:
            return True
        if not header.has_producer_id:
            return False
        last = self.job.producers.get(header.producer_id)
        if last is None:
            return False
        last_data_offset, epoch = last
        if last_data_offset >= 0:
            return header.last_offset == last_data_offset
        return header.is_control and header.producer_epoch == epoch


def _emptied(header: BatchHeader) -> tuple[BatchHeader, bytes]:
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return _sealed(header, b"", attributes, NO_TIMESTAMP, header.max_timestamp, 0)


def _rewritten(header: BatchHeader, body: bytes, kept: list[Span], horizon_ms: int | None) -> tuple[BatchHeader, bytes]:
    """The kept records in a batch of the same offsets. A new horizon is a new base timestamp, so deltas change."""
    old_base = header.base_timestamp
    base_timestamp = old_base if horizon_ms is None else horizon_ms
    shift = old_base - base_timestamp
    if shift:
        parts = []
        for _, content_at, end, timestamp_delta, *_ in kept:
            content = b"\0" + varint(timestamp_delta + shift) + body[content_at:end]
            parts.append(varint(len(content)))
            parts.append(content)
    else:
        parts = [body[start:end] for start, _, end, *_ in kept]
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = old_base + max(timestamp_delta for _, _, _, timestamp_delta, *_ in kept)
    attributes = header.attributes | (DELETE_HORIZON if horizon_ms is not None else 0)
    compressed = compress(header.codec, b"".join(parts))
    return _sealed(header, compressed, attributes, base_timestamp, max_timestamp, len(kept))


def _sealed(
    header: BatchHeader, body: bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> tuple[BatchHeader, bytes]:
    data = seal(
        body,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=count,
    )
    return header._replace(max_timestamp=max_timestamp), data
