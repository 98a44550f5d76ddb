"""The parts of a consumer against models: positions, sessions, assignors, the decoding of records that look alike."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.client.consume.assignors import ASSIGNORS, Subscriber, cooperative_sticky
from headrace.client.consume.classic_messages import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from headrace.client.consume.places import Chunk, Place
from headrace.client.consume.records import Record, read_batch
from headrace.client.consume.resets import read_reset
from headrace.client.consume.sessions import FetchSession, Wanted
from headrace.client.errors import ClientError
from headrace.errors import KafkaError
from headrace.protocol import messages as m
from headrace.records.batch import BatchBuilder, read_header, read_records

DATA = st.none() | st.binary(max_size=5) | st.sampled_from([b"same", b"x" * 70, b"y" * 9_000])
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
ROW = st.tuples(st.integers(0, 20_000), DATA, DATA, st.just(()) | HEADERS, st.integers(1, 3))


@settings(deadline=None, max_examples=100)
@given(st.lists(ROW, min_size=1, max_size=40), st.sampled_from([0, 1, 4]), st.booleans())
def test_records_are_decoded_as_the_careful_reader_does(rows: list[Any], codec: int, broker_time: bool) -> None:
    builder = BatchBuilder(base_offset=7, compression=codec, log_append_time_ms=99 if broker_time else None)
    offset = 7
    for timestamp, key, value, headers, step in rows:
        builder.append(timestamp, key, value, headers, offset=offset)
        offset += step
    data = builder.build()
    header = read_header(data)
    found = read_batch(memoryview(data), 0, header, "t", 3)
    expected = [Record("t", 3, r.offset, r.timestamp, r.key, r.value, r.headers) for r in read_records(data, 0, header)]
    assert found == expected


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(0, 4))
def test_any_other_bytes_are_refused_as_the_careful_reader_refuses_them(body: bytes, count: int) -> None:
    builder = BatchBuilder()
    builder.append(1, None, b"")
    whole = builder.build()
    damaged = whole[:57] + count.to_bytes(4, "big") + body
    header = read_header(whole)._replace(length=len(damaged) - 12, count=count)
    outcomes: list[Any] = []
    for read in (
        lambda: [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read_records(damaged, 0, header)],
        lambda: [
            (r.offset, r.timestamp, r.key, r.value, r.headers)
            for r in read_batch(memoryview(damaged), 0, header, "t", 0)
        ],
    ):
        try:
            outcomes.append(read())
        except KafkaError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


def chunk_of(start: int, sizes: list[int], gap: int) -> Chunk:
    batches, offset = [], start
    for size in sizes:
        batches.append((1, [Record("t", 0, offset + n, 0, None, None) for n in range(size)]))
        offset += size + gap
    return Chunk(iter([one for one in batches if one[1]]), start, offset, 10)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_place_hands_out_each_offset_once_and_in_order(data: st.DataObject) -> None:
    place = Place("t", 0, 0, bytes(16))
    model: list[int] = []
    seen: list[int] = []
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["fetch", "take", "give back", "seek"]))
        if step == "fetch" and place.wants_more:
            sizes, gap = data.draw(st.lists(st.integers(0, 4), max_size=3)), data.draw(st.integers(0, 2))
            chunk = chunk_of(place.fetch_offset, sizes, gap)
            offset = place.fetch_offset
            for size in sizes:
                model += range(offset, offset + size)
                offset += size + gap
            place.keep(chunk)
        elif step == "seek":
            target = data.draw(st.integers(0, 30))
            place.seek(target)
            model = []
            assert place.position == place.passed == place.fetch_offset == target and not place.has_records
        else:
            records, _ = place.take(data.draw(st.integers(1, 5)))
            taken = [record.offset for record in records]
            assert taken == model[: len(taken)]
            assert bool(taken) == bool(model)
            if step == "give back" and taken:
                kept = data.draw(st.integers(0, len(taken)))
                place.give_back(records[kept:])
                taken = taken[:kept]
            model = model[len(taken) :]
            seen += taken
            if model:
                assert place.position <= model[0]
    assert place.passed <= place.position


PLACES = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2)),
    st.builds(Wanted, st.sampled_from([b"1" * 16, b"2" * 16]), st.integers(0, 3), st.just(1), st.just(-1)),
)


@settings(deadline=None)
@given(st.lists(st.tuples(PLACES, st.booleans()), max_size=8))
def test_a_broker_that_hears_only_changes_knows_everything(rounds: list[Any]) -> None:
    session = FetchSession()
    known: dict[Any, Wanted] = {}
    epoch = 0
    before: dict[Any, Wanted] = {}
    for wanted, fails in rounds:
        # Some of what is told has not changed, as where a partition was touched and is as it was.
        changes = wanted if session.is_new else {at: wanted.get(at) for at in before | wanted}
        question = session.ask(changes)
        before = wanted
        if question.session_id == 0:
            known, epoch = {}, 0
        assert question.epoch == epoch
        for at, one in question.forgotten.items():
            assert known.pop((at, one.topic_id)) is not None
        known.update({(at, one.topic_id): one for at, one in question.asked.items()})
        assert known == {(at, one.topic_id): one for at, one in wanted.items()}
        if fails:
            session.reset()
        else:
            session.answered(5)
            epoch += 1


MEMBERS = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4"]), st.frozensets(st.sampled_from("abc"), min_size=1), min_size=1
)


@settings(deadline=None)
@given(MEMBERS, MEMBERS, st.fixed_dictionaries({name: st.integers(1, 5) for name in "abc"}))
def test_cooperative_members_settle_without_ever_sharing_a_partition(
    before: dict[str, frozenset[str]], after: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    owned: dict[str, frozenset[tuple[str, int]]] = {}
    generation = 0
    for topics in (before, after):
        owned = {member: owned.get(member, frozenset()) for member in topics}
        for _ in range(4):
            generation += 1
            members = {
                name: Subscriber(topics[name], frozenset(at for at in owned[name] if at[0] in topics[name]), generation)
                for name in topics
            }
            given_now = cooperative_sticky(members, counts)
            for name, partitions in given_now.items():
                others = {at for other in members if other != name for at in members[other].owned}
                assert not partitions & others, "still held by another"
            settled = given_now == owned
            owned = dict(given_now)
            if settled:
                break
        held = [at for partitions in owned.values() for at in partitions]
        wanted = {(t, i) for t in {t for ts in topics.values() for t in ts} for i in range(counts[t])}
        assert len(held) == len(set(held)) and set(held) == wanted


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_eager_assignors_give_every_partition_to_one_subscriber(name: str) -> None:
    members = {"m1": Subscriber(frozenset("ab")), "m2": Subscriber(frozenset("b")), "m3": Subscriber(frozenset("ab"))}
    assigned = ASSIGNORS[name](members, {"a": 4, "b": 5})
    flat = [at for partitions in assigned.values() for at in partitions]
    assert sorted(flat) == [("a", n) for n in range(4)] + [("b", n) for n in range(5)]
    assert all(topic in members[member].topics for member, rows in assigned.items() for topic, _ in rows)


def test_members_read_what_members_write() -> None:
    owned = frozenset({("a", 1), ("b", 0)})
    row = m.JoinGroupResponse.JoinGroupResponseMember(member_id="m", group_instance_id="i")
    assert read_subscription(write_subscription(["a", "b"], owned, 7, "r"), row) == Subscriber(
        frozenset("ab"), owned, 7, "i"
    )
    assert read_assignment(write_assignment(owned)) == owned and read_assignment(b"") == frozenset()
    with pytest.raises(ClientError, match="cannot be read"):
        read_assignment(b"\xff")
    with pytest.raises(ClientError, match="'m' has sent a subscription"):
        read_subscription(b"\x00\x01\xff", row)


def test_resets_are_read_as_kafka_writes_them() -> None:
    assert read_reset("Earliest").timestamp_at(5) == -2 and read_reset("latest").timestamp_at(5) == -1
    assert read_reset("none").is_none
    assert read_reset("by_duration:P1DT2H3M4.5S").age_ms == ((26 * 60 + 3) * 60) * 1000 + 4_500
    for bad in ("by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1h", "soon"):
        with pytest.raises(ClientError, match="write earliest, latest, none"):
            read_reset(bad)
