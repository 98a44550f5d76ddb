"""`.headrace_metadata`: a metadata log that lost its end, an older copy, a forgotten vote; and what passes for them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.config import LogConfig
from headrace.quorum import DamagedMetadata
from headrace.quorum.folder import Layout, format_folders, open_folders
from headrace.quorum.loading import Loaded, load
from headrace.quorum.mark import FILE_NAME, WRITE_DELAY_S, Mark, Marker, encode_mark, read_mark
from headrace.quorum.snapshots import Voter
from headrace.quorum.state import write_state
from headrace.raft.types import Election, ReplicaKey
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

DIRECTORY, OTHER = bytes(range(16)), bytes(range(1, 17))
FOLDER = "/data/__cluster_metadata-0"
KEY = ReplicaKey(1, DIRECTORY)
MINE = Voter(1, DIRECTORY, (("CONTROLLER", "h", 1),))
THEIRS = Voter(2, OTHER, (("CONTROLLER", "h", 2),))


def with_log(voters: list[Voter], batches: int = 3, epoch: int = 5) -> MemoryDisk:
    """A controller's folder, with so many batches of one record each in its metadata log."""
    disk = MemoryDisk()
    layout = Layout(1, ["/data"], "/data", MINE.endpoints)
    format_folders(disk, layout, uuid=lambda: DIRECTORY, now_ms=0, cluster_id="c", voters=voters)
    log = Log.open(disk, FOLDER, LogConfig(), now_ms=0)
    for offset in range(batches):
        log.append_batches(build_batch([Record(0, 0, None, b"x")], base_offset=offset, leader_epoch=epoch), 0)
    log.close()
    write_state(disk, FOLDER, Election(epoch, 1), 1, [voter.id for voter in voters])
    return disk


NO_MARK = Mark()


def opened(disk: MemoryDisk, mark: Mark = NO_MARK, *, is_controller: bool = True) -> Loaded:
    return load(disk, FOLDER, LogConfig(), (), 0, KEY, is_controller, mark)


def test_a_mark_is_of_one_directory_and_checked() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    assert read_mark(disk, "/data", DIRECTORY) == Mark()
    data = encode_mark(Mark(42, 7), DIRECTORY)
    disk.replace_bytes(f"/data/{FILE_NAME}", data)
    assert read_mark(disk, "/data", DIRECTORY) == Mark(42, 7)
    assert read_mark(disk, "/data", OTHER) == Mark()
    for at in range(len(data) - 1):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            disk.replace_bytes(f"/data/{FILE_NAME}", bad)
            assert read_mark(disk, "/data", DIRECTORY) == Mark(), bad


def test_a_log_that_ends_below_the_mark_is_refused_and_left_as_it_is() -> None:
    disk = with_log([MINE, THEIRS])
    assert opened(disk, Mark(3, 5)).log.log.end_offset == 3
    before = disk.tree()
    with pytest.raises(
        DamagedMetadata, match="ends at offset 3, and 4 had been committed here; restore this node's folders"
    ):
        opened(disk, Mark(4, 5))
    log = next(path for path in before if path.endswith(".log"))
    disk.flip(log, len(before[log]) - 1)
    struck = disk.tree()
    with pytest.raises(DamagedMetadata, match="ends at offset 2, and 3 had been committed here"):
        opened(disk, Mark(3, 5))
    assert disk.tree() == struck, "nothing is cut off that a person could still need"
    assert opened(disk, Mark(2, 5)).log.log.end_offset == 2, "an unfinished write is none of these"


def test_a_node_without_a_vote_copies_what_it_lacks() -> None:
    assert opened(with_log([]), Mark(9, 9), is_controller=False).log.log.end_offset == 3


def remove_state(disk: MemoryDisk) -> None:
    disk.remove(f"{FOLDER}/quorum-state")


def older_state(disk: MemoryDisk) -> None:
    write_state(disk, FOLDER, Election(4, 2), 1, [1, 2])


def torn_state(disk: MemoryDisk) -> None:
    disk.replace_bytes(f"{FOLDER}/quorum-state", b"{}}")


@pytest.mark.parametrize("damage", [remove_state, older_state, torn_state])
def test_a_forgotten_vote_keeps_a_voter_out_but_not_one_that_votes_alone(damage: Callable[[MemoryDisk], Any]) -> None:
    disk = with_log([MINE, THEIRS])
    damage(disk)
    with pytest.raises(DamagedMetadata, match="quorum-state is "):
        opened(disk)
    disk = with_log([MINE], batches=0)
    damage(disk)
    assert opened(disk, Mark(0, 5)).election == Election(5)


def test_an_epoch_that_only_the_mark_knows_counts() -> None:
    disk = with_log([MINE, THEIRS])
    with pytest.raises(DamagedMetadata, match="epoch 5, the log of 6"):
        opened(disk, Mark(3, 6))


def test_marks_of_a_former_life_do_not_keep_a_folder_from_being_formatted() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    for name in (FILE_NAME, ".kafka_cleanshutdown", ".headrace_vouched", ".lock"):
        disk.replace_bytes(f"/data/{name}", encode_mark(Mark(42, 7), DIRECTORY))
    layout = Layout(1, ["/data"], "/data", MINE.endpoints)
    open_folders(disk, layout, standalone=True, uuid=lambda: DIRECTORY, now_ms=0)
    assert read_mark(disk, "/data", DIRECTORY) == Mark()
    assert not disk.exists("/data/.kafka_cleanshutdown")


def test_the_mark_follows_soon_and_is_right_at_the_end() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        disk.make_dirs("/data")
        now = Mark(1, 1)

        async def run(work: Callable[[], Any]) -> Any:
            return work()

        marker = Marker(disk, "/data", DIRECTORY, lambda: now, run)
        marker.changed()
        now = Mark(2, 1)
        marker.changed()
        assert read_mark(disk, "/data", DIRECTORY) == Mark()
        async with asyncio.timeout(WRITE_DELAY_S + 30):
            while read_mark(disk, "/data", DIRECTORY) != Mark(2, 1):
                await asyncio.sleep(0.01)
        now = Mark(3, 2)
        marker.changed()
        await marker.close()
        assert read_mark(disk, "/data", DIRECTORY) == Mark(3, 2)

    asyncio.run(main())
