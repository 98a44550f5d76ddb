"""A cluster of a controller of either kind, a broker of Apache Kafka and one of Headrace."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.quorum.folder import Layout, format_folders
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import new_uuid
from headrace.storage.files import RealDisk
from tests.reference.apache import Unavailable, free_ports, random_cluster_id, run_tool, tool_command

CONTROLLER, KAFKA, HEADRACE = 1, 2, 3
LIMIT_S = 90.0


class Mixed:
    """Node 1 is the controller, of either kind; 2 is a broker of Apache Kafka, 3 one of Headrace."""

    def __init__(self, folder: Path, *, apache_controls: bool) -> None:
        self.folder = folder
        self.apache_controls = apache_controls
        self.cluster_id = random_cluster_id()
        self.ports = dict(zip((CONTROLLER, KAFKA, HEADRACE), free_ports(3)))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[KAFKA]},127.0.0.1:{self.ports[HEADRACE]}"

    def is_apache(self, node_id: int) -> bool:
        return node_id == KAFKA or (node_id == CONTROLLER and self.apache_controls)

    def properties(self, node_id: int) -> Path:
        role, kind = ("controller", "CONTROLLER") if node_id == CONTROLLER else ("broker", "PLAINTEXT")
        lines = {
            "process.roles": role,
            "node.id": node_id,
            "listeners": f"{kind}://127.0.0.1:{self.ports[node_id]}",
            "advertised.listeners": f"{kind}://127.0.0.1:{self.ports[node_id]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.ports[CONTROLLER]}",
            "log.dirs": self.folder / f"node-{node_id}",
            "offsets.topic.replication.factor": 2,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 2,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "replica.lag.time.max.ms": 10_000,
        }
        path = self.folder / f"node-{node_id}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def start(self, node_id: int) -> None:
        config = self.properties(node_id)
        fresh = not (self.folder / f"node-{node_id}").exists()
        if self.is_apache(node_id):
            if fresh:
                how = ["--standalone"] if node_id == CONTROLLER else ["--no-initial-controllers"]
                run_tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(config), *how)
            command = tool_command("kafka.Kafka", str(config), log_level="info")
        else:
            if fresh:
                self._format(node_id)
            command = [sys.executable, "-m", "headrace", "up", "--config", str(config)]
        with (self.folder / f"node-{node_id}.log").open("ab") as log:
            self.processes[node_id] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _format(self, node_id: int) -> None:
        from random import SystemRandom

        random, data = SystemRandom(), str(self.folder / f"node-{node_id}")
        layout = Layout(node_id, [data], data, (("CONTROLLER", "127.0.0.1", self.ports[node_id]),))
        voters: list[Voter] | None = None if node_id == CONTROLLER else []
        format_folders(
            RealDisk(), layout, uuid=lambda: new_uuid(random), now_ms=1, cluster_id=self.cluster_id, voters=voters
        )

    def kill(self, node_id: int) -> None:
        process = self.processes.pop(node_id, None)
        if process is not None:
            process.kill()
            process.wait()

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = None
            try:
                found = holds()
            except KafkaException:
                pass
            if found:
                return found
            if time.monotonic() > deadline:
                ends = [f"--- {p.name}\n{p.read_text()[-1500:]}" for p in sorted(self.folder.glob("*.log"))]
                raise AssertionError(f"never: {what}\n" + "\n".join(ends))
            time.sleep(0.2)

    def is_led_by(self, topic: str, node_id: int) -> bool:
        return {leader for leader, _, _ in self.partitions(topic).values()} == {node_id}

    def partitions(self, topic: str) -> dict[int, tuple[int, list[int], set[int]]]:
        """(leader, replicas, ISR) by partition."""
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, timeout=30).topics[topic]
        return {n: (p.leader, list(p.replicas), set(p.isrs)) for n, p in found.partitions.items()}


@contextmanager
def running(folder: Path, *, apache_controls: bool) -> Iterator[Mixed]:
    mixed = Mixed(folder, apache_controls=apache_controls)
    try:
        for node_id in (CONTROLLER, KAFKA, HEADRACE):
            mixed.start(node_id)
        admin = AdminClient({"bootstrap.servers": mixed.bootstrap})
        mixed.until(lambda: set(admin.list_topics(timeout=30).brokers) == {KAFKA, HEADRACE}, "two brokers")
        yield mixed
    except Unavailable as reason:
        pytest.skip(str(reason))
    finally:
        for node_id in (HEADRACE, KAFKA, CONTROLLER):
            mixed.kill(node_id)


def create(mixed: Mixed, topic: str, assignment: str) -> None:
    run_tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", mixed.bootstrap, "--create", "--topic", topic,
        "--replica-assignment", assignment, "--config", "min.insync.replicas=1",
    )  # fmt: skip
