"""The hand-written Produce and Fetch say exactly what the compiled codecs say, for good bytes and for bad."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.protocol import hot, messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import encode_response
from headrace.protocol.primitives import ProtocolError, UnsupportedVersion
from headrace.protocol.schema import ZERO_UUID
from tests.unit.protocol.support import SOME, ids, int16s, int32s, int64s, messages

PRODUCE, FETCH = API[ApiKey.PRODUCE], API[ApiKey.FETCH]
names = st.one_of(st.text(max_size=6), st.just("n" * 126), st.just("n" * 127), st.just("é" * 100))


def topics_of(version: int) -> st.SearchStrategy[Any]:
    return ids if version >= 13 else names


def produce_query(buf: Any, pos: int, end: int, version: int) -> hot.ProduceQuery:
    """What the compiled codec reads, in the shape of the hand-written one."""
    request: m.ProduceRequest = PRODUCE.request.decode(buf, version, pos, end)
    topics = []
    for topic in request.topic_data:
        partitions: list[tuple[int, bytes | None]] = []
        for partition in topic.partition_data:
            if partition.records is None:
                partitions.append((partition.index, None))
            else:
                partitions.append((partition.index, bytes(partition.records)))
        topics.append((topic.topic_id if version >= 13 else topic.name, partitions))
    return request.transactional_id, request.acks, request.timeout_ms, topics  # type: ignore[return-value]


def with_bytes(buf: Any, query: hot.ProduceQuery) -> Any:
    transactional_id, acks, timeout_ms, topics = query
    shown = []
    for topic, partitions in topics:
        assert all((start < 0) == (end < 0) for _, start, end in partitions)
        shown.append((topic, [(i, bytes(buf[s:e]) if s >= 0 else None) for i, s, e in partitions]))
    return transactional_id, acks, timeout_ms, shown


def fetch_query(buf: Any, pos: int, end: int, version: int) -> hot.FetchQuery:
    r: m.FetchRequest = FETCH.request.decode(buf, version, pos, end)
    by_id = version >= 13
    topics: Any = [
        (
            t.topic_id if by_id else t.topic,
            [
                (
                    p.partition,
                    p.current_leader_epoch,
                    p.fetch_offset,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    p.partition_max_bytes,
                    p.replica_directory_id,
                    p.high_watermark,
                )
                for p in t.partitions
            ],
        )
        for t in r.topics
    ]
    forgotten: Any = [(t.topic_id if by_id else t.topic, t.partitions) for t in r.forgotten_topics_data]
    replica_id = r.replica_state.replica_id if version >= 15 else r.replica_id
    return hot.FetchQuery(
        replica_id,
        r.max_wait_ms,
        r.min_bytes,
        r.max_bytes,
        r.isolation_level,
        r.session_id,
        r.session_epoch,
        topics,
        forgotten,
        r.rack_id,
        r.replica_state.replica_epoch,
        r.cluster_id,
    )


def outcome(read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except ProtocolError:
        return ProtocolError


def same_on_broken(encoded: bytes, cuts: list[tuple[int, int]], compare: Any) -> None:
    """Flip bytes, cut, and lengthen; both must refuse the same and read the rest alike."""
    for where, value in cuts:
        broken = bytearray(b"\1" + encoded + b"\0\0\0\0\0\0")
        if encoded:
            broken[1 + where % len(encoded)] = value
        compare(broken, 1, 1 + len(encoded))
        compare(bytearray(encoded), 0, where % (len(encoded) + 1))
        compare(broken, 1, 1 + where % (len(encoded) + 6))


damage = st.lists(st.tuples(st.integers(0, 4000), st.sampled_from((0, 1, 2, 3, 127, 128, 129, 255))), max_size=6)


@pytest.mark.parametrize("version", PRODUCE.request.versions)
def test_produce_requests(version: int) -> None:
    def compare(buf: bytearray, pos: int, end: int) -> None:
        expected = outcome(produce_query, buf, pos, end, version)
        actual = outcome(hot.decode_produce, buf, pos, end, version)
        assert (actual if actual is ProtocolError else with_bytes(buf, actual)) == expected

    @SOME
    @given(messages(PRODUCE.request, version), damage)
    def check(request: m.ProduceRequest, cuts: list[tuple[int, int]]) -> None:
        encoded = PRODUCE.request.encode(request, version)
        compare(bytearray(encoded), 0, len(encoded))
        compare(bytearray(b"\1" + encoded + b"\2"), 1, 1 + len(encoded))
        view = memoryview(encoded)
        assert with_bytes(view, hot.decode_produce(view, 0, len(view), version)) == produce_query(
            view, 0, len(view), version
        )
        same_on_broken(encoded, cuts, compare)

    check()


@pytest.mark.parametrize("version", PRODUCE.request.versions)
@pytest.mark.parametrize("size", [0, 1, 61, 126, 127, 128, 5000, 16382, 16383, 70000, 2**21 - 2, 2**21])
def test_the_usual_produce_request(version: int, size: int) -> None:
    topic = m.ProduceRequest.TopicProduceData()
    if version >= 13:
        topic.topic_id = b"0123456789abcdef"
    else:
        topic.name = "topic"
    topic.partition_data = [m.ProduceRequest.PartitionProduceData(3, bytes(size))]
    encoded = bytearray(PRODUCE.request.encode(m.ProduceRequest(None, -1, 1500, [topic]), version))
    query = hot.decode_produce(encoded, 0, len(encoded), version)
    assert with_bytes(encoded, query) == produce_query(encoded, 0, len(encoded), version)
    for end in (len(encoded) - 1, len(encoded) - 3):
        with pytest.raises(ProtocolError):
            hot.decode_produce(encoded, 0, end, version)


@pytest.mark.parametrize("version", FETCH.request.versions)
def test_fetch_requests(version: int) -> None:
    def compare(buf: bytearray, pos: int, end: int) -> None:
        expected = outcome(fetch_query, buf, pos, end, version)
        assert outcome(hot.decode_fetch, buf, pos, end, version) == expected

    @SOME
    @given(messages(FETCH.request, version), damage)
    def check(request: m.FetchRequest, cuts: list[tuple[int, int]]) -> None:
        encoded = FETCH.request.encode(request, version)
        compare(bytearray(encoded), 0, len(encoded))
        compare(bytearray(b"\1" + encoded + b"\2"), 1, 1 + len(encoded))
        view = memoryview(encoded)
        assert hot.decode_fetch(view, 0, len(view), version) == fetch_query(view, 0, len(view), version)
        same_on_broken(encoded, cuts, compare)

    check()


def test_other_versions_are_refused() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(UnsupportedVersion):
            hot.decode_produce(bytes(100), 0, 100, version)
    for version in (3, 19):
        with pytest.raises(UnsupportedVersion):
            hot.decode_fetch(bytes(100), 0, 100, version)


endpoints = st.lists(st.builds(hot.Endpoint, int32s, names, int32s, st.one_of(st.none(), names)), max_size=2)
leaders = st.one_of(st.none(), st.builds(hot.LeaderHint, int32s, int32s))
usually_none = st.one_of(st.none(), st.none(), st.none())
produce_details = st.one_of(
    usually_none,
    st.builds(
        hot.ProduceDetail,
        st.one_of(st.none(), names),
        st.lists(st.tuples(int32s, st.one_of(st.none(), names)), max_size=2).map(tuple),
        leaders,
    ),
)


@pytest.mark.parametrize("version", PRODUCE.response.versions)
def test_produce_responses(version: int) -> None:
    result = st.tuples(int32s, int16s, int64s, int64s, int64s, produce_details)
    one = st.lists(st.tuples(topics_of(version), st.lists(result, min_size=1, max_size=1)), min_size=1, max_size=1)
    many = st.lists(st.tuples(topics_of(version), st.lists(result, max_size=3)), max_size=3)

    @SOME
    @given(int32s, st.one_of(one, many), int32s, st.one_of(st.just([]), endpoints))
    def check(correlation_id: int, topics: Any, throttle_time_ms: int, nodes: Any) -> None:
        R = m.ProduceResponse
        expected = R(throttle_time_ms=throttle_time_ms)
        if version >= 10:
            expected.node_endpoints = [R.NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in nodes]
        for topic, results in topics:
            answer = R.TopicProduceResponse()
            if version >= 13:
                answer.topic_id = topic
            else:
                answer.name = topic
            for index, error, base, time, start, detail in results:
                p = R.PartitionProduceResponse(index, error, base, time, start)
                if detail is not None:
                    p.error_message = detail.error_message
                    p.record_errors = [R.BatchIndexAndErrorMessage(*pair) for pair in detail.record_errors]
                    if detail.leader and version >= 10:
                        p.current_leader = R.LeaderIdAndEpoch(detail.leader.leader_id, detail.leader.leader_epoch)
                answer.partition_responses.append(p)
            expected.responses.append(answer)
        frame = b"".join(encode_response(PRODUCE, version, correlation_id, expected))
        assert hot.encode_produce_response(correlation_id, version, topics, throttle_time_ms, nodes) == frame

    check()


offset_pairs = st.tuples(int64s, int64s)
fetch_details = st.one_of(
    usually_none,
    st.builds(
        hot.FetchDetail,
        leaders,
        st.one_of(st.none(), st.tuples(int32s, int64s)),
        st.one_of(st.none(), st.tuples(int64s, int32s)),
    ),
)


def fetch_response(version: int, topics: Any, error: int, session: int, throttle: int, nodes: Any) -> m.FetchResponse:
    R = m.FetchResponse
    response = R(throttle, error, session)
    if version >= 16:
        response.node_endpoints = [R.NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in nodes]
    for topic, results in topics:
        answer = R.FetchableTopicResponse()
        if version >= 13:
            answer.topic_id = topic
        else:
            answer.topic = topic
        for index, code, hw, lso, start, size, aborted, preferred, detail in results:
            p = R.PartitionData(index, code, hw, lso, start)
            p.aborted_transactions = None if aborted is None else [R.AbortedTransaction(*pair) for pair in aborted]
            if version >= 11:
                p.preferred_read_replica = preferred
            p.records = None if size < 0 else bytes([index & 255]) * size
            if detail is not None and version >= 12:
                if detail.leader:
                    p.current_leader = R.LeaderIdAndEpoch(detail.leader.leader_id, detail.leader.leader_epoch)
                if detail.diverging_epoch_and_end_offset:
                    p.diverging_epoch = R.EpochEndOffset(*detail.diverging_epoch_and_end_offset)
                if detail.snapshot_end_offset_and_epoch:
                    p.snapshot_id = R.SnapshotId(*detail.snapshot_end_offset_and_epoch)
            answer.partitions.append(p)
        response.responses.append(answer)
    return response


@pytest.mark.parametrize("version", FETCH.response.versions)
def test_fetch_responses(version: int) -> None:
    sizes = st.sampled_from((-1, 0, 1, 5, 126, 127, 128, 20000))
    aborted = st.one_of(st.none(), st.lists(offset_pairs, max_size=2))
    result = st.tuples(int32s, int16s, int64s, int64s, int64s, sizes, aborted, int32s, fetch_details)
    one = st.lists(st.tuples(topics_of(version), st.lists(result, min_size=1, max_size=1)), min_size=1, max_size=1)
    many = st.lists(st.tuples(topics_of(version), st.lists(result, max_size=3)), max_size=3)
    sessions = int32s if version >= 7 else st.just(0)
    nodes: st.SearchStrategy[Any] = st.one_of(st.just([]), endpoints)

    @SOME
    @given(int32s, st.one_of(one, many), int16s, sessions, int32s, nodes)
    def check(correlation_id: int, topics: Any, error: int, session: int, throttle: int, nodes: Any) -> None:
        expected = fetch_response(version, topics, error, session, throttle, nodes)
        frame = b"".join(encode_response(FETCH, version, correlation_id, expected))
        pieces = hot.encode_fetch_response_head(correlation_id, version, topics, error, session, throttle, nodes)
        slices = [bytes([p[0] & 255]) * p[5] for _, partitions in topics for p in partitions if p[5] > 0]
        assert len(pieces) == len(slices) + 1
        sent = pieces[0] + b"".join(s + piece for s, piece in zip(slices, pieces[1:]))
        assert sent == frame

    check()


def test_a_fetch_without_tags_has_their_defaults() -> None:
    topic = m.FetchRequest.FetchTopic(topic_id=b"x" * 16, partitions=[m.FetchRequest.FetchPartition()])
    encoded = FETCH.request.encode(m.FetchRequest(topics=[topic]), 18)
    query = hot.decode_fetch(encoded, 0, len(encoded), 18)
    assert query.topics[0][1][0][6:] == (ZERO_UUID, 2**63 - 1)
    assert (query.replica_id, query.replica_epoch, query.cluster_id) == (-1, -1, None)
