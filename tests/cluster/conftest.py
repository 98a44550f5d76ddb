"""Three brokers shared by a module's tests. Whatever a test has done to them is mended before the next one."""

from collections.abc import Iterator

import pytest

from headrace.testing.cluster import ClusterFailed, TestCluster

QUICK = {
    "replica.lag.time.max.ms": "2000",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "3",
}
"""A follower that is slow is noticed within seconds, and few partitions of groups have to move."""


class Shared:
    """The module's cluster, replaced by a new one if it cannot be mended: one failure should not become many."""

    def __init__(self) -> None:
        self.cluster = TestCluster(3, settings=QUICK).start()

    def mended(self) -> TestCluster:
        try:
            mend(self.cluster)
        except ClusterFailed:
            self.cluster.close()
            self.cluster = TestCluster(3, settings=QUICK).start()
        return self.cluster


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    found = Shared()
    yield found
    found.cluster.close()


@pytest.fixture
def cluster(shared: Shared) -> TestCluster:
    return shared.mended()


def mend(cluster: TestCluster) -> None:
    """All nodes up and every replica in sync."""
    for node in cluster.nodes.values():
        node.thaw()
    down = [node.id for node in cluster.nodes.values() if not node.is_running]
    if down:
        cluster.start(*down)
    cluster.quorum_leader()
    cluster.wait_in_sync()
