"""What is recognised as a consumer's next request is read exactly as if it were decoded in full, and answered alike."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.headers import PREFIX_AT
from headrace.protocol.hot_fetch import FetchQuery, decode_fetch, encode_fetch_response_head
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.templates.consumer_fetch import BY_ID, OLDEST, ConsumerFetchTemplate, consumer_fetch_template
from tests.unit.protocol.support import SOME, ids, int32s, int64s

VERSIONS = range(OLDEST, 19)
TOPIC_ID = bytes(range(16))


def topic_of(version: int, name: str = "tøpic") -> str | bytes:
    return TOPIC_ID if version >= BY_ID else name


def body_at(version: int) -> int:
    return PREFIX_AT + 3 + (version >= 12)


def frame(
    version: int, offset: int, *, topic: str | bytes = "", index: int = 2, leader_epoch: int = 5, log_start: int = -1,
    session: tuple[int, int] = (9, 1), isolation: int = 0, size: int = 1 << 20, rack: str = "", more: Any = (),
    forgotten: Any = (),
) -> bytes:  # fmt: skip
    R = m.FetchRequest
    row = R.FetchPartition(partition=index, current_leader_epoch=leader_epoch, fetch_offset=offset)
    row.log_start_offset, row.partition_max_bytes = log_start, size
    named = [R.FetchTopic(partitions=[row]), *more]
    topic = topic or topic_of(version)
    if isinstance(topic, str):
        named[0].topic = topic
    else:
        named[0].topic_id = topic
    query = R(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, isolation_level=isolation, session_id=session[0])
    query.session_epoch, query.topics, query.forgotten_topics_data, query.rack_id = (
        session[1],
        named,
        list(forgotten),
        rack,
    )
    body = API[ApiKey.FETCH].request.encode(query, version)
    header = b"\0\1" + version.to_bytes(2, "big") + b"\0\0\0\1" + b"\0\1c" + (b"\0" if version >= 12 else b"")
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


def decoded(buf: bytes, version: int) -> FetchQuery:
    return decode_fetch(buf, body_at(version), len(buf), version)


def template(buf: bytes, version: int) -> ConsumerFetchTemplate | None:
    return consumer_fetch_template(buf, 0, body_at(version), len(buf), version, decoded(buf, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_is_found_as_decoded(version: int) -> None:
    topics = ids.filter(any) if version >= BY_ID else st.text(min_size=1, max_size=30)

    @SOME
    @given(topics, int32s, int32s, int64s, int64s, int32s, st.integers(0, 40))
    def check(topic: Any, index: int, leader_epoch: int, first: int, offset: int, epoch: int, ahead: int) -> None:
        same: dict[str, Any] = {"topic": topic, "index": index, "leader_epoch": leader_epoch}
        known = template(frame(version, first, **same), version)
        assert known is not None
        buf = b"x" * ahead + frame(version, offset, session=(9, epoch), **same)
        assert buf.startswith(known.prefix, ahead + PREFIX_AT)
        assert known.match(bytearray(buf), ahead, len(buf)) == (epoch, offset)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_frames_are_found_only_where_nothing_but_progress_changed(version: int) -> None:
    whole = frame(version, 1000)
    known = template(whole, version)
    assert known is not None
    usual = decoded(whole, version)
    variants = [whole[:end] for end in range(body_at(version), len(whole))] + [whole + b"\0", whole + b"\0\0"]
    for place in range(PREFIX_AT + len(known.prefix), len(whole)):
        variants += [whole[:place] + bytes([value]) + whole[place + 1 :] for value in (0, 1, 2, 3, 127, 128, 255)]
    taken = 0
    for variant in variants:
        found = known.match(bytearray(variant), 0, len(variant))
        if found is None:
            continue
        taken += 1
        query = decoded(variant, version)
        assert found == (query.session_epoch, query.topics[0][1][0][2])
        query.session_epoch = usual.session_epoch
        query.topics = [(query.topics[0][0], [(*query.topics[0][1][0][:2], 1000, *query.topics[0][1][0][3:])])]
        assert query == usual
    assert taken > 12


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_another_template(version: int) -> None:
    known = template(frame(version, 0), version)
    assert known is not None
    R = m.FetchRequest
    other_topic, forgotten = R.FetchTopic(partitions=[R.FetchPartition()]), R.ForgottenTopic(partitions=[1])
    for named in (other_topic, forgotten):
        if version >= BY_ID:
            named.topic_id = bytes(15) + b"1"
        else:
            named.topic = "another"
    others = [
        frame(version, 0, index=3), frame(version, 0, leader_epoch=6), frame(version, 0, size=5), frame(version, 0,
            rack="r"),
        frame(version, 0, topic=b"i" * 16 if version >= BY_ID else "x"), frame(version, 0, log_start=0),
        frame(version, 0, more=[other_topic]), frame(version, 0, forgotten=[forgotten]),
    ]  # fmt: skip
    for other in others:
        assert known.match(bytearray(other), 0, len(other)) is None
    assert not frame(version, 0, session=(8, 1)).startswith(known.prefix, PREFIX_AT)
    assert not frame(version, 0, isolation=1).startswith(known.prefix, PREFIX_AT)
    assert all(template(other, version) is None for other in others[-2:]), "two topics, and one that is forgotten"
    long = frame(version, 0, topic="n" * 127) if version < BY_ID else b""
    assert not long or template(long, version) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("session_id", [0, 77])
def test_answers_are_the_encoders(version: int, isolation: int, session_id: int) -> None:
    known = template(frame(version, 5, isolation=isolation, session=(session_id, 3)), version)
    assert known is not None
    for size in (1, 126, 127, 128, 20_000, 1 << 20, 50 << 20):
        row: Any = 2, 0, 1234, 1200, 7, size, [] if isolation else None, -1, None
        encoded = encode_fetch_response_head(4711, version, [(topic_of(version), [row])], 0, session_id)
        assert [known.head(4711, 1234, 1200, 7, size), known.tail] == encoded


def test_counts_in_more_bytes_than_they_need_have_no_template() -> None:
    usual = frame(17, 1000)
    at = body_at(17) + 21
    assert usual[at] == 2
    padded = usual[:at] + b"\x82\0" + usual[at + 1 :]
    try:
        found = template(padded, 17)
    except ProtocolError:
        return
    assert found is None
