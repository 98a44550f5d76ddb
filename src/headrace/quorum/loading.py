"""From the metadata log's folder to an image: the latest snapshot, then the log behind it. Refuses rather than guesses.

The part of the log beyond its snapshot is not known to be committed until a leader says so. Only if this node is the
single voter is all of it committed, and replayed at once. The voters are read from all of it in any case.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.metadata.delta import Delta, ReplayError
from headrace.metadata.image import Image
from headrace.metadata.loader import Loader
from headrace.metadata.versions import KNOWN_FEATURES
from headrace.protocol.primitives import ProtocolError
from headrace.quorum import DamagedMetadata, QuorumError
from headrace.quorum.damage import check_log
from headrace.quorum.mark import Mark
from headrace.quorum.metadata_log import MetadataLog
from headrace.quorum.snapshots import (
    Snapshot,
    SnapshotId,
    Voter,
    decode_batch,
    list_snapshots,
    read_snapshot,
    remove_leftovers,
)
from headrace.quorum.state import FILE_NAME as STATE_FILE, read_state
from headrace.raft.types import Election, ReplicaKey
from headrace.raft.voters import History, VoterSet
from headrace.records.layout import BatchHeader, iter_headers
from headrace.storage.file_names import file_name
from headrace.storage.files import Disk
from headrace.storage.log import Log

logger = logging.getLogger("headrace.quorum")

READ_BYTES = 1 << 20
METADATA_TOPIC_ID = bytes(15) + b"\x01"
NO_MARK = Mark()


class Loaded(NamedTuple):
    log: MetadataLog
    election: Election
    loader: Loader
    """After what is known to be committed, which ends at `applied_end`."""
    applied_end: int
    bytes_since_snapshot: int


class Applied(NamedTuple):
    """One batch of the log, replayed. `delta` is None for a control batch."""

    end_offset: int
    size: int
    delta: Delta | None


def load(
    disk: Disk,
    folder: str,
    config: LogConfig,
    static_voters: tuple[Voter, ...],
    now_ms: int,
    key: ReplicaKey,
    is_controller: bool = True,
    mark: Mark = NO_MARK,
) -> Loaded:
    """Blocking. `static_voters` are the configuration's, for a cluster of kraft.version 0. `mark` is what must be
    there."""
    snapshots = list_snapshots(disk, folder) if disk.exists(folder) else []
    start = snapshots[-1].end_offset if snapshots else 0
    begin = check_log(disk, folder, covered=start, committed=mark.end_offset if is_controller else 0)
    election = _read_election(disk, folder)
    snapshot = read_snapshot(disk, folder, snapshots[-1]) if snapshots else None
    if disk.exists(folder):
        remove_leftovers(disk, folder)
        snapshots = _finish_cleaning(disk, folder, snapshots, begin)
    log = Log.open(
        disk,
        folder,
        config,
        log_start=snapshots[0].end_offset if snapshots else 0,
        now_ms=now_ms,
        topic_id=METADATA_TOPIC_ID,
        manifest_trusted=None,  # its segments join, or it is refused
    )
    try:
        _check_range(log, folder, start)
        if snapshot is not None and _stands_alone(log, snapshot.id):
            log.truncate_fully(start)
            snapshots = _finish_cleaning(disk, folder, snapshots, start)
        found = _with_control_records(disk, log, folder, snapshots, snapshot, static_voters)
        loader = load_snapshot(snapshot) if snapshot is not None else Loader()
        size, applied_end = 0, start
        voters = found.voters.last
        if is_controller and voters.has(key) and len(voters) == 1:
            for applied in apply_log(log, loader, start, log.end_offset):
                size += applied.size
            applied_end = log.end_offset
        check_features(loader.image, found.kraft_versions.last, folder)
        latest = max(mark.epoch, log.epochs.latest_epoch)
        votes = is_controller and voters.has(key) and len(voters) > 1
        election = _check_election(election, latest, f"{folder}/{STATE_FILE}", votes=votes)
        # What an unclean stop left written but not synced counts from here on, so it must stay.
        log.flush()
    except BaseException:
        log.abandon()
        raise
    return Loaded(found, election, loader, applied_end, size)


def _read_election(disk: Disk, folder: str) -> Election | DamagedMetadata:
    try:
        return read_state(disk, folder)
    except DamagedMetadata as damage:
        return damage


def _check_election(found: Election | DamagedMetadata, latest: int, path: str, *, votes: bool) -> Election:
    """An election as it was last saved. A file that is gone, or from before `latest`, has forgotten votes.

    A voter that has forgotten its vote could give it twice, and two nodes would lead. A node that votes with nobody
    else does no harm.
    """
    if not isinstance(found, DamagedMetadata):
        if found.epoch >= latest:
            return found
        found = DamagedMetadata(
            f"{path} is missing or from an older copy: it knows of epoch {found.epoch}, the log of {latest}"
        )
    if votes:
        raise found
    logger.warning("%s; nobody else votes, going on in epoch %d", found.args[0], max(latest, 0))
    return Election(max(latest, 0))


def _finish_cleaning(disk: Disk, folder: str, snapshots: list[SnapshotId], begin: int) -> list[SnapshotId]:
    """Remove what a power cut has brought back of a deletion: a log begins with its oldest snapshot, and has no gap.

    The latest snapshot was read whole, so nothing that lies before the log's beginning is needed. Returns what stays.
    """
    old = [snapshot for snapshot in snapshots[:-1] if snapshot.end_offset < begin]
    names = [snapshot.file_name for snapshot in old]
    names += [name for name in disk.list(folder) if name.endswith(".log") and name < file_name(begin, ".log")]
    for name in names:
        disk.remove(f"{folder}/{name}")
        logger.info("%s: removed %s, whose deletion was interrupted", folder, name)
    if names:
        disk.sync_dir(folder)
    return snapshots[len(old) :]


def load_snapshot(snapshot: Snapshot) -> Loader:
    loader = Loader()
    if snapshot.id.end_offset:
        first = snapshot.id.end_offset - len(snapshot.records)
        try:
            loader.load(snapshot.records, first, snapshot.id.epoch, snapshot.timestamp_ms)
        except ReplayError as error:
            raise DamagedMetadata(f"{snapshot.id.file_name} cannot be replayed: {error}") from None
    return loader


def _stands_alone(log: Log, latest: SnapshotId) -> bool:
    """A snapshot that was fetched stands for a log that was not, or that was another leader's: go on behind it."""
    if log.end_offset < latest.end_offset:
        return True
    return latest.end_offset > 0 and latest.epoch > log.epochs.latest_epoch >= 0


