"""Everything beside a log: indexes, producer snapshots, checkpoints, identities."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from crc32c import crc32c

from headrace.cli.dump.kinds import Kind, base_offset_of
from headrace.cli.dump.report import Report, counted, when
from headrace.errors import KafkaError
from headrace.protocol.api import DATA
from headrace.quorum.mark import decode_mark
from headrace.replication.producer_snapshot import unsealed
from headrace.replication.producers import ProducerStates
from headrace.storage.checkpoints import (
    HIGH_WATERMARKS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    MetaProperties,
    decode_clean_shutdown,
    decode_offsets,
    decode_partition_metadata,
    encode_uuid,
    written_by_headrace,
)
from headrace.storage.epochs import EpochCache
from headrace.storage.file_names import SUMS_SUFFIX, file_name
from headrace.storage.index_sums import NOT_KNOWN, IndexSums
from headrace.storage.indexes import ABORTED_ENTRY_BYTES, CorruptIndex, OffsetIndex, TimeIndex, decode_aborted
from headrace.storage.manifest import UNKNOWN_SIZE, CorruptManifest, Manifest

FAR_FUTURE_MS = 1 << 62


def dump_sidecar(kind: Kind, path: str, report: Report, *, entries: bool = True) -> None:
    """Print one file; with `entries` off, an index is only counted."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        _PRINTERS[kind](data, path, report, entries)
    except (CorruptIndex, CorruptCheckpoint, CorruptManifest) as error:
        report.damage(path, str(error))
    except KafkaError as error:
        report.damage(path, error.message or error.error.text)


def _offset_index(data: bytes, path: str, report: Report, entries: bool) -> None:
    index, base = OffsetIndex.decode(data), base_offset_of(path)
    if entries:
        for relative, position in zip(index.offsets, index.positions):
            report.line(f"offset {base + relative} -> byte {position}", offset=base + relative, position=position)
    report.line(f"{counted(len(index), 'entry', 'entries')}{_padding(data, len(index) * 8)}")


def _time_index(data: bytes, path: str, report: Report, entries: bool) -> None:
    index, base = TimeIndex.decode(data), base_offset_of(path)
    if entries:
        for timestamp, relative in zip(index.timestamps, index.offsets):
            offset = base + relative
            report.line(f"{when(timestamp)} -> offset {offset}", timestamp=timestamp, offset=offset)
    report.line(f"{counted(len(index), 'entry', 'entries')}{_padding(data, len(index) * 12)}")


def _padding(data: bytes, used: int) -> str:
    spare = len(data) - used
    return f", {spare:,} bytes preallocated" if spare > 0 else ""


def _txn_index(data: bytes, path: str, report: Report, entries: bool) -> None:
    aborted = decode_aborted(data, base_offset_of(path))
    for entry in aborted:
        report.line(
            f"producer {entry.producer_id} aborted offsets {entry.first_offset}..{entry.last_offset}, "
            f"last stable offset {entry.last_stable_offset}",
            producer_id=entry.producer_id,
            first_offset=entry.first_offset,
            last_offset=entry.last_offset,
            last_stable_offset=entry.last_stable_offset,
        )
    if len(data) % ABORTED_ENTRY_BYTES:
        report.damage(path, f"at byte {len(aborted) * ABORTED_ENTRY_BYTES}: the file ends inside an entry")
    report.line(counted(len(aborted), "aborted transaction"))


def _producers(data: bytes, path: str, report: Report, entries: bool) -> None:
    # Loading checks version, size and checksum; the codec then gives every field as it is on disk.
    ProducerStates().load(data, 0, FAR_FUTURE_MS)
    rows = DATA["ProducerSnapshot"].decode(unsealed(data), 1, 2).producer_entries
    for row in rows:
        text = (
            f"producer {row.producer_id} epoch {row.epoch}, last sequence {row.last_sequence} at offset"
            f" {row.last_offset}"
        )
        text += f", {when(row.timestamp)}, coordinator epoch {row.coordinator_epoch}"
        if row.current_txn_first_offset >= 0:
            text += f", open transaction from offset {row.current_txn_first_offset}"
        report.line(text, **{name: value for name, value in msgspec.to_builtins(row).items() if name != "unknown_tags"})
    report.line(f"{counted(len(rows), 'producer')} as of offset {base_offset_of(path)}")


