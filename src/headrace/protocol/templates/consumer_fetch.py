"""A consumer's Fetch that differs from its last one only in how far it has come.

Who reads one partition of a broker says the same each time but for the offset, and the epoch if there is a session. The
rest is compared with the last request rather than read again, and the head of an answer with records is packed in one
stroke.
"""

from struct import Struct

from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.hot_common import encode_topic
from headrace.protocol.hot_fetch import READ_COMMITTED, FetchQuery
from headrace.protocol.primitives import Buffer, uvarint
from headrace.protocol.templates.produce import NAME_BYTES_MAX

OLDEST = 11
"""Before, only leaders were read from."""
FLEXIBLE, BY_ID, WITHOUT_REPLICA = 12, 13, 15

_EPOCH_AT = 17
"""In the body of v15: wait, least, most, isolation and session id stand before. Older ones begin with a replica's
id."""
_EPOCH = Struct(">i").unpack_from
_OFFSET = Struct(">q").unpack_from
_PLACE = Struct(">ii").pack
_SIZE = Struct(">i").pack
_RESULT = Struct(">xxxxxxi").pack  # no throttling, no error, the session's id
_RECORDS = Struct(">ii").pack
_FLEXIBLE_RECORDS = Struct(">Bi").pack


class ConsumerFetchTemplate:
    """What a consumer's requests for one partition have in common; `prefix` is where they begin, up to the session's
    epoch."""

    __slots__ = (
        "_answer_bytes", "_answer_head", "_answer_tail", "_flexible", "_frame_bytes", "_offset_at", "_pack",
        "_partition",
        "_rest", "prefix", "tail", "version",
    )  # fmt: skip

    def __init__(
        self, version: int, prefix: bytes, partition: bytes, rest: bytes, session_id: int, topic: bytes, index: int,
        is_committed: bool,
    ) -> None:  # fmt: skip
        """`partition` and `rest` are what stands before and behind the offset; `topic` is as an answer repeats it.

        `is_committed`: answers say which transactions were aborted, if only that none were.
        """
        self.version = version
        self.prefix = prefix
        self._partition = partition
        self._rest = rest
        self._offset_at = PREFIX_AT + len(prefix) + 4 + len(partition)
        self._frame_bytes = self._offset_at + 8 + len(rest)
        self._flexible = version >= FLEXIBLE
        # Neither a correlation id nor offsets: throttle time, error, session, topic, partition; then what precedes
        # records.
        if self._flexible:
            self._answer_head = b"\0" + _RESULT(session_id) + b"\2" + topic + b"\2" + _PLACE(index, 0)[:6]
            self._answer_tail = _FLEXIBLE_RECORDS(is_committed, -1)
            self.tail = b"\0\0\0"  # tags of the partition, the topic and the message
        else:
            self._answer_head = _RESULT(session_id) + _SIZE(1) + topic + _SIZE(1) + _PLACE(index, 0)[:6]
            self._answer_tail = _RECORDS(0 if is_committed else -1, -1)
            self.tail = b""
        answer = Struct(f">ii{len(self._answer_head)}sqqq{len(self._answer_tail)}s")
        self._answer_bytes, self._pack = answer.size - 4 + len(self.tail), answer.pack

    def match(self, buf: bytearray | bytes, pos: int, end: int) -> tuple[int, int] | None:
        """(session epoch, fetch offset) of the frame at `pos`; None: it says something else.

        To be asked only of a frame of this version whose bytes from PREFIX_AT on are `prefix`.
        """
        at = pos + self._offset_at
        partition = self._partition
        if (
            end - pos != self._frame_bytes
            or not buf.startswith(partition, at - len(partition))
            or not buf.startswith(self._rest, at + 8)
        ):
            return None
        return _EPOCH(buf, at - len(partition) - 4) + _OFFSET(buf, at)

    def head(self, correlation_id: int, high_watermark: int, stable: int, log_start: int, records_bytes: int) -> bytes:
        """All of an answer that stands before so many bytes of records; behind them follows `tail`."""
        records = uvarint(records_bytes + 1) if self._flexible else _SIZE(records_bytes)
        return (
            self._pack(
                self._answer_bytes + len(records) + records_bytes, correlation_id, self._answer_head,
                high_watermark, stable, log_start, self._answer_tail,
            )
            + records
        )  # fmt: skip


def consumer_fetch_template(
    buf: Buffer, pos: int, body: int, end: int, version: int, query: FetchQuery
) -> ConsumerFetchTemplate | None:
    """The template of the frame at `pos` whose body begins at `body` and was decoded to `query`; None: not of this
    kind."""
    if version < OLDEST or len(query.topics) != 1 or len(query.topics[0][1]) != 1 or query.forgotten:
        return None
    ((topic, ((index, leader_epoch, offset, *_),)),) = query.topics
    if isinstance(topic, str) and len(topic.encode()) > NAME_BYTES_MAX:
        return None
    name = encode_topic(topic, version >= FLEXIBLE, version >= BY_ID)
    one = b"\2" if version >= FLEXIBLE else _SIZE(1)
    partition = one + name + one + _PLACE(index, leader_epoch)
    epoch_at = body + _EPOCH_AT + (4 if version < WITHOUT_REPLICA else 0)
    offset_at = epoch_at + 4 + len(partition)
    prefix, rest = bytes(buf[pos + PREFIX_AT : epoch_at]), bytes(buf[offset_at + 8 : end])
    template = ConsumerFetchTemplate(
        version, prefix, partition, rest, query.session_id, name, index, query.isolation_level == READ_COMMITTED
    )
    # The same can be said in more bytes, and then stands elsewhere.
    found = template.match(bytes(buf[pos:end]), 0, end - pos)
    return template if found == (query.session_epoch, offset) else None
