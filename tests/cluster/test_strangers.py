"""Nodes that do not belong: another cluster's, a second one with the same id, folders that are foreign or of the
future."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.local_cluster.layout import Wish, free_ports, lay_out
from headrace.testing.cluster import TestCluster, TestNode

LIMIT_S = 60


def up(*words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """`headrace up` for a node that should end by itself."""
    command = [sys.executable, "-m", "headrace", "up", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line for the user, no traceback, and the reason in it."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace: "), done.stderr
    for word in words:
        assert word in last, last


def stranger(cluster: TestCluster, folder: Path, node_id: int, cluster_id: str) -> list[str]:
    """A broker in a folder of its own that wants to join; returns the words for `up`."""
    controllers = ",".join(
        f"127.0.0.1:{node.node.controller_port}" for node in cluster.nodes.values() if node.node.is_controller
    )
    where = ["--node-id", str(node_id), "--data", str(folder), "--bootstrap-controllers", controllers]
    with pytest.raises(SystemExit) as ended:
        main(["format", *where, "--cluster-id", cluster_id])
    assert not ended.value.code
    return [*where, "--port", "0"]


def test_a_node_of_another_cluster_is_refused(cluster: TestCluster, tmp_path: Path) -> None:
    other = "J4Xp-MglQCGEKHxnoCSzLQ"
    done = up(*stranger(cluster, tmp_path / "data", 9, other))
    refused(done, f"belongs to cluster {other}, its controllers to another cluster")
    assert 9 not in {observer.node_id for observer in cluster.quorum().observers}


def test_a_second_node_with_the_same_id_is_refused_and_the_first_serves_on(
    cluster: TestCluster, tmp_path: Path
) -> None:
    cluster.create_topic("mine", 1, 3)
    leader = cluster.quorum_leader()
    follower = next(node for node in cluster.nodes if node != leader)
    done = up(*stranger(cluster, tmp_path / "one", follower, cluster.cluster_id))
    refused(done, f"broker {follower} cannot join: another broker with this id is running")
    done = up(*stranger(cluster, tmp_path / "two", leader, cluster.cluster_id))
    refused(done, f"another node with the id {leader} leads the quorum")
    assert len(cluster.running) == 3
    cluster.wait_isr("mine", 0, [1, 2, 3])


def test_a_controller_that_is_no_voter_is_refused_in_a_fixed_quorum(tmp_path: Path) -> None:
    done = up(
        "--node-id",
        "3",
        "--voters",
        "1@127.0.0.1:1,2@127.0.0.1:2",
        "--roles",
        "broker,controller",
        "--data",
        str(tmp_path),
    )
    refused(done, "this controller's id 3 is not among them")


def test_an_empty_folder_of_a_clusters_node_is_not_formatted(tmp_path: Path) -> None:
    done = up("--node-id", "1", "--voters", "1@127.0.0.1:1,2@127.0.0.1:2", "--data", str(tmp_path / "d"), "--port", "0")
    refused(done, "is not formatted", "headrace format")


def test_the_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    laid = lay_out(tmp_path, Wish(3, port=0))
    properties = laid.nodes[2].properties
    properties.write_text(properties.read_text().replace("node-2", "node-3"))
    refused(up("--config", str(properties)), "belongs to node 3; this is node 2")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("version=1", "version=2", ("version 2",)), ("node.id=1", "node.id=seven", ("meta.properties", "seven"))],
)
def test_a_folder_of_the_future_or_a_damaged_one_is_refused(
    tmp_path: Path, old: str, new: str, words: tuple[str, ...]
) -> None:
    laid = lay_out(tmp_path, Wish(1, port=0))
    meta = laid.nodes[1].data / "meta.properties"
    meta.write_text(meta.read_text().replace(old, new))
    before = meta.read_bytes()
    refused(up("--config", str(laid.nodes[1].properties)), *words)
    assert meta.read_bytes() == before


def test_a_node_whose_controllers_do_not_answer_waits_for_them(tmp_path: Path) -> None:
    """One of three is no majority: it says so and goes on trying, since the others may come."""
    laid = lay_out(tmp_path, Wish(3, port=0))
    node = TestNode(laid.nodes[1])
    node.launch()
    try:
        with pytest.raises(Exception, match="not ready within"):
            node.wait_ready(limit_s=2.0)
        assert node.is_running
        for other in (2, 3):
            more = TestNode(laid.nodes[other])
            more.launch()
            try:
                if other == 2:
                    node.wait_ready()
            finally:
                more.kill()
    finally:
        node.kill()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    import socket

    laid = lay_out(tmp_path, Wish(1, port=0))
    with socket.create_server(("127.0.0.1", laid.nodes[1].controller_port)):
        refused(up("--config", str(laid.nodes[1].properties)), str(laid.nodes[1].controller_port))
    assert len(set(free_ports(2))) == 2
