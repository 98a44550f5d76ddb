"""Writes the offset checkpoints of one log dir. Plans are taken on the loop and run in threads, in any order.

A checkpoint is kept by partition name, and a name can be given to another log. `names` says whether a line of an
earlier one may still be on the disk: then it has to go before the new log has anything to lose. A log
with a line has a folder that survives a power cut: if the folder is missing, somebody has removed it.
"""

from collections.abc import Mapping
from threading import Lock

from headrace.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    OWN_SEPARATOR,
    RECOVERY_POINTS,
    TopicPartition,
    encode_offsets,
)
from headrace.storage.files import Disk


class CheckpointFiles:
    """See the module."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._lock = Lock()
        self._number = 0
        self._written = 0
        """The latest plan that is on the disk: an earlier one that comes later is not written any more."""
        self._lines: dict[int, frozenset[TopicPartition]] = {}
        """The logs with lines in each plan that is on the disk or may still get there."""

    def loaded(self, *files: Mapping[TopicPartition, int]) -> None:
        """What an earlier run has left."""
        self._lines[0] = frozenset().union(*files)

    def names(self, partition: TopicPartition) -> bool:
        return any(partition in lines for lines in self._lines.values())

    def plan(
        self,
        recovery_points: Mapping[TopicPartition, int],
        log_starts: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> "DirCheckpoint":
        """On the loop: all three files as they should be now."""
        self._number += 1
        on_disk = self._lines.get(self._written, frozenset())
        for number in [number for number in self._lines if number < self._written]:
            del self._lines[number]
        lines = self._lines[self._number] = frozenset().union(recovery_points, log_starts, high_watermarks)
        files = [
            (f"{self._folder}/{RECOVERY_POINTS}", recovery_points),
            (f"{self._folder}/{LOG_STARTS}", log_starts),
            (f"{self._folder}/{HIGH_WATERMARKS}", dict(high_watermarks)),  # the caller goes on changing them
        ]
        return DirCheckpoint(self, self._number, files, not lines <= on_disk)

    def write(self, number: int, files: list[tuple[str, Mapping[TopicPartition, int]]], has_new: bool) -> None:
        """One at a time: two writers would share a temporary file, and the slower one would undo the other."""
        with self._lock:
            if number < self._written:
                return
            if has_new:
                self._disk.sync_dir(self._folder)  # the folders of those that get a line now
            for path, offsets in files:
                # Here and not in the plan: ten thousand lines would take the loop 50 ms.
                self._disk.replace_bytes(path, encode_offsets(offsets, OWN_SEPARATOR))
            self._written = number


class DirCheckpoint:
    """A log dir's checkpoints as of one moment."""

    __slots__ = ("_data", "_files", "_has_new", "_number")

    def __init__(
        self, files: CheckpointFiles, number: int, data: list[tuple[str, Mapping[TopicPartition, int]]], has_new: bool
    ) -> None:
        self._files = files
        self._number = number
        self._data = data
        self._has_new = has_new

    def run(self) -> None:
        """Blocking. Returns once this or a later one is on the disk."""
        self._files.write(self._number, self._data, self._has_new)
