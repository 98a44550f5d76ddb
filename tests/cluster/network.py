"""A small network of its own for each node: namespaces on a bridge, whose links can be cut in one direction or both.

Needs root and `ip`; `available` says why not.
"""

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

NET = "10.231.77"


def available() -> str | None:
    """None, or what is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip command"
    probe = subprocess.run(["ip", "netns", "add", "hr-probe"], capture_output=True, check=False)
    if probe.returncode != 0:
        return f"no network namespaces here: {probe.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", "hr-probe"], check=False)
    return None


class Network:
    """Nodes 1 to `count`, and this process, which reaches all of them whatever is cut between them."""

    def __init__(self, count: int) -> None:
        self.nodes = range(1, count + 1)
        self.host = f"{NET}.1"
        """Of this process, as nodes reach it."""
        self.hosts = [f"{NET}.{10 + node}" for node in self.nodes]
        # Not `ip netns exec`: that gives each node its own copy of all mounts, and a disk that one of them still has
        # mounted cannot be unplugged.
        self.prefixes = [["nsenter", f"--net=/run/netns/{self._space(node)}", "--"] for node in self.nodes]
        self._cuts: set[tuple[int, int]] = set()

    def _space(self, node: int) -> str:
        return f"hr-node-{node}"

    def __enter__(self) -> Self:
        self._remove()
        run("ip", "link", "add", "hr-bridge", "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", "hr-bridge")
        run("ip", "link", "set", "hr-bridge", "up")
        for node, host in zip(self.nodes, self.hosts):
            space = self._space(node)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", f"hr-{node}", "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", f"hr-{node}", "master", "hr-bridge", "up")
            for words in (
                ("addr", "add", f"{host}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                run("ip", "-n", space, *words)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for node in self.nodes:
            subprocess.run(["ip", "netns", "del", self._space(node)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", f"hr-{node}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", "hr-bridge"], capture_output=True, check=False)

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing that `sender` sends reaches `receiver`; the other way it does. Receiver 0 is this process."""
        if (sender, receiver) in self._cuts:
            return
        run("ip", "-n", self._space(sender), "route", "add", "blackhole", self._address(receiver))
        self._cuts.add((sender, receiver))

    def _address(self, node: int) -> str:
        return f"{self.hosts[node - 1]}/32" if node else f"{NET}.1/32"

    def part(self, one: int, other: int) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, node: int) -> None:
        for other in self.nodes:
            if other != node:
                self.part(node, other)

    def heal(self) -> None:
        for sender, receiver in self._cuts:
            run("ip", "-n", self._space(sender), "route", "del", "blackhole", self._address(receiver))
        self._cuts.clear()


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
