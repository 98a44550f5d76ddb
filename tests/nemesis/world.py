"""Three nodes, each with a disk, a link and a clock of its own, all of which can be taken away and given back.

A supervisor starts again what ends by itself, as systemd would, and keeps count: nodes must not end unless told to.
"""

import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.testing.cluster import ClusterFailed, TestCluster, TestNode
from tests.cluster.network import Network
from tests.simulation.ext4 import Ext4, fill, make_room

NODES = 3
DISK_MB = 128
SETTINGS = {
    "replica.lag.time.max.ms": "3000",
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": "3",
    "leader.imbalance.check.interval.seconds": "5",
}
"""What decides how long a fault is noticed (sessions, elections of controllers) is as shipped."""
AGAIN_S = 1.0
"""A supervisor's pause before it starts a node again."""


class World:
    """`with World(folder) as world:`, inside a cage. Nodes are named by their numbers, 1 to 3."""

    def __init__(
        self, folder: Path, *, settings: Mapping[str, str] | None = None, descriptors: int | None = None
    ) -> None:
        self.folder = folder
        self.settings = {**SETTINGS, **(settings or {})}
        self.descriptors = descriptors
        self.network = Network(NODES)
        self.disks: dict[int, Ext4] = {}
        self.unexpected: list[str] = []
        """Ends of processes that nobody asked for."""
        self.excused: set[int] = set()
        """Nodes that may end by themselves for now: their disk is full or gone."""
        self._should_run: set[int] = set()
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._stack = ExitStack()
        self._clocks = {node: folder / f"clock-{node}" for node in self.network.nodes}
        self._shim = self._compile_shim()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.network)
            for node in self.network.nodes:
                disk = Ext4(self.folder, DISK_MB, f"node-{node}")
                stack.callback(disk.unplug)
                (disk.mount / "lost+found").rmdir()
                self.disks[node] = disk
                self.set_clock(node, 0)
            self.cluster = TestCluster(
                NODES,
                folder=self.folder,
                settings=self.settings,
                hosts=self.network.hosts,
                prefixes=[self._prefix(node) for node in self.network.nodes],
            )
            stack.callback(self.cluster.close)
            self.cluster.start()
            self._should_run = set(self.cluster.nodes)
            supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
            supervisor.start()
            stack.callback(supervisor.join)
            stack.callback(self._closing.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def nodes(self) -> list[int]:
        return list(self.network.nodes)

    def _prefix(self, node: int) -> list[str]:
        words = list(self.network.prefixes[node - 1])
        if self.descriptors is not None:
            words += ["prlimit", f"--nofile={self.descriptors}:{self.descriptors}", "--"]
        if self._shim is not None:
            words += ["env", f"LD_PRELOAD={self._shim}", f"NEMESIS_CLOCK={self._clocks[node]}"]
        return words

    # -- processes

    def up(self, node: int) -> None:
        """From now on it runs; the supervisor sees to it."""
        with self._lock:
            self._should_run.add(node)
            if not self.cluster[node].is_running:
                self.cluster[node].launch()

    def kill(self, node: int) -> None:
        with self._lock:
            self._should_run.discard(node)
            self.cluster[node].kill()

    def stop(self, node: int) -> None:
        """In order. Slow: what it leads is handed over first."""
        with self._lock:
            self._should_run.discard(node)
        if self.cluster[node].is_running:
            self.cluster[node].stop()

    def freeze(self, node: int) -> None:
        with self._lock:
            if self.cluster[node].is_running:
                self.cluster[node].freeze()

    def thaw(self, node: int) -> None:
        with self._lock:
            if self.cluster[node].is_running:
                self.cluster[node].thaw()

    def _supervise(self) -> None:
        while not self._closing.wait(0.1):
            with self._lock:
                ended = [n for n in self._should_run if not self.cluster[n].is_running]
                for node in ended:
                    note = f"node {node} ended by itself: {_last_line(self.cluster[node])}"
                    if node not in self.excused:
                        self.unexpected.append(note)
            if ended and not self._closing.wait(AGAIN_S):
                for node in ended:
                    with self._lock:
                        if node in self._should_run and not self.cluster[node].is_running:
                            self.cluster[node].launch()

    # -- disks

    def cut_power(self, *nodes: int) -> None:
        """Of one machine or several: processes and whatever was not synced are gone."""
        with self._lock:
            for node in nodes:
                self._should_run.discard(node)
                if self.cluster[node].is_running:
                    self.cluster[node].freeze()
                    _wait_stopped(self.cluster[node].pid)
            # A machine without power runs no programs, so they are all stopped before the first disk fails under them.
            for node in nodes:
                self.disks[node].cut_power()
            for node in nodes:
                self.cluster[node].kill()
                self.disks[node].unplug()

    def restore_power(self, *nodes: int) -> None:
        with self._lock:
            for node in nodes:
                self.disks[node].plug_in()
                self.up(node)

    def fill_disk(self, node: int) -> None:
        """Somebody else's file takes all the room there is."""
        self.excused.add(node)
        fill(self.disks[node].mount)

    def clear_disk(self, node: int) -> None:
        make_room(self.disks[node].mount)
        self.excused.discard(node)

    # -- clocks

    @property
    def has_clocks(self) -> bool:
        return self._shim is not None

    def set_clock(self, node: int, ahead_s: int) -> None:
        """The wall clock of one node's processes; the monotonic one goes on as it is."""
        with self._clocks[node].open("r+b" if self._clocks[node].exists() else "wb") as file:
            file.write(struct.pack("q", ahead_s))

    def _compile_shim(self) -> Path | None:
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        shim = self.folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"],
            capture_output=True,
            check=False,
        )
        return shim if done.returncode == 0 else None

    # -- being whole again

    def wait_whole(self, limit_s: float) -> float:
        """Until every node serves and every replica is in sync; returns how long that took."""
        began = time.monotonic()
        self.cluster.wait("all nodes to serve", lambda: all(map(_serves, self.cluster.nodes.values())), limit_s)
        self.cluster.wait_in_sync(limit_s=limit_s)
        return time.monotonic() - began

    def attempt(self, work: Callable[[TestCluster], object]) -> bool:
        """Ask something of a cluster that may not be able to answer now."""
        try:
            work(self.cluster)
        except Exception as error:
            print(f"  not done: {type(error).__name__}: {str(error)[:160]}", flush=True)
            return False
        return True


def _wait_stopped(pid: int) -> None:
    status = Path(f"/proc/{pid}/task/{pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] not in "TZ":
        time.sleep(0.0005)


def _serves(node: TestNode) -> bool:
    """Not in the middle of a start, nor between an end and the next start."""
    try:
        node.wait_ready(0)
    except ClusterFailed:
        return False
    return True


def _last_line(node: TestNode) -> str:
    return (node.output(1_000).splitlines() or ["(it said nothing)"])[-1]
