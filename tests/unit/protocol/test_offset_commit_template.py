"""Commits that are recognised are read, and answered, exactly as if they were decoded and encoded in full."""

import struct
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.templates.offset_commit import FRAME_BYTES_MAX, OffsetCommitTemplate, offset_commit_template
from tests.unit.protocol.support import SOME, int32s, int64s

OFFSET_COMMIT = API[ApiKey.OFFSET_COMMIT]
VERSIONS = range(6, 11)
CLIENT_IDS = (b"\0\7someone", b"\xff\xff", b"\0\0")
Q = m.OffsetCommitRequest
R = m.OffsetCommitResponse

Places = Sequence[tuple[int, int]]
names = st.text("abcé", min_size=1, max_size=140)
layouts = st.lists(st.tuples(names, st.lists(st.integers(0, 9999), min_size=1, max_size=50)), min_size=1, max_size=3)


def request(version: int, layout: Any, places: Iterable[tuple[int, int]], **more: Any) -> m.OffsetCommitRequest:
    numbers = iter(places)
    topics = [
        Q.OffsetCommitRequestTopic(
            name="" if version >= 10 else name,
            topic_id=name.encode()[:16].ljust(16, b"i") if version >= 10 else bytes(16),
            partitions=[
                Q.OffsetCommitRequestPartition(index, *next(numbers), None if index % 3 else "") for index in indexes
            ],
        )
        for name, indexes in layout
    ]
    return Q(**{"group_id": "g", "generation_id_or_member_epoch": 3, "member_id": "m", "topics": topics, **more})


def frame(version: int, message: m.OffsetCommitRequest, client_id: bytes = CLIENT_IDS[0], tail: bytes = b"") -> bytes:
    head = struct.pack(">hhi", 8, version, 77) + client_id + (b"\0" if version >= 8 else b"")
    rest = head + OFFSET_COMMIT.request.encode(message, version) + tail
    return struct.pack(">i", len(rest)) + rest


def decoded(buf: bytes, version: int, client_id: bytes = CLIENT_IDS[0]) -> m.OffsetCommitRequest:
    message, _ = OFFSET_COMMIT.request.decoder(version)(buf, PREFIX_AT + len(client_id) + (version >= 8), len(buf))
    assert isinstance(message, Q)
    return message


def answer(version: int, message: m.OffsetCommitRequest, correlation_id: int = 0) -> bytes:
    said = R(
        topics=[
            R.OffsetCommitResponseTopic(
                t.name, t.topic_id, [R.OffsetCommitResponsePartition(p.partition_index) for p in t.partitions]
            )
            for t in message.topics
        ]
    )
    body = struct.pack(">i", correlation_id) + (b"\0" if version >= 8 else b"")
    body += OFFSET_COMMIT.response.encode(said, version)
    return struct.pack(">i", len(body)) + body


def template(buf: bytes, version: int, client_id: bytes = CLIENT_IDS[0]) -> OffsetCommitTemplate | None:
    message = decoded(buf, version, client_id)
    return offset_commit_template(bytearray(buf), 0, len(buf), version, message, answer(version, message))


def told(message: m.OffsetCommitRequest) -> list[tuple[int, int]]:
    return [(p.committed_offset, p.committed_leader_epoch) for t in message.topics for p in t.partitions]


