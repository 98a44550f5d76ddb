"""Produce by hand, versions 3 to 13: positions of records, never copies, and answers packed in two strokes.

v5: log start offset. v8: record errors and an error message. v9: flexible. v10: leader hints. v13: topic ids.
"""

from collections.abc import Callable, Sequence
from struct import Struct

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
    long_uvarint,
    read_tags,
    string_length,
    uvarint,
)

_INT16 = Struct(">h").unpack_from
_INT32 = Struct(">i").unpack_from
_PRODUCE_HEAD = Struct(">hhii").unpack_from  # transactional id's length, acks, timeout, topics
_ACKS_TIMEOUT_TOPICS = Struct(">hii").unpack_from
_ACKS_TIMEOUT = Struct(">hi").unpack_from
_INDEX_SIZE = Struct(">ii").unpack_from

# (partition index, start of the records, their end), both -1 where they are null.
ProducePartition = tuple[int, int, int]
# (topic's name, or its id from v13, partitions)
ProduceTopic = tuple[str | bytes, list[ProducePartition]]
# (transactional id, acks, timeout_ms, topics)
ProduceQuery = tuple[str | None, int, int, list[ProduceTopic]]


def decode_produce(buf: Buffer, pos: int, end: int, version: int, rows_max: int = 1 << 31) -> ProduceQuery:
    """The Produce request, v3 to v13, whose body is buf[pos:end]; `end` must lie inside `buf`.

    With more than `rows_max` topics or partitions it is refused before they are read.
    """
    try:
        if version < 9:
            if version < 3:
                raise UnsupportedVersion(f"ProduceRequest has no version {version}")
            return _produce_plain(buf, pos, end, rows_max)
        if version > 13:
            raise UnsupportedVersion(f"ProduceRequest has no version {version}")
        return _produce_compact(buf, pos, end, version >= 13, rows_max)
    except DECODE_FAULTS as e:
        raise ProtocolError(f"ProduceRequest v{version}: {e}") from None


def _produce_plain(buf: Buffer, pos: int, end: int, rows_max: int) -> ProduceQuery:
    # Nearly all producers have no transactional id, so what follows its length is read along with it.
    length, acks, timeout_ms, topic_count = _PRODUCE_HEAD(buf, pos)
    transactional_id = None
    if length < 0:
        pos += 12
    else:
        start = pos + 2
        pos = start + length
        if pos > end:
            raise ProtocolError("ProduceRequest: transactional_id runs past the end")
        transactional_id = str(buf[start:pos], "utf-8", "replace")
        acks, timeout_ms, topic_count = _ACKS_TIMEOUT_TOPICS(buf, pos)
        pos += 10
    if topic_count < 0 or topic_count * 6 > end - pos or topic_count > rows_max:
        raise ProtocolError("ProduceRequest: topic_data does not fit")
    topics: list[ProduceTopic] = []
    for _ in range(topic_count):
        (length,) = _INT16(buf, pos)
        start = pos + 2
        pos = start + length
        if length < 0 or pos > end:
            raise ProtocolError("ProduceRequest: name does not fit")
        name = str(buf[start:pos], "utf-8", "replace")
        (count,) = _INT32(buf, pos)
        pos += 4
        rows_max -= count
        if count < 0 or count * 8 > end - pos or rows_max < 0:
            raise ProtocolError("ProduceRequest: partition_data does not fit")
        partitions: list[ProducePartition] = []
        for _ in range(count):
            index, size = _INDEX_SIZE(buf, pos)
            pos += 8
            if size < 0:
                partitions.append((index, -1, -1))
            else:
                start = pos
                pos += size
                if pos > end:
                    raise ProtocolError("ProduceRequest: records run past the end")
                partitions.append((index, start, pos))
        topics.append((name, partitions))
    if pos != end:
        raise ProtocolError("ProduceRequest does not end where it should")
    return transactional_id, acks, timeout_ms, topics


