"""Fetch by hand, versions 4 to 18: requests into flat tuples, answers as the bytes that go around the records.

v5: log start offset. v7: sessions. v9: leader epoch. v11: rack, preferred replica. v12: flexible, last fetched epoch.
v13: topic ids. v15: replica state. v16: leader hints' endpoints. v17: directory ids. v18: the follower's high
watermark.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import msgspec

from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import encode_response
from headrace.protocol.hot_common import Endpoint, LeaderHint, encode_topic
from headrace.protocol.primitives import (
    DECODE_FAULTS,
    Buffer,
    ProtocolError,
    UnsupportedVersion,
    decode_uvarint,
    long_uvarint,
    read_tags,
    string_length,
    uvarint,
)
from headrace.protocol.schema import ZERO_UUID

INT64_MAX = 0x7FFFFFFFFFFFFFFF
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels."""

# (partition, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes,
#  directory id, high watermark)
FetchPartition = tuple[int, int, int, int, int, int, bytes, int]
# (topic's name, or its id from v13, partitions)
FetchTopic = tuple[str | bytes, list[FetchPartition]]


class FetchQuery(msgspec.Struct, gc=False):
    """A Fetch request of any version."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[tuple[str | bytes, list[int]]]
    rack_id: str = ""
    replica_epoch: int = -1
    cluster_id: str | None = None


_INT16 = Struct(">h").unpack_from
_INT32 = Struct(">i").unpack_from
_INT64 = Struct(">q").unpack_from
_HEAD_V4 = Struct(">iiiibi").unpack_from
_HEAD_V7 = Struct(">iiiibiii").unpack_from
_HEAD_V12 = Struct(">iiiibiiB").unpack_from
_HEAD_V15 = Struct(">iiibiiB").unpack_from
_PARTITION_V4 = Struct(">iqi").unpack_from
_PARTITION_V5 = Struct(">iqqi").unpack_from
_PARTITION_V9 = Struct(">iiqqi").unpack_from
_PARTITION_V12 = Struct(">iiqiqi").unpack_from
_REPLICA_STATE = Struct(">iq").unpack_from
_NO_TAGS = (ZERO_UUID, INT64_MAX)


def decode_fetch(buf: Buffer, pos: int, end: int, version: int) -> FetchQuery:
    """The Fetch request, v4 to v18, whose body is buf[pos:end]; `end` must lie inside `buf`."""
    try:
        if version >= 12:
            if version > 18:
                raise UnsupportedVersion(f"FetchRequest has no version {version}")
            return _fetch_compact(buf, pos, end, version)
        if version < 4:
            raise UnsupportedVersion(f"FetchRequest has no version {version}")
        return _fetch_plain(buf, pos, end, version)
    except DECODE_FAULTS as e:
        raise ProtocolError(f"FetchRequest v{version}: {e}") from None


def _fetch_plain(buf: Buffer, pos: int, end: int, version: int) -> FetchQuery:
    if version >= 7:
        replica_id, wait, least, most, isolation, session, epoch, topic_count = _HEAD_V7(buf, pos)
        pos += 29
    else:
        replica_id, wait, least, most, isolation, topic_count = _HEAD_V4(buf, pos)
        pos += 21
        session, epoch = 0, -1
    if topic_count < 0 or topic_count * 6 > end - pos:
        raise ProtocolError("FetchRequest: topics do not fit")
    topics: list[FetchTopic] = []
    for _ in range(topic_count):
        topic, pos = _plain_string(buf, pos, end)
        (count,) = _INT32(buf, pos)
        pos += 4
        if count < 0 or count * 16 > end - pos:
            raise ProtocolError("FetchRequest: partitions do not fit")
        partitions: list[FetchPartition] = []
        for _ in range(count):
            if version >= 9:
                partition, leader_epoch, offset, log_start, size = _PARTITION_V9(buf, pos)
                pos += 28
                partitions.append((partition, leader_epoch, offset, -1, log_start, size, ZERO_UUID, INT64_MAX))
            elif version >= 5:
                partition, offset, log_start, size = _PARTITION_V5(buf, pos)
                pos += 24
                partitions.append((partition, -1, offset, -1, log_start, size, ZERO_UUID, INT64_MAX))
            else:
                partition, offset, size = _PARTITION_V4(buf, pos)
                pos += 16
                partitions.append((partition, -1, offset, -1, -1, size, ZERO_UUID, INT64_MAX))
        topics.append((topic, partitions))
    forgotten: list[tuple[str | bytes, list[int]]] = []
    if version >= 7:
        (count,) = _INT32(buf, pos)
        pos += 4
        if count < 0 or count * 6 > end - pos:
            raise ProtocolError("FetchRequest: forgotten_topics_data does not fit")
        for _ in range(count):
            topic, pos = _plain_string(buf, pos, end)
            (size,) = _INT32(buf, pos)
            pos += 4
            indexes, pos = _int32s(buf, pos, end, size)
            forgotten.append((topic, indexes))
    rack = ""
    if version >= 11:
        rack, pos = _plain_string(buf, pos, end)
    if pos != end:
        raise ProtocolError("FetchRequest does not end where it should")
    return FetchQuery(replica_id, wait, least, most, isolation, session, epoch, topics, forgotten, rack)


def _plain_string(buf: Buffer, pos: int, end: int) -> tuple[str, int]:
    (length,) = _INT16(buf, pos)
    start = pos + 2
    pos = start + length
    if length < 0 or pos > end:
        raise ProtocolError("FetchRequest: a string does not fit")
    return str(buf[start:pos], "utf-8", "replace"), pos


def _int32s(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[int], int]:
    if count < 0 or count * 4 > end - pos:
        raise ProtocolError("FetchRequest: partitions do not fit")
    return list(Struct(f">{count}i").unpack_from(buf, pos)), pos + count * 4


def _fetch_compact(buf: Buffer, pos: int, end: int, version: int) -> FetchQuery:
    if version >= 15:
        wait, least, most, isolation, session, epoch, topic_count = _HEAD_V15(buf, pos)
        pos += 22
        replica_id = -1
    else:
        replica_id, wait, least, most, isolation, session, epoch, topic_count = _HEAD_V12(buf, pos)
        pos += 26
    if topic_count > 127:
        topic_count, pos = long_uvarint(buf, pos, topic_count)
    if not topic_count or (topic_count - 1) * 3 > end - pos:
        raise ProtocolError("FetchRequest: topics do not fit")
    topics: list[FetchTopic] = []
    topic: str | bytes
    for _ in range(topic_count - 1):
        if version >= 13:
            start = pos
            pos += 16
            topic = bytes(buf[start:pos])
        else:
            topic, pos = _compact_string(buf, pos, end)
        count = buf[pos]
        pos += 1
        if count > 127:
            count, pos = long_uvarint(buf, pos, count)
        if not count or (count - 1) * 33 > end - pos:
            raise ProtocolError("FetchRequest: partitions do not fit")
        partitions: list[FetchPartition] = []
        for _ in range(count - 1):
            fixed = _PARTITION_V12(buf, pos)
            tags = buf[pos + 32]
            pos += 33
            if tags:
                more, pos = _partition_tags(buf, pos, end, version, tags)
                partitions.append(fixed + more)
            else:
                partitions.append(fixed + _NO_TAGS)
        if buf[pos]:
            _, pos = read_tags(buf, pos + 1, end, buf[pos])
        else:
            pos += 1
        topics.append((topic, partitions))
    if buf[pos] == 1:
        pos += 1
        forgotten: list[tuple[str | bytes, list[int]]] = []
    else:
        forgotten, pos = _forgotten_topics(buf, pos, end, version)
    rack, pos = _compact_string(buf, pos, end)
    tags = buf[pos]
    pos += 1
    query = FetchQuery(replica_id, wait, least, most, isolation, session, epoch, topics, forgotten, rack)
    if tags:
        pos = _message_tags(buf, pos, end, version, tags, query)
    if pos != end:
        raise ProtocolError("FetchRequest does not end where it should")
    return query


def _compact_string(buf: Buffer, pos: int, end: int) -> tuple[str, int]:
    length = buf[pos]
    pos += 1
    if length == 1:
        return "", pos
    if length > 127:
        length, pos = string_length(buf, pos, length)
    start = pos
    pos += length - 1
    if not length or pos > end:
        raise ProtocolError("FetchRequest: a string does not fit")
    return str(buf[start:pos], "utf-8", "replace"), pos


def _forgotten_topics(buf: Buffer, pos: int, end: int, version: int) -> tuple[list[tuple[str | bytes, list[int]]], int]:
    count, pos = decode_uvarint(buf, pos, end)
    if not count or (count - 1) * 3 > end - pos:
        raise ProtocolError("FetchRequest: forgotten_topics_data does not fit")
    forgotten: list[tuple[str | bytes, list[int]]] = []
    topic: str | bytes
    for _ in range(count - 1):
        if version >= 13:
            topic = bytes(buf[pos : pos + 16])
            pos += 16
        else:
            topic, pos = _compact_string(buf, pos, end)
        size, pos = decode_uvarint(buf, pos, end)
        indexes, pos = _int32s(buf, pos, end, size - 1)
        if buf[pos]:
            _, pos = read_tags(buf, pos + 1, end, buf[pos])
        else:
            pos += 1
        forgotten.append((topic, indexes))
    return forgotten, pos


def _tag_list(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[tuple[int, int, int]], int]:
    """(tag, start, end) of each tagged field, and where the section ends."""
    if count > 127:
        count, pos = long_uvarint(buf, pos, count)
    if count * 2 > end - pos:
        raise ProtocolError("FetchRequest: tagged fields do not fit")
    tags: list[tuple[int, int, int]] = []
    for _ in range(count):
        tag, pos = decode_uvarint(buf, pos, end)
        size, pos = decode_uvarint(buf, pos, end)
        if size > end - pos:
            raise ProtocolError("FetchRequest: a tagged field runs past the end")
        tags.append((tag, pos, pos + size))
        pos += size
    return tags, pos


def _partition_tags(buf: Buffer, pos: int, end: int, version: int, count: int) -> tuple[tuple[bytes, int], int]:
    directory_id, high_watermark = _NO_TAGS
    tags, pos = _tag_list(buf, pos, end, count)
    for tag, start, stop in tags:
        if tag == 0 and version >= 17:
            if stop - start != 16:
                raise ProtocolError("FetchRequest: replica_directory_id is not as long as its tag says")
            directory_id = bytes(buf[start:stop])
        elif tag == 1 and version >= 18:
            if stop - start != 8:
                raise ProtocolError("FetchRequest: high_watermark is not as long as its tag says")
            (high_watermark,) = _INT64(buf, start)
    return (directory_id, high_watermark), pos


def _message_tags(buf: Buffer, pos: int, end: int, version: int, count: int, query: FetchQuery) -> int:
    """Set what the message's own tags say; returns where they end."""
    if count == 1 and version >= 15 and end - pos == 15 and buf[pos] == 1 and buf[pos + 1] == 13 and not buf[pos + 14]:
        # Only who the follower is, as all of them send it.
        query.replica_id, query.replica_epoch = _REPLICA_STATE(buf, pos + 2)
        return end
    tags, pos = _tag_list(buf, pos, end, count)
    for tag, start, stop in tags:
        if tag == 0:
            if buf[start] == 0:
                query.cluster_id, start = None, start + 1
            else:
                query.cluster_id, start = _compact_string(buf, start, stop)
            if start != stop:
                raise ProtocolError("FetchRequest: cluster_id is not as long as its tag says")
        elif tag == 1 and version >= 15:
            query.replica_id, query.replica_epoch = _REPLICA_STATE(buf, start)
            start += 13
            if buf[start - 1]:
                _, start = read_tags(buf, start, stop, buf[start - 1])
            if start != stop:
                raise ProtocolError("FetchRequest: replica_state is not as long as its tag says")
    return pos


