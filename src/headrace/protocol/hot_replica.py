"""A follower's Fetch by hand, versions 15 to 18, and the answer as the follower reads it: half of what an acks=all
costs.

Requests name partitions by topic id and carry no rack; what is rare in an answer (who leads now, a snapshot) is passed
over, since a follower hears of leaders from the metadata.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct

from headrace.protocol.primitives import (
    DECODE_FAULTS,
    Buffer,
    ProtocolError,
    decode_uvarint,
    long_uvarint,
    read_tags,
    uvarint,
)

FETCH_KEY = 1
VERSION_MIN, VERSION_MAX = 15, 18

# (partition, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes)
CopiedPartition = tuple[int, int, int, int, int, int]

# (topic id, partition, error code, high watermark, log start offset, records, diverging (epoch, end offset))
CopiedRow = tuple[bytes, int, int, int, int, "memoryview | None", "tuple[int, int] | None"]

_HEAD = Struct(">hhi").pack  # of the request: key, version, correlation id
_BODY = Struct(">iiibii").pack  # wait, least, most, isolation, session id, session epoch
_PARTITION = Struct(">iiqiqix").pack
_REPLICA_STATE = Struct(">BBBiqx").pack  # one tag: number 1 of 13 bytes
_LENGTH = Struct(">i").pack
_INDEX = Struct(">i").pack
_ANSWER = Struct(">ihi").unpack_from  # throttle time, error code, session id
_ROW = Struct(">ihqqq").unpack_from
_EPOCH_END = Struct(">iq").unpack_from
READ_UNCOMMITTED = 0
# Correlation id, tags; throttle time, error, session; one topic; one partition: error, offsets, aborted transactions,
# preferred replica, and the first bytes of the records' size.
_ONE_ANSWER = Struct(">4xBihiB16sBihqqqBiBBB")
_ONE, _ONE_BYTES = _ONE_ANSWER.unpack_from, _ONE_ANSWER.size
_EMPTY_TAGS = b"\0\0\0"  # of the partition, the topic and the message


def encode_follower_fetch(
    correlation_id: int,
    version: int,
    client_id: bytes,
    replica: tuple[int, int],
    limits: tuple[int, int, int],
    session: tuple[int, int],
    topics: Mapping[bytes, Sequence[CopiedPartition]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """A whole frame. `replica` is (id, broker epoch), `limits` (wait ms, bytes at least, at most), `session` (id,
    epoch)."""
    assert VERSION_MIN <= version <= VERSION_MAX, version
    if len(topics) == 1 and not forgotten:
        ((topic_id, partitions),) = topics.items()
        if len(partitions) == 1:
            size, pack = _one_partition(len(client_id))
            return pack(
                size, FETCH_KEY, version, correlation_id, client_id, *limits, READ_UNCOMMITTED, *session,
                2, topic_id, 2, *partitions[0], 1, 1, 1, 1, 13, *replica,
            )  # fmt: skip
    chunks = [
        _HEAD(FETCH_KEY, version, correlation_id), client_id, b"\0",
        _BODY(*limits, READ_UNCOMMITTED, *session), uvarint(len(topics) + 1),
    ]  # fmt: skip
    for topic_id, partitions in topics.items():
        chunks.append(topic_id)
        chunks.append(uvarint(len(partitions) + 1))
        chunks += [_PARTITION(*partition) for partition in partitions]
        chunks.append(b"\0")
    chunks.append(uvarint(len(forgotten) + 1))
    for topic_id, indexes in forgotten.items():
        chunks.append(topic_id)
        chunks.append(uvarint(len(indexes) + 1))
        chunks += [_INDEX(index) for index in indexes]
        chunks.append(b"\0")
    chunks.append(b"\1")  # no rack
    chunks.append(_REPLICA_STATE(1, 1, 13, *replica))
    body = b"".join(chunks)
    return _LENGTH(len(body)) + body


@cache
def _one_partition(client_id_bytes: int) -> tuple[int, Callable[..., bytes]]:
    """What follows the length of a request about one partition, and how to pack all of it: most are about one."""
    frame = Struct(f">ihhi{client_id_bytes}sxiiibiiB16sBiiqiqixxBBBBBiqx")
    return frame.size - 4, frame.pack


def encode_client_id(name: str) -> bytes:
    """As it stands in every request's header."""
    data = name.encode()
    return Struct(">h").pack(len(data)) + data


