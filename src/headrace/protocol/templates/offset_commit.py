"""OffsetCommit requests that differ in nothing but how far their consumer has come.

A member commits the same partitions over and over. What such a request says besides is compared with the last one
rather than read again, and its answer is always the same.
"""

from struct import Struct
from typing import Any

from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.headers import CLIENT_ID_AT, PREFIX_AT
from headrace.protocol.primitives import Buffer, encode_uvarint

OLDEST = 6
"""Before, commits had no leader epochs."""
FLEXIBLE, BY_ID = 8, 10
FRAME_BYTES_MAX = 4096
"""Larger ones are rare, and every connection may have one."""
ROW_BYTES = 18
"""Partition, offset, leader epoch, and metadata that says nothing."""
OFFSET_IN_ROW = 4
ID_BYTES = 16

_int16 = Struct(">h").unpack_from


class OffsetCommitTemplate:
    """What requests of one kind have in common; `prefix`: from behind the correlation id up to the first offset."""

    __slots__ = (
        "_answer_bytes",
        "_answered",
        "_between",
        "_first_at",
        "_frame_bytes",
        "_pack",
        "_unpack",
        "prefix",
        "version",
    )

    def __init__(self, version: int, frame: bytes, offsets_at: list[int], answer: bytes) -> None:
        """`offsets_at`: where in the frame each offset stands, its leader epoch behind it; `answer`: when all is
        well."""
        self.version = version
        self._first_at = offsets_at[0]
        self._frame_bytes = len(frame)
        self.prefix = frame[PREFIX_AT : self._first_at]
        ends = [*offsets_at[1:], len(frame)]
        self._unpack = Struct(">" + "".join(f"qi{end - at - 12}s" for at, end in zip(offsets_at, ends))).unpack_from
        self._between = tuple(frame[at + 12 : end] for at, end in zip(offsets_at, ends))
        self._answered = answer[8:]
        self._answer_bytes = len(answer) - 4
        self._pack = Struct(f">ii{len(self._answered)}s").pack

    def match(self, buf: Buffer, pos: int, end: int) -> tuple[Any, ...] | None:
        """Offset, leader epoch and what follows, for each partition in turn; None: the frame at `pos` says something
        else.

        To be asked only of a frame of this version whose bytes from PREFIX_AT on are `prefix`.
        """
        if end - pos != self._frame_bytes:
            return None
        found = self._unpack(buf, pos + self._first_at)
        return found if found[2::3] == self._between else None

    def answer(self, correlation_id: int) -> bytes:
        """The whole frame that says that all was committed."""
        return self._pack(self._answer_bytes, correlation_id, self._answered)


def offset_commit_template(
    buf: Buffer, pos: int, end: int, version: int, request: m.OffsetCommitRequest, answer: bytes
) -> OffsetCommitTemplate | None:
    """The template of the frame at `pos`, decoded as `request`; None for one that says the same in a way of its own."""
    if version < OLDEST or end - pos > FRAME_BYTES_MAX:
        return None
    rows = [row for topic in request.topics for row in topic.partitions]
    if not rows or any(row.committed_metadata for row in rows):
        return None
    frame = bytes(buf[pos:end])
    body = API[ApiKey.OFFSET_COMMIT].request.encode(request, version)
    head = CLIENT_ID_AT + max(*_int16(frame, PREFIX_AT), 0)
    if version >= FLEXIBLE:
        body = b"\0" + body
    if frame[head:] != body:
        return None
    template = OffsetCommitTemplate(version, frame, _offsets_at(len(frame), version, request), answer)
    found = template.match(buf, pos, end)
    numbers = tuple(number for row in rows for number in (row.committed_offset, row.committed_leader_epoch))
    return template if found is not None and tuple(x for x in found if x.__class__ is int) == numbers else None


def _offsets_at(end: int, version: int, request: m.OffsetCommitRequest) -> list[int]:
    """Where each offset stands in a frame that ends at `end`: from there, since nothing but tags follows the topics."""
    tags = 1 if version >= FLEXIBLE else 0
    found = []
    at = end - tags
    for topic in reversed(request.topics):
        at -= tags
        for _ in topic.partitions:
            at -= ROW_BYTES
            found.append(at + OFFSET_IN_ROW)
        name = topic.name.encode()
        if version >= FLEXIBLE:
            at -= len(encode_uvarint(len(topic.partitions) + 1))
            at -= ID_BYTES if version >= BY_ID else len(encode_uvarint(len(name) + 1)) + len(name)
        else:
            at -= 4 + 2 + len(name)
    found.reverse()
    return found
