"""Look at the indexes of a closed segment before anybody needs them, off the loop: building them again reads the whole
log file.

Made and finished on the loop, run in a thread in between.
"""

from headrace.storage.file_names import SUMS_SUFFIX
from headrace.storage.indexes import CorruptIndex
from headrace.storage.indexing import (
    CorruptSegment,
    Indexes,
    build_indexes,
    decode_indexes,
    read_index,
    read_sums,
)
from headrace.storage.log import Log
from headrace.storage.segment import Segment


class IndexCheck:
    """The check of one segment. What it cannot do is left to the segment's first reader."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._handle = segment.handle
        self._file = segment.handle.pin()
        self._size = segment.size
        self._found: Indexes | None = None

    def run(self) -> None:
        segment, size = self._segment, self._size
        try:
            try:
                sums = read_sums(segment.disk, segment.path(SUMS_SUFFIX), segment.base_offset, size, self._file)
                data = [read_index(segment.disk, segment.path(suffix), size) for suffix in (".index", ".timeindex")]
                decode_indexes(data[0], data[1], sums, size)
            except CorruptIndex:
                self._found = build_indexes(self._file, segment.base_offset, size, segment.index_interval_bytes)
        except (CorruptSegment, OSError):
            pass

    def finish(self, log: Log) -> bool:
        """Whether the indexes were wrong and are right now. One that was read meanwhile has seen to it itself."""
        self._handle.unpin()
        segment = self._segment
        if self._found is None or log.abandoned or segment not in log.segments or segment.handle is not self._handle:
            return False
        if segment.size != self._size or not segment.is_unread:
            return False
        segment.take_indexes(self._found)
        return True


def unread_segments(log: Log) -> list[Segment]:
    """Closed segments whose indexes nobody has looked at since the start."""
    return [segment for segment in log.segments[:-1] if segment.is_unread and segment.size]