def decode_follower_answer(frame: bytes | bytearray, version: int) -> tuple[int, int, list[CopiedRow]]:
    """(error code, session id, rows) of an answer without its length prefix. Records are views of the frame."""
    try:
        return _answer_about_one(frame) or _answer(frame, version)
    except DECODE_FAULTS as e:
        raise ProtocolError(f"FetchResponse v{version}: {e}") from None


def _answer_about_one(frame: bytes | bytearray) -> tuple[int, int, list[CopiedRow]] | None:
    """One partition with up to two megabytes of records, which most answers are; None if this one is anything else."""
    end = len(frame)
    if end < _ONE_BYTES:
        return None
    tags, _, error_code, session_id, topics, topic_id, partitions, index, error, high_watermark, _, log_start, \
        aborted, _, low, middle, high = _ONE(frame)  # fmt: skip
    if tags or topics != 2 or partitions != 2 or aborted > 1 or low < 128:
        return None
    if middle < 128:
        start, size = _ONE_BYTES - 1, low & 127 | middle << 7
    elif high < 128:
        start, size = _ONE_BYTES, low & 127 | (middle & 127) << 7 | high << 14
    else:
        return None
    stop = start + size - 1
    if stop <= start or frame[stop:end] != _EMPTY_TAGS:
        return None
    return error_code, session_id, [
        (topic_id, index, error, high_watermark, log_start, memoryview(frame)[start:stop], None)
    ]  # fmt: skip


def _answer(frame: bytes | bytearray, version: int) -> tuple[int, int, list[CopiedRow]]:
    view, end, pos = memoryview(frame), len(frame), 4
    pos = _skip_tags(frame, pos, end)
    _, error_code, session_id = _ANSWER(frame, pos)
    topic_count, pos = decode_uvarint(frame, pos + 10, end)
    if not topic_count or (topic_count - 1) * 18 > end - pos:
        raise ProtocolError("FetchResponse: responses do not fit")
    rows: list[CopiedRow] = []
    for _ in range(topic_count - 1):
        topic_id = bytes(frame[pos : pos + 16])
        count, pos = decode_uvarint(frame, pos + 16, end)
        if not count or (count - 1) * 37 > end - pos:
            raise ProtocolError("FetchResponse: partitions do not fit")
        for _ in range(count - 1):
            index, error, high_watermark, _, log_start = _ROW(frame, pos)
            pos = _skip_aborted(frame, pos + 30, end) + 4  # and the preferred replica
            size = frame[pos]
            pos += 1
            if size > 127:
                size, pos = long_uvarint(frame, pos, size)
            records = None
            if size > 1:
                stop = pos + size - 1
                if stop > end:
                    raise ProtocolError("FetchResponse: records do not fit")
                records = view[pos:stop]
                pos = stop
            diverging = None
            if frame[pos]:
                diverging, pos = _row_tags(frame, pos, end)
            else:
                pos += 1
            rows.append((topic_id, index, error, high_watermark, log_start, records, diverging))
        pos = _skip_tags(frame, pos, end)
    if _skip_tags(frame, pos, end) != end:
        raise ProtocolError("FetchResponse does not end where it should")
    return error_code, session_id, rows


def _skip_tags(frame: Buffer, pos: int, end: int) -> int:
    count = frame[pos]
    if not count:
        return pos + 1
    _, pos = read_tags(frame, pos + 1, end, count)
    return pos


def _skip_aborted(frame: Buffer, pos: int, end: int) -> int:
    """Over the aborted transactions, which nobody tells a follower."""
    count = frame[pos]
    if count <= 1:
        return pos + 1
    count, pos = decode_uvarint(frame, pos, end)
    if (count - 1) * 17 > end - pos:
        raise ProtocolError("FetchResponse: aborted_transactions do not fit")
    for _ in range(count - 1):
        pos = _skip_tags(frame, pos + 16, end)
    return pos


def _row_tags(frame: Buffer, pos: int, end: int) -> tuple[tuple[int, int] | None, int]:
    tags, pos = read_tags(frame, pos + 1, end, frame[pos])
    found = (tags or {}).get(0)
    if found is None:
        return None, pos
    if len(found) < 13:
        raise ProtocolError("FetchResponse: diverging_epoch is too short")
    epoch, end_offset = _EPOCH_END(found)
    return (epoch, end_offset), pos
