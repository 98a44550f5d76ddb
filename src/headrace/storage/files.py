"""The only door to the disk.

Everything that storage keeps goes through a `Disk`: the real one here, or the in-memory fault disk of
`headrace.testing.simulator.disk`, which loses what was not synced. Nothing else may open, rename or sync a file.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from headrace import platform
from headrace.platform import sync_all, sync_data

Buffer = bytes | bytearray | memoryview

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""A disk that is full is not a broken one."""
NOT_THE_DISK = frozenset({errno.EINVAL, errno.EOVERFLOW})
"""What reading at a place makes that no file has: somebody's mistake, or a damaged file's, and no word of a failed
disk."""
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Says nothing about the file that could not be opened."""


class File(Protocol):
    """One open file. Offsets and sizes are bytes."""

    path: str
    fd: int
    """The kernel's descriptor for sendfile, or -1 where there is none (simulation)."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end, or raise OSError and leave the file as it was: never half a batch."""
        ...

    def read(self, length: int, position: int) -> bytes:
        """Up to `length` bytes from `position`; shorter only at the end of the file."""
        ...

    def write_at(self, data: Buffer, position: int) -> None: ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """All bytes are on the disk afterwards. Safe to call from a thread while the loop appends. A failure is final:
        it is never retried as success."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files. Paths are absolute strings; errors are OSError with the errno the kernel would give."""

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted."""
        ...

    def not_files(self, path: str) -> Sequence[str]:
        """Of these, what is no file and no link to one: folders, pipes, links that lead nowhere."""
        ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """Last modification, wall clock."""
        ...

    def make_dirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic replace. Durable only after `sync_dir` of the parent."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        ...

    def read_bytes(self, path: str) -> bytes: ...

    def replace_bytes(self, path: str, data: bytes) -> None:
        """Crash-safe whole-file write: temporary file, fsync, rename, directory fsync."""
        ...

    def lock(self, path: str) -> object | None:
        """Take an exclusive advisory lock held until process exit or `unlock`; None when another process has it."""
        ...

    def unlock(self, lock: object) -> None: ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the file system that holds `path`."""
        ...


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise  # a disk that cannot say: what is set aside for that may be whole
        return False  # a link in a circle, or through a file


def make_durable_dirs(disk: Disk, path: str) -> None:
    """Create a folder and its parents so that a power cut cannot take them, and all that is in them, away again."""
    missing: list[str] = []
    at = path.rstrip("/")
    while at and not disk.exists(at):
        missing.append(at)
        at = at.rpartition("/")[0]
    disk.make_dirs(path)
    # One that exists may be left by a process that was killed before it could sync.
    for created in reversed(missing or [path.rstrip("/")]):
        with suppress(PermissionError):
            disk.sync_dir(created.rpartition("/")[0] or "/")


PIECE_BYTES = 512 * 1024
"""What is written at a time. From 2 MB on Linux caches a write in pages of 2 MB, which take it six times as long to
find: 190 ms of CPU for 95 MB, against 30."""


class RealFile:
    """A file of the kernel's. Reads and appends use positions of their own, so no seek is ever shared."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def append(self, data: Buffer, _write: Callable[[int, Buffer], int] = os.write) -> None:
        size = len(data)
        if size > PIECE_BYTES:
            self._finish_append(data, 0)
            return
        # One write: the file is open with O_APPEND, so this is all that an append costs.
        written = _write(self.fd, data)
        if written != size:
            self._finish_append(data, written)

    def _finish_append(self, data: Buffer, written: int) -> None:
        """It is much, or the kernel took only a part (signal, disk nearly full): write the rest, or undo all."""
        start = os.fstat(self.fd).st_size - written
        view = memoryview(data)
        try:
            while written < len(view):
                count = os.write(self.fd, view[written : written + PIECE_BYTES])
                if count == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
                written += count
        except OSError:
            os.ftruncate(self.fd, start)
            raise

    def read(self, length: int, position: int) -> bytes:
        data = os.pread(self.fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self.fd, length - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write_at(self, data: Buffer, position: int) -> None:
        # Linux appends a pwrite to a file opened with O_APPEND whatever its position, so a second descriptor.
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, position)
                position += written
                view = view[written:]
        finally:
            os.close(fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def sync(self) -> None:
        sync_data(self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The file system of the machine."""

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> RealFile:
        flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_APPEND
        if create:
            flags |= os.O_CREAT
        return RealFile(path, os.open(path, flags | os.O_CLOEXEC, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def list(self, path: str) -> Sequence[str]:
        return sorted(os.listdir(path))

    def not_files(self, path: str) -> Sequence[str]:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if not _is_file(entry))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(fd)
        finally:
            os.close(fd)

    def read_bytes(self, path: str) -> bytes:
        # Not open().read(): a start reads thousands of tiny files, and buffers cost more than the calls.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            return RealFile(path, fd).read(size, 0) if size else b""
        except OSError as error:
            error.filename = path  # to read a folder is such an error, to open it is none
            raise
        finally:
            os.close(fd)

    def replace_bytes(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            sync_all(fd)
        except OSError:
            os.remove(temporary)
            raise
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def lock(self, path: str) -> object | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A POSIX record lock, as Java's FileChannel takes, so that Kafka and Headrace exclude each other.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        return fd

    def unlock(self, lock: object) -> None:
        assert isinstance(lock, int)
        os.close(lock)

    def free_bytes(self, path: str) -> tuple[int, int]:
        stats = os.statvfs(path)
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize


def start_writeback(file: File, position: int, length: int) -> None:
    """Ask the kernel to begin writing a range out, so that neither write() nor a sync finds a mountain later.

    A hint: it promises nothing about durability and its failure means nothing.
    """
    if file.fd >= 0:
        platform.start_writeback(file.fd, position, length)
