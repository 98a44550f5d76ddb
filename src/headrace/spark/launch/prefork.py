"""Spark's daemon for tasks, which keeps one idle worker forked ahead of the next task.

PySpark's own daemon forks a worker when a task needs one. The kernel then copies each page that the new worker writes
to for the first time, and the task waits for that: it is most of the time between a warm query's start and its first
row. Spark ends the worker of every query that needs only some of the rows, so the next query pays again. Here the idle
worker has written to those pages before its task comes.

Spark cannot tell the two daemons apart: both print where to connect on stdout, read the ids of workers to kill from
stdin, and a worker first sends its id on its connection.
"""

import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NoReturn

from pyspark.daemon import worker
from pyspark.serializers import read_int, write_int, write_with_length
from pyspark.util import enable_faulthandler

PAUSE_MS = 500
"""How long to wait before the next idle worker is forked while others run: at once, the fork would slow down the task
that the last one just took."""
SHORT_PAUSE_MS = 30
"""The same after a worker ended: Spark is still handing its last rows to whoever waits for them."""

WarmUp = Callable[[], None]


def manage(warm_up: WarmUp) -> NoReturn:
    """What `pyspark.daemon.manager` does. Idle workers call `warm_up` once."""
    os.setpgid(0, 0)
    listener, place = _listen()

    def end(code: int) -> NoReturn:
        if isinstance(place, str):
            with suppress(OSError):
                os.remove(place)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(0, signal.SIGHUP)
        sys.exit(code)

    signal.signal(signal.SIGTERM, lambda *_: end(1))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        if isinstance(place, str):
            write_with_length(place.encode(), out)
        else:
            write_int(place, out)
    code = 1
    try:
        Workers(listener, warm_up).serve(os.fdopen(sys.stdin.fileno(), "rb", 4))
        code = 0
    finally:
        end(code)


class Workers:
    """The forked workers. At most one has no connection yet: the idle one. Each shares a pair of sockets with the
    daemon, its link: the worker writes to it when it gets its connection, and each side sees there that the other has
    ended."""

    def __init__(self, listener: socket.socket, warm_up: WarmUp) -> None:
        self._listener = listener
        self._warm_up = warm_up
        self._links: dict[int, socket.socket] = {}
        """The daemon's ends, by descriptor."""
        self._idle: socket.socket | None = None

    def serve(self, orders: BinaryIO) -> None:
        """Serve until Spark closes `orders`."""
        pause_ms = PAUSE_MS
        while True:
            poller = select.poll()
            for fd in (orders.fileno(), *self._links):
                poller.register(fd, select.POLLIN)
            if self._idle is None:
                poller.register(self._listener, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(None if self._idle else pause_ms)}
            if orders.fileno() in ready:
                try:
                    pid = read_int(orders)
                except EOFError:
                    return
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not ready or self._listener.fileno() in ready:
                self._fork()
                pause_ms = PAUSE_MS
            for fd in ready & self._links.keys():
                if self._has_ended(self._links[fd]):
                    pause_ms = SHORT_PAUSE_MS

    def _has_ended(self, link: socket.socket) -> bool:
        """Whether a worker that had a connection ended; the next task needs another. Otherwise the idle worker got its
        connection, or ended without one."""
        was_idle = link is self._idle
        if was_idle:
            self._idle = None
        if link.recv(1):
            return False
        del self._links[link.fileno()]
        link.close()
        return not was_idle

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            # What is missing may be there later. Whoever waits for this worker goes on waiting.
            traceback.print_exc()
            time.sleep(PAUSE_MS / 1000)
            return
        if pid:
            theirs.close()
            self._links[ours.fileno()] = self._idle = ours
            return
        code = 1
        try:
            # An idle worker must end with the daemon.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for link in (ours, *self._links.values()):
                link.close()
            with enable_faulthandler():
                self._work(theirs)
            code = 0
        except BrokenPipeError:
            pass  # Spark has all the rows that its query wanted
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    # -- in a worker

    def _work(self, link: socket.socket) -> None:
        connection = self._connection(link)
        if connection is None:
            return
        link.send(b"\0")
        self._listener.close()
        # Not closed: the next file to be opened would become what code of users takes for its input.
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        with connection.makefile("wb") as out:
            write_int(os.getpid(), out)
        is_trusted = _is_local()
        while True:
            code = worker(connection, is_trusted)
            if code or not os.environ.get("SPARK_REUSE_WORKER"):
                with suppress(OSError):
                    while connection.recv(1024):
                        continue
                return
            is_trusted = True
            gc.collect()

    def _connection(self, link: socket.socket) -> socket.socket | None:
        """The first connection that comes; None when the daemon has ended."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(link, select.POLLIN)
        is_warm = False
        while True:
            ready = {fd for fd, _ in poller.poll(None if is_warm else 0)}
            if link.fileno() in ready:
                return None
            if ready:
                connection, _ = self._listener.accept()
                return connection
            is_warm = True
            with suppress(Exception):
                self._warm_up()


def _is_local() -> bool:
    """Whether Spark connects by a path, which only its own user can reach, rather than by a port and a password."""
    return os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true"


def _listen() -> tuple[socket.socket, str | int]:
    """Where Spark will connect, and its path or port."""
    if _is_local():
        path = os.path.join(os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"], f".{uuid.uuid4()}.sock")
        listener = socket.socket(socket.AF_UNIX)
        # Nobody else may connect, whatever is usual for files here: there is no password on this way.
        usual = os.umask(0o177)
        listener.bind(path)
        os.umask(usual)
        place: str | int = path
    else:
        is_v6 = os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true"
        listener = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET)
        listener.bind(("::1" if is_v6 else "127.0.0.1", 0))
        place = int(listener.getsockname()[1])
    listener.listen(max(1024, socket.SOMAXCONN))
    return listener, place
