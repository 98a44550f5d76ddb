"""The real disk's corners, and the pool of descriptors."""

import errno
import os
import resource
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from headrace.storage.files import PIECE_BYTES, RealDisk, RealFile, start_writeback
from headrace.storage.pool import FilePool, Handle


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_an_append_is_whole_or_not_at_all(disk: RealDisk, tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: the kernel takes a part, then refuses."""
    path = str(tmp_path / "f")
    file = disk.open(path, create=True)
    file.append(b"a" * 1000)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
        with pytest.raises(OSError) as caught:
            file.append(b"b" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert caught.value.errno == errno.EFBIG
    assert disk.read_bytes(path) == b"a" * 1000
    file.append(b"c" * 1000)
    assert disk.read_bytes(path) == b"a" * 1000 + b"c" * 1000
    file.close()


def test_much_is_written_in_pieces_and_undone_as_a_whole(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.append(b"before")
    much = bytes(range(256)) * (PIECE_BYTES // 100)
    file.append(memoryview(much))
    assert file.read(file.size(), 0) == b"before" + much
    real, sizes = os.write, [PIECE_BYTES, PIECE_BYTES // 2]

    def full(fd: int, data: memoryview) -> int:
        assert len(data) <= PIECE_BYTES
        if not sizes:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data[: sizes.pop(0)])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        file.append(much)
    assert file.read(file.size(), 0) == b"before" + much


def test_a_short_write_is_completed(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "f")
    file = disk.open(path, create=True)
    file.append(b"before")
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    file.append(b"0123456789", lambda fd, data: real(fd, bytes(data)[:4]))
    assert disk.read_bytes(path) == b"before0123456789"
    file.close()


def test_reads_writes_and_truncation(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    file = disk.open(path, create=True)
    file.append(b"0123456789")
    file.write_at(b"xy", 3)
    assert file.read(5, 2) == b"2xy56"
    assert file.read(100, 8) == b"89" and file.read(1, 10) == b""
    file.truncate(4)
    file.append(b"Z")
    assert (file.read(100, 0), file.size()) == (b"012xZ", 5)
    file.sync()
    start_writeback(file, 0, 5)
    readonly = disk.open(path, readonly=True)
    with pytest.raises(OSError):
        readonly.append(b"no")
    readonly.sync()
    readonly.close()
    readonly.close()
    file.close()
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "missing"))


def test_replaced_files_leave_no_temporary_behind(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    disk.replace_bytes(path, b"one")
    disk.replace_bytes(path, b"two")
    assert disk.read_bytes(path) == b"two"
    assert disk.list(str(tmp_path)) == ["f"]
    with pytest.raises(OSError):
        disk.replace_bytes(str(tmp_path / "no" / "f"), b"x")


def test_folders(disk: RealDisk, tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    disk.make_dirs(folder)
    disk.make_dirs(folder)
    assert disk.is_dir(folder) and disk.exists(folder)
    disk.replace_bytes(f"{folder}/f", b"12345")
    assert disk.size(f"{folder}/f") == 5 and disk.modified_ms(f"{folder}/f") > 10**12
    disk.rename(folder, str(tmp_path / "c"))
    disk.sync_dir(str(tmp_path))
    disk.remove_tree(str(tmp_path / "c"))
    assert not disk.exists(str(tmp_path / "c"))
    total, usable = disk.free_bytes(str(tmp_path))
    assert 0 < usable <= total


def test_the_lock_excludes_other_processes(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    held = disk.lock(path)
    assert held is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if disk.lock(path) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    disk.unlock(held)
    again = disk.lock(path)
    assert again is not None
    disk.unlock(again)


class Owner:
    def __init__(self, pool: FilePool, path: str) -> None:
        self.handle = Handle(pool, path, self)
        self.dirty = False
        self.evictions = 0

    def is_dirty(self) -> bool:
        return self.dirty

    def evicted(self) -> None:
        self.evictions += 1


@pytest.fixture
def owners(disk: RealDisk, tmp_path: Path) -> list[Owner]:
    pool = FilePool(disk, open_files_max=4)
    for at in range(10):
        disk.replace_bytes(str(tmp_path / str(at)), bytes([at]))
    return [Owner(pool, str(tmp_path / str(at))) for at in range(10)]


def test_the_pool_closes_what_was_not_used_lately(owners: list[Owner]) -> None:
    pool = owners[0].handle.pool
    for owner in owners:
        assert isinstance(owner.handle.open(), RealFile)
        owners[0].handle.open()
    assert len(pool) <= 4
    assert owners[1].handle.file is None and owners[1].evictions == 1
    assert owners[9].handle.file is not None
    assert owners[1].handle.open().read(1, 0) == b"\1"


def test_pinned_files_stay_and_dirty_ones_go_last(owners: list[Owner]) -> None:
    pinned = [owner.handle.pin() for owner in owners[:2]]
    owners[2].handle.open()
    owners[2].dirty = True
    for owner in owners[3:]:
        owner.handle.open()
    assert [file.read(1, 0) for file in pinned] == [b"\0", b"\1"]
    assert owners[2].handle.file is not None
    for owner in owners:
        owner.handle.pin()
    assert len(owners[0].handle.pool) == 10  # more than wanted, but all in use
    for owner in owners:
        owner.handle.unpin()
    for owner in owners[:2]:
        owner.handle.unpin()
    assert len(owners[0].handle.pool) <= 4


def test_a_closed_handle_lives_until_its_last_pin(owners: list[Owner]) -> None:
    handle = owners[5].handle
    file = handle.pin()
    handle.close()
    assert file.read(1, 0) == b"\5"
    handle.unpin()
    assert handle.file is None and file.fd == -1


def test_what_a_disk_cannot_tell_is_no_reason_to_take_a_file_for_none(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems say what an entry is only when they are asked about it, and that may fail."""
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").touch()
    (tmp_path / "through").symlink_to("file/child")
    assert disk.not_files(str(tmp_path)) == ["circle", "through"]

    class Entry:
        name = "00000000000000000000.log"

        def is_file(self) -> bool:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output"):
        patched.setattr(os, "scandir", lambda path: nullcontext([Entry()]))
        disk.not_files(str(tmp_path))
