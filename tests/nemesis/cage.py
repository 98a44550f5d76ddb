"""A program in namespaces of its own (processes, network, mounts): whatever it makes is gone when it ends, however it
ends.

The kernel cleans up: with the first process of the cage every other one dies, with them their mounts, loop devices and
links. So two runs on one machine never meet, and a test that is killed leaves nothing behind.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMESPACES = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
"""Whoever runs it takes it along when killed; it takes the first process inside along, and the kernel all the
others."""
PROBE = """
mount -t tmpfs tmpfs /run && mkdir /run/netns && ip link set lo up && ip netns add probe
ip link add hr-probe type veth peer name eth0 netns probe
cd /run && mkdir disk && truncate -s 8M image && mkfs.ext4 -q -F image && mount -o loop image disk && umount disk
"""


@cache
def missing() -> str | None:
    """None, or what this machine does not allow."""
    if os.geteuid() != 0:
        return "namespaces and mounts need root"
    for tool in ("setpriv", "unshare", "nsenter", "ip", "mkfs.ext4", "mount", "prlimit"):
        if shutil.which(tool) is None:
            return f"there is no {tool} command"
    try:
        done = subprocess.run(
            [*NAMESPACES, "sh", "-e", "-c", PROBE], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return "namespaces and mounts do not work here"
    return None if done.returncode == 0 else f"no namespaces or mounts here: {done.stderr.strip()}"


def run(
    module: str, words: Sequence[str], output: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> int:
    """Run `python -m module words` in a cage; what it says goes to `output`. Returns its exit code, -9 past the
    limit."""
    command = [*NAMESPACES, sys.executable, "-m", module, *words]
    with output.open("wb") as file:
        caged = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **(environment or {})},
        )
        try:
            return caged.wait(limit_s)
        except subprocess.TimeoutExpired:
            return -9
        finally:
            caged.kill()
            caged.wait()


def furnish() -> None:
    """Inside the cage, first of all: loopback, and a place for the names of network namespaces that is ours alone."""
    assert os.getpid() < 10, "not in a cage: this would change the machine"
    for command in (
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("mkdir", "/run/netns"),
        ("ip", "link", "set", "lo", "up"),
    ):
        subprocess.run(command, check=True, capture_output=True)
