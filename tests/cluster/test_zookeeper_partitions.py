"""One node is cut off from ZooKeeper and from nothing else: others lead, and what it had not committed was never
acknowledged."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from headrace.testing.cluster import TestCluster
from tests.cluster.conftest import QUICK, mend
from tests.cluster.history import ConfluentWriter, Reader, assert_replicas_identical, judge, read_log
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import CHROOT, ZNodes, ensemble

pytestmark = [pytest.mark.reference, pytest.mark.soak]

SESSION_MS = 2_000
SOME = 150
PATIENCE: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000}


class World(NamedTuple):
    cluster: TestCluster
    doors: dict[int, Proxy]
    """Of each node, to ZooKeeper."""
    znodes: ZNodes

    def state(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self.znodes.json(f"/brokers/topics/{topic}/partitions/0/state")
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ensemble(tmp_path_factory.mktemp("zookeeper")))
        settings = {
            **QUICK,
            "zookeeper.connect": zookeeper.connect + CHROOT,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
        }
        cluster = TestCluster(3, settings=settings)
        stack.callback(cluster.close)
        doors = {}
        for node_id, node in cluster.nodes.items():
            door = doors[node_id] = Proxy(("127.0.0.1", zookeeper.servers[0].port))
            stack.callback(door.close)
            text = node.node.properties.read_text()
            connect = f"zookeeper.connect=127.0.0.1:{door.port}{CHROOT}"
            node.node.properties.write_text(re.sub(r"zookeeper\.connect=.*", connect, text))
        cluster.start()
        znodes = ZNodes(zookeeper.connect)
        stack.callback(znodes.close)
        yield World(cluster, doors, znodes)


@pytest.mark.parametrize("who", ["leader", "controller"])
def test_a_node_that_is_cut_off_from_zookeeper_alone(world: World, who: str) -> None:
    cluster, topic = world.cluster, f"cut-{who}"
    mend(cluster)
    controller = cluster.quorum_leader()
    victim = controller if who == "controller" else controller % 3 + 1
    cluster.create_topic(topic, assignments={0: [victim, *(node for node in cluster.nodes if node != victim)]})
    # The client knows the node that is cut off like the others, and has to find out by itself.
    with (
        Reader(cluster.bootstrap, topic, 1) as reader,
        ConfluentWriter(cluster.bootstrap, topic, 1, **PATIENCE) as writer,
    ):
        writer.wait_acked(SOME)
        epoch = world.state(topic)["leader_epoch"]
        world.doors[victim].shut()
        cluster.wait("the ISR without it", lambda: victim not in world.state(topic)["isr"])
        writer.wait_acked(SOME)
        state = world.state(topic)
        assert state["leader"] != victim
        assert state["leader_epoch"] > epoch
        if who == "leader":
            # It still reaches the controller, which tells it so much.
            cluster.wait("it gives up", lambda: "does not hear who leads now" in cluster[victim].output())
        world.doors[victim].reopen()
        cluster.wait("it is in sync again", lambda: victim in world.state(topic)["isr"])
        writer.wait_acked(SOME)
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, topic), writer.book, reader=reader)
    assert_replicas_identical(cluster, topic)
