"""The daemon that tasks' workers come from, spoken to as Spark speaks to it."""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.spark.launch import daemon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PATIENCE_S = 60
PROGRAM = """
import sys
from pathlib import Path
from headrace.spark.launch.prefork import manage
manage(lambda: Path(sys.argv[1], "warmed-up").touch())
"""


class Daemon:
    """One with a short list of things to load."""

    def __init__(self, folder: Path, *, by_path: bool) -> None:
        self.folder = folder
        self.by_path = by_path
        settings = {
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
            "SPARK_REUSE_WORKER": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            env=os.environ | settings | ({"PYTHON_UNIX_DOMAIN_ENABLED": "true"} if by_path else {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        self.orders = self.process.stdin
        (said,) = struct.unpack("!i", self.process.stdout.read(4))
        self.place = self.process.stdout.read(said).decode() if by_path else ("127.0.0.1", said)

    def connect(self) -> tuple[socket.socket, int]:
        """A connection and the worker's id, which it says first."""
        connection = socket.socket(socket.AF_UNIX if self.by_path else socket.AF_INET)
        connection.settimeout(PATIENCE_S)
        connection.connect(self.place)
        return connection, struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0]

    def workers(self) -> set[int]:
        found = set()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            # Its group is the daemon's, also when that has ended.
            if int(fields[2]) == self.process.pid != int(stat.parent.name) and fields[0] != "Z":
                found.add(int(stat.parent.name))
        return found

    def spare(self, *in_service: int) -> int:
        """The id of the one worker besides those that have a connection."""
        until(lambda: len(self.workers() - {*in_service}) == 1)
        (pid,) = self.workers() - {*in_service}
        return pid


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(params=[False, True], ids=["port", "path"])
def running(request: pytest.FixtureRequest) -> Iterator[Any]:
    # Not pytest's folder: a socket's path has room for some hundred characters.
    with tempfile.TemporaryDirectory(prefix="prefork-", dir="/tmp") as folder:
        started = Daemon(Path(folder), by_path=request.param)
        yield started
        started.process.kill()
        started.process.wait()
        until(lambda: not started.workers())


def test_tasks_get_workers_that_were_there_before(running: Any) -> None:
    first, first_pid = running.connect()
    spare = running.spare(first_pid)
    until((running.folder / "warmed-up").exists)
    second, second_pid = running.connect()
    assert second_pid == spare
    # More at once than there are idle workers.
    others = [running.connect() for _ in range(3)]
    pids = {first_pid, second_pid, *(pid for _, pid in others)}
    assert len(pids) == 5 <= len(running.workers())
    spare = running.spare(*pids)
    # A worker ends with its connection, and the spare goes on waiting.
    for connection in (first, second, *(connection for connection, _ in others)):
        connection.close()
    until(lambda: running.workers() == {spare})


def test_a_worker_serves_who_knows_the_password(running: Any) -> None:
    connection, _ = running.connect()
    if running.by_path:
        assert not os.stat(running.place).st_mode & 0o077, "the path is the password"
        return
    connection.sendall(struct.pack("!i", 6) + b"secret")
    assert connection.recv(6, socket.MSG_WAITALL) == struct.pack("!i", 2) + b"ok"
    stranger, pid = running.connect()
    stranger.sendall(struct.pack("!i", 5) + b"guess")
    assert stranger.recv(7, socket.MSG_WAITALL) == struct.pack("!i", 3) + b"err"
    stranger.close()
    until(lambda: pid not in running.workers())


def test_workers_are_killed_when_spark_says_so(running: Any) -> None:
    connection, pid = running.connect()
    spare = running.spare(pid)
    running.orders.write(struct.pack("!i", pid))
    assert connection.recv(1) == b""
    until(lambda: running.workers() == {spare})
    # A spare that ends is replaced.
    os.kill(spare, signal.SIGKILL)
    assert running.spare(spare) != spare
    assert running.connect()[1] not in (pid, spare)


def test_all_end_when_spark_does(running: Any) -> None:
    _, pid = running.connect()
    running.spare(pid)
    running.orders.close()
    assert running.process.wait(PATIENCE_S) == 0
    until(lambda: not running.workers())
    assert not list(running.folder.glob(".*.sock"))


def test_a_spare_ends_with_a_daemon_that_was_killed(running: Any) -> None:
    connection, pid = running.connect()
    spare = running.spare(pid)
    running.process.kill()
    until(lambda: running.workers() == {pid})
    assert spare != pid
    connection.close()
    until(lambda: not running.workers())


def test_warming_up_does_what_tasks_do() -> None:
    daemon.warm_up()
