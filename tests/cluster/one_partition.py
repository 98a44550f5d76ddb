"""A partition of a few closed segments on three nodes, for tests of what happens to its files."""

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing.cluster import TestCluster

VALUES = [b"%d " % number + b"v" * 10_000 for number in range(400)]


def write_segments(cluster: TestCluster, topic: str) -> None:
    """Create `topic`, write VALUES, and wait until all replicas have them."""
    cluster.create_topic(topic, 1, 3, {"segment.bytes": str(1 << 20)})
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "batch.num.messages": 10}
    )
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    cluster.wait_in_sync()


def segments(cluster: TestCluster, node_id: int, topic: str) -> list[Path]:
    return sorted((cluster[node_id].data / f"{topic}-0").glob("*.log"))


def assert_all_is_read(cluster: TestCluster, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while len(values) < len(VALUES):
        message = consumer.poll(60)
        assert message is not None and message.error() is None, message and message.error()
        values.append(message.value())
    consumer.close()
    assert values == VALUES
