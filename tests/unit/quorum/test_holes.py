"""A hole in the unsynced end of the metadata log is a power cut's work, not damage. Found by the simulator."""

import pytest

from headrace.quorum import QuorumError
from headrace.quorum.damage import check_log
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.disk import MemoryDisk

FOLDER = "/data/__cluster_metadata-0"
PATH = f"{FOLDER}/00000000000000000000.log"
BATCHES = 6


def log(size: int) -> tuple[MemoryDisk, list[int]]:
    """A metadata log of whole batches, and where each begins."""
    disk = MemoryDisk()
    disk.make_dirs(FOLDER)
    file = disk.open(PATH, create=True)
    starts = []
    for offset in range(BATCHES):
        starts.append(file.size())
        file.append(build_batch([Record(0, 1, None, bytes([offset + 1]) * size)], base_offset=offset, leader_epoch=1))
    return disk, starts


@pytest.mark.parametrize("size", [100, 450, 700, 2000])
def test_a_sector_that_never_reached_the_disk_is_a_torn_tail(size: int) -> None:
    disk, starts = log(size)
    total = disk.size(PATH)
    first = -(-starts[2] // 512)  # nothing of the batches before it
    for sector in range(first, total // 512):
        here = disk.fork()
        here.open(PATH).write_at(bytes(512), sector * 512)
        check_log(here, FOLDER)


@pytest.mark.parametrize("size", [100, 450, 700, 2000])
def test_a_first_sector_as_it_was_before_the_write_is_a_torn_tail(size: int) -> None:
    disk, starts = log(size)
    for start in starts[1:-1]:
        lost = -start % 512
        if lost >= 8:
            here = disk.fork()
            here.open(PATH).write_at(bytes(min(lost, here.size(PATH) - start)), start)
            check_log(here, FOLDER)


@pytest.mark.parametrize("size", [100, 700, 2000])
def test_a_flipped_bit_with_whole_batches_behind_it_is_damage(size: int) -> None:
    disk, starts = log(size)
    for position in range(starts[1], starts[-1], 7):
        here = disk.fork()
        here.flip(PATH, position, bit=position % 8)
        with pytest.raises(QuorumError, match="damaged"):
            check_log(here, FOLDER)
