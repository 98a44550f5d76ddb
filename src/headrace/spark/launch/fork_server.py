"""One Python process with all that Spark's Python processes import, which forks each of them when it is wanted.

Before a stream's first row is written, Spark starts eight Python processes, most of them one after the other: to look
formats up, to create a source, to plan it, to run it, for tasks, and the same for a sink. Each would import PySpark,
Arrow and Headrace first, for half a second to two. Here that happens once, while the JVM starts.

The launcher in `worker_python` runs `fork_client`, which hands its order, its input and its output over and stays until
the forked process has ended. Where there is no server, that process is started as ever.
"""

import atexit
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from headrace.platform import name_process
from headrace.spark.launch.daemon import PRELOADED, TASKS, preload
from headrace.spark.launch.fork_client import LENGTH_BYTES, SERVER

HASH_SEED = "PYTHONHASHSEED"
ALSO_PRELOADED = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.lookup_data_sources",
    "headrace.spark.source.stream",
    "headrace.spark.log.scan",
)
"""Not Spark's runner of sinks: by that module a sink knows that it is only asked to commit."""
STATEFUL = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""Where a query with a StatefulProcessor is tried before its first batch."""
STARTED = ("headrace.spark.launch.daemon", "pyspark.sql.streaming.python_streaming_source_runner", STATEFUL)
"""The modules that are run here; whatever else Spark asks of a Python gets one of its own."""
ORDER_BYTES_MAX = 16 << 20
CLOSE_LIMIT_S = 5.0
NAME_LENGTH = 15

_running: "subprocess.Popen[bytes] | None" = None


# -- in the driver


def start() -> None:
    """Have a server run as long as this process; its place is in the environment, which the JVM inherits."""
    global _running
    if _running is not None and _running.poll() is None:
        return
    folder = Path(tempfile.mkdtemp(prefix="headrace-fork-"))
    place = folder / "s"
    seed = os.environ.get(HASH_SEED, "0")  # what Spark gives its workers: keys must hash alike in all of them
    listener = socket.socket(socket.AF_UNIX)
    try:
        # Here, so that whoever comes before the server has loaded everything waits for it.
        listener.bind(str(place))
        listener.listen(64)
        fd = listener.fileno()
        command = [sys.executable, "-m", "headrace.spark.launch.fork_server", str(place), str(fd)]
        environment = os.environ | {HASH_SEED: seed}
        _running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, pass_fds=[fd]
        )
    except OSError:  # such as a temporary folder with too long a name for a socket's path
        shutil.rmtree(folder, ignore_errors=True)
        return
    finally:
        listener.close()
    os.environ[SERVER] = str(place)
    atexit.register(stop)


def stop() -> None:
    global _running
    server, _running = _running, None
    os.environ.pop(SERVER, None)
    if server is not None and server.stdin is not None:
        server.stdin.close()
        try:
            server.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            server.kill()


# -- in the server


class ForkServer:
    """Forks what is asked for, until its stdin ends: that is the driver's end, however it comes."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._clients: dict[int, tuple[socket.socket, int]] = {}
        """Connection and forked process, by descriptor."""

    def serve(self) -> None:
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            poller = select.poll()
            for fd in (0, self._woken, self._listener.fileno(), *self._clients):
                poller.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poller.poll()}
            if 0 in ready:
                return
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            for fd in ready & self._clients.keys():
                self._abandoned(fd)
            if self._listener.fileno() in ready:
                client, _ = self._listener.accept()
                with client, suppress(OSError, ValueError, KeyError):
                    self._take(client)

    def compile_beside(self) -> None:
        """On a machine that has never read a topic, have the kernels compiled while the JVM starts and not in the first
        task, which would take seconds longer."""
        from headrace.client.columnar import native

        if not native.is_ready() and not os.fork():
            code = 1
            try:
                native.load()
                code = 0
            finally:
                os._exit(code)

    def _take(self, client: socket.socket) -> None:
        order, streams = read_order(client)
        if not is_ours(order["words"], order["environment"]):
            for fd in streams:
                os.close(fd)
            return
        pid = os.fork()
        if not pid:
            self._become(order, streams)
        for fd in streams:
            os.close(fd)
        kept = client.dup()
        self._clients[kept.fileno()] = kept, pid
        kept.sendall(pid.to_bytes(LENGTH_BYTES, "big", signed=True))

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, state = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                code = os.waitstatus_to_exitcode(state)
                for fd in [fd for fd, (_, of) in self._clients.items() if of == pid]:
                    client, _ = self._clients.pop(fd)
                    with client, suppress(OSError):
                        client.sendall(code.to_bytes(LENGTH_BYTES, "big", signed=True))

    def _abandoned(self, fd: int) -> None:
        """The one who stood for a process was killed: that was meant for the process."""
        client, pid = self._clients.pop(fd)
        client.close()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _become(self, order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
        """The process that was asked for. Nothing of the server may be seen in it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            os.closerange(3, max((self._waker, self._listener.fileno(), *streams, *self._clients), default=2) + 1)
            run_as(order["words"], order["environment"], order["folder"])
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)


def read_order(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is wanted, and the descriptors of its input, output and errors."""
    head, streams, _, _ = socket.recv_fds(client, LENGTH_BYTES, 3)
    length = int.from_bytes(head, "big")
    if len(streams) != 3 or not 0 < length <= ORDER_BYTES_MAX:
        raise ValueError("no order")
    data = b""
    while len(data) < length:
        got = client.recv(length - len(data))
        if not got:
            raise ValueError("half an order")
        data += got
    return json.loads(data), list(streams)


def is_ours(words: Sequence[str], environment: dict[str, str]) -> bool:
    """Whether a fork of this process is the same as a process started for it: strings must hash as it would have
    them."""
    same_hashes = environment.get(HASH_SEED, os.environ.get(HASH_SEED)) == os.environ.get(HASH_SEED)
    return len(words) >= 2 and words[0] == "-m" and words[1] in STARTED and same_hashes


def run_as(words: Sequence[str], environment: dict[str, str], folder: str) -> None:
    """`python -m MODULE WORDS` in this process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    added = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [folder, *added, *(place for place in sys.path[1:] if place not in added)]
    sys.argv = list(words[1:])
    name_process(short_name(words))  # the words of its command line stay the server's
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.modules.pop(words[1], None)  # it is run, and must not be there twice
    # It tells of each of its steps, types and addresses and all, in the middle of what the job prints.
    instead = {"print": _silent} if words[1] == STATEFUL else None
    runpy.run_module(words[1], instead, run_name="__main__", alter_sys=True)


def _silent(*_: object, **__: object) -> None:
    """In the place of a module's print."""


def short_name(words: Sequence[str]) -> str:
    """The kind of process, as far as Linux keeps it: `pyspark.worker`, `create_data_sou`."""
    name = words[-1]
    for package in ("pyspark.sql.worker.", "pyspark.sql.streaming."):
        name = name.removeprefix(package)
    return name[:NAME_LENGTH]


def main(place: str, listening_fd: int) -> None:
    server = ForkServer(socket.socket(fileno=listening_fd))
    try:
        for module in (TASKS, *PRELOADED):
            preload(module)
        for module in ALSO_PRELOADED:
            import_module(module)
        gc.freeze()
        server.compile_beside()
        server.serve()
    finally:
        shutil.rmtree(Path(place).parent, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
