"""A closed segment that somebody has removed is noticed at the next start, copied from the others, and read by
everybody."""

import pytest

from headrace.testing.cluster import TestCluster
from tests.cluster.one_partition import assert_all_is_read, segments, write_segments


def content(cluster: TestCluster, node_id: int, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in segments(cluster, node_id, topic))


@pytest.mark.parametrize("ended", ["stop", "kill"])
def test_the_second_of_four_segments_is_copied_from_the_others(cluster: TestCluster, ended: str) -> None:
    topic = f"missing-{ended}"
    write_segments(cluster, topic)
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
    assert_all_is_read(cluster, topic)
    assert gone.name.removesuffix(".log") in cluster[victim].node.log.read_text()
