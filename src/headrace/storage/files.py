"""The only door to the disk.

Everything that storage keeps goes through a `Disk`: the real one here, or the in-memory fault disk of
`headrace.testing.simulator.disk`, which loses what was not synced. Nothing else may open, rename or sync a file.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


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
        """fdatasync. Safe to call from a thread while the loop appends. A failure is final: it is never retried as success."""
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
