"""A real ZooKeeper ensemble on one machine, for development and tests: its jars found or fetched, its servers run.

<folder>/server-1/zoo.cfg     options of server 1, data beside them
<folder>/server-1/server.log  what it has said
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.local_cluster.bound import bound
from headrace.local_cluster.maven import NotFetched, fetch

VERSION = "3.9.4"
ARTIFACTS = (
    ("org.apache.zookeeper", "zookeeper", VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ("org.slf4j", "slf4j-simple", "2.0.13"),
)
"""Beside ZooKeeper itself what its server does not start without, and what gives it a voice."""
DEBIAN = Path("/usr/share/java/zookeeper.jar")
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
LOOPBACK = "127.0.0.1"
TICK_MS = 500
START_LIMIT_S = 60.0
INSTALL = (
    "ZooKeeper needs Java and either Maven (mvn), which fetches its jars once, or Debian's package: apt install"
    " default-jre-headless zookeeper"
)


class Unavailable(Exception):
    """ZooKeeper cannot run here; the message says what to install."""


def class_path() -> str:
    """Fetched once into ~/.cache/headrace, unless HEADRACE_ZOOKEEPER_LIBS names a folder with jars."""
    if named := os.environ.get("HEADRACE_ZOOKEEPER_LIBS"):
        return f"{named}/*"
    folder = Path("~/.cache/headrace").expanduser() / f"zookeeper-{VERSION}"
    if not (folder / f"zookeeper-{VERSION}.jar").exists():
        if shutil.which("mvn") is None and DEBIAN.exists():
            return f"{DEBIAN}:{DEBIAN.parent}/*"
        try:
            fetch(folder, ARTIFACTS)
        except NotFetched as why:
            raise Unavailable(f"ZooKeeper's jars are not in {folder}: {why}. {INSTALL}") from None
    return f"{folder}/*"


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise Unavailable(f"there is no java on PATH. {INSTALL}")
    return found


class Server:
    """One server of an ensemble. `write` first; `start` returns at once, `wait_ready` when it serves.

    It ends with this process (`bound`), even by kill -9: nobody would know of it any more.
    """

    def __init__(
        self,
        folder: Path,
        server_id: int,
        client_port: int,
        options: Sequence[str] = (),
        system_properties: Sequence[str] = (),
    ) -> None:
        """`options` are further lines of zoo.cfg, `system_properties` name=value."""
        self.id = server_id
        self.port = client_port
        self._options = options
        self._system_properties = system_properties
        self._folder = folder / f"server-{server_id}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self._folder / "server.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def write(self, others: Sequence[str]) -> None:
        """`others`: the lines server.N=..., none for a server that is alone."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.id}\n")
        lines = [
            f"tickTime={TICK_MS}", "initLimit=20", "syncLimit=10", f"dataDir={data}", f"clientPort={self.port}",
            f"clientPortAddress={LOOPBACK}", "admin.enableServer=false", "maxClientCnxns=0",
            "maxSessionTimeout=60000", "minSessionTimeout=1000", "4lw.commands.whitelist=srvr,ruok,stat",
            *others, *self._options,
        ]  # fmt: skip
        (self._folder / "zoo.cfg").write_text("".join(f"{line}\n" for line in lines))

    def start(self) -> None:
        command = [
            java(), *JVM, "-Dzookeeper.jmx.log4j.disable=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *(f"-D{one}" for one in self._system_properties), "-cp", class_path(), MAIN, str(self._folder / "zoo.cfg"),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(bound(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_serving(self) -> bool:
        """Whether it belongs to a majority, or is alone."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as sock:
                sock.sendall(b"srvr")
                return b"Mode: " in b"".join(iter(lambda: sock.recv(4096), b""))
        except OSError:
            return False

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not self.is_serving():
            if not self.is_running or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-1_500:] if self.log.exists() else ""
                raise Unavailable(f"ZooKeeper server {self.id} did not start; {self.log} ends:\n{said}")
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def stop(self) -> None:
        """As by SIGTERM, which ZooKeeper takes as well as SIGKILL: what it has said is on its disk."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Ensemble:
    """`servers` of them, on the ports given: one for clients each and, of more than one, two for each other."""

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        options: Sequence[str] = (),
        system_properties: Sequence[str] = (),
    ) -> None:
        """One port for a server that is alone, three for each of several. The rest is as `Server` takes it."""
        count = 1 if len(ports) == 1 else len(ports) // 3
        self.servers = [
            Server(folder.absolute(), index + 1, port, options, system_properties)
            for index, port in enumerate(ports[:count])
        ]
        between = list(zip(ports[count::2], ports[count + 1 :: 2])) if count > 1 else []
        self._lines = [f"server.{n}={LOOPBACK}:{a}:{b}" for n, (a, b) in enumerate(between, 1)]

    @property
    def connect(self) -> str:
        """What zookeeper.connect says, without a chroot."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Returns when all serve. Raises Unavailable."""
        java()
        class_path()
        for server in self.servers:
            server.write(self._lines)
            server.start()
        try:
            for server in self.servers:
                server.wait_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()
