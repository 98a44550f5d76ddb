"""Brokers as child processes, started like any user starts them: for the demo, the tour and the proof."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.config.broker import ENVIRONMENT_PREFIX
from headrace.local_cluster.layout import Wish, open_cluster
from headrace.platform import PORTABLE_VARIABLE

READY = " ready on "
START_LIMIT_S = 15.0
STOP_LIMIT_S = 15.0


def environment_of_its_own() -> dict[str, str]:
    """For a broker's process. What the user has set for other brokers must not change this one."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENVIRONMENT_PREFIX) or name == PORTABLE_VARIABLE
    }


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends what runs in here as Ctrl-C does, so that folders are removed on the way out.

    Also where SIGINT is ignored, as in the background of a script.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class BrokerProcess:
    """`headrace up` on one folder. The port is chosen at the first start and kept for later ones.

    With `words` they are the command line, and the process has a session of its own: Ctrl-C does not reach it.
    """

    def __init__(self, data: Path, log: Path, words: Sequence[str] | None = None, port: int = 0) -> None:
        self.data = data
        self.log = log
        self.port = port
        self.words = words
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> str:
        """Start and wait until it is ready; returns the line it printed. Raises RuntimeError with the reason."""
        self.launch()
        return self.await_ready()

    def launch(self) -> None:
        words = ["--data", str(self.data)] if self.words is None else self.words
        command = [sys.executable, "-m", "headrace", "up", *words, "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment_of_its_own(),
                start_new_session=self.words is not None,
            )

    def await_ready(self) -> str:
        line = self._first_line()
        if READY not in line:
            self.kill9()
            raise RuntimeError(
                f"the broker did not start: {line or self.log.read_text(errors='replace').strip()[-500:]}"
            )
        self.port = int(line.partition(READY)[2].split()[0].rpartition(":")[2])
        return line

    def _first_line(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        output = self.process.stdout
        deadline = time.monotonic() + START_LIMIT_S
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(output.fileno(), 4096) if ready else b""
            if not chunk:
                break
            data += chunk
        return data.decode(errors="replace").strip()

    def stop(self) -> None:
        """A clean stop, which must succeed."""
        code = self._end(signal.SIGTERM)
        if code != 0:
            raise RuntimeError(
                f"the broker's stop ended with code {code}: {self.log.read_text(errors='replace').strip()[-500:]}"
            )

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """As by SIGSTOP: it keeps its connections and says nothing, like one that is overloaded."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not stop within {STOP_LIMIT_S:g} s") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()


class ClusterProcesses:
    """A cluster laid out in `folder` and run, a process for each node. They end with this process, however it ends.

    They are killed, not stopped: one that is frozen would keep SIGTERM for later, and nobody is left to thaw it.
    """

    def __init__(self, folder: Path, wish: Wish) -> None:
        self._folder = folder
        self._wish = wish
        self.bootstrap = ""
        self.folders: dict[int, Path] = {}
        self.brokers: dict[int, BrokerProcess] = {}
        self._open()

    def _open(self) -> None:
        cluster = open_cluster(self._folder, self._wish)
        self.bootstrap = cluster.bootstrap
        for node_id, node in cluster.nodes.items():
            if node_id not in self.brokers:
                words = ["--supervised", "kill", "--config", str(node.properties)]
                self.folders[node_id] = node.data
                self.brokers[node_id] = BrokerProcess(node.data, node.log, words, node.port)

    def start(self) -> None:
        """Returns when all serve. Raises RuntimeError with the reason of one that does not."""
        # All first: a majority of the controllers is needed before any of them is ready.
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.await_ready()

    def add(self) -> int:
        """One more broker, as `headrace up --brokers` adds it; returns its number once it serves."""
        self._wish = self._wish._replace(brokers=self._wish.brokers + 1)
        self._open()
        self.brokers[max(self.brokers)].start()
        return max(self.brokers)

    def lose(self, node_id: int) -> None:
        """The machine is gone, and its disk with it."""
        self.brokers[node_id].kill9()
        shutil.rmtree(self.folders[node_id])

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill9()