def _produce_compact(buf: Buffer, pos: int, end: int, by_id: bool, rows_max: int) -> ProduceQuery:
    transactional_id = None
    length = buf[pos]
    pos += 1
    if length:
        if length > 127:
            length, pos = string_length(buf, pos, length)
        start = pos
        pos += length - 1
        if pos > end:
            raise ProtocolError("ProduceRequest: transactional_id runs past the end")
        transactional_id = str(buf[start:pos], "utf-8", "replace")
    acks, timeout_ms = _ACKS_TIMEOUT(buf, pos)
    topic_count = buf[pos + 6]
    pos += 7
    if topic_count > 127:
        topic_count, pos = long_uvarint(buf, pos, topic_count)
    if not topic_count or (topic_count - 1) * 3 > end - pos or topic_count > rows_max:
        raise ProtocolError("ProduceRequest: topic_data does not fit")
    topics: list[ProduceTopic] = []
    topic: str | bytes
    for _ in range(topic_count - 1):
        if by_id:
            start = pos
            pos += 16
            topic = bytes(buf[start:pos])
        else:
            length = buf[pos]
            pos += 1
            if length > 127:
                length, pos = string_length(buf, pos, length)
            start = pos
            pos += length - 1
            if not length or pos > end:
                raise ProtocolError("ProduceRequest: name does not fit")
            topic = str(buf[start:pos], "utf-8", "replace")
        count = buf[pos]
        pos += 1
        if count > 127:
            count, pos = long_uvarint(buf, pos, count)
        rows_max -= count
        if not count or (count - 1) * 6 > end - pos or rows_max < 0:
            raise ProtocolError("ProduceRequest: partition_data does not fit")
        partitions: list[ProducePartition] = []
        for _ in range(count - 1):
            (index,) = _INT32(buf, pos)
            size = buf[pos + 4]
            pos += 5
            if size > 127:
                size, pos = long_uvarint(buf, pos, size)
            if size:
                start = pos
                pos += size - 1
                if pos > end:
                    raise ProtocolError("ProduceRequest: records run past the end")
                partitions.append((index, start, pos))
            else:
                partitions.append((index, -1, -1))
            if buf[pos]:
                _, pos = read_tags(buf, pos + 1, end, buf[pos])
            else:
                pos += 1
        if buf[pos]:
            _, pos = read_tags(buf, pos + 1, end, buf[pos])
        else:
            pos += 1
        topics.append((topic, partitions))
    if buf[pos]:
        _, pos = read_tags(buf, pos + 1, end, buf[pos])
    else:
        pos += 1
    if pos != end:
        raise ProtocolError("ProduceRequest does not end where it should")
    return transactional_id, acks, timeout_ms, topics


class ProduceDetail(msgspec.Struct, frozen=True):
    """What a partition's answer rarely carries."""

    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    leader: LeaderHint | None = None


# (index, error code, base offset, log append time, log start offset, detail)
ProduceResult = tuple[int, int, int, int, int, ProduceDetail | None]
ProduceResults = Sequence[tuple[str | bytes, Sequence[ProduceResult]]]


Pack = Callable[..., bytes]


def _one_partition(before: str, after: str) -> tuple[Pack, Pack, int]:
    """Packers for all that stands before and after the topic of an answer about one partition, and their size."""
    head, tail = Struct(before), Struct(after)
    return head.pack, tail.pack, head.size + tail.size - 4


# Frame length, correlation id, topic count, name's length | partition count, partition, throttle time.
_V3, _V5, _V8 = (
    _one_partition(">iiih", ">iihqqi"),
    _one_partition(">iiih", ">iihqqqi"),
    _one_partition(">iiih", ">iihqqqihi"),
)
# As above with the header's tags, compact counts, and the empty tags of partition, topic and message.
_V9 = _one_partition(">iixBB", ">BihqqqBxxxix")
_V13 = _one_partition(">iixB", ">BihqqqBxxxix")

_PARTITION_V3 = Struct(">ihqq").pack
_PARTITION_V5 = Struct(">ihqqq").pack
_PARTITION_V8 = Struct(">ihqqqih").pack
_PARTITION_V9 = Struct(">ihqqqBxx").pack  # no record errors, no message, no tags
_PACK_INT32 = Struct(">i").pack
_PACK_THROTTLE_TAGS = Struct(">ix").pack


