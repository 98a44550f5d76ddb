"""Descriptors are scarce and segments are not: a pool that keeps the recently used ones open.

Only the loop opens, pins and evicts. A thread may use a file while somebody holds a pin on it for that thread.
"""

from typing import Protocol

from headrace.storage.files import Disk, File
from headrace.storage.first_read import Unchecked

OPEN_FILES_DEFAULT = 4096


class Owner(Protocol):
    """What a handle belongs to: asked before its file is closed to make room, and told after."""

    def is_dirty(self) -> bool:
        """Written and not synced since. Such a file goes only when nothing else can: a write-back error that
        nobody was told of is sure to be reported only to descriptors that were open when it happened."""
        ...

    def evicted(self) -> None: ...


class _Nobody:
    """Owns what is closed."""

    def is_dirty(self) -> bool:
        return False

    def evicted(self) -> None:
        pass


NOBODY = _Nobody()


class Handle:
    """One path that is opened on demand. `file` is None while evicted; `pins` > 0 forbids eviction."""

    __slots__ = ("closed", "cut", "file", "owner", "path", "pins", "pool", "unchecked", "used")

    def __init__(self, pool: "FilePool", path: str, owner: Owner) -> None:
        self.pool = pool
        self.path = path
        self.owner = owner
        self.file: File | None = None
        self.pins = 0
        self.used = False
        self.closed = False
        self.cut = False
        """The file was cut short, and other bytes may be where its readers were promised some."""
        self.unchecked: Unchecked | None = None
        """Written in an earlier run, and not looked at since."""

    def open(self) -> File:
        """The open file, counted as used. The hot path tests `file` itself first."""
        self.used = True
        file = self.file
        return file if file is not None else self.pool.open(self)

    def pin(self) -> File:
        file = self.open()
        self.pins += 1
        return file

    def unpin(self) -> None:
        self.pins -= 1
        if self.pins == 0:
            if self.closed:
                self._drop()
            elif self.pool.is_over():
                self.pool.evict()

    def close(self) -> None:
        """Close now, or when the last pin goes: a slice being sent outlives the deletion of its segment."""
        self.closed = True
        if self.pins == 0:
            self._drop()

    def _drop(self) -> None:
        # Nobody asks it again, and it has this handle: both should go with their last user, not with the next
        # collection.
        self.owner = NOBODY
        file, self.file = self.file, None
        if file is not None:
            self.pool.forget(self)
            file.close()


class FilePool:
    """Second-chance eviction over all handles of one broker: a touch costs one attribute, not a list move."""

    def __init__(self, disk: Disk, open_files_max: int = OPEN_FILES_DEFAULT) -> None:
        self.disk = disk
        self.open_files_max = open_files_max
        self._open: dict[Handle, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, handle: Handle) -> File:
        assert not handle.closed, handle.path
        if len(self._open) >= self.open_files_max:
            self.evict()
        file = self.disk.open(handle.path)
        handle.file = file
        self._open[handle] = None
        return file

    def adopt(self, handle: Handle, file: File) -> None:
        """Take over a file that its creator opened already."""
        if len(self._open) >= self.open_files_max:
            self.evict()
        handle.file = file
        self._open[handle] = None

    def forget(self, handle: Handle) -> None:
        self._open.pop(handle, None)

    def shrink(self) -> None:
        """Many handles are gone: give their room in the table back."""
        self._open = dict(self._open)

    def is_over(self) -> bool:
        """Pins kept more files open than there should be."""
        return len(self._open) > self.open_files_max

    def evict(self) -> None:
        """Close an eighth of the limit at once, so that a scan over many files does not evict at every open."""
        wanted = len(self._open) - self.open_files_max + max(1, self.open_files_max // 8)
        for spare_dirty, spare_used in ((True, True), (True, False), (False, False)):
            for handle in list(self._open):
                if wanted <= 0:
                    return
                if handle.pins or (spare_dirty and handle.owner.is_dirty()):
                    continue
                if spare_used and handle.used:
                    # Its second chance: to the back of the queue.
                    handle.used = False
                    del self._open[handle]
                    self._open[handle] = None
                    continue
                self._close(handle)
                wanted -= 1

    def _close(self, handle: Handle) -> None:
        file, handle.file = handle.file, None
        del self._open[handle]
        if file is not None:
            file.close()
        handle.owner.evicted()
