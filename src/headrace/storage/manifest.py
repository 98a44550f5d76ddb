"""`.headrace_segments`: a list of a partition's closed segments, by which a start notices a missing or swapped one.

A line is written only once its segment is on the disk, and taken out before its files go or change. So the file never
promises what a power cut could take, and without its last lines it only promises less. Kafka ignores the file;
`checkpoints.written_by_headrace` tells whether Kafka has run on the folder since.

The file begins with `headrace-segments 1 <start> <count> <folder>` and `count` segments, which are written as a whole.
Segments that are rolled later are appended line by line. Every line ends with its own checksum.
"""

from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c

from headrace.records.layout import HEADER_BYTES
from headrace.storage.files import NO_SPACE, Disk, File

MANIFEST = ".headrace_segments"
HEAD_BYTES = HEADER_BYTES
TAIL_BYTES = 4096
UNKNOWN_SIZE = -1
_TITLE = "headrace-segments"
_VERSION = 1


class CorruptManifest(ValueError):
    """A manifest that does not say what it should: nothing in it is believed."""


class Entry(NamedTuple):
    """One closed segment: its name, where the next one begins, and what its file is."""

    base_offset: int
    end_offset: int
    size: int
    head: int
    """Checksum of the first batch's header, which has a checksum of all that is in the batch."""
    tail: int
    """Checksum of its last bytes."""
    modified_ms: int
    """As long as the file has this time and size, it is taken for the same and not read."""
    lost: bool = False
    """It was found missing before, and its place is kept by a `.corrupt` file."""


def folder_of(data: bytes) -> str | None:
    """The name of the folder that a manifest was written for, if it says so."""
    title = _checked(data.partition(b"\n")[0])
    return title[4] if title is not None and title[0] == _TITLE and len(title) > 4 else None


def fingerprint(file: File, size: int) -> tuple[int, int]:
    """(head, tail) of a file's first `size` bytes."""
    head = file.read(min(HEAD_BYTES, size), 0) if size else b""
    at = max(0, size - TAIL_BYTES)
    return crc32c(head), crc32c(file.read(size - at, at) if size else b"")


def entry_of(disk: Disk, path: str, base_offset: int, end_offset: int, size: int) -> Entry:
    """The entry for a segment whose log file is at `path` and will not be written to again."""
    file = disk.open(path, readonly=True)
    try:
        head, tail = fingerprint(file, size)
    finally:
        file.close()
    return Entry(base_offset, end_offset, size, head, tail, disk.modified_ms(path))


def is_file_of(disk: Disk, path: str, entry: Entry) -> bool:
    """Whether the file at `path`, whatever its name, is the segment that an entry was written for."""
    if disk.size(path) != entry.size:
        return False
    file = disk.open(path, readonly=True)
    try:
        return fingerprint(file, entry.size) == (entry.head, entry.tail)
    finally:
        file.close()


def lost_entry(base_offset: int, end_offset: int) -> Entry:
    """Offsets of which nobody knows in which files they were."""
    return Entry(base_offset, end_offset, UNKNOWN_SIZE, 0, 0, 0, lost=True)


