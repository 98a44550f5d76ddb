"""What is recognised as a follower's next request is read exactly as if it were decoded in full."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.follower_shape import FollowerShape, follower_shape_of
from headrace.protocol.headers import SAID_AT
from headrace.protocol.hot_fetch import FetchQuery, decode_fetch
from headrace.protocol.hot_replica import VERSION_MAX, VERSION_MIN, encode_client_id, encode_follower_fetch
from headrace.protocol.primitives import ProtocolError
from tests.unit.protocol.test_hot import SOME
from tests.unit.protocol.test_hot_replica import ids, int32s, int64s

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
BODY = SAID_AT + 3 + 1
TOPIC_ID = bytes(range(16))


def frame(
    version: int, offset: int, *, topic: bytes = TOPIC_ID, index: int = 2, leader_epoch: int = 5, last_epoch: int = 4,
    log_start: int = 0, session: tuple[int, int] = (9, 1), more: Any = None, forgotten: Any = None,
) -> bytes:  # fmt: skip
    row = index, leader_epoch, offset, last_epoch, log_start, 1 << 20
    return encode_follower_fetch(
        1, version, encode_client_id("f"), (3, 77), (500, 1, 10 << 20), session, {topic: [row], **(more or {})}, forgotten or {}
    )


def decoded(buf: bytes, version: int) -> FetchQuery:
    return decode_fetch(buf, BODY, len(buf), version)


def shape(buf: bytes, version: int) -> FollowerShape | None:
    return follower_shape_of(buf, 0, BODY, len(buf), version, decoded(buf, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_is_found_as_decoded(version: int) -> None:
    @SOME
    @given(ids, int32s, int32s, int64s, int64s, int32s, int64s, int32s, st.integers(0, 40))
    def check(
        topic: bytes, index: int, leader_epoch: int, first: int, offset: int, last_epoch: int, log_start: int, epoch: int,
        ahead: int,
    ) -> None:  # fmt: skip
        known = shape(frame(version, first, topic=topic, index=index, leader_epoch=leader_epoch), version)
        assert known is not None
        again = frame(
            version, offset, topic=topic, index=index, leader_epoch=leader_epoch, last_epoch=last_epoch,
            log_start=log_start, session=(9, epoch),
        )  # fmt: skip
        buf = b"x" * ahead + again
        assert buf.startswith(known.said, ahead + SAID_AT)
        assert known.find(bytearray(buf), ahead, len(buf)) == (epoch, offset, last_epoch, log_start)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_frames_are_found_only_where_nothing_but_progress_changed(version: int) -> None:
    whole = frame(version, 1000)
    known = shape(whole, version)
    assert known is not None
    variants = [whole[:end] for end in range(BODY, len(whole))] + [whole + b"\0", whole + b"\0\0"]
    for place in range(SAID_AT + len(known.said), len(whole)):
        variants += [whole[:place] + bytes([value]) + whole[place + 1 :] for value in (0, 1, 2, 3, 127, 128, 255)]
    taken = 0
    for variant in variants:
        found = known.find(bytearray(variant), 0, len(variant))
        if found is None:
            continue
        taken += 1
        query = decoded(variant, version)
        ((index, leader_epoch, offset, last_epoch, log_start, size, *_),) = query.topics[0][1]
        assert found == (query.session_epoch, offset, last_epoch, log_start)
        assert (query.topics[0][0], index, leader_epoch, size) == (TOPIC_ID, 2, 5, 1 << 20)
        assert (len(query.topics), query.forgotten, query.replica_id, query.replica_epoch) == (1, [], 3, 77)
    assert taken


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_another_shape(version: int) -> None:
    known = shape(frame(version, 0), version)
    assert known is not None
    others = [
        frame(version, 0, index=3), frame(version, 0, leader_epoch=6), frame(version, 0, topic=bytes(16)),
        frame(version, 0, more={bytes(16): [(0, 0, 0, 0, 0, 0)]}), frame(version, 0, forgotten={bytes(16): [1]}),
    ]  # fmt: skip
    for other in others:
        assert known.find(bytearray(other), 0, len(other)) is None
    assert not frame(version, 0, session=(8, 1)).startswith(known.said, SAID_AT)
    assert all(shape(other, version) is None for other in others[3:4]), "two topics"


def test_counts_in_more_bytes_than_they_need_have_no_shape() -> None:
    usual = frame(18, 1000)
    at = BODY + 21
    padded = usual[:at] + b"\x82\0" + usual[at + 1 :]
    try:
        found = shape(padded, 18)
    except ProtocolError:
        return
    assert found is None