def encode_produce_response(
    correlation_id: int,
    version: int,
    topics: ProduceResults,
    throttle_time_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> bytes:
    """The whole frame, length and header included, that answers a Produce of v3 to v13."""
    if len(topics) == 1 and not endpoints:
        ((topic, partitions),) = topics
        if len(partitions) == 1:
            ((index, error, base_offset, append_time, log_start, detail),) = partitions
            if detail is None:
                if version >= 13:
                    head, tail, size = _V13
                    topic_id: bytes = topic  # type: ignore[assignment]
                    return (
                        head(size + 16, correlation_id, 2)
                        + topic_id
                        + tail(2, index, error, base_offset, append_time, log_start, 1, throttle_time_ms)
                    )
                name = topic.encode()  # type: ignore[union-attr]
                length = len(name)
                if version >= 9:
                    if length < 127:
                        head, tail, size = _V9
                        return (
                            head(size + length, correlation_id, 2, length + 1)
                            + name
                            + tail(2, index, error, base_offset, append_time, log_start, 1, throttle_time_ms)
                        )
                elif version >= 8:
                    head, tail, size = _V8
                    return (
                        head(size + length, correlation_id, 1, length)
                        + name
                        + tail(1, index, error, base_offset, append_time, log_start, 0, -1, throttle_time_ms)
                    )
                elif version >= 5:
                    head, tail, size = _V5
                    return (
                        head(size + length, correlation_id, 1, length)
                        + name
                        + tail(1, index, error, base_offset, append_time, log_start, throttle_time_ms)
                    )
                else:
                    head, tail, size = _V3
                    return (
                        head(size + length, correlation_id, 1, length)
                        + name
                        + tail(1, index, error, base_offset, append_time, throttle_time_ms)
                    )
    if endpoints or any(partition[5] is not None for _, partitions in topics for partition in partitions):
        return _rare_produce_response(correlation_id, version, topics, throttle_time_ms, endpoints)
    return _many_produce_response(correlation_id, version, topics, throttle_time_ms)


def _many_produce_response(correlation_id: int, version: int, topics: ProduceResults, throttle_time_ms: int) -> bytes:
    flexible = version >= 9
    chunks: list[bytes] = [b"", _PACK_INT32(correlation_id)]
    write = chunks.append
    write(b"\0" + uvarint(len(topics) + 1) if flexible else _PACK_INT32(len(topics)))
    for topic, partitions in topics:
        write(encode_topic(topic, flexible, version >= 13))
        write(uvarint(len(partitions) + 1) if flexible else _PACK_INT32(len(partitions)))
        if flexible:
            for index, error, base, append_time, start, _ in partitions:
                write(_PARTITION_V9(index, error, base, append_time, start, 1))
            write(b"\0")
        elif version >= 8:
            for index, error, base, append_time, start, _ in partitions:
                write(_PARTITION_V8(index, error, base, append_time, start, 0, -1))
        elif version >= 5:
            for index, error, base, append_time, start, _ in partitions:
                write(_PARTITION_V5(index, error, base, append_time, start))
        else:
            for index, error, base, append_time, _start, _ in partitions:
                write(_PARTITION_V3(index, error, base, append_time))
    write(_PACK_THROTTLE_TAGS(throttle_time_ms) if flexible else _PACK_INT32(throttle_time_ms))
    body = b"".join(chunks)
    return _PACK_INT32(len(body)) + body


def _rare_produce_response(
    correlation_id: int,
    version: int,
    topics: ProduceResults,
    throttle_time_ms: int,
    endpoints: Sequence[Endpoint],
) -> bytes:
    R = m.ProduceResponse
    response = R(throttle_time_ms=throttle_time_ms)
    if version >= 10:
        response.node_endpoints = [R.NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in endpoints]
    for topic, results in topics:
        answer = R.TopicProduceResponse()
        if isinstance(topic, str):
            answer.name = topic
        else:
            answer.topic_id = topic
        for index, error, base_offset, append_time, log_start, detail in results:
            partition = R.PartitionProduceResponse(index, error, base_offset, append_time, log_start)
            if detail is not None:
                partition.error_message = detail.error_message
                partition.record_errors = [R.BatchIndexAndErrorMessage(i, t) for i, t in detail.record_errors]
                if detail.leader is not None and version >= 10:
                    partition.current_leader = R.LeaderIdAndEpoch(detail.leader.leader_id, detail.leader.leader_epoch)
            answer.partition_responses.append(partition)
        response.responses.append(answer)
    return b"".join(encode_response(API[ApiKey.PRODUCE], version, correlation_id, response))
