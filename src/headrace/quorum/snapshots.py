"""Snapshot files, `<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`: an image as record batches.

A control batch with the header (and, from kraft.version 1, the voters) comes first, one with the footer last: a file
without its footer was never finished. The name says which part of the log it stands for: all below its end offset.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.errors import KafkaError
from headrace.metadata.records import Record, decode_record, encode_record
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError
from headrace.quorum import DamagedMetadata
from headrace.raft.voters import Voter as Voter
from headrace.records.batch import check_stored
from headrace.records.builder import BatchBuilder
from headrace.records.control import ControlType, decode_control, encode_control
from headrace.records.layout import HEADER_BYTES, BatchHeader
from headrace.records.reader import read_records
from headrace.storage.files import Disk

BATCH_BYTES = 32 << 10
"""Where a snapshot's records go on in the next batch. Small, since the loop makes one batch between other work."""

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
PART_SUFFIX = ".part"


class SnapshotId(NamedTuple):
    """Ordered: the later snapshot is the greater."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


class Batch(NamedTuple):
    """One batch of the metadata log or of a snapshot, decoded."""

    header: BatchHeader
    records: list[Record]
    control: list[tuple[int, object]]


class Snapshot(NamedTuple):
    id: SnapshotId
    timestamp_ms: int
    """When the last record that it contains was written."""
    records: list[Record]
    kraft_version: int
    voters: tuple[Voter, ...] | None


# --- voters as messages -----------------------------------------------------------------------------------------------


def voters_record(voters: Iterable[Voter]) -> m.VotersRecord:
    return m.VotersRecord(
        version=0,
        voters=[
            m.VotersRecord.Voter(
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                endpoints=[m.VotersRecord.Endpoint(name=n, host=h, port=p) for n, h, p in voter.endpoints],
                k_raft_version_feature=m.VotersRecord.KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0],
                    max_supported_version=voter.kraft_versions[1],
                ),
            )
            for voter in voters
        ],
    )


def voters_of(record: m.VotersRecord) -> tuple[Voter, ...]:
    return tuple(
        Voter(
            id=voter.voter_id,
            directory_id=voter.voter_directory_id,
            endpoints=tuple((e.name, e.host, e.port) for e in voter.endpoints),
            kraft_versions=(
                voter.k_raft_version_feature.min_supported_version,
                voter.k_raft_version_feature.max_supported_version,
            ),
        )
        for voter in record.voters
    )


# --- bytes ------------------------------------------------------------------------------------------------------------


def encode_snapshot(
    records: Iterable[Record],
    *,
    epoch: int,
    now_ms: int,
    timestamp_ms: int,
    kraft_version: int = 0,
    voters: Iterable[Voter] | None = None,
) -> Iterator[bytes]:
    """The file, batch by batch. `voters` go in from kraft.version 1 on."""
    header = m.SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp_ms)
    opening: list[tuple[ControlType, object]] = [(ControlType.SNAPSHOT_HEADER, header)]
    if kraft_version > 0 and voters is not None:
        opening.append((ControlType.KRAFT_VERSION, m.KRaftVersionRecord(version=0, k_raft_version=kraft_version)))
        opening.append((ControlType.KRAFT_VOTERS, voters_record(voters)))
    yield encode_control(opening, timestamp=now_ms, base_offset=0, leader_epoch=epoch)
    offset = len(opening)
    builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
    for message, version in records:
        builder.append(now_ms, None, encode_record(message, version))
        offset += 1
        if builder.size_bytes >= BATCH_BYTES:
            yield builder.build()
            builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
    if builder.count:
        yield builder.build()
    footer = m.SnapshotFooterRecord(version=0)
    yield encode_control(
        [(ControlType.SNAPSHOT_FOOTER, footer)], timestamp=now_ms, base_offset=offset, leader_epoch=epoch
    )


def decode_batches(data: bytes | memoryview, path: str) -> Iterator[Batch]:
    """Every batch of a file. Raises DamagedMetadata at the first byte that is not right."""
    view = memoryview(data)
    pos, end = 0, len(view)
    while pos < end:
        if end - pos < HEADER_BYTES:
            raise DamagedMetadata(f"{path} is damaged at byte {pos}: {end - pos} bytes are no batch")
        try:
            header = check_stored(view, pos, end)
            yield decode_batch(view, pos, header)
        except (KafkaError, ProtocolError) as error:
            raise DamagedMetadata(f"{path} is damaged at byte {pos}: {error}") from None
        pos += header.size


def decode_batch(view: memoryview, pos: int, header: BatchHeader) -> Batch:
    """One batch whose CRC has been checked."""
    if header.is_control:
        control = [(record.type, record.message) for record in decode_control(view, pos, header)]
        return Batch(header, [], control)
    values = []
    for record in read_records(view, pos, header):
        if record.value is None:
            raise ProtocolError(f"metadata record at offset {record.offset} without a value")
        values.append(decode_record(record.value))
    return Batch(header, values, [])


def decode_snapshot(snapshot_id: SnapshotId, data: bytes, path: str) -> Snapshot:
    """A whole snapshot, header to footer; DamagedMetadata unless every byte is right."""
    records: list[Record] = []
    timestamp_ms = -1
    kraft_version = 0
    voters = None
    next_offset = 0
    opened = closed = False
    for batch in decode_batches(data, path):
        if closed:
            raise DamagedMetadata(f"{path} is damaged: it goes on after its footer")
        header = batch.header
        if header.base_offset != next_offset or header.leader_epoch != snapshot_id.epoch:
            # Both stand outside the batch's CRC.
            raise DamagedMetadata(
                f"{path} is damaged: a batch with offset {header.base_offset} where {next_offset} comes next"
            )
        next_offset = header.last_offset + 1
        for kind, message in batch.control:
            if kind == ControlType.SNAPSHOT_HEADER:
                assert isinstance(message, m.SnapshotHeaderRecord)
                timestamp_ms, opened = message.last_contained_log_timestamp, True
            elif kind == ControlType.KRAFT_VERSION:
                assert isinstance(message, m.KRaftVersionRecord)
                kraft_version = message.k_raft_version
            elif kind == ControlType.KRAFT_VOTERS:
                assert isinstance(message, m.VotersRecord)
                voters = voters_of(message)
            elif kind == ControlType.SNAPSHOT_FOOTER:
                closed = True
        if not opened:
            raise DamagedMetadata(f"{path} is damaged: it does not begin with a snapshot header")
        records += batch.records
    if not closed:
        raise DamagedMetadata(f"{path} is damaged: it has no footer, so its end is missing")
    return Snapshot(snapshot_id, timestamp_ms, records, kraft_version, voters)


# --- files ------------------------------------------------------------------------------------------------------------


def snapshot_id(name: str) -> SnapshotId | None:
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match else None


def list_snapshots(disk: Disk, folder: str) -> list[SnapshotId]:
    """Finished snapshots, oldest first."""
    return sorted(found for found in map(snapshot_id, disk.list(folder)) if found is not None)


def read_snapshot(disk: Disk, folder: str, found: SnapshotId) -> Snapshot:
    path = f"{folder}/{found.file_name}"
    return decode_snapshot(found, disk.read_bytes(path), path)


def write_snapshot(disk: Disk, folder: str, chosen: SnapshotId, batches: Iterable[bytes]) -> None:
    """Write, sync, then give it its name: a snapshot that can be seen is whole. Blocking; run it in a thread."""
    final = f"{folder}/{chosen.file_name}"
    part = final + PART_SUFFIX
    file = disk.open(part, create=True)
    try:
        file.truncate(0)
        for batch in batches:
            file.append(batch)
        file.sync()
    finally:
        file.close()
    disk.rename(part, final)
    disk.sync_dir(folder)


def remove_leftovers(disk: Disk, folder: str) -> None:
    """Snapshots whose writing or deletion a crash interrupted."""
    for name in disk.list(folder):
        if name.endswith((".checkpoint" + PART_SUFFIX, ".checkpoint.deleted")):
            disk.remove(f"{folder}/{name}")
