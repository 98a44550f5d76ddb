"""Old segments and snapshots of the metadata log were being deleted when the power went: any of them may be back."""

import asyncio
import logging
from itertools import combinations

import pytest

from headrace.quorum import QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.kraft import KraftOptions
from headrace.quorum.snapshots import list_snapshots
from headrace.testing.simulator.disk import MemoryDisk
from tests.unit.quorum.node import METADATA, Node

KEEPING = KraftOptions(
    segment_bytes=900, limits=SnapshotLimits(bytes_between=2500, retention_bytes=-1, retention_ms=-1)
)
CLEANING = KEEPING._replace(limits=SnapshotLimits(bytes_between=2500, retention_bytes=1, retention_ms=-1))
TOPICS = 40


async def live(disk: MemoryDisk, options: KraftOptions, first: int, end: int) -> None:
    node = await Node(disk, first, options).start()
    for n in range(first, end):
        await node.create(f"t{n}")
    await node.quorum.maintain()
    await node.stop()


def lives() -> tuple[MemoryDisk, MemoryDisk]:
    """A stopped node's disk before old files were deleted, and after."""
    before = MemoryDisk()
    asyncio.run(live(before, KEEPING, 0, TOPICS - 1))
    after = before.fork()
    asyncio.run(live(after, CLEANING, TOPICS - 1, TOPICS))
    return before, after


def files(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list(METADATA) if name.endswith((".log", ".checkpoint"))]


def put(disk: MemoryDisk, name: str, data: bytes) -> None:
    file = disk.open(f"{METADATA}/{name}", create=True)
    file.append(data)
    file.close()


def test_whatever_came_back_the_node_starts_with_all_it_knew(caplog: pytest.LogCaptureFixture) -> None:
    """Found by seeds 194 and 20351 of the simulation: the one was refused as damaged, the other never let a follower
    in."""
    caplog.set_level(logging.INFO, "headrace.quorum")
    before, after = lives()
    gone = [name for name in files(before) if name not in files(after)]
    segments = [name for name in gone if name.endswith(".log")]
    assert len(segments) >= 3 and len(gone) > len(segments), gone
    some = {
        *combinations(gone[:5], 1),
        *combinations(gone[:5], 2),
        *combinations(gone[-4:], 2),
        tuple(gone),
        tuple(segments),
    }
    for names in sorted(some):
        disk = after.fork()
        for name in names:
            put(disk, name, before.read_bytes(f"{METADATA}/{name}"))
        quorum = Node(disk, options=KEEPING).quorum
        assert {f"t{n}" for n in range(TOPICS)} <= set(quorum.image.topic_ids), names
        # Else whoever has just that snapshot, and nothing behind it, would be sent it again and again.
        assert quorum.log.log_start_offset == list_snapshots(disk, METADATA)[0].end_offset, names
    assert f"removed {segments[0]}, whose deletion was interrupted" in caplog.text


def test_a_snapshot_that_stands_for_a_log_which_was_not_fetched_is_its_oldest() -> None:
    """The power went after a snapshot had come from the leader, and before the log was begun anew behind it."""
    before, _ = lives()
    earliest, *_, latest = list_snapshots(before, METADATA)[1:]
    for name in files(before):
        if name.endswith(".log") and int(name[:20]) >= earliest.end_offset:
            before.remove(f"{METADATA}/{name}")
    quorum = Node(before, options=KEEPING).quorum
    assert quorum.log.log_start_offset == latest.end_offset
    assert list_snapshots(before, METADATA) == [latest]


def test_a_gap_that_no_snapshot_covers_is_damage() -> None:
    before, _ = lives()
    asyncio.run(live(before, KEEPING._replace(limits=SnapshotLimits()), TOPICS, 2 * TOPICS))
    latest = list_snapshots(before, METADATA)[-1].end_offset
    segments = [name for name in files(before) if name.endswith(".log")]
    behind = [name for name in segments if int(name[:20]) > latest]
    for lost in behind[:-1]:
        disk = before.fork()
        disk.remove(f"{METADATA}/{lost}")
        kept = disk.tree()
        with pytest.raises(QuorumError, match="is damaged at byte 0"):
            Node(disk, options=KEEPING)
        assert disk.tree() == kept
    assert len(behind) > 2
