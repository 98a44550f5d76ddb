"""The metadata log as the quorum sees it: what a leader may send, what a truncation takes back, where epochs end."""

import errno
from collections.abc import Sequence

import pytest

from headrace.config import LogConfig
from headrace.quorum.metadata_log import Damaged, MetadataLog, encode_control_records
from headrace.quorum.snapshots import SnapshotId
from headrace.raft.messages import LeaderChange
from headrace.raft.types import OffsetEpoch
from headrace.raft.voters import History, Voter, VoterSet
from headrace.records.builder import BatchBuilder
from headrace.records.layout import read_header
from headrace.storage.files import make_durable_dirs
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

FOLDER = "/data/__cluster_metadata-0"


def voters(*ids: int) -> VoterSet:
    return VoterSet(Voter(i, bytes([i]) * 16, (("CONTROLLER", f"c{i}", 9093),)) for i in ids)


def new_log() -> MetadataLog:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = Log.open(disk, FOLDER, LogConfig(retention_ms=-1), now_ms=1)
    return MetadataLog(disk, log, History(voters(1)), History(1), [])


def batch(offset: int, epoch: int, count: int = 1) -> bytes:
    builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
    for _ in range(count):
        builder.append(1, None, b"value")
    return builder.build()


def control(offset: int, epoch: int, chosen: Sequence[int]) -> bytes:
    return encode_control_records((voters(*chosen),), base_offset=offset, leader_epoch=epoch, now_ms=1)


def test_what_a_leader_sends_is_appended_and_its_voters_count_at_once() -> None:
    log = new_log()
    log.append_fetched(batch(0, 1, 2) + control(2, 1, (1, 2, 3)) + batch(3, 2)[:20], 2, 1)
    assert log.end_offset == 3, "a piece at the end is left out"
    assert log.voters.last.ids == [1, 2, 3] and log.voters.last_offset == 2
    assert log.last_epoch == 1


def test_voters_that_were_written_count_though_the_disk_was_full_for_what_followed() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    first = batch(0, 1, 2)
    log = Log.open(disk, FOLDER, LogConfig(retention_ms=-1, segment_bytes=len(first) + 1), now_ms=1)
    metadata = MetadataLog(disk, log, History(voters(1)), History(1), [])
    metadata.append_fetched(first, 1, 1)
    disk.fail("append", errno.ENOSPC, path="*/00000000000000000003.log")
    with pytest.raises(OSError, match="No space"):
        metadata.append_fetched(control(2, 1, (1, 2, 3)) + batch(3, 1, 2), 1, 1)
    assert metadata.end_offset == 3
    assert metadata.voters.last.ids == [1, 2, 3] and metadata.voters.last_offset == 2


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (flipped(batch(2, 1), 70), "CRC"),
        (batch(1, 1), "where 2 comes next"),
        (batch(3, 1), "where 2 comes next"),
        (batch(2, 3), "in epoch 1 to 2"),
        (batch(2, 0), "in epoch 1 to 2"),
        (batch(2, 1)[:30], "no batch"),
        (batch(2, 1)[:65], "half a batch"),
        (batch(2, 1) + flipped(batch(3, 1), 66), "CRC"),
        (b"", "no batch"),
    ],
)
def test_a_leader_that_lies_is_not_believed(records: bytes, why: str) -> None:
    log = new_log()
    log.append_fetched(batch(0, 1, 2), 1, 1)
    with pytest.raises(Damaged, match=why):
        log.append_fetched(records, 2, 1)
    assert log.end_offset == 2, "nothing of it was written"


def test_a_truncation_takes_voters_back() -> None:
    log = new_log()
    log.append_fetched(control(0, 1, (1, 2)) + batch(1, 1) + control(2, 2, (1, 2, 3)) + batch(3, 2), 2, 1)
    assert log.voters.last.ids == [1, 2, 3]
    log.truncate(2)
    assert log.voters.last.ids == [1, 2] and log.end_offset == 2 and log.last_epoch == 1
    log.truncate(0)
    assert log.voters.last.ids == [1] and log.voters.last_offset == -1