def _offsets(data: bytes, path: str, report: Report, entries: bool) -> None:
    for (topic, partition), offset in decode_offsets(data).items():
        report.line(f"{topic}-{partition}: {offset}", topic=topic, partition=partition, offset=offset)


def _epochs(data: bytes, path: str, report: Report, entries: bool) -> None:
    for epoch, start in EpochCache.decode(data).entries:
        report.line(f"epoch {epoch} from offset {start}", epoch=epoch, start_offset=start)


def _segments(data: bytes, path: str, report: Report, entries: bool) -> None:
    manifest = Manifest.decode(data)
    folder = os.path.dirname(os.path.abspath(path))
    counts = _is_current(os.path.dirname(folder))
    if not counts:
        report.line("another broker has written here since: it says nothing any more")
    for entry in manifest.entries:
        log = os.path.join(folder, file_name(entry.base_offset, ".log"))
        size = f"{entry.size:,} bytes" if entry.size != UNKNOWN_SIZE else "unknown files"
        lost = ", known to be damaged or missing" if entry.lost else ""
        report.line(
            f"offsets {entry.base_offset}..{entry.end_offset - 1} in {size}{lost}",
            base_offset=entry.base_offset,
            end_offset=entry.end_offset,
            size_bytes=None if entry.size == UNKNOWN_SIZE else entry.size,
            lost=entry.lost,
        )
        if counts and not entry.lost and (not os.path.exists(log) or os.path.getsize(log) != entry.size):
            there = f"has {os.path.getsize(log):,} bytes" if os.path.exists(log) else "is missing"
            report.damage(path, f"{os.path.basename(log)} {there}, and had {entry.size:,}")
    if manifest.swap is not None:
        report.line(f"offsets {manifest.swap.base_offset}..{manifest.swap.end_offset - 1} were being compacted")
    report.line(counted(len(manifest.entries), "closed segment"))


def _is_current(log_dir: str) -> bool:
    found = [Path(log_dir, name) for name in (RECOVERY_POINTS, HIGH_WATERMARKS)]
    return written_by_headrace(*(file.read_bytes() for file in found if file.exists()))


def _partition_metadata(data: bytes, path: str, report: Report, entries: bool) -> None:
    topic_id = encode_uuid(decode_partition_metadata(data))
    report.line(f"topic id {topic_id}", topic_id=topic_id)


def _meta_properties(data: bytes, path: str, report: Report, entries: bool) -> None:
    meta = MetaProperties.decode(data)
    directory = encode_uuid(meta.directory_id) if meta.directory_id else "none"
    report.line(
        f"cluster {meta.cluster_id}, node {meta.node_id}, directory id {directory}, version {meta.version}",
        cluster_id=meta.cluster_id,
        node_id=meta.node_id,
        directory_id=encode_uuid(meta.directory_id) if meta.directory_id else None,
        version=meta.version,
    )


def _quorum_state(data: bytes, path: str, report: Report, entries: bool) -> None:
    try:
        fields = json.loads(data)
        report.line(", ".join(f"{name} {value}" for name, value in fields.items()), **fields)
    except (ValueError, AttributeError) as error:
        report.damage(path, f"not a JSON object: {error}")


def _clean_shutdown(data: bytes, path: str, report: Report, entries: bool) -> None:
    epoch = decode_clean_shutdown(data)
    report.line(f"the last stop was clean, broker epoch {epoch}", broker_epoch=epoch)