class FetchDetail(msgspec.Struct, frozen=True, gc=False):
    """What a partition's answer rarely carries; (epoch, end offset) and (end offset, epoch) as the names say."""

    leader: LeaderHint | None = None
    diverging_epoch_and_end_offset: tuple[int, int] | None = None
    snapshot_end_offset_and_epoch: tuple[int, int] | None = None


# (index, error code, high watermark, last stable offset, log start offset, bytes of records or -1 for null,
#  aborted transactions as (producer id, first offset) or None, preferred read replica, detail)
FetchResult = tuple[int, int, int, int, int, int, Sequence[tuple[int, int]] | None, int, FetchDetail | None]
FetchResults = Sequence[tuple[str | bytes, Sequence[FetchResult]]]

# Frame length, correlation id, header's tags, throttle time, error code, session id, topic count.
_ONE_HEAD_V12 = Struct(">iixihiB")
_ONE_HEAD_V11 = Struct(">iiihiih")
# Partition count, index, error code, three offsets, aborted transactions, preferred replica[, records].
_ONE_TAIL_V12 = Struct(">BihqqqBi")
_ONE_TAIL_V11 = Struct(">iihqqqiii")
_one_head_v12, _one_tail_v12 = _ONE_HEAD_V12.pack, _ONE_TAIL_V12.pack
_one_head_v11, _one_tail_v11 = _ONE_HEAD_V11.pack, _ONE_TAIL_V11.pack
# Three empty tag sections end a flexible answer: the partition's, the topic's, the message's.
_ONE_BYTES_V12 = _ONE_HEAD_V12.size + _ONE_TAIL_V12.size - 4 + 3
_ONE_BYTES_V11 = _ONE_HEAD_V11.size + _ONE_TAIL_V11.size - 4
_FLEXIBLE_END = b"\0\0\0"


