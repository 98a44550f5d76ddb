"""Kafka's own command-line tools against a cluster of Headrace brokers."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from headrace.local_cluster.layout import Wish, lay_out
from headrace.testing.cluster import TestCluster
from tests.reference.apache import (
    START_LIMIT_S,
    Unavailable,
    answers_metadata,
    java,
    libs,
    run_tool,
    tool_command,
)

pytestmark = pytest.mark.reference
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        java()
        libs()
    except Unavailable as missing:
        pytest.skip(str(missing))


def run(cluster: TestCluster, tool: str, *args: str) -> str:
    return run_tool(f"{TOOLS}.{tool}", "--bootstrap-server", cluster.bootstrap, *args)


def test_kafka_metadata_quorum_describes_it(cluster: TestCluster) -> None:
    text = run(cluster, "MetadataQuorumCommand", "describe", "--status")
    assert re.search(rf"ClusterId:\s+{cluster.cluster_id}", text), text
    assert re.search(rf"LeaderId:\s+{cluster.quorum_leader()}\n", text), text
    assert re.search(r"MaxFollowerLag:\s+\d+\n", text), text
    rows = run(cluster, "MetadataQuorumCommand", "describe", "--replication").splitlines()
    assert sorted((row.split()[0], row.split()[-1]) for row in rows[1:]) == [
        (str(n), "Leader" if n == cluster.quorum_leader() else "Follower") for n in (1, 2, 3)
    ]


def test_kafka_tools_may_ask_the_controllers_themselves(cluster: TestCluster) -> None:
    ports = {number: node.node.controller_port for number, node in cluster.nodes.items()}
    there = ["--bootstrap-controller", ",".join(f"127.0.0.1:{port}" for port in ports.values())]
    rows = run_tool(f"{TOOLS}.ClusterTool", "list-endpoints", *there).splitlines()[1:]
    assert [row.split() for row in rows] == [
        [str(n), "127.0.0.1", str(port), "null", "controller"] for n, port in ports.items()
    ]
    defaults = ["--entity-type", "brokers", "--entity-default"]
    run_tool("kafka.admin.ConfigCommand", *there, "--alter", *defaults, "--add-config", "max.connections=4321")
    try:
        assert "max.connections=4321" in run_tool("kafka.admin.ConfigCommand", *there, "--describe", *defaults)
    finally:
        run_tool("kafka.admin.ConfigCommand", *there, "--alter", *defaults, "--delete-config", "max.connections")
    text = run_tool(f"{TOOLS}.AclCommand", *there, "--list", check=False)
    assert "SecurityDisabledException" in text, text


def test_kafka_topics_describes_replicas_and_isr(cluster: TestCluster) -> None:
    cluster.create_topic("described", assignments={0: [2, 3, 1], 1: [3, 1, 2]})
    text = run(cluster, "TopicCommand", "--describe", "--topic", "described")
    assert re.search(r"Partition: 0\s+Leader: 2\s+Replicas: 2,3,1\s+Isr: [\d,]+", text), text
    assert "ReplicationFactor: 3" in text
    assert run(cluster, "TopicCommand", "--describe", "--under-replicated-partitions").strip() == ""


def test_kafka_reassign_partitions_moves_replicas(cluster: TestCluster) -> None:
    cluster.create_topic("reassigned", assignments={0: [1, 2]})
    plan = cluster.folder / "kafka-plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "reassigned", "partition": 0, "replicas": [3, 2]}]})
    )
    words = ("--reassignment-json-file", str(plan))
    text = run(cluster, "reassign.ReassignPartitionsCommand", *words, "--execute", "--throttle", "50000000")
    assert "Successfully started partition reassignment" in text, text
    cluster.wait("the move", lambda: cluster.partition("reassigned").replicas == (3, 2))
    text = run(cluster, "reassign.ReassignPartitionsCommand", *words, "--verify")
    assert "is completed" in text and "Clearing" in text, text


def test_kafka_leader_election_gives_the_lead_back(cluster: TestCluster) -> None:
    cluster.create_topic("led", assignments={0: [3, 1]})
    cluster.restart(3)
    cluster.wait_in_sync("led")
    run(cluster, "LeaderElectionCommand", "--election-type", "preferred", "--topic", "led", "--partition", "0")
    assert cluster.leader_of("led") == 3


def test_apache_kafka_runs_on_the_folders_that_headrace_laid_out(tmp_path: Path) -> None:
    """The same properties and the same formatted folders, another program: one controller and one broker."""
    laid = lay_out(tmp_path, Wish(2, port=0))
    processes = []
    try:
        for node in laid.nodes.values():
            with node.log.open("ab") as log:
                command = tool_command("kafka.Kafka", str(node.properties), log_level="warn")
                processes.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)
                )
        deadline = time.monotonic() + START_LIMIT_S
        while not all(answers_metadata(node.port) for node in laid.nodes.values()):
            assert time.monotonic() < deadline, [node.log.read_text()[-1500:] for node in laid.nodes.values()]
            time.sleep(0.2)
        text = run_tool(f"{TOOLS}.MetadataQuorumCommand", "--bootstrap-server", laid.bootstrap, "describe", "--status")
        assert re.search(rf"ClusterId:\s+{laid.cluster_id}", text), text
        assert f'"endpoints": ["CONTROLLER://127.0.0.1:{laid.nodes[1].controller_port}"]' in text, text
    finally:
        for process in processes:
            process.kill()
            process.wait()
