"""`headrace up --brokers N`: the nodes of a local cluster as processes, kept running, with a line for what happens to
them.

A node that ends by itself is started again, after pauses that grow while it keeps failing. Ctrl-C stops all of them in
order, the leader of the quorum last, so that the others can hand over what they lead; a second one ends them at once.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from headrace.cli.dump.report import counted
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.config.broker import environment_name
from headrace.local_cluster.layout import PLACE_OPTIONS, LocalCluster, LocalNode
from headrace.version import __version__

READY = " ready on "
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 30.0
"""After running for so long a node's next crash counts as its first."""
START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
LOOK_S = 1.0
LOG_TAIL_BYTES = 1_500

COLOURS = {"green": 32, "red": 31, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def painted(text: str, colour: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def say(who: str, what: str, colour: str = "bold") -> None:
    print(f"{painted(time.strftime('%H:%M:%S'), 'dim')}  {who:<8} {painted(what, colour)}", flush=True)


def announce(cluster: LocalCluster, spent_s: float) -> None:
    """The line that scripts wait for."""
    print(
        f"Headrace {__version__} ready on {cluster.bootstrap} "
        f"(data in {cluster.folder}, {counted(len(cluster.nodes), 'node')}, started in {spent_s:.2f} s)",
        flush=True,
    )


class StartFailed(Exception):
    """A node ended before it had ever served; the message has its last words."""


class NodeProcess:
    """One node and its process, whichever that is now."""

    def __init__(self, node: LocalNode, arguments: Sequence[str]) -> None:
        self.node = node
        self.name = f"node {node.node_id}"
        self.restarts = 0
        self.was_ready = False
        self.ready = asyncio.Event()
        self._arguments = list(arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._backoff_s = BACKOFF_S_MIN
        self._stopping = False
        self._stop_now = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def keep_running(self, environment: Mapping[str, str]) -> None:
        """Until stopped. Raises StartFailed if the very first start fails."""
        while not self._stopping:
            began = time.monotonic()
            code = await self._run_once(environment)
            if self._stopping:
                return
            if not self.was_ready:
                raise StartFailed(f"{self.name} did not start: {self.last_words()}")
            if time.monotonic() - began > STEADY_S:
                self._backoff_s = BACKOFF_S_MIN
            self.restarts += 1
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            say(
                self.name, f"{how}; restart {self.restarts} in {self._backoff_s:g} s, its log is {self.node.log}", "red"
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_now.wait(), self._backoff_s)
            self._backoff_s = min(self._backoff_s * 2, BACKOFF_S_MAX)

    async def _run_once(self, environment: Mapping[str, str]) -> int:
        command = [
            sys.executable,
            "-m",
            "headrace",
            "up",
            "--config",
            str(self.node.properties),
            "--supervised",
            *self._arguments,
        ]
        self.ready.clear()
        with self.node.log.open("ab") as log:
            # A session of its own: the terminal's Ctrl-C is for the supervisor, which stops the nodes in order.
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip
        try:
            assert self._process.stdout is not None
            async for line in self._process.stdout:
                self._heard(line.decode(errors="replace").strip())
            return await self._process.wait()
        except asyncio.CancelledError:
            self.kill()
            raise

    def _heard(self, line: str) -> None:
        if READY in line:
            again = "again " if self.was_ready else ""
            self.was_ready = True
            self.ready.set()
            self._backoff_s = BACKOFF_S_MIN if not self.restarts else self._backoff_s
            took = line.rpartition("started in ")[2].rstrip(")")
            say(self.name, f"{again}up on {self.node.address}, started in {took}", "green")

    def last_words(self) -> str:
        try:
            with self.node.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError as error:
            return str(error)
        return lines[-1].removeprefix("headrace: ") if lines else "it said nothing"

    async def stop(self) -> None:
        """In order: it hands over what it leads, flushes and closes."""
        self._stopping = True
        self._stop_now.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            code = await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
        except TimeoutError:
            say(self.name, f"did not stop within {STOP_LIMIT_S:g} s and was killed", "red")
            self.kill()
            return
        # One that has not come far enough to take over the signals is ended by them.
        as_told = code == 0 or (code == -signal.SIGTERM and not self.was_ready)
        say(self.name, "stopped" if as_told else f"stopped with code {code}", "dim" if as_told else "red")

    def kill(self) -> None:
        self._stopping = True
        self._stop_now.set()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class Supervisor:
    """All nodes of a cluster, from start to stop."""

    def __init__(
        self,
        cluster: LocalCluster,
        arguments: Sequence[str],
        metrics_port: int | None = None,
        on_ready: Callable[[LocalCluster, float], None] = announce,
    ) -> None:
        self.cluster = cluster
        self._on_ready = on_ready
        self.nodes: list[NodeProcess] = []
        for index, node in enumerate(cluster.nodes.values()):
            more = [] if metrics_port is None else ["--metrics-port", str(metrics_port and metrics_port + index)]
            self.nodes.append(NodeProcess(node, [*arguments, *more]))
        self.leader = -1
        self.voters: set[int] = set()
        self._began = time.monotonic()
        self._signals = 0
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Until a signal comes or a node cannot be started at all. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        count = len(self.nodes)
        say("cluster", f"{self.cluster.cluster_id}: {counted(count, 'broker')}, data in {self.cluster.folder}")
        environment = child_environment(os.environ)
        keepers = [asyncio.create_task(node.keep_running(environment)) for node in self.nodes]
        watcher = asyncio.create_task(self._watch())
        stop = asyncio.create_task(self._stop.wait())
        failure: BaseException | None = None
        try:
            await asyncio.wait([*keepers, watcher, stop], return_when=asyncio.FIRST_COMPLETED)
            failure = next(
                (k.exception() for k in [*keepers, watcher] if k.done() and not k.cancelled() and k.exception()), None
            )
        finally:
            watcher.cancel()
            await self._stop_all()
            stop.cancel()
            await asyncio.gather(*keepers, watcher, stop, return_exceptions=True)
        if isinstance(failure, StartFailed):
            print(f"headrace: {failure}", file=sys.stderr)
            return 1
        if failure is not None:
            raise failure
        return 130 if self._signals > 1 else 0

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals > 1:
            for node in self.nodes:
                node.kill()
        self._stop.set()

    async def _stop_all(self) -> None:
        """One after the other, so that each can hand over to others; those who decide to whom come last, and their
        leader at the very end."""
        running = [node for node in self.nodes if node.is_running]
        if running and self._signals == 1:
            say("cluster", "stopping; Ctrl-C again ends everything at once")
        for node in sorted(
            running, key=lambda node: (node.node.node_id in self.voters, node.node.node_id == self.leader)
        ):
            await node.stop()
        for node in self.nodes:
            await node.stop()

    # -- what is told about the whole

    async def _watch(self) -> None:
        """Say when the cluster is up, and who leads the quorum whenever that changes."""
        await asyncio.gather(*(node.ready.wait() for node in self.nodes))
        spent = time.monotonic() - self._began
        self._on_ready(self.cluster, spent)
        told: tuple[str, str] | None = None
        admin = Admin(self.cluster.bootstrap, connect_timeout_s=1.0, request_timeout_s=2.0, retry_timeout_s=2.0)
        try:
            while True:
                now = await self._look(admin)
                if now != told:
                    say("quorum", *now)
                    told = now
                await asyncio.sleep(LOOK_S)
        finally:
            admin.cluster.close()

    async def _look(self, admin: Admin) -> tuple[str, str]:
        """One line about the quorum, and its colour."""
        try:
            quorum = await Operations(admin).quorum()
        except (ClientError, OSError):
            self.leader = -1
            return "nobody leads", "red"
        self.leader, self.voters = quorum.leader_id, {voter.node_id for voter in quorum.voters}
        voters = ", ".join(map(str, sorted(self.voters)))
        if any(node.config.zookeeper_connect is not None for node in self.cluster.nodes.values()):
            return f"node {quorum.leader_id} is the controller in epoch {quorum.leader_epoch}, in ZooKeeper", "cyan"
        return (
            (
                f"node {quorum.leader_id} leads in epoch {quorum.leader_epoch}; {voters}"
                f" vote{'s' * (len(self.voters) == 1)}"
            ),
            "cyan",
        )


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What is set for all nodes may not be what tells them apart."""
    apart = {environment_name(option) for option in PLACE_OPTIONS}
    return {name: value for name, value in environment.items() if name not in apart}


def supervise(
    cluster: LocalCluster, arguments: Sequence[str], metrics_port: int | None = None, *, as_json: bool = False
) -> int:
    """Run a cluster until it is stopped. With `as_json` one line on stdout says that it is ready, and all else goes to
    stderr."""
    out = sys.stdout

    def announce_json(cluster: LocalCluster, spent_s: float) -> None:
        facts = {"ready": cluster.bootstrap, "data": str(cluster.folder), "nodes": [*cluster.nodes]}
        print(json.dumps({**facts, "started_s": spent_s}), file=out, flush=True)

    async def main() -> int:
        return await Supervisor(cluster, arguments, metrics_port, announce_json if as_json else announce).run()

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        return asyncio.run(main())
