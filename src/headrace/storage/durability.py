"""Group commit: what has to reach stable storage before a log may call an offset durable.

The loop takes a plan, a thread runs it, the loop marks it. Nothing in a plan changes after it was taken.
"""

from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import NamedTuple, Protocol

from headrace.storage.checkpoints import PARTITION_METADATA
from headrace.storage.epochs import FILE_NAME as EPOCHS
from headrace.storage.files import NO_SPACE, Disk, File
from headrace.storage.manifest import Entry, Manifest, fingerprint
from headrace.storage.pool import Handle
from headrace.storage.segment import WALK_BYTES, Segment

UNSYNCED = ".headrace_unsynced"
"""Left in the folder of a log whose sync has failed. The kernel has dropped what it could not write and still shows it
to every reader: the next process would take it for written, until a power cut. Kafka ignores such a name."""


class DirtyPaths:
    """Files or folders that have changed since they were last synced.

    A sync clears only what it has seen: a folder that gets another entry while a thread syncs it is still dirty.
    """

    __slots__ = ("_changed_at", "_changes")

    def __init__(self) -> None:
        self._changed_at: dict[str, int] = {}
        self._changes = 0

    def __bool__(self) -> bool:
        return bool(self._changed_at)

    def add(self, *paths: str) -> None:
        self._changes += 1
        for path in paths:
            self._changed_at[path] = self._changes

    def seen(self) -> dict[str, int]:
        """What is dirty now, for a plan."""
        return dict(sorted(self._changed_at.items()))

    def synced(self, seen: Mapping[str, int]) -> None:
        for path, change in seen.items():
            if self._changed_at.get(path) == change:
                del self._changed_at[path]

    def clear(self) -> None:
        self._changed_at.clear()


class SegmentSync(NamedTuple):
    """One segment of a plan: its pinned log file and, once rolled, the small files beside it."""

    segment: Segment
    handle: Handle
    file: File
    size: int
    rolled: bool
    paths: tuple[str, ...]
    end_offset: int = -1
    """Once rolled: where what it stands for ends."""


class Folder(Protocol):
    """A log, as far as the life of its folder goes."""

    path: str
    abandoned: bool
    folder_lock: Lock
    manifest: Manifest


class SyncPlan:
    """Everything between `durable_end` and the end of a log at one moment, oldest segment first."""

    __slots__ = (
        "disk", "done", "end_offset", "epochs", "epochs_missing", "error", "files", "folder", "folders", "generation",
        "segments",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        end_offset: int,
        generation: int,
        segments: list[SegmentSync],
        files: Mapping[str, int],
        folders: Mapping[str, int],
        epochs: tuple[str, bytes] | None,
        folder: Folder,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.end_offset = end_offset
        self.generation = generation
        """Of the log's truncations: bytes synced before one say nothing about those written after it."""
        self.segments = segments
        self.files = files
        self.folders = folders
        self.epochs = epochs
        self.epochs_missing = False
        """There was no room for them. The batches have them too, from the recovery point on."""
        self.done = False
        self.error: OSError | None = None

    def run(self) -> None:
        """In a thread. After a failure the log is lost to writes: what the kernel still holds is unknown."""
        try:
            for part in self.segments:
                part.file.sync()
                for path in part.paths:
                    self._sync_path(path)
            for path in self.files:
                self._sync_path(path)
            if self.epochs is not None:
                self._write_epochs(*self.epochs)
            for folder in self.folders:
                self.disk.sync_dir(folder)
            self._note_segments()
        except OSError as error:
            self.error = error
            self._mark_unsynced()
            raise
        self.done = True

    def _note_segments(self) -> None:
        """Segments that are closed, and on the disk with their names: from here on a start would notice if one were
        gone."""
        rolled = [part for part in self.segments if part.rolled]
        folder = self.folder
        if not rolled and not folder.manifest.is_dirty:
            return
        with folder.folder_lock:
            if folder.abandoned:
                return  # by name: once the log is deleted, the name may be another's
            for part in rolled:
                head, tail = fingerprint(part.file, part.size)
                modified_ms = self.disk.modified_ms(part.handle.path)
                entry = Entry(part.segment.base_offset, part.end_offset, part.size, head, tail, modified_ms)
                folder.manifest.add(entry, self.generation)
            folder.manifest.save(self.disk, folder.path)

    def _mark_unsynced(self) -> None:
        """It need not be durable: after a power cut the disk itself says what it has."""
        with suppress(OSError):
            self.disk.open(f"{self.folder.path}/{UNSYNCED}", create=True).close()

    def _write_epochs(self, path: str, data: bytes) -> None:
        try:
            with self.folder.folder_lock:
                # By name: once the log is deleted, the name may be another's.
                if not self.folder.abandoned:
                    self.disk.replace_bytes(path, data)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.epochs_missing = True

    def _sync_path(self, path: str) -> None:
        try:
            file = self.disk.open(path, readonly=True)
        except FileNotFoundError:
            return  # retention was faster
        try:
            file.sync()
        finally:
            file.close()

    def release(self) -> None:
        """Give the pinned files back; on the loop, once."""
        for part in self.segments:
            part.handle.unpin()
        self.segments = []


def write_again(disk: Disk, path: str, segments: list[Segment], recovery_point: int) -> None:
    """A sync has failed here: what the kernel shows may be nowhere else, and it will not write it by itself."""
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= recovery_point:
            continue  # it was synced before
        file = disk.open(segment.path(".log"))
        try:
            for position in range(0, segment.size, WALK_BYTES):
                file.write_at(file.read(min(WALK_BYTES, segment.size - position), position), position)
            file.sync()
        finally:
            file.close()
    for name in (PARTITION_METADATA, EPOCHS):
        if disk.exists(f"{path}/{name}"):
            disk.replace_bytes(f"{path}/{name}", disk.read_bytes(f"{path}/{name}"))
    disk.remove(f"{path}/{UNSYNCED}")
    disk.sync_dir(path)
