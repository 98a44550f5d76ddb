"""Two nodes are struck at once, each in any of the ways in which nodes and ZooKeeper can lose each other: what was
acknowledged is there afterwards, in order and once, whether ZooKeeper is one server or three."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from headrace.testing.cluster import TestCluster
from tests.cluster.conftest import QUICK
from tests.cluster.history import ConfluentWriter, Reader, assert_replicas_identical, judge, read_log
from tests.cluster.network import Network, available
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import CHROOT, ensemble

pytestmark = [pytest.mark.reference, pytest.mark.soak, pytest.mark.timeout(400)]

SESSION_MS = 2_000
PAST_THE_SESSION_S = SESSION_MS / 1000 + 1.5
SOME = 100
PATIENCE: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000, "message.timeout.ms": 200_000}
STRIKES = ("killed", "asleep", "expired", "without zookeeper", "without the others")


class World(NamedTuple):
    network: Network
    cluster: TestCluster
    doors: dict[int, list[Proxy]]
    """Of each node, to each server of ZooKeeper."""

    def strike(self, kind: str, victim: int) -> None:
        match kind:
            case "killed":
                self.cluster.kill(victim)
            case "asleep":
                self.cluster.freeze(victim)
            case "expired" | "without zookeeper":
                for door in self.doors[victim]:
                    door.shut()
                if kind == "expired":  # its session ends without its knowing, and it is back before anything else
                    time.sleep(PAST_THE_SESSION_S)
                    self.mend(kind, victim)
            case "without the others":
                for other in self.cluster.nodes:
                    if other != victim:
                        self.network.cut(victim, other)
                        self.network.cut(other, victim)

    def mend(self, kind: str, victim: int) -> None:
        match kind:
            case "killed":
                self.cluster[victim].launch()
            case "asleep":
                self.cluster.thaw(victim)
            case "expired" | "without zookeeper":
                for door in self.doors[victim]:
                    door.reopen()


@pytest.fixture(scope="module", params=[1, 3])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if missing := available():
        pytest.skip(missing)
    with ExitStack() as stack:
        network = stack.enter_context(Network(3))
        servers = stack.enter_context(ensemble(tmp_path_factory.mktemp("zookeeper"), servers=request.param)).servers
        settings = {
            **QUICK,
            "zookeeper.connect": "replaced:1",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
        }
        cluster = TestCluster(3, settings=settings, hosts=network.hosts, prefixes=network.prefixes)
        stack.callback(cluster.close)
        doors = {}
        for node_id, node in cluster.nodes.items():
            doors[node_id] = [Proxy(("127.0.0.1", server.port), network.host) for server in servers]
            for door in doors[node_id]:
                stack.callback(door.close)
            connect = ",".join(f"{network.host}:{door.port}" for door in doors[node_id])
            text = node.node.properties.read_text()
            text = re.sub(r"zookeeper\.connect=.*", f"zookeeper.connect={connect}{CHROOT}", text)
            node.node.properties.write_text(text)
        cluster.start()
        yield World(network, cluster, doors)


@pytest.mark.parametrize("second", STRIKES)
@pytest.mark.parametrize("first", STRIKES)
def test_two_at_a_time(world: World, first: str, second: str) -> None:
    """The leader and, if that is another, the controller."""
    cluster, topic = world.cluster, f"{first}-{second}".replace(" ", "-")
    cluster.create_topic(topic, 1, 3)
    with (
        Reader(cluster.bootstrap, topic, 1) as reader,
        ConfluentWriter(cluster.bootstrap, topic, 1, **PATIENCE) as writer,
    ):
        writer.wait_acked(SOME)
        leader, controller = cluster.leader_of(topic), cluster.quorum_leader()
        other = controller if controller != leader else leader % 3 + 1
        strikes = [(first, leader), (second, other)]
        for kind, victim in strikes:
            world.strike(kind, victim)
        time.sleep(PAST_THE_SESSION_S)
        world.network.heal()
        for kind, victim in strikes:
            world.mend(kind, victim)
        for node in cluster.nodes.values():
            node.wait_ready()
        cluster.quorum_leader()
        cluster.wait_in_sync(topic)
        writer.wait_acked(SOME)
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, topic), writer.book, reader=reader)
    assert_replicas_identical(cluster, topic)
