"""Folders that were exchanged: their files are not served under another partition's name, and not lost either."""

import pytest

from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.storage.checkpoints import PARTITION_METADATA
from headrace.storage.manager import LogManager
from headrace.storage.manifest import MANIFEST
from headrace.storage.ownership import stranger
from headrace.testing.simulator.disk import MemoryDisk

TOPIC_ID = b"topic-id-of-a-t."


def opened(disk: MemoryDisk) -> LogManager:
    logs = LogManager(disk, ["/data"], node_id=1)
    logs.open()
    for _ in logs.load(0):
        pass
    return logs


def with_two_partitions() -> MemoryDisk:
    """Two partitions of a topic, each with records and a closed segment."""
    disk = MemoryDisk()
    logs = opened(disk)
    for partition in (0, 1):
        log = logs.create("t", partition, TOPIC_ID, 0)
        for offset in range(4):
            log.append_batches(
                build_batch([Record(0, 1, None, b"of %d" % partition)], base_offset=offset, leader_epoch=0), 0
            )
            if offset == 1:
                log.roll(0)
        log.flush()
    logs.close(high_watermarks={("t", 0): 4, ("t", 1): 4})
    assert disk.exists(f"/data/t-0/{MANIFEST}")
    return disk


def swap(disk: MemoryDisk, name: str = "") -> None:
    """Exchange the two folders, or one file in them."""
    first, second = f"/data/t-0/{name}".rstrip("/"), f"/data/t-1/{name}".rstrip("/")
    disk.rename(first, "/data/aside")
    disk.rename(second, first)
    disk.rename("/data/aside", second)


def test_an_exchanged_folder_is_missing_and_kept() -> None:
    disk = with_two_partitions()
    swap(disk)
    assert (stranger(disk, "/data/t-0"), stranger(disk, "/data/t-1")) == ("t-1", "t-0")
    logs = opened(disk)
    assert not logs.logs and set(logs.missing) == {("t", 0), ("t", 1)}
    strays = [name for name in disk.list("/data") if name.endswith("-stray")]
    assert [name[:3] for name in strays] == ["t-0", "t-1"] and all(
        disk.exists(f"/data/{name}/{MANIFEST}") for name in strays
    )
    assert any("/data/t-0 holds the files of t-1" in note and "put folders back" in note for note in logs.notes)


@pytest.mark.parametrize("name", [PARTITION_METADATA, MANIFEST])
def test_one_file_in_the_wrong_place_is_only_that(name: str) -> None:
    disk = with_two_partitions()
    swap(disk, name)
    assert stranger(disk, "/data/t-0") is None
    logs = opened(disk)
    assert set(logs.logs) == {("t", 0), ("t", 1)} and not logs.missing
    assert all(log.end_offset == 4 and not log.holes for log in logs.logs.values())


def test_one_witness_is_enough() -> None:
    disk = with_two_partitions()
    swap(disk)
    disk.remove(f"/data/t-0/{PARTITION_METADATA}")
    disk.remove(f"/data/t-1/{MANIFEST}")
    assert (stranger(disk, "/data/t-0"), stranger(disk, "/data/t-1")) == ("t-1", "t-0")


def test_a_folder_that_is_set_aside_is_missed_though_no_checkpoint_says_what_it_had() -> None:
    disk = with_two_partitions()
    disk.remove(f"/data/t-0/{MANIFEST}")
    disk.replace_bytes("/data/t-0/partition.metadata", disk.read_bytes("/data/t-1/partition.metadata"))
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        disk.remove(f"/data/{name}")
    assert opened(disk).missing["t", 0].is_known, "it is not begun anew in silence"