def encode_fetch_response_head(
    correlation_id: int,
    version: int,
    topics: FetchResults,
    error_code: int = 0,
    session_id: int = 0,
    throttle_time_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> list[bytes]:
    """All of a Fetch answer's frame but the records: [before the first slice, between, ..., after the last].

    A slice belongs to each partition with more than 0 bytes of records, in order; an answer without records is
    one piece, and one whose last bytes are records ends with a piece that may be empty.
    """
    if len(topics) == 1 and version >= 11 and not endpoints:
        ((topic, partitions),) = topics
        if len(partitions) == 1:
            ((index, error, hw, lso, log_start, size, aborted, preferred, detail),) = partitions
            if detail is None and not aborted:
                if version >= 12:
                    name: bytes = topic if version >= 13 else encode_topic(topic, True, False)  # type: ignore[assignment]
                    records = uvarint(size + 1)
                    total = _ONE_BYTES_V12 + len(name) + len(records) + (size if size > 0 else 0)
                    head = (
                        _one_head_v12(total, correlation_id, throttle_time_ms, error_code, session_id, 2)
                        + name
                        + _one_tail_v12(2, index, error, hw, lso, log_start, aborted is not None, preferred)
                        + records
                    )
                    return [head, _FLEXIBLE_END] if size > 0 else [head + _FLEXIBLE_END]
                name = topic.encode()  # type: ignore[union-attr]
                total = _ONE_BYTES_V11 + len(name) + (size if size > 0 else 0)
                none = -1 if aborted is None else 0
                head = (
                    _one_head_v11(total, correlation_id, throttle_time_ms, error_code, session_id, 1, len(name))
                    + name
                    + _one_tail_v11(1, index, error, hw, lso, log_start, none, preferred, size)
                )
                return [head, b""] if size > 0 else [head]
    if endpoints or any(partition[8] is not None for _, partitions in topics for partition in partitions):
        return _rare_fetch_response(
            correlation_id, version, topics, error_code, session_id, throttle_time_ms, endpoints
        )
    return _many_fetch_response(correlation_id, version, topics, error_code, session_id, throttle_time_ms)


_PACK_INT32 = Struct(">i").pack
_PACK_MANY_HEAD_V7 = Struct(">ihi").pack
_PACK_PARTITION_V4 = Struct(">ihqqi").pack
_PACK_PARTITION_V5 = Struct(">ihqqqi").pack
_PACK_PARTITION_V12 = Struct(">ihqqq").pack
_PACK_PREFERRED = Struct(">ii").pack
_PACK_ABORTED = Struct(">qq").pack
_PACK_ABORTED_V12 = Struct(">qqx").pack


def _many_fetch_response(
    correlation_id: int, version: int, topics: FetchResults, error: int, session: int, throttle_time_ms: int
) -> list[bytes]:
    flexible = version >= 12
    pieces: list[bytes] = []
    chunks: list[bytes] = [_PACK_INT32(correlation_id)]
    write = chunks.append
    if flexible:
        write(b"\0")
    write(_PACK_MANY_HEAD_V7(throttle_time_ms, error, session) if version >= 7 else _PACK_INT32(throttle_time_ms))
    write(uvarint(len(topics) + 1) if flexible else _PACK_INT32(len(topics)))
    total = 0
    for topic, partitions in topics:
        write(encode_topic(topic, flexible, version >= 13))
        write(uvarint(len(partitions) + 1) if flexible else _PACK_INT32(len(partitions)))
        for result in partitions:
            write((_partition_v12 if flexible else _partition_plain)(result, version))
            size = result[5]
            if size > 0:
                pieces.append(b"".join(chunks))
                chunks.clear()
                total += size
            if flexible:
                write(b"\0")
        if flexible:
            write(b"\0")
    if flexible:
        write(b"\0")
    pieces.append(b"".join(chunks))
    pieces[0] = _PACK_INT32(total + sum(map(len, pieces))) + pieces[0]
    return pieces


def _partition_v12(result: FetchResult, version: int) -> bytes:
    index, error, hw, lso, log_start, size, aborted, preferred, _ = result
    head = _PACK_PARTITION_V12(index, error, hw, lso, log_start)
    if aborted:
        pairs = b"".join([_PACK_ABORTED_V12(*pair) for pair in aborted])
        return head + uvarint(len(aborted) + 1) + pairs + _PACK_INT32(preferred) + uvarint(size + 1)
    return head + (b"\0" if aborted is None else b"\1") + _PACK_INT32(preferred) + uvarint(size + 1)


def _partition_plain(result: FetchResult, version: int) -> bytes:
    index, error, hw, lso, log_start, size, aborted, preferred, _ = result
    count = -1 if aborted is None else len(aborted)
    if version >= 5:
        head = _PACK_PARTITION_V5(index, error, hw, lso, log_start, count)
    else:
        head = _PACK_PARTITION_V4(index, error, hw, lso, count)
    if aborted:
        head += b"".join([_PACK_ABORTED(*pair) for pair in aborted])
    return head + (_PACK_PREFERRED(preferred, size) if version >= 11 else _PACK_INT32(size))


class _Slot:
    """Stands for records in the compiled encoder, which asks only how long they are."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def _rare_fetch_response(
    correlation_id: int,
    version: int,
    topics: FetchResults,
    error: int,
    session: int,
    throttle_time_ms: int,
    endpoints: Sequence[Endpoint],
) -> list[bytes]:
    R = m.FetchResponse
    response = R(throttle_time_ms, error, session)
    if version >= 16:
        response.node_endpoints = [R.NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in endpoints]
    for topic, results in topics:
        answer = R.FetchableTopicResponse()
        if isinstance(topic, str):
            answer.topic = topic
        else:
            answer.topic_id = topic
        answer.partitions = [_rare_partition(result, version) for result in results]
        response.responses.append(answer)
    pieces: list[bytes] = []
    chunks: list[Any] = []
    for chunk in encode_response(API[ApiKey.FETCH], version, correlation_id, response):
        if type(chunk) is not _Slot:
            chunks.append(chunk)
        elif chunk.size:
            pieces.append(b"".join(chunks))
            chunks.clear()
    pieces.append(b"".join(chunks))
    return pieces


def _rare_partition(result: FetchResult, version: int) -> m.FetchResponse.PartitionData:
    R = m.FetchResponse
    index, error, hw, lso, log_start, size, aborted, preferred, detail = result
    partition = R.PartitionData(index, error, hw, lso, log_start)
    if aborted is not None:
        partition.aborted_transactions = [R.AbortedTransaction(*pair) for pair in aborted]
    else:
        partition.aborted_transactions = None
    if version >= 11:
        partition.preferred_read_replica = preferred
    slot: Any = None if size < 0 else _Slot(size)
    partition.records = slot
    if detail is not None and version >= 12:
        if detail.leader is not None:
            partition.current_leader = R.LeaderIdAndEpoch(detail.leader.leader_id, detail.leader.leader_epoch)
        if detail.diverging_epoch_and_end_offset is not None:
            partition.diverging_epoch = R.EpochEndOffset(*detail.diverging_epoch_and_end_offset)
        if detail.snapshot_end_offset_and_epoch is not None:
            partition.snapshot_id = R.SnapshotId(*detail.snapshot_end_offset_and_epoch)
    return partition
