"""Images: what a history adds up to does not depend on how it is cut into batches, and survives a snapshot."""

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from headrace.metadata.delta import Delta, ReplayError
from headrace.metadata.image import EMPTY, NO_LEADER, Image
from headrace.metadata.loader import Loader
from headrace.metadata.names import has_collision_chars, unify_collision_chars
from headrace.metadata.records import Record, decode_records, encode_records
from headrace.metadata.snapshot import image_records
from headrace.protocol import messages as m
from tests.unit.metadata.history import histories

TOPIC = bytes(range(16))


def image_of(records: list[Record], image: Image = EMPTY) -> Image:
    return Delta(image).replay_all(records).apply(len(records) - 1, 1, 5)


def partition(number: int = 0, topic_id: bytes = TOPIC, **fields: object) -> Record:
    record = m.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[bytes(16)],
    )
    for name, value in fields.items():
        setattr(record, name, value)
    return record, 2


def check_derived(image: Image) -> None:
    """The indexes say what a walk over everything would say."""
    held: dict[int, set[tuple[bytes, int]]] = {}
    for topic in image.topics.values():
        assert image.topic_ids[topic.name] == topic.id
        for number, p in topic.partitions.items():
            for broker in {*p.isr, *p.elr, *([NO_LEADER] if p.leader == NO_LEADER else [])}:
                held.setdefault(broker, set()).add((topic.id, number))
    assert {b: set(keys) for b, keys in image.broker_partitions.items()} == held
    everywhere = {(topic.id, number): p for topic in image.topics.values() for number, p in topic.partitions.items()}
    assert set(image.reassigning) == {key for key, p in everywhere.items() if p.adding or p.removing}
    assert set(image.imbalanced) == {
        key for key, p in everywhere.items() if not p.replicas or p.leader != p.replicas[0]
    }
    colliding: dict[str, set[str]] = {}
    for name in image.topic_ids:
        if has_collision_chars(name):
            colliding.setdefault(unify_collision_chars(name), set()).add(name)
    assert {u: set(names) for u, names in image.colliding_names.items()} == colliding
    assert len(image.topics) == len(image.topic_ids)


@given(histories(), st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=200, deadline=None)
def test_batches_do_not_matter(records: list[Record], cuts: list[int]) -> None:
    whole = image_of(records)
    check_derived(whole)
    loader = Loader()
    edges = sorted({0, len(records), *(c for c in cuts if c < len(records))})
    for start, end in pairwise(edges):
        loader.load(records[start:end], start, 1, 5)
        check_derived(loader.image)
    assert loader.image == whole


@given(histories())
@settings(max_examples=200, deadline=None)
def test_a_snapshot_is_the_same_image(records: list[Record]) -> None:
    image = image_of(records)
    written = list(image_records(image))
    again = image_of(decode_records(encode_records(written)))
    assert again.same_content(image)
    assert list(image_records(again)) == written, "equal images make equal snapshots"


@given(histories(max_size=40), histories(max_size=40))
@settings(max_examples=50, deadline=None)
def test_a_delta_leaves_its_base_alone(before: list[Record], after: list[Record]) -> None:
    image = image_of(before)
    kept = list(image_records(image))
    try:
        image_of(after, image)
    except ReplayError:
        pass  # the second history was made for an empty cluster
    assert list(image_records(image)) == kept


def test_changes_name_what_changed() -> None:
    image = image_of([(m.TopicRecord(name="t", topic_id=TOPIC), 0), partition(0), partition(1)])
    other = bytes(15) + b"\x77"
    delta = Delta(image).replay_all(
        [
            (m.PartitionChangeRecord(topic_id=TOPIC, partition_id=1, leader=-1), 2),
            (m.TopicRecord(name="new", topic_id=other), 0),
            partition(0, other),
            (m.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v"), 0),
        ]
    )
    changes = {(c.topic_name, c.partition): (c.old, c.new) for c in delta.partition_changes()}
    assert set(changes) == {("t", 1), ("new", 0)}
    old, new = changes["t", 1]
    assert old is not None and (old.leader, old.leader_epoch) == (1, 0)
    assert (new.leader, new.leader_epoch, new.partition_epoch) == (-1, 1, 1)
    assert changes["new", 0][0] is None
    assert delta.topics_created == [(other, "new")]
    assert set(delta.configs) == {(2, "t")}


def test_deleting_and_recreating_a_topic_in_one_batch() -> None:
    image = image_of(
        [
            (m.TopicRecord(name="t", topic_id=TOPIC), 0),
            partition(),
            (m.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v"), 0),
        ]
    )
    other = bytes(15) + b"\x77"
    delta = Delta(image).replay_all(
        [
            (m.RemoveTopicRecord(topic_id=TOPIC), 0),
            (m.TopicRecord(name="t", topic_id=other), 0),
            partition(0, other),
        ]
    )
    after = delta.apply(9, 1, 5)
    assert after.topic_ids["t"] == other
    assert list(delta.topics_deleted) == [TOPIC]
    assert after.config(2, "t") == {}, "a new topic must not inherit the old one's configs"
    check_derived(after)


@pytest.mark.parametrize(
    "record",
    [
        m.PartitionRecord(topic_id=TOPIC),
        m.PartitionChangeRecord(topic_id=TOPIC),
        m.RemoveTopicRecord(topic_id=TOPIC),
        m.FenceBrokerRecord(id=1),
        m.UnregisterBrokerRecord(broker_id=1),
        m.RemoveAccessControlEntryRecord(id=TOPIC),
        m.ClearElrRecord(topic_name="no"),
        m.MetadataRequest(),
    ],
)
def test_records_that_do_not_fit_are_refused(record: object) -> None:
    with pytest.raises(ReplayError):
        Delta(EMPTY).replay(record)


def test_transactions_are_applied_whole_or_not_at_all() -> None:
    begin, end, abort = m.BeginTransactionRecord(), m.EndTransactionRecord(), m.AbortTransactionRecord()
    topic = (m.TopicRecord(name="t", topic_id=TOPIC), 0)
    loader = Loader()
    loader.load([(begin, 0), topic], 0, 1, 5)
    assert loader.in_transaction and not loader.image.topics
    loader.load([partition()], 2, 1, 5)
    assert not loader.image.topics
    loader.load([(abort, 0)], 3, 1, 5)
    assert not loader.image.topics and not loader.in_transaction
    loader.load([(begin, 0), topic, partition(), (end, 0)], 4, 1, 5)
    assert "t" in loader.image.topic_ids
    assert loader.image.offset == 7
    with pytest.raises(ReplayError):
        loader.load([(end, 0)], 8, 1, 5)


def test_one_change_in_a_large_cluster_is_cheap() -> None:
    """Counted, not timed: a change of one of 20,000 partitions makes few new objects."""
    records: list[Record] = []
    for n in range(200):
        topic_id = n.to_bytes(16, "big")
        records.append((m.TopicRecord(name=f"t{n}", topic_id=topic_id), 0))
        records += [partition(p, topic_id) for p in range(100)]
    image = image_of(records)
    after = image_of([(m.PartitionChangeRecord(topic_id=bytes(16), partition_id=3, leader=-1), 2)], image)
    new_topics = [t for t, u in zip(image.topics.values(), after.topics.values()) if t is not u]
    assert len(new_topics) == 1
    shards = zip(image.topics._shards, after.topics._shards)
    assert sum(a is not b for a, b in shards) == 1
    assert after.configs is image.configs and after.topic_ids is image.topic_ids and after.brokers is image.brokers
