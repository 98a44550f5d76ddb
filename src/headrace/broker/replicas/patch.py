"""What a follower fetches to close a hole in its log: checked batch by batch, and written beside the log."""

from headrace.errors import Err, KafkaError
from headrace.records.batch import crc_matches
from headrace.records.layout import BatchHeader, iter_headers
from headrace.storage.holes import Hole
from headrace.storage.log import Log
from headrace.storage.mending import discard_part
from headrace.storage.salvage import Part
from headrace.storage.segment_writer import SegmentWriter


class Misfit(Exception):
    """What the leader has in the place of a hole is not what was there: the log has to be copied anew."""


class Patch:
    """What a follower fetches into one hole, as it comes: checked batch by batch, and written beside the log."""

    def __init__(self, log: Log, hole: Hole) -> None:
        self.log = log
        self.hole = hole
        self.next_offset = max(hole.start_offset, log.log_start_offset)
        self.last_epoch = log.epochs.epoch_for(self.next_offset - 1)
        self._is_empty = True
        self._writer: SegmentWriter | None = SegmentWriter(
            log.disk, log.path, hole.start_offset, log.config.index_interval_bytes, aborted_known=False
        )

    @property
    def is_valid(self) -> bool:
        """The hole may have been forgotten meanwhile, or cut off: then so is this."""
        return self.hole in self.log.holes and self.next_offset >= self.log.log_start_offset

    def take(self, records: memoryview) -> bool:
        """True when nothing is missing any more. Raises Misfit, or KafkaError for bytes that are damaged themselves."""
        hole = self.hole
        for position, header in iter_headers(records):
            if header.end_offset <= self.next_offset:
                continue
            if self.next_offset >= hole.end_offset:
                break
            batch = records[position : position + header.size]
            if not crc_matches(header, batch):
                raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch at offset {header.base_offset}: CRC mismatch")
            self._check(header)
            assert self._writer is not None
            self._writer.append(header, bytes(batch))
            self._is_empty = False
            self.next_offset, self.last_epoch = header.end_offset, header.leader_epoch
        return self.next_offset == hole.end_offset

    def _check(self, header: BatchHeader) -> None:
        """Byte for byte what was here: the same offsets in the same epochs, and none of them compacted away.

        A tombstone that the leader no longer has may have been in the hole, and what it deleted is still before it.
        """
        begins = header.base_offset == self.next_offset or (self._is_empty and header.base_offset < self.next_offset)
        if not begins or header.base_offset < self.hole.start_offset or header.last_offset >= self.hole.end_offset:
            raise Misfit(
                f"its leader has {header.base_offset} to {header.last_offset} where {self.next_offset} comes next"
            )
        if header.count != header.last_offset_delta + 1:
            raise Misfit(f"its leader has compacted {header.base_offset} to {header.last_offset}")
        if header.leader_epoch != self.log.epochs.epoch_for(header.base_offset):
            raise Misfit(f"its leader has another history at {header.base_offset}")

    def finish(self) -> Part:
        """In a thread."""
        assert self._writer is not None
        size = self._writer.finish()
        self._writer.close()
        self._writer = None
        self.log.disk.sync_dir(self.log.path)
        return Part(self.hole.start_offset, self.hole.end_offset, size)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with self.log.folder_lock:
            if not self.log.abandoned:
                discard_part(self.log.disk, self.log.path, self.hole.start_offset)
