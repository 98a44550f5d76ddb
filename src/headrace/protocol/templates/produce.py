"""Produce requests that differ in nothing but their records.

A producer's connection sends one batch for one partition of the same topic over and over. What such a request says
besides is compared with the last one rather than read again, and its answer is packed in one stroke.
"""

from struct import Struct

from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.primitives import Buffer

OLDEST = 7
"""Before, it depended on the version which codecs a batch may have."""
FLEXIBLE, BY_ID = 9, 13
NAME_BYTES_MAX = 126
"""Of a name whose compact length is one byte."""

_INDEX_SIZE = Struct(">ii").unpack_from
_INDEX_COMPACT_SIZE = Struct(">iBBB").unpack_from
_EMPTY_TAGS = b"\0\0\0"  # of the partition, the topic and the message


class ProduceTemplate:
    """What requests of one kind have in common; `prefix` ends before the index of the partition."""

    __slots__ = (
        "_answer_bytes",
        "_answer_head",
        "_answer_tail",
        "_flexible",
        "_index_at",
        "_pack",
        "prefix",
        "version",
    )

    def __init__(self, version: int, prefix: bytes, topic: bytes) -> None:
        """`topic` is its name, or from v13 its id, as the answer repeats it."""
        self.version = version
        self.prefix = prefix
        self._flexible = version >= FLEXIBLE
        self._index_at = PREFIX_AT + len(prefix)
        # What follows the log start offset: record errors, error message, tags, throttle time.
        if self._flexible:
            length = b"" if version >= BY_ID else bytes([len(topic) + 1])
            head, tail = b"\0\2" + length + topic + b"\2", b"\1\0\0\0" + bytes(5)
        else:
            head = b"\0\0\0\1" + len(topic).to_bytes(2, "big") + topic + b"\0\0\0\1"
            tail = (b"\0\0\0\0\xff\xff" if version >= 8 else b"") + bytes(4)
        answer = Struct(f">ii{len(head)}sixxqqq{len(tail)}s")
        self._answer_bytes, self._pack = answer.size - 4, answer.pack
        self._answer_head, self._answer_tail = head, tail

    def match(self, buf: Buffer, pos: int, end: int) -> tuple[int, int, int] | None:
        """(partition's index, start of its records, their end) in the frame at `pos`; None: it says something else.

        To be asked only of a frame of this version whose bytes from PREFIX_AT on are `prefix`.
        """
        at = pos + self._index_at
        if end - at < 8:
            return None
        if not self._flexible:
            index, size = _INDEX_SIZE(buf, at)
            start = at + 8
            return (index, start, end) if start + size == end else None
        index, low, middle, high = _INDEX_COMPACT_SIZE(buf, at)
        if low < 128:
            start, size = at + 5, low
        elif middle < 128:
            start, size = at + 6, low & 127 | middle << 7
        elif high < 128:
            start, size = at + 7, low & 127 | (middle & 127) << 7 | high << 14
        else:
            return None
        stop = start + size - 1
        return (index, start, stop) if stop >= start and buf[stop:end] == _EMPTY_TAGS else None

    def answer(self, correlation_id: int, index: int, base_offset: int, append_time: int, log_start: int) -> bytes:
        """The whole frame that tells of one appended batch."""
        return self._pack(
            self._answer_bytes, correlation_id, self._answer_head, index, base_offset, append_time, log_start,
            self._answer_tail,
        )  # fmt: skip


def produce_template(
    buf: Buffer, pos: int, end: int, version: int, topic: str | bytes, partition: tuple[int, int, int]
) -> ProduceTemplate | None:
    """The template of the frame at `pos`, found to hold one batch for one partition, (index, start, end) as decoded.

    None for a frame that says the same in a way of its own.
    """
    name = topic.encode() if isinstance(topic, str) else topic
    if version < OLDEST or (version < BY_ID and len(name) > NAME_BYTES_MAX):
        return None
    _, start, stop = partition
    size = stop - start
    size_bytes = 4 if version < FLEXIBLE else ((size + 1).bit_length() + 6) // 7
    template = ProduceTemplate(version, bytes(buf[pos + PREFIX_AT : start - size_bytes - 4]), name)
    return template if size > 0 and template.match(buf, pos, end) == partition else None
