"""A follower's Fetch that differs from its last one only in how far it has come.

While one partition is busy, its followers ask for nothing but what comes next there: everything else that such a
request says is compared with the last one rather than read again. See `templates.produce` for the other half of an
acks=all.
"""

from struct import Struct

from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.hot_fetch import FetchQuery
from headrace.protocol.primitives import Buffer

OLDEST = 15
"""Before, the follower's id stood in front."""

# In the body: wait, least, most, isolation, session id | its epoch | one topic, its id, one partition, its index and
# leader epoch | offset, last epoch, log start | most for the partition, and all the rest.
_EPOCH_AT, _TOPICS_AT, _OFFSET_AT, _REST_AT = 17, 21, 47, 67
_EPOCH = Struct(">i").unpack_from
_PROGRESS = Struct(">qiq").unpack_from
_PLACE = Struct(">ii").pack

Progress = tuple[int, int, int, int]
"""(session epoch, fetch offset, last fetched epoch, log start offset)."""


class FollowerFetchTemplate:
    """What a follower's requests about one partition have in common; `prefix` is where they begin."""

    __slots__ = ("_frame_bytes", "_offset_at", "_partition", "_rest", "prefix", "version")

    def __init__(self, version: int, prefix: bytes, partition: bytes, rest: bytes) -> None:
        self.version = version
        self.prefix = prefix
        self._partition = partition
        self._rest = rest
        self._offset_at = PREFIX_AT + len(prefix) + 4 + len(partition)
        self._frame_bytes = self._offset_at + _REST_AT - _OFFSET_AT + len(rest)

    def match(self, buf: bytearray | bytes, pos: int, end: int) -> Progress | None:
        """What the frame at `pos` says anew; None: it says something else.

        To be asked only of a frame of this version whose bytes from PREFIX_AT on are `prefix`.
        """
        at = pos + self._offset_at
        partition = self._partition
        if (
            end - pos != self._frame_bytes
            or not buf.startswith(partition, at - len(partition))
            or not buf.startswith(self._rest, at + _REST_AT - _OFFSET_AT)
        ):
            return None
        return _EPOCH(buf, at - len(partition) - 4) + _PROGRESS(buf, at)


def follower_fetch_template(
    buf: Buffer, pos: int, body: int, end: int, version: int, query: FetchQuery
) -> FollowerFetchTemplate | None:
    """The template of the frame at `pos` whose body begins at `body` and was decoded to `query`; None: not of this
    kind."""
    if version < OLDEST or len(query.topics) != 1 or len(query.topics[0][1]) != 1 or end - body < _REST_AT:
        return None
    ((topic, ((index, leader_epoch, offset, last_epoch, log_start, *_),)),) = query.topics
    assert isinstance(topic, bytes)
    template = FollowerFetchTemplate(
        version,
        bytes(buf[pos + PREFIX_AT : body + _EPOCH_AT]),
        bytes(buf[body + _TOPICS_AT : body + _OFFSET_AT]),
        bytes(buf[body + _REST_AT : end]),
    )
    # The same can be said in more bytes, and then stands elsewhere.
    is_usual = buf[body + _TOPICS_AT : body + _OFFSET_AT] == b"\2" + topic + b"\2" + _PLACE(index, leader_epoch)
    found = template.match(bytes(buf[pos:end]), 0, end - pos)
    return template if is_usual and found == (query.session_epoch, offset, last_epoch, log_start) else None
