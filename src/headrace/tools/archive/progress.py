"""What an export has done, kept beside what it has written, so that a kill -9 at any time loses and doubles nothing.

    FILE.partial/progress.json    what was asked for, and up to where the files beside it are whole
    FILE.partial/records.jsonl    lines; behind the length that progress.json knows, to be cut off
    FILE.partial/00000.parquet    closed files; one that progress.json does not count is to be written again

1. Records are written. 2. They are synced. 3. progress.json is replaced as a whole and says so. A crash before 3 leaves
the old progress, and what it does not know of is cut off or overwritten. When all is there, the file gets its name.
"""

import fcntl
import os
import shutil
from pathlib import Path

import msgspec

from headrace.client.errors import ClientError
from headrace.tools.ranges import PartitionRange


class Done(msgspec.Struct):
    """One partition's range, and the first offset of it that is not in the files."""

    partition: int
    start_offset: int
    end_offset: int
    next_offset: int

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.end_offset


class Progress(msgspec.Struct):
    """Everything needed to go on."""

    asked: str
    """The options that decide what is exported, as text: another request must not go on with this one's files."""
    cluster_id: str
    topic: str
    topic_id: str
    partitions: list[Done]
    records: int = 0
    bytes_written: int = 0
    """Of the file of lines."""
    parts: int = 0
    """Closed Parquet files."""
    missing: int = 0
    """Offsets that were deleted before they could be read."""
    is_resumed: bool = False

    @classmethod
    def begin(cls, asked: str, cluster_id: str, topic: str, topic_id: str, ranges: list[PartitionRange]) -> "Progress":
        rows = [Done(one.partition, one.start_offset, one.end_offset, one.start_offset) for one in ranges]
        return cls(asked, cluster_id, topic, topic_id, rows)

    @property
    def offsets_total(self) -> int:
        return sum(row.end_offset - row.start_offset for row in self.partitions)

    @property
    def offsets_done(self) -> int:
        return sum(row.next_offset - row.start_offset for row in self.partitions)


class WorkFolder:
    """The folder beside a file in which it grows. One process at a time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.path = file.with_name(file.name + ".partial")
        self._lock = -1

    def open(self) -> None:
        """Make it, or take it over from a run that ended. Raises ClientError while another run has it."""
        try:
            self.path.mkdir(exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ClientError(f"cannot write beside {self.file}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ClientError(f"another process is exporting to {self.file} right now") from None

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self) -> Progress | None:
        """What an interrupted run has left, if it has. Raises ClientError."""
        try:
            text = (self.path / "progress.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(text, type=Progress)
        except msgspec.DecodeError:
            raise ClientError(f"{self.path / 'progress.json'} is damaged; --restart begins anew") from None

    def clear(self) -> None:
        """Forget an interrupted run."""
        for name in os.listdir(self.path):
            if name != "lock":
                (self.path / name).unlink()

    def save(self, progress: Progress) -> None:
        """Durably, as a whole. What it speaks of must be synced before."""
        temporary = self.path / "progress.json.new"
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(progress))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / "progress.json")
        sync_folder(self.path)

    def publish(self, whole: Path) -> None:
        """Give the finished file its name, and remove the rest."""
        whole.replace(self.file)
        sync_folder(self.file.parent)
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
