"""Runs the real Apache Kafka 4.3.1: finds or fetches its jars, starts a combined KRaft node in a folder,
stops or kills it, and runs its tools and small Java programs. Used by the tests marked `reference` and by bench."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.local_cluster import layout as local_cluster
from headrace.local_cluster.maven import NotFetched, fetch

VERSION = "4.3.1"
# slf4j-simple gives the broker a voice: without a binding a failed start says nothing at all.
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
# Tests want a quick start more than a fast broker; bench passes Kafka's own defaults (SERVER_JVM) instead.
QUICK_JVM = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SERVER_JVM = (
    "-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
# Fifty partitions each, by default, which every start and stop has to open, sync and close.
SMALL_INTERNAL_TOPICS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
START_LIMIT_S = 90


class Unavailable(Exception):
    """Apache Kafka cannot run here; the message says what is missing."""


@cache
def java() -> str:
    """The java command, 17 or newer, or Unavailable."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if command is None:
        raise Unavailable("Apache Kafka needs Java 17 or newer: no java on PATH")
    banner = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    version = banner.split('"')[1] if '"' in banner else "0"
    major = int(version.split(".")[0].split("-")[0])
    if major < 17:
        raise Unavailable(f"Apache Kafka needs Java 17 or newer: {command} is {version}")
    return command


def libs() -> Path:
    """The folder with Kafka's jars; fetched once by Maven into ~/.cache/headrace unless HEADRACE_KAFKA_LIBS names
    one."""
    if named := os.environ.get("HEADRACE_KAFKA_LIBS"):
        return Path(named)
    folder = Path("~/.cache/headrace").expanduser() / f"kafka-{VERSION}"
    if not (folder / f"kafka_2.13-{VERSION}.jar").exists():
        try:
            fetch(folder, ARTIFACTS)
        except NotFetched as why:
            raise Unavailable(f"Apache Kafka {VERSION} is not in {folder}: {why}") from None
    return folder


def tool_command(main: str, *args: str, jvm: Sequence[str] = QUICK_JVM, log_level: str = "error") -> list[str]:
    logging = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    return [java(), *jvm, logging, "-cp", f"{libs()}/*", main, *args]


