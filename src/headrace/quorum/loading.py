"""From the metadata log's folder to an image: the latest snapshot, then the log behind it. Refuses rather than guesses."""

from typing import NamedTuple

from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.metadata.delta import ReplayError
from headrace.metadata.loader import Loader
from headrace.metadata.versions import KNOWN_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError
from headrace.quorum import QuorumError
from headrace.quorum.damage import check_log
from headrace.quorum.snapshots import (
    Snapshot,
    SnapshotId,
    Voter,
    decode_batch,
    list_snapshots,
    read_snapshot,
    remove_leftovers,
    voters_of,
)
from headrace.quorum.state import ElectionState, read_state
from headrace.records.control import ControlType
from headrace.records.layout import BatchHeader, iter_headers
from headrace.storage.files import Disk
from headrace.storage.log import Log

READ_BYTES = 1 << 20
METADATA_TOPIC_ID = bytes(15) + b"\x01"


class Loaded(NamedTuple):
    log: Log
    state: ElectionState
    loader: Loader
    snapshots: list[SnapshotId]
    kraft_version: int
    voters: tuple[Voter, ...]
    voters_in_log: bool
    """False while the voters are only in the snapshot that formatting wrote."""
    bytes_since_snapshot: int


class _Replay:
    """What the log says behind the snapshot."""

    def __init__(self, snapshot: Snapshot | None, voters: tuple[Voter, ...]) -> None:
        self.loader = Loader()
        self.kraft_version = 0
        self.voters = voters
        self.voters_in_log = False
        self.bytes = 0
        if snapshot is not None:
            self._take(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        self.kraft_version = snapshot.kraft_version
        if snapshot.voters is not None:
            self.voters = snapshot.voters
        if snapshot.id.end_offset:
            self.voters_in_log = True
            first = snapshot.id.end_offset - len(snapshot.records)
            self.loader.load(snapshot.records, first, snapshot.id.epoch, snapshot.timestamp_ms)

    def batch(self, view: memoryview, pos: int, header: BatchHeader, start: int) -> None:
        batch = decode_batch(view, pos, header)
        for kind, message in batch.control:
            if kind == ControlType.KRAFT_VERSION and isinstance(message, m.KRaftVersionRecord):
                self.kraft_version = message.k_raft_version
            elif kind == ControlType.KRAFT_VOTERS and isinstance(message, m.VotersRecord):
                self.voters = voters_of(message)
                self.voters_in_log = True
        if batch.records:
            # A snapshot may end in mid-batch: what it contains must not be replayed on top of it.
            skip = max(0, start - header.base_offset)
            self.loader.load(
                batch.records[skip:], header.base_offset + skip, header.leader_epoch, header.max_timestamp
            )
        self.bytes += header.size


def load(disk: Disk, folder: str, config: LogConfig, static_voters: tuple[Voter, ...], now_ms: int) -> Loaded:
    """Blocking. `static_voters` are the configuration's, for a cluster of kraft.version 0."""
    check_log(disk, folder)
    state = read_state(disk, folder)
    snapshots = list_snapshots(disk, folder)
    snapshot = read_snapshot(disk, folder, snapshots[-1]) if snapshots else None
    remove_leftovers(disk, folder)
    start = snapshot.id.end_offset if snapshot is not None else 0
    log = Log.open(
        disk,
        folder,
        config,
        log_start=snapshots[0].end_offset if snapshots else 0,
        now_ms=now_ms,
        topic_id=METADATA_TOPIC_ID,
    )
    try:
        _check_range(log, folder, start)
        if log.end_offset < start:
            # A snapshot that was fetched stands for a log that was not: go on behind it.
            log.truncate_fully(start)
        replay = _Replay(snapshot, static_voters)
        _replay_log(log, folder, start, replay)
        _check_features(replay, folder)
        # What an unclean stop left written but not synced counts from here on, so it must stay.
        log.flush()
    except BaseException:
        log.abandon()
        raise
    return Loaded(
        log=log,
        state=state,
        loader=replay.loader,
        snapshots=snapshots,
        kraft_version=replay.kraft_version,
        voters=replay.voters,
        voters_in_log=replay.voters_in_log,
        bytes_since_snapshot=replay.bytes,
    )


def _check_range(log: Log, folder: str, start: int) -> None:
    if log.log_start_offset > start:
        raise QuorumError(
            f"{folder} begins at offset {log.log_start_offset}, and no snapshot holds what came before; restore a copy"
        )
    if log.recovery.holes:
        raise QuorumError(
            f"{folder} lacks {log.recovery.holes[0].path}, which was set aside as damaged; restore a copy"
        )


def _replay_log(log: Log, folder: str, start: int, replay: _Replay) -> None:
    offset = start
    while offset < log.end_offset:
        piece = log.read(offset, READ_BYTES, log.end_offset)
        if piece is None:
            raise QuorumError(f"{folder} cannot be read at offset {offset}")
        try:
            view = memoryview(piece.read())
        finally:
            piece.release()
        for pos, header in iter_headers(view):
            if header.last_offset >= offset:
                try:
                    replay.batch(view, pos, header, start)
                except (KafkaError, ProtocolError, ReplayError) as error:
                    raise QuorumError(
                        f"{folder} cannot be replayed at offset {header.base_offset}: {error}"
                    ) from None
                offset = header.last_offset + 1


def _check_features(replay: _Replay, folder: str) -> None:
    levels = {**replay.loader.image.features, "kraft.version": replay.kraft_version}
    for name, level in levels.items():
        low, high = KNOWN_FEATURES.get(name, (0, 0))
        if not low <= level <= high:
            raise QuorumError(
                f"{folder} was written by a newer version: {name} is at {level}, and this version knows {low} to {high}"
            )
