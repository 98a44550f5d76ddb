"""A closed segment that somebody has removed is noticed at the next start, copied from the others, and read by everybody."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing.cluster import TestCluster

RECORDS = 400
VALUE = b"v" * 10_000


def segments(cluster: TestCluster, node_id: int, topic: str) -> list[Path]:
    return sorted((cluster[node_id].data / f"{topic}-0").glob("*.log"))


def content(cluster: TestCluster, node_id: int, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in segments(cluster, node_id, topic))


@pytest.mark.parametrize("ended", ["stop", "kill"])
def test_the_second_of_four_segments_is_copied_from_the_others(cluster: TestCluster, ended: str) -> None:
    topic = f"missing-{ended}"
    cluster.create_topic(topic, 1, 3, {"segment.bytes": str(1 << 20)})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "batch.num.messages": 10})
    for number in range(RECORDS):
        producer.produce(topic, b"%d " % number + VALUE, partition=0)
    assert producer.flush(60) == 0
    cluster.wait_in_sync()
    victim = cluster.leader_of(topic, 0)
    whole = content(cluster, victim, topic)
    getattr(cluster[victim], ended)()
    gone = segments(cluster, victim, topic)[1]
    gone.unlink()
    cluster[victim].start()
    cluster.wait_in_sync()
    for node_id in cluster.nodes:
        assert content(cluster, node_id, topic) == whole, f"node {node_id}"
    # Whoever leads, nobody misses a record: the one that had lost them leads again in the end.
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while len(values) < RECORDS:
        message = consumer.poll(60)
        assert message is not None and message.error() is None, message and message.error()
        values.append(message.value())
    consumer.close()
    assert values == [b"%d " % number + VALUE for number in range(RECORDS)]
    assert gone.name.removesuffix(".log") in cluster[victim].node.log.read_text()
