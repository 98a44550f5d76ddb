"""What is recognised as a follower's next request is read exactly as if it were decoded in full."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.hot_fetch import FetchQuery, decode_fetch
from headrace.protocol.hot_replica import VERSION_MAX, VERSION_MIN, encode_client_id, encode_follower_fetch
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.templates.follower_fetch import FollowerFetchTemplate, follower_fetch_template
from tests.unit.protocol.support import SOME, ids, int32s, int64s

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
BODY = PREFIX_AT + 3 + 1
TOPIC_ID = bytes(range(16))


def frame(
    version: int, offset: int, *, topic: bytes = TOPIC_ID, index: int = 2, leader_epoch: int = 5, last_epoch: int = 4,
    log_start: int = 0, session: tuple[int, int] = (9, 1), more: Any = None, forgotten: Any = None,
) -> bytes:  # fmt: skip
    row = index, leader_epoch, offset, last_epoch, log_start, 1 << 20
    return encode_follower_fetch(
        1,
        version,
        encode_client_id("f"),
        (3, 77),
        (500, 1, 10 << 20),
        session,
        {topic: [row], **(more or {})},
        forgotten or {},
    )


def decoded(buf: bytes, version: int) -> FetchQuery:
    return decode_fetch(buf, BODY, len(buf), version)


def template(buf: bytes, version: int) -> FollowerFetchTemplate | None:
    return follower_fetch_template(buf, 0, BODY, len(buf), version, decoded(buf, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_is_found_as_decoded(version: int) -> None:
    @SOME
    @given(ids, int32s, int32s, int64s, int64s, int32s, int64s, int32s, st.integers(0, 40))
    def check(
        topic: bytes, index: int, leader_epoch: int, first: int, offset: int, last_epoch: int, log_start: int,
        epoch: int,
        ahead: int,
    ) -> None:  # fmt: skip
        known = template(frame(version, first, topic=topic, index=index, leader_epoch=leader_epoch), version)
        assert known is not None
        again = frame(
            version, offset, topic=topic, index=index, leader_epoch=leader_epoch, last_epoch=last_epoch,
            log_start=log_start, session=(9, epoch),
        )  # fmt: skip
        buf = b"x" * ahead + again
        assert buf.startswith(known.prefix, ahead + PREFIX_AT)
        assert known.match(bytearray(buf), ahead, len(buf)) == (epoch, offset, last_epoch, log_start)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_frames_are_found_only_where_nothing_but_progress_changed(version: int) -> None:
    whole = frame(version, 1000)
    known = template(whole, version)
    assert known is not None
    variants = [whole[:end] for end in range(BODY, len(whole))] + [whole + b"\0", whole + b"\0\0"]
    for place in range(PREFIX_AT + len(known.prefix), len(whole)):
        variants += [whole[:place] + bytes([value]) + whole[place + 1 :] for value in (0, 1, 2, 3, 127, 128, 255)]
    taken = 0
    for variant in variants:
        found = known.match(bytearray(variant), 0, len(variant))
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
def test_what_has_another_template(version: int) -> None:
    known = template(frame(version, 0), version)
    assert known is not None
    others = [
        frame(version, 0, index=3), frame(version, 0, leader_epoch=6), frame(version, 0, topic=bytes(16)),
        frame(version, 0, more={bytes(16): [(0, 0, 0, 0, 0, 0)]}), frame(version, 0, forgotten={bytes(16): [1]}),
    ]  # fmt: skip
    for other in others:
        assert known.match(bytearray(other), 0, len(other)) is None
    assert not frame(version, 0, session=(8, 1)).startswith(known.prefix, PREFIX_AT)
    assert all(template(other, version) is None for other in others[3:4]), "two topics"


def test_counts_in_more_bytes_than_they_need_have_no_template() -> None:
    usual = frame(18, 1000)
    at = BODY + 21
    padded = usual[:at] + b"\x82\0" + usual[at + 1 :]
    try:
        found = template(padded, 18)
    except ProtocolError:
        return
    assert found is None
