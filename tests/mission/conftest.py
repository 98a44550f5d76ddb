"""Four brokers in two racks, shared by all documents. Tests that stop brokers have clusters of their own."""

from collections.abc import Iterator

import pytest

from headrace.testing.cluster import TestCluster

SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "min.insync.replicas": "1",
}


@pytest.fixture(scope="session")
def four() -> Iterator[TestCluster]:
    """b1 and b3 are in rack a, b2 and b4 in rack b."""
    with TestCluster(4, settings=SETTINGS, racks=("a", "b")) as cluster:
        yield cluster
