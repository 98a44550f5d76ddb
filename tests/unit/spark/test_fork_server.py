"""Spark's Python processes are forked from one that has everything loaded, and nobody can tell but by the time."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from pyspark.serializers import UTF8Deserializer, write_with_length

from headrace.client.columnar import native
from headrace.spark.launch import fork_server
from headrace.spark.launch.fork_client import SERVER
from headrace.spark.launch.fork_server import STATEFUL
from headrace.spark.launch.worker_python import worker_python

pytestmark = pytest.mark.timeout(120)

PLANNER = ("-m", "pyspark.daemon", "pyspark.sql.worker.create_data_source")
PLANNERS_END = 1
"""The code with which Spark's own daemon ends when its input does."""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def wait_until(ready: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if parent_of(int(path.name)) == pid:
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    native.load()  # where the kernels have never been compiled, the server's first child would be the one that does it
    # One that this process has for a Spark session goes on beside it, and has children of its own.
    other, place = fork_server._running, os.environ.pop(SERVER, None)
    fork_server._running = None
    fork_server.start()
    assert fork_server._running is not None
    yield fork_server._running.pid
    folder = Path(os.environ[SERVER]).parent
    fork_server.stop()
    assert not folder.exists() and SERVER not in os.environ
    fork_server._running = other
    if place is not None:
        os.environ[SERVER] = place


def launch(tmp_path: Path, *words: str, **variables: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"} | variables
    return subprocess.Popen(
        [worker_python(tmp_path), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


def port_of(process: "subprocess.Popen[bytes]") -> int:
    """A daemon's first word: where Spark may connect."""
    assert process.stdout is not None
    return int.from_bytes(process.stdout.read(4), "big")


def test_a_daemon_is_forked_and_ends_with_its_input(server: int, tmp_path: Path) -> None:
    process = launch(tmp_path, *PLANNER)
    assert 1024 < port_of(process) < 65536
    (forked,) = children_of(server)
    assert Path(f"/proc/{forked}/comm").read_text() == "create_data_sou\n" and parent_of(process.pid) == os.getpid()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    assert process.wait(30) == PLANNERS_END and process.stdout.read() == b""
    wait_until(lambda: not children_of(server))


def test_a_worker_of_a_stateful_processor_does_not_tell_of_its_steps(server: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = {"PYTHON_WORKER_FACTORY_PORT": str(listener.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": "secret"}
        process = launch(tmp_path, "-m", STATEFUL, **place)
        connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as spark:
        assert UTF8Deserializer().loads(spark) == "secret"
        assert len(children_of(server)) == 1
        for word in (b"ok", b"%d.%d" % sys.version_info[:2]):
            write_with_length(word, spark)
        spark.flush()
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.wait(30)


def test_whoever_kills_the_stand_in_kills_the_process(server: int, tmp_path: Path) -> None:
    process = launch(tmp_path, *PLANNER)
    port_of(process)
    (forked,) = children_of(server)
    process.kill()
    process.wait()
    wait_until(lambda: forked not in children_of(server))


def test_a_signal_reaches_the_process_and_its_end_comes_back(server: int, tmp_path: Path) -> None:
    process = launch(tmp_path, *PLANNER)
    port_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (1, 128 + signal.SIGTERM), "as the daemon answers it, once it listens to signals"
    wait_until(lambda: not children_of(server))


@pytest.mark.parametrize(
    "words, seed, code", [(PLANNER, "7", PLANNERS_END), (("-c", "print('alone'); raise SystemExit(3)"), "0", 3)]
)
def test_what_a_fork_could_not_be_is_started_by_itself(
    server: int, tmp_path: Path, words: tuple[str, ...], seed: str, code: int
) -> None:
    process = launch(tmp_path, *words, PYTHONHASHSEED=seed)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.read(4) and not children_of(server)
    process.stdin.close()
    assert process.wait(30) == code


def test_without_a_server_everything_is_as_ever(tmp_path: Path) -> None:
    process = launch(tmp_path, *PLANNER, **{SERVER: str(tmp_path / "nobody")})
    assert 1024 < port_of(process) < 65536
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == PLANNERS_END


def test_a_folder_whose_name_is_too_long_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setattr(fork_server, "_running", None)
    fork_server.start()
    assert fork_server._running is None and not list(long.iterdir())


DRIVER = (
    "import sys, time\nfrom headrace.spark.launch import fork_server\nfork_server.start()\n"
    "print(fork_server._running.pid, flush=True)\ntime.sleep(600)\n"
)


def driver(folder: Path, **variables: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"TMPDIR": str(folder)} | variables
    return subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, env=environment)


def test_a_killed_driver_leaves_no_server_behind(tmp_path: Path) -> None:
    process = driver(tmp_path)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    wait_until(lambda: bool(list(tmp_path.glob("headrace-fork-*/s"))))
    process.kill()
    process.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() and not list(tmp_path.iterdir()))


def test_kernels_are_compiled_before_a_task_wants_them(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    caches = tmp_path / "caches"
    process = driver(tmp_path, XDG_CACHE_HOME=str(caches))
    try:
        wait_until(lambda: bool(list(caches.glob("headrace/kernels-*.bin"))))
    finally:
        process.kill()
        process.wait()