def test_where_epochs_end() -> None:
    log = new_log()
    assert log.end_of_epoch(0) == OffsetEpoch(0, 0)
    log.append_fetched(batch(0, 1, 3) + batch(3, 3, 2), 3, 1)
    assert [log.end_of_epoch(epoch) for epoch in (1, 2, 3, 4)] == [
        OffsetEpoch(3, 1), OffsetEpoch(3, 1), OffsetEpoch(5, 3), OffsetEpoch(5, 3),
    ]  # fmt: skip


def test_a_log_that_begins_behind_a_snapshot_has_its_epoch() -> None:
    log = new_log()
    log.append_fetched(batch(0, 1, 3), 1, 1)
    log.restart(SnapshotId(20, 4), voters(1, 2, 3), 1)
    assert (log.start_offset, log.end_offset, log.last_epoch) == (20, 20, 4)
    assert log.voters.last.ids == [1, 2, 3] and log.voters.last_offset == 19
    log.append_fetched(batch(20, 5), 5, 1)
    # Anything older is the snapshot's.
    assert log.end_of_epoch(2) == OffsetEpoch(20, 4)


def test_a_snapshot_from_the_leader_takes_the_place_of_older_ones() -> None:
    """Found by seed 20593 of the simulation: as a leader, this node sent it again and again to whoever had just
    that."""
    disk = MemoryDisk()
    make_durable_dirs(disk, FOLDER)
    older = SnapshotId(2, 1)
    log = Log.open(disk, FOLDER, LogConfig(retention_ms=-1), now_ms=1)
    metadata = MetadataLog(disk, log, History(voters(1)), History(1), [older])
    disk.open(metadata.snapshot_path(older), create=True).close()
    metadata.append_fetched(batch(0, 1, 3), 1, 1)
    metadata.restart(SnapshotId(20, 4), voters(1, 2, 3), 1)
    assert metadata.earliest_snapshot == metadata.latest_snapshot == OffsetEpoch(20, 4)
    assert metadata.earliest_snapshot.offset == metadata.start_offset
    assert not disk.exists(metadata.snapshot_path(older))


def test_the_first_record_of_an_epoch_names_the_leader() -> None:
    log = new_log()
    data = encode_control_records((LeaderChange(1, (1,), (1,)), 1, voters(1)), base_offset=0, leader_epoch=7, now_ms=1)
    log.append_fetched(data, 7, 1)
    assert (log.end_offset, log.last_epoch, log.kraft_versions.last_offset, log.voters.last_offset) == (3, 7, 1, 2)


@pytest.mark.parametrize("fetched", [True, False])
def test_a_full_segment_is_on_disk_before_the_next_begins(fetched: bool) -> None:
    """Found by seed 154 of the simulation: else a power cut tears a segment that others follow, which looks like
    damage."""
    disk = MemoryDisk()
    make_durable_dirs(disk, FOLDER)
    log = Log.open(disk, FOLDER, LogConfig(retention_ms=-1, segment_bytes=300), now_ms=1)
    quorum_log = MetadataLog(disk, log, History(voters(1)), History(1), [])
    batches = [batch(n, 1) for n in range(12)]
    if fetched:
        quorum_log.append_fetched(b"".join(batches), 1, 1)
    else:
        for data in batches:
            quorum_log.append(data, read_header(data, 0), 1)
    assert len(log.segments) > 2
    for segment in log.segments[:-1]:
        path = f"{FOLDER}/{segment.base_offset:020d}.log"
        assert disk.durable_bytes(path) == disk.read_bytes(path)
    assert b"".join(disk.read_bytes(f"{FOLDER}/{s.base_offset:020d}.log") for s in log.segments) == b"".join(batches)
