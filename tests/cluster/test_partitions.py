"""Networks that part: one leader commits, clients go on, and nothing is lost when the parts meet again."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.cluster import TestCluster
from tests.cluster.conftest import QUICK
from tests.cluster.history import (
    ConfluentWriter,
    Reader,
    assert_replicas_identical,
    judge,
    read_log,
)
from tests.cluster.network import Network, available

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]
PATIENCE: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000, "message.timeout.ms": 200_000}
APART_S = 12.0


@pytest.fixture(scope="module")
def parted() -> Iterator[tuple[Network, TestCluster]]:
    if missing := available():
        pytest.skip(missing)
    with (
        Network(3) as network,
        TestCluster(3, settings=QUICK, hosts=network.hosts, prefixes=network.prefixes) as cluster,
    ):
        yield network, cluster


def shapes(network: Network, leader: int, others: list[int]) -> dict[str, list[tuple[int, int]]]:
    """Who no longer reaches whom."""
    a, b = others
    both = [(leader, a), (a, leader), (leader, b), (b, leader)]
    return {
        "the leader alone": both,
        "the leader cannot send": [(leader, a), (leader, b)],
        "the leader cannot hear": [(a, leader), (b, leader)],
        "a bridge": [(leader, a), (a, leader)],
        "the followers apart": [(a, b), (b, a)],
    }


@pytest.mark.parametrize("shape", shapes(Network(3), 1, [2, 3]))
def test_a_partition(parted: tuple[Network, TestCluster], shape: str) -> None:
    network, cluster = parted
    topic = shape.replace(" ", "-")
    cluster.create_topic(topic, 1, 3)
    with (
        Reader(cluster.bootstrap, topic, 1) as reader,
        ConfluentWriter(cluster.bootstrap, topic, 1, **PATIENCE) as writer,
    ):
        writer.wait_acked(100)
        leader = cluster.leader_of(topic)
        others = [node for node in cluster.nodes if node != leader]
        epoch = cluster.quorum().leader_epoch
        for sender, receiver in shapes(network, leader, others)[shape]:
            network.cut(sender, receiver)
        began = time.monotonic()
        # Somebody goes on committing while they are apart.
        writer.wait_acked(200)
        time.sleep(max(0.0, APART_S - (time.monotonic() - began)))
        writer.wait_acked(50)
        network.heal()
        cluster.wait_in_sync(topic)
        elections = cluster.quorum().leader_epoch - epoch
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, topic), writer.book, reader=reader)
    assert_replicas_identical(cluster, topic)
    assert elections <= 4, f"{elections} elections in {APART_S:g} s: a storm"