def _vouched(data: bytes, path: str, report: Report, entries: bool) -> None:
    epoch = decode_clean_shutdown(data)
    report.line(f"a broker that is killed here has lost nothing, broker epoch {epoch}", broker_epoch=epoch)


def _index_sums(data: bytes, path: str, report: Report, entries: bool) -> None:
    sums = IndexSums.decode(data)
    aborted = "not known" if sums.aborted_crc == NOT_KNOWN else f"{sums.aborted_crc:08x}"
    report.line(
        f"of a log of {sums.log_bytes:,} bytes from offset {sums.base_offset}: index {sums.offsets_crc:08x}, "
        f"timeindex {sums.times_crc:08x}, txnindex {aborted}",
        **sums._asdict(),
    )
    report.line(f"latest timestamp {when(sums.max_timestamp)} at offset {sums.max_timestamp_offset}")
    stem = path.removesuffix(SUMS_SUFFIX)
    checked = ((".index", sums.offsets_crc), (".timeindex", sums.times_crc), (".txnindex", sums.aborted_crc))
    for suffix, expected in checked:
        file = Path(stem + suffix)
        if file.exists() and expected != NOT_KNOWN and crc32c(file.read_bytes()) != expected:
            report.damage(path, f"{file.name} has another checksum: it is built again when it is next used")


def _scrub(data: bytes, path: str, report: Report, entries: bool) -> None:
    try:
        progress = json.loads(data)
        last, started, cursor = progress["last_pass_ms"], progress["started_ms"], progress["cursor"]
        checked = dict(progress["checked_ms"])
        report.line(f"last whole pass {when(last)}", last_pass_ms=last, started_ms=started, cursor=cursor)
        if cursor is not None:
            topic, index = cursor
            report.line(f"a pass began {when(started)} and has come to {topic}-{index}")
        for name, at in sorted(checked.items()):
            report.line(f"{name} checked {when(at)}", log=name, checked_ms=at)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        report.damage(path, f"not the progress of a check: {error}; the broker begins a new one")


def _metadata_mark(data: bytes, path: str, report: Report, entries: bool) -> None:
    try:
        directory, mark = decode_mark(data)
    except ValueError as error:
        report.damage(path, str(error))
        return
    report.line(
        f"directory {directory} holds committed metadata up to offset {mark.end_offset - 1}, epoch {mark.epoch}",
        directory_id=directory,
        **mark._asdict(),
    )


def _empty(meaning: str) -> Callable[[bytes, str, Report, bool], None]:
    def show(data: bytes, path: str, report: Report, entries: bool) -> None:
        report.line(meaning)

    return show


def _lock(data: bytes, path: str, report: Report, entries: bool) -> None:
    report.line(f"locked while a broker uses {os.path.dirname(path)}")


_PRINTERS: dict[Kind, Callable[[bytes, str, Report, bool], None]] = {
    Kind.OFFSET_INDEX: _offset_index,
    Kind.TIME_INDEX: _time_index,
    Kind.TXN_INDEX: _txn_index,
    Kind.PRODUCER_SNAPSHOT: _producers,
    Kind.OFFSETS: _offsets,
    Kind.EPOCHS: _epochs,
    Kind.SEGMENTS: _segments,
    Kind.PARTITION_METADATA: _partition_metadata,
    Kind.META_PROPERTIES: _meta_properties,
    Kind.QUORUM_STATE: _quorum_state,
    Kind.CLEAN_SHUTDOWN: _clean_shutdown,
    Kind.VOUCHED: _vouched,
    Kind.LOCK: _lock,
    Kind.INDEX_SUMS: _index_sums,
    Kind.SCRUB: _scrub,
    Kind.METADATA_MARK: _metadata_mark,
    Kind.UNSYNCED: _empty("a sync of this log failed: the next start writes its records again"),
    Kind.DISK_PROBE: _empty("zeros, by which the broker finds out whether the disk has room again"),
}
