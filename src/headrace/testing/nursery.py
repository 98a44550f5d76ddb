"""A process that has imported all of a broker, and forks one whenever a test wants it.

Nearly all of a broker's start is imports: a fork has them already. It is a process of its own as any other, which can
be killed and frozen; a broker in a thread of the tests could not, and would share their interpreter lock. A first
broker waits for the imports as ever, unless `warm_up` was called in time: the pytest plugin does, as soon as it knows
that a test asks for a broker.
"""

import atexit
import gc
import json
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from headrace.local_cluster.process import environment_of_its_own
from headrace.platform import IS_PORTABLE, end_with_parent, process_started

ORDER_BYTES_MAX = 1 << 20
FORK_LIMIT_S = 60.0
LOOK_S = 0.005
LOST = -int(signal.SIGKILL)
"""Code of a process of which nobody can tell any more how it ended."""


class NurseryLost(Exception):
    """The process that forks is gone, or says nothing."""


class Forked:
    """A broker's process: what `subprocess.Popen` has, as far as it is needed."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it has ended; None: it lives."""
        if self._code is None:
            self._code = self._nursery.code_of(self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("headrace", timeout or 0.0)
            time.sleep(LOOK_S)
        return code

    def send_signal(self, how: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The test's end of the process that forks."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._received = b""
        self._codes: dict[int, int] = {}
        self.circumstances = circumstances()
        words = [sys.executable, "-m", "headrace.testing.nursery", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, env=environment_of_its_own(), pass_fds=[theirs.fileno()]
            )

    def fork(self, words: Sequence[str], log: Path, line: socket.socket, ahead_ms: int) -> Forked:
        """A process that does `node.run_node`; what it says goes to `log`. Raises NurseryLost."""
        order = {"words": list(words), "log": str(log.absolute()), "folder": os.getcwd(), "ahead_ms": ahead_ms}
        with self._lock:
            try:
                self._line.settimeout(FORK_LIMIT_S)
                socket.send_fds(self._line, [json.dumps(order).encode() + b"\n"], [line.fileno()])
                deadline = time.monotonic() + FORK_LIMIT_S
                while (pid := self._hear(deadline)) is None:
                    pass
            except (OSError, TimeoutError) as error:
                raise NurseryLost(str(error)) from None
            return Forked(self, pid)

    def code_of(self, pid: int) -> int | None:
        with self._lock:
            try:
                while pid not in self._codes and select.select([self._line], [], [], 0)[0]:
                    self._hear(time.monotonic() + FORK_LIMIT_S)
            except OSError:
                return None if process_started(pid) is not None else LOST
            return self._codes.pop(pid, None)

    def _hear(self, deadline: float) -> int | None:
        """Take one message: the number of a new process, or how an old one ended."""
        while b"\n" not in self._received:
            self._line.settimeout(max(0.001, deadline - time.monotonic()))
            received = self._line.recv(ORDER_BYTES_MAX)
            if not received:
                raise ConnectionResetError("the process that forks has ended")
            self._received += received
        text, _, self._received = self._received.partition(b"\n")
        message = json.loads(text)
        if "code" in message:
            self._codes[message["pid"]] = message["code"]
            return None
        return int(message["pid"])

    def close(self) -> None:
        """Its brokers end with it."""
        self._line.close()
        self._process.wait()


def circumstances() -> object:
    """What a fork takes from the process that forks, but a new process would take from the test."""
    limits = [resource.getrlimit(which) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)]
    environment = {name: value for name, value in environment_of_its_own().items() if not name.startswith("PYTEST_")}
    return os.getpid(), sys.executable, limits, environment


_nurseries: list[Nursery] = []


def warm_up() -> Nursery | None:
    """Have one ready, or nearly. None where a fork is not the same as a new process."""
    if IS_PORTABLE:
        return None  # forks of a process that has imported much are not safe on every system
    now = circumstances()
    for nursery in _nurseries:
        if nursery.circumstances == now:
            return nursery
    if _nurseries:
        return None  # the test has changed what a broker is to start with: one process is enough for all others
    _nurseries.append(Nursery())
    atexit.register(_close, os.getpid())
    return _nurseries[-1]


def _close(pid: int) -> None:
    if os.getpid() == pid:  # not a fork of the tests
        while _nurseries:
            _nurseries.pop().close()


# -- the process that forks


def serve(line: socket.socket) -> None:
    """Fork by order, tell how forks ended, and end with the test."""
    from headrace.testing import node

    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([line.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ended(line)
        if line.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(line, ORDER_BYTES_MAX, 1)
            if not data:
                return
            while not data.endswith(b"\n"):
                data += line.recv(ORDER_BYTES_MAX)
            order = json.loads(data)
            pid = os.fork()
            if not pid:
                line.close()
                os.close(woken)
                signal.set_wakeup_fd(-1)
                os.close(wake)
                _become(node.run_node, order, descriptors[0])
            os.close(descriptors[0])
            line.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _tell_ended(line: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        line.sendall(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _become(run_node: Any, order: dict[str, Any], descriptor: int) -> NoReturn:
    """A broker, in a fork."""
    code = 1
    try:
        end_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(order["folder"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        random.seed()
        code = run_node(order["words"], socket.socket(fileno=descriptor), order["ahead_ms"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
