"""Networks that part: one leader commits, clients go on, and nothing is lost when the parts meet again."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
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
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import CHROOT, ensemble

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]
PATIENCE: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000, "message.timeout.ms": 200_000}
APART_S = 12.0


@pytest.fixture(scope="module", params=["kraft", "zookeeper"])
def parted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Network, TestCluster]]:
    """Whom of each other they reach changes; ZooKeeper, if it has the metadata, is reached by all."""
    if missing := available():
        pytest.skip(missing)
    with ExitStack() as stack:
        network = stack.enter_context(Network(3))
        settings = dict(QUICK)
        if request.param == "zookeeper":
            (server,) = stack.enter_context(ensemble(tmp_path_factory.mktemp("zookeeper"))).servers
            door = Proxy(("127.0.0.1", server.port), network.host)
            stack.callback(door.close)
            settings["zookeeper.connect"] = f"{network.host}:{door.port}{CHROOT}"
        cluster = TestCluster(3, settings=settings, hosts=network.hosts, prefixes=network.prefixes)
        yield network, stack.enter_context(cluster)


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
