"""Whatever happens in a cage, and however it ends, the machine is as it was before."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nemesis import cage
from tests.nemesis.faults import FAULTS, plan

TRAP = """
import subprocess, sys, time
from pathlib import Path
from tests.cluster.network import Network
from tests.nemesis import cage
from tests.simulation.ext4 import Ext4
cage.furnish()
folder = Path(sys.argv[1])
Network(2).__enter__()
Ext4(folder, 16)
child = subprocess.Popen(["sleep", "1234.5"])
(folder / "ready").touch()
time.sleep(600)
"""


OWNER = """
import subprocess, sys
from tests.nemesis import cage
subprocess.run([*cage.NAMESPACES, sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""


@pytest.fixture(autouse=True)
def possible() -> None:
    if why := cage.missing():
        pytest.skip(f"no cages here: {why}")


def state(folder: Path) -> tuple[bool, bool, bool]:
    """Whether the machine sees its mount, its loop device, its process."""
    loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=False).stdout
    sleeping = any(b"1234.5" in cmdline(path) for path in Path("/proc").glob("[0-9]*"))
    return str(folder) in Path("/proc/mounts").read_text(), str(folder) in loops, sleeping


def cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_cage_whose_owner_is_killed_leaves_nothing(tmp_path: Path) -> None:
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).stdout
    owner = subprocess.Popen([sys.executable, "-c", OWNER, TRAP, str(tmp_path)], cwd=cage.ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert owner.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        assert state(tmp_path) == (False, True, True), "a mount is seen in its cage only"
        assert subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).stdout == spaces
    finally:
        owner.kill()
        owner.wait()
    deadline = time.monotonic() + 60
    while state(tmp_path) != (False, False, False):
        assert time.monotonic() < deadline, state(tmp_path)
        time.sleep(0.05)


def test_a_seed_gives_the_same_plan_and_seeds_give_every_fault() -> None:
    assert plan(7, 60) == plan(7, 60) != plan(8, 60)
    assert {strike.kind for seed in range(10) for strike in plan(seed, 60)} == set(FAULTS)
    assert any(a.at_s + a.lasts_s > b.at_s for a, b in zip(plan(7, 60), plan(7, 60)[1:])), "faults overlap"
