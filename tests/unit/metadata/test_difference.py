"""The delta between two images leads from one to the other, and names what changed and nothing else."""

from typing import Any

from headrace.metadata.delta import Delta
from headrace.metadata.difference import difference
from headrace.metadata.image import EMPTY, Image
from headrace.protocol import messages as m

ONE, TWO, THREE = (bytes([n]) * 16 for n in (1, 2, 3))


def image(*records: Any, base: Image = EMPTY, offset: int = 1) -> Image:
    level = m.FeatureLevelRecord(name="metadata.version", feature_level=30)
    return Delta(base).replay_all([(record, 0) for record in (level, *records)]).apply(offset, 1, 1)


def partition(topic_id: bytes, number: int, leader: int = 1) -> m.PartitionRecord:
    return m.PartitionRecord(
        topic_id=topic_id, partition_id=number, replicas=[1, 2], isr=[1, 2], leader=leader, leader_epoch=0,
        partition_epoch=0, directories=[ONE, TWO],
    )  # fmt: skip


def broker(node_id: int, epoch: int) -> m.RegisterBrokerRecord:
    return m.RegisterBrokerRecord(broker_id=node_id, broker_epoch=epoch, incarnation_id=ONE, fenced=False)


def config(name: str, value: str) -> m.ConfigRecord:
    return m.ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value=value)


def test_from_one_image_to_another() -> None:
    old = image(
        m.TopicRecord(name="gone", topic_id=ONE), partition(ONE, 0), config("gone", "1"),
        m.TopicRecord(name="kept", topic_id=TWO), partition(TWO, 0), partition(TWO, 1), config("kept", "2"),
        broker(1, 5), broker(2, 6), m.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=1000),
    )  # fmt: skip
    new = image(
        m.TopicRecord(name="kept", topic_id=TWO), partition(TWO, 0), partition(TWO, 1, leader=2), config("kept", "2"),
        m.TopicRecord(name="gone", topic_id=THREE), partition(THREE, 0), config("gone", "1"),
        broker(1, 9), broker(3, 7), m.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=2000),
        offset=50,
    )  # fmt: skip
    delta = difference(old, new)
    assert delta.apply(50, 1, 1) == new
    assert set(delta.topics_deleted) == {ONE}
    assert delta.topics_created == [(THREE, "gone")]
    changed = {(c.topic_name, c.partition): (c.old and c.old.leader, c.new.leader) for c in delta.partition_changes()}
    assert changed == {("kept", 1): (1, 2), ("gone", 0): (None, 1)}
    assert set(delta.brokers) == {1, 2, 3} and delta.brokers[2] is None
    assert "kept" not in {name for _, name in delta.configs}


def test_no_difference_is_empty() -> None:
    one = image(m.TopicRecord(name="t", topic_id=ONE), partition(ONE, 0), broker(1, 5), config("t", "1"))
    assert difference(one, one).empty
    assert difference(EMPTY, one).apply(1, 1, 1) == one
