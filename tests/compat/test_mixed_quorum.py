"""One metadata quorum of Apache Kafka's controller and Headrace's: each elects, follows and replays the other."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.broker.cluster.peers import Peers
from headrace.broker.cluster.quorum_network import QuorumNetwork
from headrace.clock import SystemClock
from headrace.quorum.folder import Layout, format_folders, open_folders
from headrace.quorum.kraft import KraftOptions, KraftQuorum
from headrace.quorum.opening import open_quorum
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import encode_uuid, new_uuid
from headrace.storage.files import RealDisk
from tests.reference.apache import (
    Unavailable,
    dump_log,
    free_ports,
    random_cluster_id,
    run_tool,
    tool_command,
)
from tests.simulation.quorum_nodes import Listener

pytestmark = [pytest.mark.reference, pytest.mark.timeout(240)]
KAFKA = 1
OURS = (2, 3)


class Mixed:
    """Node 1 is Apache Kafka's controller, in a process; 2 and 3 are quorum nodes of ours, in this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster_id = random_cluster_id()
        self.ports = dict(zip((KAFKA, *OURS), free_ports(3)))
        self.random = Random(1)
        self.voters = [
            Voter(n, new_uuid(self.random), (("CONTROLLER", "127.0.0.1", port),)) for n, port in self.ports.items()
        ]
        self.quorums: dict[int, KraftQuorum] = {}
        self.stops: dict[int, Callable[[], Any]] = {}
        self.failures: list[Exception] = []
        self.process: subprocess.Popen[bytes] | None = None

    def format_kafka(self) -> None:
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        first = ",".join(f"{v.id}@127.0.0.1:{self.ports[v.id]}:{encode_uuid(v.directory_id)}" for v in self.voters)
        config = self.folder / "kafka.properties"
        lines = {
            "process.roles": "controller",
            "node.id": KAFKA,
            "listeners": f"CONTROLLER://127.0.0.1:{self.ports[KAFKA]}",
            "advertised.listeners": f"CONTROLLER://127.0.0.1:{self.ports[KAFKA]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": servers,
            "log.dirs": self.folder / "kafka",
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        run_tool(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            self.cluster_id,
            "-c",
            str(config),
            "--initial-controllers",
            first,
        )

    def start_kafka(self) -> None:
        with (self.folder / "kafka.log").open("ab") as log:
            command = tool_command("kafka.Kafka", str(self.folder / "kafka.properties"), log_level="info")
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill_kafka(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def start(self, node_id: int) -> None:
        disk, loop = RealDisk(), asyncio.get_running_loop()
        data = str(self.folder / f"node-{node_id}")
        layout = Layout(node_id, [data], data, (("CONTROLLER", "127.0.0.1", self.ports[node_id]),))

        def uuid() -> bytes:
            return new_uuid(self.random)

        if not disk.exists(data):
            format_folders(disk, layout, uuid=uuid, now_ms=1, cluster_id=self.cluster_id, voters=self.voters)
        identity = open_folders(disk, layout, standalone=False, uuid=uuid, now_ms=1)
        peers = Peers(f"node {node_id}")
        quorum = open_quorum(
            disk, identity, layout, KraftOptions(), SystemClock(), lambda work: loop.run_in_executor(None, work),
            QuorumNetwork(peers), self.random.randrange,
        )  # fmt: skip
        quorum.on_failure = self.failures.append
        listeners: list[Listener] = []

        def listener() -> Listener:
            listeners.append(Listener(quorum))
            return listeners[-1]

        server = await loop.create_server(listener, "127.0.0.1", self.ports[node_id])
        self.quorums[node_id] = quorum
        await quorum.start()

        async def stop() -> None:
            del self.quorums[node_id]
            await quorum.close()
            server.close()
            for one in listeners:
                one.close()
            peers.close()

        self.stops[node_id] = stop

    async def until(self, holds: Callable[[], bool], what: str, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            assert not self.failures, self.failures
            if time.monotonic() > deadline:
                log = (self.folder / "kafka.log").read_text()[-2000:]
                raise AssertionError(f"never: {what}\n{log}")
            await asyncio.sleep(0.02)

    @property
    def active(self) -> int:
        return next((n for n, quorum in self.quorums.items() if quorum.is_active), -1)

    def kafka_has_all(self) -> bool:
        quorum = self.quorums[self.active]
        kafka = next(voter for voter in quorum.facts().voters if voter.id == KAFKA)
        return kafka.log_end_offset == quorum.next_offset


def test_apache_kafka_and_headrace_are_one_quorum(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path)
    try:
        mixed.format_kafka()
    except Unavailable as missing:
        pytest.skip(str(missing))

    async def main() -> None:
        for node_id in OURS:
            await mixed.start(node_id)
        await mixed.until(lambda: mixed.active in OURS, "Headrace elects")
        mixed.start_kafka()
        await mixed.until(mixed.kafka_has_all, "Kafka fetches from Headrace")
        # The leader stops: with equal logs the first of the successors is Kafka, and Headrace votes for it.
        leader = mixed.active
        other = next(n for n in OURS if n != leader)
        await mixed.stops[leader]()
        quorum = mixed.quorums[other]
        await mixed.until(lambda: quorum.leader_id not in (-1, leader), "somebody takes over")
        if quorum.leader_id == KAFKA:
            before = quorum.image.offset
            await mixed.until(lambda: quorum.image.offset > before, "Headrace replays what Kafka writes")
        await mixed.start(leader)
        await mixed.until(lambda: mixed.quorums[leader].leader_id == quorum.leader_id, "the restarted node follows")
        # Kafka dies, and comes back to a log that has gone on.
        mixed.kill_kafka()
        await mixed.until(lambda: mixed.active in OURS, "Headrace elects again")
        mixed.start_kafka()
        await mixed.until(mixed.kafka_has_all, "Kafka catches up")
        for node_id in list(mixed.quorums):
            await mixed.stops[node_id]()

    try:
        asyncio.run(main())
    finally:
        mixed.kill_kafka()
    # The two logs are the same as far as the shorter one goes, and Kafka's own tool reads both.
    logs = [
        (tmp_path / name / "__cluster_metadata-0" / "00000000000000000000.log")
        for name in ("kafka", "node-2", "node-3")
    ]
    contents = [log.read_bytes().rstrip(b"\0") for log in logs]
    shortest = min(map(len, contents))
    assert shortest > 500 and len({content[:shortest] for content in contents}) == 1
    assert "KRaftVoters" in dump_log(logs[1], "--cluster-metadata-decoder")