def numbers(found: Sequence[Any]) -> list[tuple[int, int]]:
    return list(zip(found[::3], found[1::3]))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_is_found_as_decoded(version: int) -> None:
    @SOME
    @given(
        layouts,
        st.lists(st.tuples(int64s, int32s), min_size=2, max_size=7),
        st.sampled_from(CLIENT_IDS),
        st.integers(0, 40),
        int32s,
    )
    def check(layout: Any, places: Places, client_id: bytes, ahead: int, correlation_id: int) -> None:
        known = template(frame(version, request(version, layout, cycle(places)), client_id), version, client_id)
        assert known is not None
        again = frame(version, request(version, layout, cycle(places[1:])), client_id)
        buf = bytearray(b"x" * ahead + again)
        assert buf.startswith(known.prefix, ahead + PREFIX_AT)
        found = known.match(buf, ahead, len(buf))
        message = decoded(again, version, client_id)
        assert found is not None and numbers(found) == told(message)
        assert known.answer(correlation_id) == answer(version, message, correlation_id)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_broken_frames_are_found_only_where_they_decode_to_the_same(version: int) -> None:
    """Every byte behind what was said takes every value that matters; and the frame is cut and lengthened."""
    layout = [("topic", [0, 3]), ("other", [7])]
    whole = frame(version, request(version, layout, [(5, 1), (6, -1), (7, 0)]))
    known = template(whole, version)
    assert known is not None
    first = PREFIX_AT + len(known.prefix)
    variants = [whole[:end] for end in range(first, len(whole))]
    variants += [whole + bytes(count) for count in range(1, 5)]
    for place in range(first, len(whole)):
        variants += [whole[:place] + bytes([value]) + whole[place + 1 :] for value in (0, 1, 2, 3, 127, 128, 200, 255)]
    taken = 0
    for variant in variants:
        found = known.match(bytearray(variant), 0, len(variant))
        if found is not None:
            taken += 1
            assert decoded(variant, version) == decoded(
                frame(version, request(version, layout, numbers(found))), version
            )
    assert taken > 12 * 3, "some changes touch nothing but offsets and epochs"


@pytest.mark.parametrize("version", VERSIONS)
def test_another_member_generation_or_partition_is_another_template(version: int) -> None:
    layout = [("topic", [0, 3])]
    places = [(5, 1), (6, 1)]
    known = template(frame(version, request(version, layout, places)), version)
    assert known is not None
    others = [
        request(version, layout, places, member_id="n"),
        request(version, layout, places, generation_id_or_member_epoch=4),
        request(version, layout, places, group_id="h"),
        request(version, [("topic", [0, 2])], places),
        request(version, [("topic", [3, 0])], places),
        request(version, [("topid", [0, 3])], places),
    ]
    if version >= 7:
        others.append(request(version, layout, places, group_instance_id="i"))
    for other in others:
        buf = frame(version, other)
        assert not buf.startswith(known.prefix, PREFIX_AT) or known.match(bytearray(buf), 0, len(buf)) is None


def test_what_has_no_template() -> None:
    one = [("t", [0])]
    assert template(frame(5, request(5, one, [(1, -1)])), 5) is None, "no leader epochs"
    assert template(frame(7, request(7, [], [])), 7) is None, "no partitions"
    many = [("t", list(range(FRAME_BYTES_MAX // 18 + 1)))]
    assert template(frame(7, request(7, many, [(1, 1)] * len(many[0][1]))), 7) is None, "too large to keep"
    with_metadata = request(7, one, [(1, 1)])
    with_metadata.topics[0].partitions[0].committed_metadata = "m"
    assert template(frame(7, with_metadata), 7) is None
    # What decoders pass over: bytes behind the message, and tags that nobody knows.
    assert template(frame(7, request(7, one, [(1, 1)]), tail=b"\0" * 18), 7) is None
    for row in (0, 1, 2):
        tagged = request(9, one, [(1, 1)])
        rows: list[Any] = [tagged, tagged.topics[0], tagged.topics[0].partitions[0]]
        rows[row].unknown_tags = {9: bytes(16)}
        assert template(frame(9, tagged), 9) is None
    # An array's length in more bytes than it needs, which Kafka's varints allow.
    plain = frame(9, request(9, one, [(1, 1)]))
    at = plain.index(b"\2t\2") + 2
    padded = plain[:at] + b"\x82\0" + plain[at + 1 :]
    padded = struct.pack(">i", len(padded) - 4) + padded[4:]
    assert decoded(padded, 9) == decoded(plain, 9) and template(padded, 9) is None
    with pytest.raises(ProtocolError):
        decoded(plain[:-1], 9)
