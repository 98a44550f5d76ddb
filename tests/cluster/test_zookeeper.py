"""A cluster whose metadata is in a real ZooKeeper: Kafka's znodes, and nothing lost whoever dies, sleeps or is away."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from headrace.client.admin.admin import Resource
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.local_cluster.ensemble import Ensemble, Server
from headrace.storage.checkpoints import encode_uuid
from headrace.testing.cluster import ClusterFailed, TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK, mend
from tests.cluster.history import ConfluentWriter, Reader, assert_replicas_identical, judge, read_log
from tests.cluster.zookeeper import CHROOT, SOME, ZNodes, ensemble, says_that_changes_wait
from tests.waiting import eventually

pytestmark = pytest.mark.reference

SESSION_MS = 2_000


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with ensemble(tmp_path_factory.mktemp("zookeeper")) as found:
        yield found


@pytest.fixture(scope="module")
def running(zookeeper: Ensemble) -> Iterator[TestCluster]:
    settings = {
        **QUICK,
        "zookeeper.connect": zookeeper.connect + CHROOT,
        "zookeeper.session.timeout.ms": str(SESSION_MS),
    }
    with TestCluster(3, settings=settings) as found:
        yield found


@pytest.fixture
def cluster(running: TestCluster, zookeeper: Ensemble) -> TestCluster:
    zookeeper.servers[0].wait_ready()
    mend(running)
    return running


@pytest.fixture
def znodes(zookeeper: Ensemble, cluster: TestCluster) -> Iterator[ZNodes]:
    found = ZNodes(zookeeper.connect)
    yield found
    found.close()


def test_znodes_show_what_the_cluster_says(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("shown", 2, 3, {"retention.ms": "86400000"})
    assert sorted(znodes.client.get_children("/brokers/ids")) == ["1", "2", "3"]
    assert znodes.json("/brokers/ids/2")["endpoints"] == [f"PLAINTEXT://{cluster[2].address}"]
    assert znodes.json("/cluster/id")["id"] == cluster.cluster_id
    assert znodes.json("/controller")["brokerid"] == cluster.quorum_leader()
    assert int(znodes.client.get("/controller_epoch")[0]) == cluster.quorum().leader_epoch
    assert znodes.json("/config/topics/shown") == {"version": 1, "config": {"retention.ms": "86400000"}}
    topic = cluster.topic("shown")
    stored = znodes.json("/brokers/topics/shown")
    assert stored["topic_id"] == encode_uuid(topic.topic_id)
    assert stored["partitions"] == {str(n): list(p.replicas) for n, p in topic.partitions.items()}
    for number, partition in topic.partitions.items():
        state = znodes.json(f"/brokers/topics/shown/partitions/{number}/state")
        assert (state["leader"], state["isr"]) == (partition.leader, list(partition.isr))

    said = headrace("cluster", "status", "-b", cluster.bootstrap)
    assert f"{CHROOT}; node {cluster.quorum_leader()} is the controller in epoch" in said

    cluster.ask(lambda admin: admin.delete_topic("shown"))
    assert znodes.client.exists("/brokers/topics/shown") is None
    assert znodes.client.exists("/config/topics/shown") is None


def test_kill_9_of_a_leader_and_of_the_controller_under_load(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("killed", 2, 3)
    with (
        Reader(cluster.bootstrap, "killed", 2) as reader,
        ConfluentWriter(cluster.bootstrap, "killed", 2) as writer,
    ):
        writer.wait_acked(SOME)
        controller = cluster.quorum_leader()
        leader = next(n for n in (1, 2, 3) if n != controller)
        for victim in (leader, controller):
            epoch = cluster.quorum().leader_epoch
            cluster.kill(victim)
            writer.wait_acked(SOME)
            if victim == controller:
                assert cluster.quorum_leader(other_than=victim) != victim
                assert cluster.quorum().leader_epoch > epoch
            wait_led_by_others(cluster, "killed", victim)
            state = znodes.json("/brokers/topics/killed/partitions/0/state")
            assert victim not in state["isr"] and state["leader"] != victim
            cluster.start(victim)
            cluster.wait_in_sync("killed")
        writer.wait_acked(SOME)
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, "killed"), writer.book, reader=reader)
    assert_replicas_identical(cluster, "killed")


def wait_led_by_others(cluster: TestCluster, topic: str, node_id: int) -> None:
    def look() -> bool:
        return all(p.leader not in (-1, node_id) for p in cluster.topic(topic).partitions.values())

    cluster.wait(f"{topic} led by others than {node_id}", look)


def test_a_controller_that_sleeps_past_its_session_changes_nothing(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("slept", 1, 3)
    patience: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000}
    with ConfluentWriter(cluster.bootstrap, "slept", 1, **patience) as writer:
        writer.wait_acked(SOME)
        sleeper, epoch = cluster.quorum_leader(), cluster.quorum().leader_epoch
        cluster.freeze(sleeper)
        cluster.wait("another controller", lambda: other(znodes, sleeper))
        writer.wait_acked(SOME)
        cluster.wait("the sleeper out of the ISR", lambda: sleeper not in isr_of(znodes, "slept"))
        cluster.thaw(sleeper)
        cluster.wait("the sleeper in sync again", lambda: len(isr_of(znodes, "slept")) == 3)
        assert other(znodes, sleeper)
        assert znodes.json("/brokers/topics/slept/partitions/0/state")["controller_epoch"] > epoch
        writer.stop()
    judge(read_log(cluster.bootstrap, "slept"), writer.book)
    assert_replicas_identical(cluster, "slept")


def other(znodes: ZNodes, node_id: int) -> bool:
    """Whether another is the controller; between two of them there is none."""
    from kazoo.exceptions import NoNodeError

    try:
        return bool(znodes.json("/controller")["brokerid"] != node_id)
    except NoNodeError:
        return False


def isr_of(znodes: ZNodes, topic: str) -> list[int]:
    found: list[int] = znodes.json(f"/brokers/topics/{topic}/partitions/0/state")["isr"]
    return found


def test_a_brokers_znode_that_was_removed_by_hand_is_made_again(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("removed", 1, 3)
    leader = cluster.leader_of("removed")
    znodes.client.delete(f"/brokers/ids/{leader}")
    cluster.wait("its znode again", lambda: znodes.client.exists(f"/brokers/ids/{leader}"))
    cluster.wait_in_sync("removed")


def test_a_znode_that_was_damaged_by_hand_stops_nobody(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("spoilt", 1, 3)
    path = "/brokers/topics/spoilt/partitions/0/state"
    with ConfluentWriter(cluster.bootstrap, "spoilt", 1) as writer:
        writer.wait_acked(SOME)
        whole, _ = znodes.client.get(path)
        znodes.client.set(path, whole.replace(b'"isr":[', b'"isr":["one",'))
        znodes.client.set("/controller", b"nobody")  # and so the next one has to read all of it
        cluster.wait("it is told", lambda: any(f"{path} in ZooKeeper is" in n.output() for n in cluster.nodes.values()))
        writer.wait_acked(SOME)
        assert all(node.is_running for node in cluster.nodes.values())
        znodes.client.set(path, whole)
        cluster.quorum_leader()
        cluster.create_topic("unspoilt", 1, 3)
        writer.wait_acked(SOME)
        writer.stop()
    judge(read_log(cluster.bootstrap, "spoilt"), writer.book)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.usefixtures("zookeeper")
def test_the_commands_servers_end_with_it(how: signal.Signals, tmp_path: Path) -> None:
    words = ["zookeeper", "up", "--nodes", "3", "--port", "0", "--data", str(tmp_path), "--json"]
    command = subprocess.Popen([sys.executable, "-m", "headrace", *words], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    try:
        with command.stdout:
            said = "".join(takewhile(lambda line: line != "}\n", command.stdout))
            servers = [
                Server(tmp_path, n, int(address.rpartition(":")[2]))
                for n, address in enumerate(json.loads(said + "}")["connect"].split(","), 1)
            ]
        assert [server.is_serving() for server in servers] == [True] * 3
        command.send_signal(how)
        assert command.wait(60) == (0 if how != signal.SIGKILL else -signal.SIGKILL)
        eventually(lambda: not any(server.is_serving() for server in servers), "all have ended")
    finally:
        command.kill()
        command.wait()


def test_a_misspelt_chroot_is_refused(cluster: TestCluster, znodes: ZNodes) -> None:
    """There a new cluster would begin, and set the records aside as nobody's."""
    cluster.create_topic("kept", 1, 3)
    cluster.stop(3)
    properties = cluster[3].node.properties
    right = properties.read_text()
    properties.write_text(right.replace(CHROOT, "/kafak"))
    with pytest.raises(ClusterFailed, match=r"holds records of cluster .* and ZooKeeper at .*/kafak knows no cluster"):
        cluster.start(3)
    properties.write_text(right)
    cluster.start(3)
    cluster.wait_in_sync("kept")


