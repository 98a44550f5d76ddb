"""A follower's Fetch by hand says and reads the same as the compiled codec."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import decode_request, encode_response
from headrace.protocol.hot_fetch import decode_fetch
from headrace.protocol.hot_replica import (
    VERSION_MAX,
    VERSION_MIN,
    decode_follower_answer,
    encode_client_id,
    encode_follower_fetch,
)
from headrace.protocol.primitives import ProtocolError
from tests.unit.protocol.support import ids, int32s, int64s

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
FETCH = API[ApiKey.FETCH]
partitions = st.lists(st.tuples(int32s, int32s, int64s, int32s, int64s, int32s), max_size=200)


@pytest.mark.parametrize("version", VERSIONS)
def test_requests(version: int) -> None:
    @given(
        st.dictionaries(ids, partitions, max_size=4), st.dictionaries(ids, st.lists(int32s, max_size=150), max_size=3),
        st.tuples(int32s, int64s), st.tuples(int32s, int32s, int32s), st.tuples(int32s, int32s), int32s,
    )  # fmt: skip
    def check(topics: Any, forgotten: Any, replica: Any, limits: Any, session: Any, correlation_id: int) -> None:
        frame = encode_follower_fetch(
            correlation_id, version, encode_client_id("f"), replica, limits, session, topics, forgotten
        )
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        api, read_version, read_id, client_id, request = decode_request(frame, 4)
        assert (api.key, read_version, read_id, client_id) == (ApiKey.FETCH, version, correlation_id, "f")
        R = m.FetchRequest
        assert request == R(
            replica_state=R.ReplicaState(*replica),
            max_wait_ms=limits[0],
            min_bytes=limits[1],
            max_bytes=limits[2],
            session_id=session[0],
            session_epoch=session[1],
            topics=[
                R.FetchTopic(topic_id=topic, partitions=[R.FetchPartition(*row) for row in rows])
                for topic, rows in topics.items()
            ],
            forgotten_topics_data=[
                R.ForgottenTopic(topic_id=topic, partitions=indexes) for topic, indexes in forgotten.items()
            ],
        )
        query = decode_fetch(frame, 4 + 8 + 3 + 1, len(frame), version)
        assert (query.replica_id, query.replica_epoch) == replica

    check()


A = m.FetchResponse
tags = st.none() | st.dictionaries(st.integers(100, 300), st.binary(max_size=5), min_size=1, max_size=2)
rows = st.builds(
    A.PartitionData,
    partition_index=int32s,
    error_code=st.integers(-(2**15), 2**15 - 1),
    high_watermark=int64s,
    last_stable_offset=int64s,
    log_start_offset=int64s,
    diverging_epoch=st.builds(A.EpochEndOffset, epoch=int32s, end_offset=int64s) | st.just(A.EpochEndOffset()),
    current_leader=st.builds(A.LeaderIdAndEpoch, leader_id=int32s, leader_epoch=int32s) | st.just(A.LeaderIdAndEpoch()),
    aborted_transactions=st.none()
    | st.lists(st.builds(A.AbortedTransaction, producer_id=int64s, first_offset=int64s), max_size=3),
    preferred_read_replica=int32s,
    records=st.none() | st.binary(max_size=300),
    unknown_tags=tags,
)
answers = st.builds(
    A,
    throttle_time_ms=int32s,
    error_code=st.integers(-(2**15), 2**15 - 1),
    session_id=int32s,
    responses=st.lists(
        st.builds(A.FetchableTopicResponse, topic_id=ids, partitions=st.lists(rows, max_size=3)), max_size=3
    ),
    unknown_tags=tags,
)


def frame_of(answer: m.FetchResponse, version: int) -> bytes:
    return b"".join(encode_response(FETCH, version, 7, answer))[4:]


@pytest.mark.parametrize("version", VERSIONS)
def test_answers(version: int) -> None:
    @given(answers)
    def check(answer: m.FetchResponse) -> None:
        error, session_id, found = decode_follower_answer(frame_of(answer, version), version)
        assert (error, session_id) == (answer.error_code, answer.session_id)
        expected = [
            (
                topic.topic_id, row.partition_index, row.error_code, row.high_watermark, row.log_start_offset,
                bytes(row.records) if row.records else None,
                None if row.diverging_epoch == A.EpochEndOffset() else (
                    row.diverging_epoch.epoch, row.diverging_epoch.end_offset
                ),
            )
            for topic in answer.responses
            for row in topic.partitions
        ]  # fmt: skip
        assert [(*row[:5], bytes(row[5]) if row[5] else None, row[6]) for row in found] == expected

    check()


@given(answers, st.data())
def test_broken_answers_are_refused_by_name(answer: m.FetchResponse, data: st.DataObject) -> None:
    frame = bytearray(frame_of(answer, VERSION_MAX))
    cut = data.draw(st.integers(4, len(frame) - 1))
    with pytest.raises(ProtocolError):
        decode_follower_answer(frame[:cut], VERSION_MAX)
    at = data.draw(st.integers(4, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        decode_follower_answer(frame, VERSION_MAX)
    except ProtocolError:
        pass