class Manifest:
    """What the file says, and what it should say. Threads add what they have synced; the loop takes out what goes."""

    def __init__(self, start: int = 0, entries: Iterable[Entry] = (), *, is_kept: bool = True) -> None:
        self.start = start
        """Where the first segment begins: what lies below was deleted on purpose."""
        self.folder = ""
        """The name of the folder that it was written for; empty: not known."""
        self.swap: Entry | None = None
        """While a compacted segment takes the place of others: instead of all entries in its range there may be this
        one."""
        self.generation = 0
        """Of the log's truncations: what was synced before one may be there no more."""
        self._entries = {entry.base_offset: entry for entry in entries}
        self._is_kept = is_kept
        self._added: list[Entry] = []
        self._exists = False
        self._rewrite = False
        self._memory = Lock()
        self._writing = Lock()

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """CorruptManifest where the first lines, which belong together, are not as they were written."""
        lines = data.split(b"\n")
        is_torn = lines.pop() != b""
        title = _checked(lines[0]) if lines else None
        if title is None or title[:2] != [_TITLE, str(_VERSION)]:
            raise CorruptManifest("no title that is known")
        start, count = int(title[2]), int(title[3])
        if len(lines) - 1 < count:
            raise CorruptManifest(f"{count} lines announced, {len(lines) - 1} found")
        found = cls(start)
        found.folder = title[4] if len(title) > 4 else ""
        for number, line in enumerate(lines[1:], 1):
            fields = _checked(line)
            if fields is None:
                if number <= count:
                    raise CorruptManifest(f"line {number + 1} has another checksum")
                is_torn = True
                break  # not finished, or rotten: what comes later is only more
            kind, *numbers = fields
            base_offset, end_offset, size, head, tail, modified_ms = map(int, numbers)
            entry = Entry(base_offset, end_offset, size, head, tail, modified_ms, kind == "lost")
            if kind == "swap":
                found.swap = entry
            else:
                found._entries[entry.base_offset] = entry
        found._exists = True
        found._rewrite = is_torn
        return found

    def encode(self) -> bytes:
        entries = [("lost" if entry.lost else "segment", entry) for entry in self.entries]
        if self.swap is not None:
            entries.append(("swap", self.swap))
        title = _line(f"{_TITLE} {_VERSION} {self.start} {len(entries)} {self.folder}".rstrip())
        return b"".join([title, *(_encode(kind, entry) for kind, entry in entries)])

    @property
    def entries(self) -> list[Entry]:
        return sorted(self._entries.values())

    @property
    def end_offset(self) -> int:
        """Below it everything was synced."""
        return max([self.start, *(entry.end_offset for entry in self._entries.values())])

    @property
    def is_dirty(self) -> bool:
        return self._is_kept and (self._rewrite or bool(self._added))

    def get(self, base_offset: int) -> Entry | None:
        return self._entries.get(base_offset)

    # -- what is so from now on; `save` makes it durable

    def add(self, entry: Entry, generation: int | None = None) -> None:
        """A segment is closed and on the disk. Not noted where the log was truncated, or begins later, since."""
        with self._memory:
            if entry.base_offset < self.start or (generation is not None and generation != self.generation):
                return
            known = self._entries.get(entry.base_offset)
            if known == entry:
                return
            self._entries[entry.base_offset] = entry
            if known is not None or entry.lost or not self._exists:
                self._rewrite = True
            else:
                self._added.append(entry)

    def drop(self, start_offset: int, end_offset: int) -> bool:
        """Whatever begins in this range is no longer part of the log."""
        with self._memory:
            gone = [base for base in self._entries if start_offset <= base < end_offset]
            for base in gone:
                del self._entries[base]
            self._rewrite = self._rewrite or bool(gone)
            return bool(gone)

    def begin_at(self, start: int) -> None:
        """What lies below was deleted."""
        self.drop(0, start)
        with self._memory:
            self._rewrite = self._rewrite or (self._exists and start != self.start)
            self.start = start

    def truncated(self, generation: int) -> None:
        """Threads may still sync what was closed before."""
        with self._memory:
            self.generation = generation

    def mark_lost(self, base_offset: int, lost: bool = True) -> None:
        with self._memory:
            entry = self._entries.get(base_offset)
            if entry is not None and entry.lost != lost:
                self._entries[base_offset] = entry._replace(lost=lost)
                self._rewrite = True

    def begin_swap(self, entry: Entry) -> None:
        with self._memory:
            self.swap = entry
            self._rewrite = True

    def end_swap(self, is_done: bool) -> None:
        """The new segment is in the place of the old ones; or it never will be."""
        entry, self.swap = self.swap, None
        if is_done and entry is not None:
            self.drop(entry.base_offset, entry.end_offset)
            self.add(entry)
        with self._memory:
            self._rewrite = True

    # -- the file

    def save(self, disk: Disk, folder: str) -> None:
        """Make it durable, blocking, in whichever thread. Where there is no room, the file goes: it only vouches for
        less."""
        if not self.is_dirty:
            return
        path = f"{folder}/{MANIFEST}"
        with self._writing:
            with self._memory:
                self.folder = folder.rpartition("/")[2]
                rewrite, added = self._rewrite, self._added
                data = self.encode() if rewrite else b"".join(_encode("segment", entry) for entry in added)
                self._rewrite, self._added, existed, self._exists = False, [], self._exists, True
            try:
                if rewrite:
                    disk.replace_bytes(path, data)
                elif added:
                    _append(disk, path, data)
            except OSError as error:
                with self._memory:
                    self._rewrite = True
                if error.errno not in NO_SPACE:
                    raise
                if rewrite and existed:
                    with suppress(FileNotFoundError):
                        disk.remove(path)
                    disk.sync_dir(folder)


def _append(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.append(data)
        file.sync()
    finally:
        file.close()


def _encode(kind: str, entry: Entry) -> bytes:
    return _line(" ".join([kind, *(str(value) for value in entry[:6])]))


def _line(text: str) -> bytes:
    return f"{text} {crc32c(text.encode()):08x}\n".encode()


def _checked(line: bytes) -> list[str] | None:
    """The fields of a line without its checksum; None where they do not agree."""
    text, _, checksum = line.rpartition(b" ")
    if not text or checksum != f"{crc32c(text):08x}".encode():
        return None
    return text.decode("ascii", "replace").split(" ")
