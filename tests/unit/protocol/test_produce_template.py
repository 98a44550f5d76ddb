"""What is recognised as said before is read, and answered, exactly as if it were decoded and encoded in full."""

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.protocol import hot, messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.templates.produce import NAME_BYTES_MAX, ProduceTemplate, produce_template
from tests.unit.protocol.support import SOME, int32s, int64s

PRODUCE = API[ApiKey.PRODUCE]
VERSIONS = range(7, 14)
CLIENT_ID = b"\0\7someone"
sizes = st.one_of(st.integers(1, 300), st.sampled_from([126, 127, 128, 16_382, 16_383, 16_384, 40_000]))


def frame(version: int, topic: Any, index: int, records: bytes, acks: int = -1, **more: Any) -> bytes:
    R = m.ProduceRequest
    data = R.TopicProduceData(partition_data=[R.PartitionProduceData(index=index, records=records)])
    setattr(data, "topic_id" if version >= 13 else "name", topic)
    body = PRODUCE.request.encode(R(acks=acks, timeout_ms=1_500, topic_data=[data], **more), version)
    rest = struct.pack(">hhi", 0, version, 77) + CLIENT_ID + (b"\0" if version >= 9 else b"") + body
    return struct.pack(">i", len(rest)) + rest


def decoded(buf: bytes, version: int) -> hot.ProduceQuery:
    return hot.decode_produce(buf, PREFIX_AT + len(CLIENT_ID) + (version >= 9), len(buf), version)


def template(buf: bytes, version: int) -> ProduceTemplate | None:
    _, _, _, [(topic, [partition])] = decoded(buf, version)
    return produce_template(buf, 0, len(buf), version, topic, partition)


def topics_of(version: int) -> st.SearchStrategy[Any]:
    return st.binary(min_size=16, max_size=16) if version >= 13 else st.text("abcé", min_size=1, max_size=60)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_the_same_shape_is_found_as_decoded(version: int) -> None:
    @SOME
    @given(topics_of(version), int32s, int32s, sizes, sizes, st.integers(0, 40))
    def check(topic: Any, index: int, other: int, first: int, second: int, ahead: int) -> None:
        known = template(frame(version, topic, index, b"r" * first), version)
        assert known is not None
        again = frame(version, topic, other, b"s" * second)
        buf = b"x" * ahead + again  # as it stands in a connection's buffer
        assert buf.startswith(known.prefix, ahead + PREFIX_AT)
        _, _, _, [(_, [(found, start, end)])] = decoded(again, version)
        assert known.match(bytearray(buf), ahead, len(buf)) == (found, ahead + start, ahead + end)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_those_of_the_encoder(version: int) -> None:
    @SOME
    @given(topics_of(version), int32s, int32s, int64s, int64s, int64s)
    def check(topic: Any, correlation_id: int, index: int, base: int, time: int, log_start: int) -> None:
        known = template(frame(version, topic, 0, b"r"), version)
        assert known is not None
        expected = hot.encode_produce_response(
            correlation_id, version, [(topic, [(index, 0, base, time, log_start, None)])]
        )
        assert known.answer(correlation_id, index, base, time, log_start) == expected

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_broken_frames_are_found_only_where_they_decode_to_the_same(version: int) -> None:
    """Every byte behind what was said takes every value that matters; and the frame is cut and lengthened."""
    whole = frame(version, bytes(range(16)) if version >= 13 else "topic", 3, b"r" * 200)
    known = template(whole, version)
    assert known is not None
    variants = [whole[:end] for end in range(PREFIX_AT + len(known.prefix), len(whole))]
    variants += [whole + bytes(count) for count in range(1, 5)]
    rest = PREFIX_AT + len(known.prefix)
    places = [*range(rest, rest + 12), *range(len(whole) - 5, len(whole))]
    for place in places:
        for value in (0, 1, 2, 3, 127, 128, 129, 200, 201, 202, 255):
            variants.append(whole[:place] + bytes([value]) + whole[place + 1 :])
    taken = 0
    for variant in variants:
        found = known.match(bytearray(variant), 0, len(variant))
        if found is None:
            continue
        taken += 1
        transactional_id, acks, timeout_ms, topics = decoded(variant, version)
        assert (transactional_id, acks, timeout_ms) == (None, -1, 1_500)
        assert [partitions for _, partitions in topics] == [[found]]
    assert taken, "some changes touch nothing but the index and the records"


@pytest.mark.parametrize("version", VERSIONS)
def test_another_topic_acks_or_timeout_is_another_template(version: int) -> None:
    topic, other = (b"a" * 16, b"b" * 16) if version >= 13 else ("aa", "ab")
    known = template(frame(version, topic, 0, b"r"), version)
    assert known is not None
    assert not frame(version, other, 0, b"r").startswith(known.prefix, PREFIX_AT)
    assert not frame(version, topic, 0, b"r", acks=1).startswith(known.prefix, PREFIX_AT)
    assert not frame(version, topic, 0, b"r", transactional_id="x").startswith(known.prefix, PREFIX_AT)


def test_what_has_no_template() -> None:
    assert template(frame(6, "t", 0, b"r"), 6) is None, "codecs depend on the version"
    assert template(frame(9, "n" * (NAME_BYTES_MAX + 1), 0, b"r"), 9) is None
    assert template(frame(9, "t", 0, b""), 9) is None, "no records"
    # A size in more bytes than it needs, which Kafka's varints allow.
    plain = frame(9, "t", 0, b"r" * 50)
    at = plain.index(bytes([51]) + b"r" * 50)
    padded = plain[:at] + bytes([51 | 128, 0]) + plain[at + 1 :]
    padded = struct.pack(">i", len(padded) - 4) + padded[4:]
    assert decoded(padded, 9)[3][0][1][0][2] > 0 and template(padded, 9) is None
    with pytest.raises(ProtocolError):
        decoded(plain[:-1], 9)
