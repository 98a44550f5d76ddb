"""The pictures of the documents that Headrace was made from, as they come out on a real cluster."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import confluent_kafka as confluent
import pytest

from headrace.metadata.placement import UsableBroker, place
from headrace.testing.cluster import TestCluster
from tests.cluster.conftest import QUICK
from tests.cluster.zookeeper import ensemble

MEMBERS_S = 60


@pytest.fixture(scope="module", params=["kraft", pytest.param("zookeeper", marks=pytest.mark.reference)])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """With either quorum: the documents draw the same brokers, whatever keeps the metadata."""
    with ExitStack() as stack:
        settings = dict(QUICK)
        if request.param == "zookeeper":
            settings["zookeeper.connect"] = stack.enter_context(ensemble(tmp_path_factory.mktemp("zk"))).connect
        yield stack.enter_context(TestCluster(2, settings=settings))


def folders(cluster: TestCluster, topic: str, count: int) -> list[set[int]]:
    """The partitions that each broker has a folder of, once there are so many: metadata reaches one a moment after the
    other."""
    deadline = time.monotonic() + MEMBERS_S
    while True:
        found = [
            {int(path.name.rpartition("-")[2]) for path in cluster[node].data.glob(f"{topic}-*")} for node in (1, 2)
        ]
        if sum(map(len, found)) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def spread(cluster: TestCluster, topic: str) -> dict[int, tuple[int, tuple[int, ...]]]:
    """partition -> leader and replicas."""
    return {index: (p.leader, p.replicas) for index, p in cluster.topic(topic).partitions.items()}


def assignments(cluster: TestCluster, topic: str, group: str, members: int) -> tuple[list[set[int]], list[bytes]]:
    """What `range` gives to each member once all are there, and every value that the group was given."""
    settings = {
        "bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
        "partition.assignment.strategy": "range", "session.timeout.ms": 10_000,
    }  # fmt: skip
    consumers = [confluent.Consumer(settings) for _ in range(members)]
    values: list[bytes] = []
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        deadline = time.monotonic() + MEMBERS_S
        while True:
            for consumer in consumers:
                message = consumer.poll(0.02)
                if message is not None and not message.error():
                    values.append(message.value())
            held = [{tp.partition for tp in consumer.assignment()} for consumer in consumers]
            if all(held) and set.union(*held) == {0, 1, 2, 3} and sum(map(len, held)) == 4 and len(set(values)) >= 40:
                return held, values
            assert time.monotonic() < deadline, f"{group}: {held}, {len(values)} values"
    finally:
        for consumer in consumers:
            consumer.close()


def test_two_brokers_four_partitions_with_one_and_two_replicas_and_groups_of_two_and_four(two: TestCluster) -> None:
    # Replication factor 1, placed by hand: b1 holds p0 and p1, b2 holds p2 and p3, each partition a folder.
    two.create_topic("once", assignments={0: [1], 1: [1], 2: [2], 3: [2]})
    assert spread(two, "once") == {0: (1, (1,)), 1: (1, (1,)), 2: (2, (2,)), 3: (2, (2,))}
    assert folders(two, "once", 4) == [{0, 1}, {2, 3}]

    # Replication factor 2, as placement does it from a fixed start: p0 and p2 led by b1, p1 and p3 by b2, all on both.
    brokers = [UsableBroker(1, None, False), UsableBroker(2, None, False)]
    placed = place(brokers, 4, 2, lambda sides: sides - 1)  # a dice that leaves the list as it is
    two.create_topic("twice", assignments=dict(enumerate(placed)))
    assert spread(two, "twice") == {0: (1, (1, 2)), 1: (2, (2, 1)), 2: (1, (1, 2)), 3: (2, (2, 1))}
    assert folders(two, "twice", 8) == [{0, 1, 2, 3}, {0, 1, 2, 3}]

    # A replica is never beside another of its partition, so more replicas than brokers are refused.
    with pytest.raises(Exception, match="INVALID_REPLICATION_FACTOR"):
        two.ask(lambda admin: admin.create_topic("thrice", 4, 3))

    producer = confluent.Producer({"bootstrap.servers": two.bootstrap, "acks": "all", "log_level": 0})
    for number in range(40):
        producer.produce("twice", b"%d" % number, partition=number % 4)
    assert producer.flush(30) == 0

    # Group A, two consumers: p0 and p1 for one, p2 and p3 for the other. Group B, four consumers: one each.
    everything = {b"%d" % number for number in range(40)}
    held, values = assignments(two, "twice", "A", 2)
    assert sorted(map(sorted, held)) == [[0, 1], [2, 3]]
    assert set(values) == everything
    held, values = assignments(two, "twice", "B", 4)
    assert sorted(map(sorted, held)) == [[0], [1], [2], [3]]
    assert set(values) == everything, "each group gets everything"
