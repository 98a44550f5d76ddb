"""The metadata log as the quorum's rules see it: a `storage.Log`, the snapshots beside it, and what its control records
say."""

from contextlib import suppress
from typing import Any

from headrace.errors import KafkaError
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError
from headrace.quorum.snapshots import SnapshotId, voters_of, voters_record
from headrace.raft.messages import ControlRecord, LeaderChange
from headrace.raft.types import OffsetEpoch
from headrace.raft.voters import History, VoterSet
from headrace.records.batch import check_stored
from headrace.records.control import ControlType, decode_control, encode_control
from headrace.records.layout import HEADER_BYTES, BatchHeader, iter_headers
from headrace.storage.files import NO_SPACE, Disk
from headrace.storage.log import Log


class Damaged(Exception):
    """What a leader sent cannot come next in this log."""


class MetadataLog:
    """`headrace.raft.types.RaftLog` on disk. On OSError the log is as it was, unless `log.failed` says otherwise."""

    def __init__(
        self,
        disk: Disk,
        log: Log,
        voters: History[VoterSet],
        kraft_versions: History[int],
        snapshots: list[SnapshotId],
    ) -> None:
        self.log = log
        self.starved = 0
        """How often in a row there was no room for what was fetched."""
        self.voters = voters
        self.kraft_versions = kraft_versions
        self.snapshots = snapshots
        """On disk, oldest first; the code that makes and deletes them keeps this list."""
        self._disk = disk

    # --- what the rules read ------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def durable_end(self) -> int:
        return self.log.durable_end

    @property
    def last_epoch(self) -> int:
        if self.log.epochs.latest_epoch >= 0:
            return self.log.epochs.latest_epoch
        return self.snapshots[-1].epoch if self.snapshots else 0

    @property
    def latest_snapshot(self) -> OffsetEpoch | None:
        return OffsetEpoch(*self.snapshots[-1]) if self.snapshots else None

    @property
    def earliest_snapshot(self) -> OffsetEpoch | None:
        return OffsetEpoch(*self.snapshots[0]) if self.snapshots else None

    def end_of_epoch(self, epoch: int) -> OffsetEpoch:
        found_epoch, end_offset = self.log.epochs.end_offset_for(epoch, self.log.end_offset)
        if found_epoch < 0:
            return OffsetEpoch(self.log.end_offset, self.last_epoch)
        earliest = self.earliest_snapshot
        if earliest is not None and end_offset == earliest.offset and found_epoch == epoch:
            # Older than anything here: the snapshot's epoch is the oldest that can be named.
            return earliest
        return OffsetEpoch(end_offset, found_epoch)

    def snapshot_size(self, snapshot: OffsetEpoch) -> int | None:
        found = SnapshotId(*snapshot)
        if found not in self.snapshots:
            return None
        return self._disk.size(self.snapshot_path(found))

    def snapshot_path(self, snapshot: SnapshotId) -> str:
        return f"{self.log.path}/{snapshot.file_name}"

    # --- changing it --------------------------------------------------------------------------------------------------

    def append(self, batch: bytes, header: BatchHeader, now_ms: int) -> None:
        """One batch of the leader's own."""
        self._settle_before_roll(header, now_ms)
        self.log.append(
            batch, header.base_offset, header.last_offset, header.leader_epoch, header.max_timestamp, now_ms
        )
        if header.is_control:
            self.note_control(memoryview(batch), 0, header)

    def append_fetched(self, records: Any, epoch: int, now_ms: int) -> None:
        """Whole batches from the leader of `epoch`, every byte checked before any is written."""
        view = memoryview(records)
        batches = list(iter_headers(view))
        next_offset, last_epoch = self.log.end_offset, self.log.epochs.latest_epoch
        try:
            for pos, header in batches:
                check_stored(view, pos, len(view))
                if header.base_offset != next_offset or not last_epoch <= header.leader_epoch <= epoch:
                    raise Damaged(
                        f"a batch with offset {header.base_offset} and epoch {header.leader_epoch}"
                        f" where {next_offset} comes next, in epoch {last_epoch} to {epoch}"
                    )
                if header.is_control:
                    decode_control(view, pos, header)
                next_offset, last_epoch = header.last_offset + 1, header.leader_epoch
        except (KafkaError, ProtocolError) as error:
            raise Damaged(str(error)) from error
        if not batches:
            raise Damaged(f"{len(view)} bytes are no batch" if len(view) < HEADER_BYTES else "half a batch")
        try:
            self._append_together(view, batches, now_ms)
            self.starved = 0
        except OSError as error:
            self.starved += error.errno in NO_SPACE
            raise
        finally:
            # Where the disk was full for the rest, what was written counts all the same.
            for pos, header in batches:
                if header.is_control and header.last_offset < self.log.end_offset:
                    self.note_control(view, pos, header)

    def _append_together(self, view: memoryview, batches: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        latest = max(header.max_timestamp for _, header in batches)
        last = batches[-1][1].last_offset
        if not self.log.active.must_roll(len(view), last, latest, now_ms):
            self.log.append_batches(view, now_ms)
            return
        for pos, header in batches:
            self._settle_before_roll(header, now_ms)
            self.log.append_batches(view[pos : pos + header.size], now_ms)

    def _settle_before_roll(self, header: BatchHeader, now_ms: int) -> None:
        """A full segment is on disk before the next begins, so that only the last can be torn: else a crash would look
        like damage, and a start refuses that. Blocking, once per segment."""
        active = self.log.active
        if active.size and active.must_roll(header.size, header.last_offset, header.max_timestamp, now_ms):
            self.log.flush()

    def note_control(self, view: memoryview, pos: int, header: BatchHeader) -> None:
        """Voters are in force from here on, committed or not."""
        for record in decode_control(view, pos, header):
            if record.type == ControlType.KRAFT_VERSION and isinstance(record.message, m.KRaftVersionRecord):
                self.kraft_versions.add(record.offset, record.message.k_raft_version)
            elif record.type == ControlType.KRAFT_VOTERS and isinstance(record.message, m.VotersRecord):
                self.voters.add(record.offset, VoterSet(voters_of(record.message)))

    def truncate(self, end_offset: int) -> None:
        self.log.truncate_to(end_offset)
        self.voters.truncate_from(self.log.end_offset)
        self.kraft_versions.truncate_from(self.log.end_offset)

    def restart(self, snapshot: SnapshotId, voters: VoterSet | None, kraft_version: int) -> None:
        """Go on behind a snapshot that stands for all that was here. Its file is on disk already."""
        self.log.truncate_fully(snapshot.end_offset)
        self.kraft_versions.restart(snapshot.end_offset - 1, kraft_version)
        if voters is not None:
            self.voters.restart(snapshot.end_offset - 1, voters)
        else:
            self.voters.truncate_from(0)
        # The log begins with its oldest snapshot: who leads with an older one would not know whom it may go on sending
        # to.
        old, self.snapshots[:] = self.snapshots[:], [snapshot]
        for gone in old:
            with suppress(OSError):  # the next start removes it
                self._disk.remove(self.snapshot_path(gone))


def encode_control_records(
    records: tuple[ControlRecord, ...], *, base_offset: int, leader_epoch: int, now_ms: int
) -> bytes:
    messages: list[tuple[ControlType, Any]] = []
    for record in records:
        if isinstance(record, LeaderChange):
            kind = m.LeaderChangeMessage
            change = kind(
                version=0,
                leader_id=record.leader_id,
                voters=[kind.Voter(voter_id=voter) for voter in record.voters],
                granting_voters=[kind.Voter(voter_id=voter) for voter in record.granting],
            )
            messages.append((ControlType.LEADER_CHANGE, change))
        elif isinstance(record, VoterSet):
            messages.append((ControlType.KRAFT_VOTERS, voters_record(record)))
        else:
            version = m.KRaftVersionRecord(version=0, k_raft_version=record)
            messages.append((ControlType.KRAFT_VERSION, version))
    return encode_control(messages, timestamp=now_ms, base_offset=base_offset, leader_epoch=leader_epoch)
