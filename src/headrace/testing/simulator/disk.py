"""A disk in memory that forgets what was not synced: `headrace.storage.files.Disk` for tests and the simulator.

Everything is deterministic: the same operations and the same `Random` give the same surviving bytes. After `crash`
or `kill` the object is the rebooted machine's disk; files opened before are dead and say so.
"""

import errno
from collections.abc import Callable, Sequence
from random import Random
from threading import RLock
from typing import cast

from headrace.storage.files import Buffer, Disk
from headrace.testing.simulator.faults import Fault, Faults, Operation, PathMatch, PowerCut, os_error
from headrace.testing.simulator.names import FileNode, FolderNode, Names, Node
from headrace.testing.simulator.pages import CrashMode

__all__ = ["CrashMode", "Fault", "MemoryDisk", "MemoryFile", "PowerCut"]


class MemoryFile:
    """One open handle. Outlives the removal of its name, as a descriptor does; not a crash."""

    __slots__ = ("_disk", "_generation", "_node", "closed", "fd", "path", "readonly")

    def __init__(self, disk: "MemoryDisk", path: str, node: FileNode, readonly: bool) -> None:
        self.path = path
        self.fd = -1
        self.readonly = readonly
        self.closed = False
        self._disk = disk
        self._node = node
        self._generation = disk.generation

    def append(self, data: Buffer) -> None:
        self._write("append", data, None)

    def write_at(self, data: Buffer, position: int) -> None:
        self._write("write", data, position)

    def read(self, length: int, position: int) -> bytes:
        with self._disk.mutex:
            fault = self._enter("read")
            if fault is not None:
                raise fault.error(self.path)
            if position < 0 or length < 0:
                raise os_error(errno.EINVAL, self.path)
            return bytes(self._node.pages.cached[position : position + length])

    def size(self) -> int:
        with self._disk.mutex:
            self._alive()
            return len(self._node.pages.cached)

    def truncate(self, size: int) -> None:
        with self._disk.mutex:
            fault = self._enter("truncate", writes=True)
            if fault is not None:
                raise fault.error(self.path)
            grows_bytes = size - len(self._node.pages.cached)
            if grows_bytes > 0 and self._disk.room_bytes() < grows_bytes:
                raise os_error(errno.ENOSPC, self.path)
            self._node.pages.truncate(size)
            self._touch()

    def sync(self) -> None:
        with self._disk.mutex:
            fault = self._enter("sync")
            if fault is not None:
                self._node.pages.fail_sync()
                raise fault.error(self.path)
            self._node.pages.sync()

    def close(self) -> None:
        self.closed = True

    def _write(self, operation: Operation, data: Buffer, position: int | None) -> None:
        # Rows of wider items would make len() count items, not bytes.
        payload = bytes(data)
        with self._disk.mutex:
            fault = self._enter(operation, writes=True)
            pages = self._node.pages
            size = len(pages.cached)
            start = size if position is None else position
            grows_bytes = start + len(payload) - size
            room_bytes = self._disk.room_bytes() if grows_bytes > 0 else grows_bytes
            if fault is None and grows_bytes <= room_bytes:
                pages.write(start, payload)
                self._touch()
                return
            # The kernel may have taken a part; append's promise to put the file back is itself two volatile effects.
            if fault is None:
                part = payload[: max(0, room_bytes - (start - size))]
            else:
                part = payload[: len(payload) // 2] if fault.short else b""
            if part and position is None:
                pages.write(start, part)
                pages.truncate(size)
            elif part:
                pages.write(start, part)
            raise fault.error(self.path) if fault is not None else os_error(errno.ENOSPC, self.path)

    def _enter(self, operation: Operation, *, writes: bool = False) -> Fault | None:
        self._alive()
        if writes and self.readonly:
            raise os_error(errno.EBADF, self.path)
        return self._disk.faults.check(operation, self.path)

    def _alive(self) -> None:
        if self._generation != self._disk.generation:
            raise PowerCut(f"{self.path}: opened before the crash")
        if self.closed:
            raise os_error(errno.EBADF, self.path)

    def _touch(self) -> None:
        self._node.modified_ms = self._disk.now_ms()


class MemoryLock:
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class MemoryDisk:
    """A tree of files with a page cache, a platter and faults on command.

    `now_ms` stamps modification times; `capacity_bytes` bounds the sum of all file sizes (None: no bound).
    """

    def __init__(self, *, now_ms: Callable[[], int] = lambda: 0, capacity_bytes: int | None = None) -> None:
        self.now_ms = now_ms
        self.capacity_bytes = capacity_bytes
        self.faults = Faults()
        self.generation = 0
        self.mutex = RLock()
        self._names = Names()
        self._locks: dict[str, MemoryLock] = {}

    # Faults and crashes

    def fail(
        self,
        operation: Operation,
        number: int = errno.EIO,
        *,
        path: PathMatch = "*",
        skip: int = 0,
        times: int | None = 1,
        short: bool = False,
    ) -> Fault:
        """Let `skip` matching operations pass, then fail `times` of them. `path` is a glob or a predicate.

        A failing sync loses the dirty bytes for good: later syncs succeed without them, as on Linux.
        """
        return self.faults.add(operation, number, path=path, skip=skip, times=times, short=short)

    def cut_after(self, operations: int | None) -> None:
        """Let so many mutations happen, then raise PowerCut from every call until `crash` or `kill`; None: never."""
        self.faults.cut_at = None if operations is None else self.faults.operations + operations

    def power_off(self) -> None:
        """From now on every call raises PowerCut, until `crash` or `kill` starts the machine again."""
        self.faults.dead = True

    def crash(self, rng: Random, mode: CrashMode = CrashMode.RANDOM) -> None:
        """A power cut and the reboot after it: what was not synced is lost, kept or torn."""
        with self.mutex:
            # In an order that only names decide, so that one seed means one outcome.
            for node in self._names.files():
                node.pages.crash(rng, mode)
            self._names.crash(rng, mode)
            self._reboot()

    def kill(self) -> None:
        """The process dies, the kernel lives: everything written stays, handles and locks are gone."""
        with self.mutex:
            self._reboot()

    def sync_all(self) -> None:
        """Everything as if synced: a clean starting point for a test."""
        with self.mutex:
            for node in self._names.files():
                node.pages.sync()
            self._names.sync_all()

    def fork(self) -> "MemoryDisk":
        """An independent copy, page cache and platter, to try another fate from the same moment."""
        with self.mutex:
            twin = MemoryDisk(now_ms=self.now_ms, capacity_bytes=self.capacity_bytes)
            twin._names = self._names.copy()
            return twin

    def session(self) -> Disk:
        """The disk as one process sees it: once the machine has crashed, every call raises PowerCut."""
        return cast(Disk, _Session(self))

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Rot one bit, in the page cache and on the platter."""
        self._file(path).pages.flip(position, bit)

    def durable_bytes(self, path: str) -> bytes | None:
        """What is certain to be there after any power cut: None when not even the name is."""
        node: Node | None = self._names.root
        for name in _parts(path):
            node = node.durable.get(name) if isinstance(node, FolderNode) else None
        return bytes(node.pages.durable) if isinstance(node, FileNode) else None

    def room_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 62
        return self.capacity_bytes - self.used_bytes()

    def used_bytes(self) -> int:
        found = [node for folder in self._names.folders(durable=False) for node in folder.entries.values()]
        return sum(len(node.pages.cached) for node in found if isinstance(node, FileNode))

    def tree(self) -> dict[str, bytes]:
        """Every file's bytes by path, for comparisons."""
        found: dict[str, bytes] = {}

        def walk(prefix: str, folder: FolderNode) -> None:
            for name, node in sorted(folder.entries.items()):
                if isinstance(node, FileNode):
                    found[f"{prefix}/{name}"] = bytes(node.pages.cached)
                else:
                    walk(f"{prefix}/{name}", node)

        walk("", self._names.root)
        return found

    # headrace.storage.files.Disk

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> MemoryFile:
        with self.mutex:
            node = self._find(path)
            if node is None and create:
                self._enter("open", path)
                node = self._create(path)
            elif node is None:
                self._alive("open", path)
                raise self._missing(path)
            else:
                self._enter_reader("open", path)
            if isinstance(node, FolderNode):
                raise os_error(errno.EISDIR, path)
            return MemoryFile(self, path, node, readonly)

    def exists(self, path: str) -> bool:
        with self.mutex:
            self._alive("exists", path)
            return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        with self.mutex:
            self._alive("is_dir", path)
            return isinstance(self._find(path), FolderNode)

    def list(self, path: str) -> list[str]:
        with self.mutex:
            self._enter("list", path)
            return sorted(self._folder(path).entries)

    def not_files(self, path: str) -> Sequence[str]:
        with self.mutex:
            self._enter("list", path)
            return sorted(name for name, node in self._folder(path).entries.items() if isinstance(node, FolderNode))

    def size(self, path: str) -> int:
        with self.mutex:
            self._alive("size", path)
            return len(self._file(path).pages.cached)

    def modified_ms(self, path: str) -> int:
        with self.mutex:
            self._alive("modified_ms", path)
            node = self._find(path)
            if node is None:
                raise self._missing(path)
            return node.modified_ms

    def make_dirs(self, path: str) -> None:
        with self.mutex:
            folder = self._names.root
            for depth, name in enumerate(parts := _parts(path)):
                node = folder.entries.get(name)
                if node is None:
                    self._enter("make_dirs", "/" + "/".join(parts[: depth + 1]))
                    node = FolderNode(self.now_ms())
                    self._names.change(None, (folder, name, node))
                if not isinstance(node, FolderNode):
                    raise os_error(errno.EEXIST if depth == len(parts) - 1 else errno.ENOTDIR, path)
                folder = node

    def rename(self, old: str, new: str) -> None:
        with self.mutex:
            self._enter("rename", old)
            source, name = self._parent(old)
            target, new_name = self._parent(new)
            node = source.entries.get(name)
            if node is None:
                raise os_error(errno.ENOENT, old)
            replaced = target.entries.get(new_name)
            if replaced is node:
                return
            if new.startswith(old.rstrip("/") + "/"):
                raise os_error(errno.EINVAL, new)
            if old.startswith(new.rstrip("/") + "/"):
                raise os_error(errno.ENOTEMPTY, new)
            if isinstance(replaced, FolderNode):
                if not isinstance(node, FolderNode):
                    raise os_error(errno.EISDIR, new)
                if replaced.entries:
                    raise os_error(errno.ENOTEMPTY, new)
            elif replaced is not None and isinstance(node, FolderNode):
                raise os_error(errno.ENOTDIR, new)
            self._names.change((source, name), (target, new_name, node))
            source.modified_ms = target.modified_ms = self.now_ms()

    def remove(self, path: str) -> None:
        with self.mutex:
            self._enter("remove", path)
            folder, name = self._parent(path)
            node = folder.entries.get(name)
            if node is None:
                raise self._missing(path)
            if isinstance(node, FolderNode):
                raise os_error(errno.EISDIR, path)
            self._unlink(folder, name)

    def remove_tree(self, path: str) -> None:
        with self.mutex:
            folder = self._folder(path)
            for name in sorted(folder.entries):
                child = f"{path.rstrip('/')}/{name}"
                if isinstance(folder.entries[name], FolderNode):
                    self.remove_tree(child)
                else:
                    self.remove(child)
            self._enter("remove", path)
            self._unlink(*self._parent(path))

    def sync_dir(self, path: str) -> None:
        with self.mutex:
            self._enter("sync_dir", path)
            self._names.sync(self._folder(path))

    def read_bytes(self, path: str) -> bytes:
        file = self.open(path, readonly=True)
        return file.read(file.size(), 0)

    def replace_bytes(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        if file.size():
            file.truncate(0)
        file.append(data)
        file.sync()
        file.close()
        self.rename(temporary, path)
        self.sync_dir(path.rpartition("/")[0] or "/")

    def lock(self, path: str) -> object | None:
        with self.mutex:
            self._alive("lock", path)
            if path in self._locks:
                return None
            if self._find(path) is None:
                self.open(path, create=True)
            lock = self._locks[path] = MemoryLock(path)
            return lock

    def unlock(self, lock: object) -> None:
        if isinstance(lock, MemoryLock) and self._locks.get(lock.path) is lock:
            del self._locks[lock.path]

    def free_bytes(self, path: str) -> tuple[int, int]:
        total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
        return total, max(0, total - self.used_bytes())

    # Inside

    def _reboot(self) -> None:
        self.generation += 1
        self._locks.clear()
        self.faults.power_on()

    def _alive(self, what: str, path: str) -> None:
        if self.faults.dead:
            raise PowerCut(f"{what} {path}: the power is off")

    def _enter(self, operation: Operation, path: str) -> None:
        fault = self.faults.check(operation, path)
        if fault is not None:
            raise fault.error(path)

    def _enter_reader(self, operation: Operation, path: str) -> None:
        """Opening what exists changes nothing, so it is no place for a power cut."""
        self._alive(operation, path)
        for fault in self.faults.rules:
            if fault.strikes(operation, path):
                raise fault.error(path)

    def _create(self, path: str) -> FileNode:
        folder, name = self._parent(path)
        node = FileNode(self.now_ms())
        self._names.change(None, (folder, name, node))
        folder.modified_ms = node.modified_ms
        return node

    def _unlink(self, folder: FolderNode, name: str) -> None:
        self._names.change((folder, name), None)
        folder.modified_ms = self.now_ms()

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._names.root
        for name in _parts(path):
            if not isinstance(node, FolderNode):
                return None
            node = node.entries.get(name)
        return node

    def _missing(self, path: str) -> OSError:
        """The kernel tells a name that is not there from a way that leads through a file."""
        folder: Node | None = self._names.root
        for name in _parts(path):
            if isinstance(folder, FileNode):
                return os_error(errno.ENOTDIR, path)
            folder = folder.entries.get(name) if folder is not None else None
        return os_error(errno.ENOENT, path)

    def _parent(self, path: str) -> tuple[FolderNode, str]:
        *parents, name = _parts(path) or [""]
        if not name:
            raise os_error(errno.EBUSY, path)
        return self._folder("/" + "/".join(parents)), name

    def _folder(self, path: str) -> FolderNode:
        node = self._find(path)
        if node is None:
            raise self._missing(path)
        if not isinstance(node, FolderNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if node is None:
            raise self._missing(path)
        if not isinstance(node, FileNode):
            raise os_error(errno.EISDIR, path)
        return node


class _Session:
    """Forwards to a disk until that disk reboots, so that tasks of a dead process cannot touch the new one."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._generation = disk.generation

    def __getattr__(self, name: str) -> object:
        disk = self._disk
        if disk.generation != self._generation:
            raise PowerCut(f"{name}: this process did not survive the crash")
        return getattr(disk, name)


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise os_error(errno.EINVAL, path)
    parts = [part for part in path.split("/") if part and part != "."]
    if ".." in parts:
        raise os_error(errno.EINVAL, path)
    return parts
