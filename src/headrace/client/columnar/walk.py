"""From what a Fetch brought to the bodies worth decoding: whole batches, checked, decompressed, those of control
records and aborted transactions left out."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import Err, KafkaError
from headrace.records.compression import DECOMPRESSED_BYTES_MAX
from headrace.records.control import decode_marker
from headrace.records.layout import (
    CODEC_MASK,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    iter_headers,
)
from headrace.records.reader import check_count, read_body

Aborted = Sequence[tuple[int, int]]
"""(producer id, first offset) of aborted transactions, as a Fetch of committed records lists them."""


class Body(NamedTuple):
    """The records of one batch: `data[start:end]`, no longer compressed."""

    data: bytes | memoryview
    start: int
    end: int
    base_offset: int
    base_timestamp: int
    one_time: bool
    """The base timestamp, then the log's append time, stands for the time of every record."""
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    in_place: bool
    """`data` is the buffer that was walked."""


class Walk:
    """One pass over a buffer. `next_offset` and `position` say how far it came: behind the last whole batch."""

    def __init__(
        self,
        view: memoryview,
        start_offset: int,
        end_offset: int,
        *,
        aborted: Aborted = (),
        read_committed: bool = False,
        check_crc: bool = True,
        limit_bytes: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        self._view = view
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._read_committed = read_committed
        self._check_crc = check_crc
        self._limit_bytes = limit_bytes
        # The last is the next to begin.
        self._to_abort = sorted(aborted, key=lambda one: one[1], reverse=True) if read_committed else []
        self._aborting: set[int] = set()
        self.next_offset = start_offset
        self.position = 0

    def bodies(self) -> Iterator[Body]:
        view, start_offset, end_offset = self._view, self._start_offset, self._end_offset
        for at, header in iter_headers(view):
            if header.base_offset >= end_offset:
                break
            self.position = at + header.size
            if header.last_offset < start_offset:
                if header.is_control:
                    # The end of a transaction is one for what comes behind it, whoever wants to see that.
                    self._check(at, header)
                    self._is_wanted(at, header)
                continue
            self._check(at, header)
            # Before the batch counts as passed: whoever stops here must come back to it.
            body = self._body(at, header) if self._is_wanted(at, header) else None
            self.next_offset = max(self.next_offset, header.end_offset)
            if body is not None:
                yield body

    def _check(self, at: int, header: BatchHeader) -> None:
        if self._check_crc and crc32c(self._view[at + CRC_FROM : at + header.size]) != header.crc:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch at offset {header.base_offset}: CRC mismatch")
        if header.last_offset_delta < 0 or header.base_offset < 0 or header.count < 0:
            raise KafkaError(
                Err.CORRUPT_MESSAGE,
                f"record batch at offset {header.base_offset} with last offset delta {header.last_offset_delta}"
                f" and {header.count} records",
            )

    def _is_wanted(self, at: int, header: BatchHeader) -> bool:
        if self._read_committed and header.has_producer_id:
            to_abort = self._to_abort
            while to_abort and to_abort[-1][1] <= header.last_offset:
                self._aborting.add(to_abort.pop()[0])
            if header.is_control:
                marker = decode_marker(self._view, at, header)
                if marker is not None and not marker.committed:
                    self._aborting.discard(header.producer_id)
                return False
            if header.attributes & TRANSACTIONAL and header.producer_id in self._aborting:
                return False
        return not header.is_control and header.count > 0

    def _body(self, at: int, header: BatchHeader) -> Body:
        one_time = header.attributes & LOG_APPEND_TIME != 0
        time = header.max_timestamp if one_time else header.base_timestamp
        if header.attributes & CODEC_MASK:
            data: bytes | memoryview = read_body(self._view, at, header, self._limit_bytes)
            start, end = 0, len(data)
        else:
            data, start, end = self._view, at + HEADER_BYTES, at + header.size
        check_count(header.count, end - start)
        return Body(data, start, end, header.base_offset, time, one_time, header.count, data is self._view)