def test_records_go_on_while_zookeeper_is_away_and_changes_wait(cluster: TestCluster, zookeeper: Ensemble) -> None:
    cluster.create_topic("away", 2, 3)
    (server,) = zookeeper.servers
    with ConfluentWriter(cluster.bootstrap, "away", 2) as writer:
        writer.wait_acked(SOME)
        server.kill()
        began = time.monotonic()
        with pytest.raises(ClientError):
            cluster.ask(lambda admin: admin.create_topic("too-early", 1, 1), timeout_s=3.0)
        while time.monotonic() - began < SESSION_MS / 1000 + 2:
            writer.wait_acked(SOME)
        assert says_that_changes_wait(cluster)
        server.start()
        server.wait_ready()
        cluster.quorum_leader()
        cluster.create_topic("in-time", 1, 3)
        cluster.wait_in_sync("away")
        writer.wait_acked(SOME)
        writer.stop()
    judge(read_log(cluster.bootstrap, "away"), writer.book)
    assert_replicas_identical(cluster, "away")


def test_a_move_of_a_partition_is_seen_in_its_znode(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("moved", assignments={0: [1, 2]})
    cluster.ask(lambda admin: Operations(admin).reassign({("moved", 0): [3, 1]}))
    cluster.wait("the move", lambda: znodes.json("/brokers/topics/moved")["partitions"] == {"0": [3, 1]})
    cluster.wait_in_sync("moved")
    assert znodes.json("/brokers/topics/moved")["adding_replicas"] == {}


# --- requests by way of znodes ----------------------------------------------------------------------------------------


def ask_by_znode(znodes: ZNodes, path: str, fields: dict[str, Any]) -> None:
    znodes.client.create(path, json.dumps({"version": 1, **fields}).encode())


def test_a_topic_is_deleted_by_a_znode(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("doomed", 2, 3)
    for name in ("doomed", "never-was"):
        znodes.client.create(f"/admin/delete_topics/{name}")
    cluster.wait("the topic gone", lambda: znodes.client.exists("/brokers/topics/doomed") is None)
    cluster.wait("the requests gone", lambda: not znodes.client.get_children("/admin/delete_topics"))


def test_a_move_and_an_election_are_asked_for_by_znodes(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("asked", assignments={0: [1, 2]})
    move = {"topic": "asked", "partition": 0, "replicas": [3, 2]}
    unknown = {"topic": "nobody", "partition": 7, "replicas": [1]}
    ask_by_znode(znodes, "/admin/reassign_partitions", {"partitions": [move, unknown]})
    cluster.wait("the request gone", lambda: znodes.client.exists("/admin/reassign_partitions") is None)
    cluster.wait("the move", lambda: znodes.json("/brokers/topics/asked")["partitions"] == {"0": [3, 2]})
    cluster.wait_in_sync("asked")
    cluster.ask(lambda admin: Operations(admin).reassign({("asked", 0): [2, 3]}))
    cluster.wait("the other order", lambda: znodes.json("/brokers/topics/asked")["partitions"] == {"0": [2, 3]})
    ask_by_znode(znodes, "/admin/preferred_replica_election", {"partitions": [{"topic": "asked", "partition": 0}]})
    cluster.wait("its leader", lambda: znodes.json("/brokers/topics/asked/partitions/0/state")["leader"] == 2)
    cluster.wait("the request gone", lambda: znodes.client.exists("/admin/preferred_replica_election") is None)

    ask_by_znode(znodes, "/admin/reassign_partitions", {"partitions": "all of them"})
    cluster.wait("nonsense gone", lambda: znodes.client.exists("/admin/reassign_partitions") is None)
    said = cluster[cluster.quorum_leader()].output()
    assert "/admin/reassign_partitions names no partitions" in said
    assert "move of nobody-7, asked by way of ZooKeeper, was refused" in said


def notes(znodes: ZNodes) -> list[dict[str, Any]]:
    return [znodes.json(f"/config/changes/{name}") for name in sorted(znodes.client.get_children("/config/changes"))]


def option_of(cluster: TestCluster, topic: str) -> str:
    (found,) = cluster.ask(lambda admin: admin.describe_configs(Resource.TOPIC, topic, ["retention.ms"]))
    return str(found.value)


def test_options_are_changed_by_znodes_and_changes_are_noted(cluster: TestCluster, znodes: ZNodes) -> None:
    cluster.create_topic("noted", 1, 3, {"max.message.bytes": "1000"})
    before, epoch = len(notes(znodes)), cluster.quorum().leader_epoch
    cluster.ask(lambda admin: admin.alter_configs(Resource.TOPIC, "noted", set={"retention.ms": "1111"}))
    assert notes(znodes)[before:] == [{"version": 2, "entity_path": "topics/noted"}]

    def as_an_old_tool(topic: str, config: dict[str, str], note: dict[str, Any]) -> None:
        data = json.dumps({"version": 1, "config": config}).encode()
        path = f"/config/topics/{topic}"
        znodes.client.set(path, data) if znodes.client.exists(path) else znodes.client.create(path, data)
        znodes.client.create("/config/changes/config_change_", json.dumps(note).encode(), sequence=True)

    as_an_old_tool("noted", {"retention.ms": "2222"}, {"version": 2, "entity_path": "topics/noted"})
    cluster.wait("what the znode says", lambda: option_of(cluster, "noted") == "2222")
    assert znodes.json("/config/topics/noted")["config"] == {"retention.ms": "2222"}

    # Where there was no znode yet; in the words of Kafka before 0.11.
    cluster.create_topic("plain", 1, 3)
    note = {"version": 1, "entity_type": "topics", "entity_name": "plain"}
    as_an_old_tool("plain", {"retention.ms": "3333"}, note)
    cluster.wait("what the znode says", lambda: option_of(cluster, "plain") == "3333")

    as_an_old_tool("plain", {"retention.ms": "for ever"}, note)
    cluster.wait("nonsense undone", lambda: znodes.json("/config/topics/plain")["config"] == {"retention.ms": "3333"})
    assert option_of(cluster, "plain") == "3333"
    assert cluster.quorum().leader_epoch == epoch, "the controller stumbled over what it found"
