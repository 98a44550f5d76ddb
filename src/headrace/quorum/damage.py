"""Tells a torn tail from damage, before anything is changed.

The last write of a crashed node may be half there: nobody was told it was committed, so recovery may cut it off. A bad
batch with good ones behind it is something else: cutting there would take back what was committed.
"""

import re
from struct import Struct

from headrace.errors import KafkaError
from headrace.quorum import QuorumError
from headrace.records.batch import check_stored
from headrace.records.layout import HEADER_BYTES
from headrace.storage.files import Disk

_SEGMENT = re.compile(r"\d{20}\.log")
_BASE_OFFSET = Struct(">q")
_MAYBE_BATCH = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)
"""Where a batch could begin: offsets stay below 2^48, and its magic is 2."""


def check_log(disk: Disk, folder: str) -> None:
    """Raise QuorumError if the metadata log has been damaged other than by an unfinished last write."""
    if not disk.exists(folder):
        return
    names = [name for name in disk.list(folder) if _SEGMENT.fullmatch(name)]
    for name in names:
        path = f"{folder}/{name}"
        data = memoryview(disk.read_bytes(path))
        bad, next_offset = _first_bad(data, int(name[:20]))
        if bad is None:
            continue
        if name != names[-1]:
            raise QuorumError(
                f"{path} is damaged at byte {bad}, and the log goes on behind it; restore it from a copy"
            )
        good = _next_good(data, bad + 1, next_offset)
        if good is not None:
            raise QuorumError(
                f"{path} is damaged at byte {bad}, and whole batches follow at byte {good}; restore it from a copy"
            )


def _first_bad(data: memoryview, next_offset: int) -> tuple[int | None, int]:
    """Where the first batch begins that is not whole, or None; and the offset expected there."""
    pos, end = 0, len(data)
    while pos < end:
        if end - pos < HEADER_BYTES:
            return pos, next_offset
        try:
            header = check_stored(data, pos, end)
        except KafkaError:
            return pos, next_offset
        if header.base_offset < next_offset:
            return pos, next_offset
        next_offset = header.last_offset + 1
        pos += header.size
    return None, next_offset


def _next_good(data: memoryview, pos: int, next_offset: int) -> int | None:
    for match in _MAYBE_BATCH.finditer(data, pos):
        at = match.start()
        if len(data) - at < HEADER_BYTES or _BASE_OFFSET.unpack_from(data, at)[0] <= next_offset:
            continue
        try:
            check_stored(data, at, len(data))
        except KafkaError:
            continue
        return at
    return None