def run_tool(main: str, *args: str, check: bool = True, timeout_s: float = 120) -> str:
    """Runs a class with main() from Kafka's jars; returns what it printed, raises with its output when it failed."""
    done = subprocess.run(tool_command(main, *args), capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{main} {' '.join(args)} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


def dump_log(path: Path | str, *args: str) -> str:
    """DumpLogSegments over one file, whatever kind it is (.log, .index, .timeindex, .snapshot, .checkpoint)."""
    return run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", str(path), *args)


def run_java(source: str, *args: str, timeout_s: float = 120) -> str:
    """Compiles and runs a single-file Java program `Main` with Kafka's jars on its class path."""
    with tempfile.TemporaryDirectory(prefix="headrace-java-") as work:
        file = Path(work, "Main.java")
        file.write_text(source)
        return run_tool(str(file), *args, timeout_s=timeout_s)


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on, and none that an outgoing connection could have when a killed node comes
    back."""
    return list(local_cluster.free_ports(count))


def answers_metadata(port: int) -> bool:
    """Whether a broker on this port answers Metadata v1 with at least one live broker in it."""
    request = struct.pack(">hhih4si", 3, 1, 1, 4, b"wait", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(struct.pack(">i", len(request)) + request)
            stream = sock.makefile("rb")
            (length,) = struct.unpack(">i", stream.read(4))
            _, brokers = struct.unpack_from(">ii", stream.read(length))
            return bool(brokers > 0)
    except (OSError, struct.error):
        return False


def random_cluster_id() -> str:
    """As Kafka makes them: none that a command line could take for an option."""
    while (found := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return found


class ApacheKafka:
    """One combined broker and controller. `folder` holds its properties and log; its data lie in `data`."""

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        node_id: int = 1,
        properties: Mapping[str, object] | None = None,
        jvm: Sequence[str] = QUICK_JVM,
        format_args: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.format_args = format_args
        self.data = data or folder / "data"
        self.jvm = jvm
        self.port, self.controller_port = free_ports(2)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.log_file = folder / "kafka.log"
        self.config_file = folder / "server.properties"
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": node_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **(properties or {}),
        }
        self.config_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def format(self) -> None:
        """Formats an empty data folder as a one-node quorum (kraft.version 1, dynamic voters)."""
        args = ["format", "-t", random_cluster_id(), "-c", str(self.config_file), "--standalone", *self.format_args]
        run_tool("kafka.tools.StorageTool", *args)

    def start(self) -> Self:
        if not (self.data / "meta.properties").exists():
            self.format()
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                tool_command("kafka.Kafka", str(self.config_file), jvm=self.jvm, log_level="warn"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def wait_ready(self) -> None:
        assert self.process is not None, "not started"
        deadline = time.monotonic() + START_LIMIT_S
        while not answers_metadata(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill9()
                raise RuntimeError(f"Apache Kafka did not start:\n{self.log_file.read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Clean shutdown, as `kill` does it."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9() if kind else self.stop()


class ApacheCluster:
    """Several combined nodes, ids from 1, in folders `node-1` and so on; voters of one quorum (kraft.version 1)."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        properties: Mapping[str, object] | None = None,
        jvm: Sequence[str] = QUICK_JVM,
        format_args: Sequence[str] = (),
    ) -> None:
        self.cluster_id = random_cluster_id()
        internal = {
            f"{topic}.{what}": min(count, number)
            for topic in ("transaction.state.log", "share.coordinator.state.topic")
            for what, number in (("replication.factor", 3), ("min.isr", 2))
        }
        self.nodes: dict[int, ApacheKafka] = {}
        for node_id in range(1, count + 1):
            mine = {
                "default.replication.factor": min(count, 3),
                "offsets.topic.replication.factor": min(count, 3),
                **internal,
            }
            self.nodes[node_id] = ApacheKafka(
                folder / f"node-{node_id}",
                node_id=node_id,
                properties=mine | dict(properties or {}),
                jvm=jvm,
                format_args=format_args,
            )
        controllers = ",".join(f"127.0.0.1:{node.controller_port}" for node in self.nodes.values())
        for node in self.nodes.values():
            text = node.config_file.read_text()
            lines = [line for line in text.splitlines() if not line.startswith("controller.quorum.bootstrap.servers=")]
            node.config_file.write_text("\n".join([*lines, f"controller.quorum.bootstrap.servers={controllers}", ""]))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def pids(self) -> dict[int, int]:
        return {number: node.pid for number, node in self.nodes.items()}

    def format(self) -> None:
        directories = {number: random_cluster_id() for number in self.nodes}
        voters = ",".join(
            f"{number}@127.0.0.1:{node.controller_port}:{directories[number]}" for number, node in self.nodes.items()
        )

        def one(node: ApacheKafka) -> None:
            args = ["-t", self.cluster_id, "-c", str(node.config_file), "--initial-controllers", voters]
            run_tool("kafka.tools.StorageTool", "format", *args, *node.format_args)

        with ThreadPoolExecutor() as pool:
            list(pool.map(one, self.nodes.values()))

    def start(self) -> Self:
        if not all((node.data / "meta.properties").exists() for node in self.nodes.values()):
            self.format()
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        return self

    def kill9(self) -> None:
        for node in self.nodes.values():
            node.kill9()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A clean stop of the last node waits minutes for a quorum that is gone.
        self.kill9()


@contextmanager
def apache_kafka(
    properties: Mapping[str, object] | None = None, jvm: Sequence[str] = QUICK_JVM
) -> Iterator[ApacheKafka]:
    """A running node in a folder of its own that is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-apache-") as folder,
        ApacheKafka(Path(folder), properties=properties, jvm=jvm) as broker,
    ):
        yield broker
        broker.kill9()  # nobody needs its files any more, and an orderly stop takes seconds