def _check_range(log: Log, folder: str, start: int) -> None:
    if log.log_start_offset > start:
        raise DamagedMetadata(
            f"{folder} begins at offset {log.log_start_offset}, and no snapshot holds what came before"
        )
    if log.recovery.holes:
        raise DamagedMetadata(f"{folder} lacks {log.recovery.holes[0].path}, which was set aside as damaged")


def _with_control_records(
    disk: Disk,
    log: Log,
    folder: str,
    snapshots: list[SnapshotId],
    snapshot: Snapshot | None,
    static_voters: tuple[Voter, ...],
) -> MetadataLog:
    start = snapshot.id.end_offset if snapshot is not None else 0
    # The snapshot that formatting writes says who votes, but the log itself does not yet: hence -1.
    voters = History(VoterSet(static_voters))
    kraft_versions = History(0)
    if snapshot is not None:
        kraft_versions = History(snapshot.kraft_version, start - 1)
        if snapshot.voters is not None:
            voters = History(VoterSet(snapshot.voters), start - 1)
    found = MetadataLog(disk, log, voters, kraft_versions, snapshots)
    for view, pos, header in _batches(log, start, log.end_offset):
        if header.is_control and header.base_offset >= start:
            try:
                found.note_control(view, pos, header)
            except (KafkaError, ProtocolError) as error:
                raise DamagedMetadata(f"{folder} cannot be replayed at offset {header.base_offset}: {error}") from None
    return found


def _batches(log: Log, start: int, end_offset: int) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """Every batch that reaches into the range."""
    offset = start
    while offset < end_offset:
        piece = log.read(offset, READ_BYTES, end_offset)
        if piece is None:
            raise DamagedMetadata(f"{log.path} cannot be read at offset {offset}")
        try:
            view = memoryview(piece.read())
        finally:
            piece.release()
        for pos, header in iter_headers(view):
            if header.last_offset >= offset:
                yield view, pos, header
                offset = header.last_offset + 1


def apply_log(log: Log, loader: Loader, start: int, end_offset: int) -> Iterator[Applied]:
    """Replay what the log has in a range into `loader`, batch by batch. Raises QuorumError where it cannot be."""
    for view, pos, header in _batches(log, start, end_offset):
        delta = None
        if not header.is_control:
            try:
                batch = decode_batch(view, pos, header)
                # A snapshot may end in mid-batch: what it contains must not be replayed on top of it.
                skip = max(0, start - header.base_offset)
                delta = loader.load(
                    batch.records[skip:], header.base_offset + skip, header.leader_epoch, header.max_timestamp
                )
            except (KafkaError, ProtocolError, ReplayError) as error:
                raise DamagedMetadata(
                    f"{log.path} cannot be replayed at offset {header.base_offset}: {error}"
                ) from None
        yield Applied(header.last_offset + 1, header.size, delta)


def check_features(image: Image, kraft_version: int, folder: str) -> None:
    levels = {**image.features, "kraft.version": kraft_version}
    for name, level in levels.items():
        low, high = KNOWN_FEATURES.get(name, (0, 0))
        if not low <= level <= high:
            raise QuorumError(
                f"{folder} was written by a newer version: {name} is at {level}, and this version knows {low} to {high}"
            )
