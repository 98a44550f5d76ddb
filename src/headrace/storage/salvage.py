"""What is left of a damaged segment: finds the batches around the damage and writes them beside it, to be served again.

It reads a file that was set aside and never changes it. It needs nothing but a disk, so it runs in another process;
`mending` puts what it made in place.
"""

import os
import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from headrace.records.batch import crc_matches
from headrace.records.layout import HEADER, HEADER_BYTES, LENGTH_MIN, MAGIC_AT, BatchHeader
from headrace.storage.files import Disk, File
from headrace.storage.segment_writer import SegmentWriter

READ_BYTES = 4 << 20
OFFSET_BYTES = 8


class Stretch(NamedTuple):
    """Batches that follow each other without damage."""

    position: int
    size: int
    base_offset: int
    end_offset: int


class Part(NamedTuple):
    """A stretch as a segment of its own, lying beside the log as `.cleaned` files that are synced."""

    base_offset: int
    end_offset: int
    size: int


class Survey(NamedTuple):
    """What a file has of the offsets asked for."""

    stretches: tuple[Stretch, ...]
    is_whole: bool
    """Every byte of the file belongs to a valid batch."""


def survey(
    disk: Disk, path: str, start_offset: int, end_offset: int, pace: Callable[[int], None] = lambda _: None
) -> Survey:
    """Find every valid batch with offsets in [start, end), wherever damage leaves it."""
    file = disk.open(path, readonly=True)
    try:
        return _survey(file, start_offset, end_offset, pace)
    finally:
        file.close()


def _survey(file: File, start_offset: int, end_offset: int, pace: Callable[[int], None]) -> Survey:
    size = file.size()
    found: list[Stretch] = []
    is_whole = True
    position, next_offset, epoch = 0, start_offset, -1
    while position < size:
        header = _in_order(file, position, size, next_offset, epoch, end_offset)
        if header is None:
            is_whole = False
            position = _next_batch(file, position, size, next_offset, end_offset)
            continue
        pace(header.size)
        last = found[-1] if found else None
        if last is not None and last.position + last.size == position:
            found[-1] = last._replace(
                size=last.size + header.size,
                end_offset=header.end_offset,
            )
        else:
            found.append(Stretch(position, header.size, header.base_offset, header.end_offset))
        next_offset, epoch = header.end_offset, header.leader_epoch
        position += header.size
    return Survey(tuple(found), is_whole)


def _in_order(
    file: File, position: int, size: int, next_offset: int, epoch: int, end_offset: int
) -> BatchHeader | None:
    """The batch there, if its offsets and its epoch can be right. The CRC covers neither.

    One that steps ahead of what comes next is right only if the batch behind it does not step back again.
    """
    header = _batch_at(file, position, size, next_offset, end_offset)
    if header is None or header.leader_epoch < epoch:
        return None
    if header.base_offset != next_offset or header.leader_epoch != epoch:
        behind = _batch_at(file, position + header.size, size, next_offset, end_offset)
        if behind is not None and (
            behind.base_offset < header.end_offset or epoch <= behind.leader_epoch < header.leader_epoch
        ):
            return None
    return header


def _batch_at(file: File, position: int, size: int, next_offset: int, end_offset: int) -> BatchHeader | None:
    """The header of the batch there, if it is whole and one that can come next."""
    head = file.read(HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return None
    header = BatchHeader._make(HEADER.unpack(head))
    if (
        header.magic != 2
        or header.length < LENGTH_MIN
        or header.last_offset_delta < 0
        or header.count < 0
        or not next_offset <= header.base_offset <= header.last_offset < end_offset
        or position + header.size > size
    ):
        return None
    return header if crc_matches(header, file.read(header.size, position)) else None


def _next_batch(file: File, position: int, size: int, next_offset: int, end_offset: int) -> int:
    """Where valid batches begin again behind a damaged one; the size of the file if nowhere."""
    head = file.read(HEADER_BYTES, position)
    if len(head) == HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack(head))
        behind = position + header.size
        # As long as the damage is not in the length itself, the next batch is where it says.
        if header.length >= LENGTH_MIN and behind < size and _batch_at(file, behind, size, next_offset, end_offset):
            return behind
    pattern = _heads(next_offset, end_offset)
    at = position + 1
    while at < size:
        chunk = file.read(READ_BYTES + HEADER_BYTES, at)
        for match in pattern.finditer(chunk):
            if match.start() < READ_BYTES and _begins_batches(file, at + match.start(), size, next_offset, end_offset):
                return at + match.start()
        at += READ_BYTES
    return size


def _heads(next_offset: int, end_offset: int) -> re.Pattern[bytes]:
    """Matches where a batch with an offset in the range may begin: at the bytes that all those offsets share, and the
    magic."""
    ends = [offset.to_bytes(OFFSET_BYTES, "big") for offset in (next_offset, max(next_offset, end_offset - 1))]
    shared = bytes(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ends)))
    return re.compile(b"(?=%b.{%d}\x02)" % (re.escape(shared), MAGIC_AT - len(shared)), re.DOTALL)


def _begins_batches(file: File, position: int, size: int, next_offset: int, end_offset: int) -> bool:
    """Whether a valid batch is there, and another behind it or the end of the file.

    A damaged batch may hold records with whole batches in them. Behind such a one the rest of the record follows.
    """
    header = _batch_at(file, position, size, next_offset, end_offset)
    if header is None:
        return False
    behind = position + header.size
    return behind == size or _batch_at(file, behind, size, header.end_offset, end_offset) is not None


def salvage(
    disk: Disk,
    path: str,
    start_offset: int,
    end_offset: int,
    index_interval_bytes: int,
    is_compacted: bool,
    pace: Callable[[int], None] = lambda _: None,
) -> Iterator[Part]:
    """Each stretch as `.cleaned` files, the last one first; each is in place before the next is made.

    Where compaction may have left gaps, none at the edges of the file is taken for records that are missing.
    """
    stretches = list(survey(disk, path, start_offset, end_offset, pace).stretches)
    folder = os.path.dirname(path)
    file = disk.open(path, readonly=True)
    try:
        if is_compacted and stretches:
            if stretches[0].position == 0:
                stretches[0] = stretches[0]._replace(base_offset=start_offset)
            if stretches[-1].position + stretches[-1].size == file.size():
                stretches[-1] = stretches[-1]._replace(end_offset=end_offset)
        for stretch in reversed(stretches):
            yield _copied(disk, folder, file, stretch, index_interval_bytes, pace)
    finally:
        file.close()


def _copied(
    disk: Disk, folder: str, file: File, stretch: Stretch, index_interval_bytes: int, pace: Callable[[int], None]
) -> Part:
    writer = SegmentWriter(disk, folder, stretch.base_offset, index_interval_bytes, aborted_known=False)
    try:
        position, end = stretch.position, stretch.position + stretch.size
        while position < end:
            header = BatchHeader._make(HEADER.unpack(file.read(HEADER_BYTES, position)))
            data = file.read(header.size, position)
            if not crc_matches(header, data):
                raise OSError(f"{file.path} at byte {position}: changed while it was copied")
            writer.append(header, data)
            pace(len(data))
            position += header.size
        size = writer.finish()
    finally:
        writer.close()
    disk.sync_dir(folder)
    return Part(stretch.base_offset, stretch.end_offset, size)
