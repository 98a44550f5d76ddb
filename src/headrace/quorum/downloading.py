"""A snapshot that comes from the leader in pieces: a file without its name until all of it is there and every byte is
right."""

from headrace.metadata.loader import Loader
from headrace.quorum.loading import load_snapshot
from headrace.quorum.snapshots import PART_SUFFIX, Snapshot, SnapshotId, decode_snapshot
from headrace.storage.files import Disk


def store_chunk(disk: Disk, folder: str, snapshot: SnapshotId, position: int, chunk: bytes) -> None:
    """Blocking. The first piece begins the file anew: what an earlier leader sent of it does not count."""
    file = disk.open(f"{folder}/{snapshot.file_name}{PART_SUFFIX}", create=True)
    try:
        file.truncate(position)
        file.append(chunk)
    finally:
        file.close()


def finish(disk: Disk, folder: str, snapshot: SnapshotId) -> tuple[Snapshot, Loader]:
    """Blocking. Give the file its name, once it has been read back whole; QuorumError if it is damaged."""
    final = f"{folder}/{snapshot.file_name}"
    part = final + PART_SUFFIX
    found = decode_snapshot(snapshot, disk.read_bytes(part), part)
    loader = load_snapshot(found)
    file = disk.open(part)
    try:
        file.sync()
    finally:
        file.close()
    disk.rename(part, final)
    disk.sync_dir(folder)
    return found, loader


def read_chunk(disk: Disk, folder: str, snapshot: SnapshotId, position: int, bytes_max: int) -> bytes:
    """Blocking. For a follower that is behind this node's log."""
    file = disk.open(f"{folder}/{snapshot.file_name}", readonly=True)
    try:
        return file.read(bytes_max, position)
    finally:
        file.close()
