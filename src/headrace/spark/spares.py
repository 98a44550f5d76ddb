"""Spark's daemon for tasks, with one worker forked before it is wanted.

PySpark's own forks a worker when a task wants one, and in that task's time the system copies each page that the worker
writes to for the first time: most of what lies between a warm query's start and its first row. Spark ends the worker of
every query that wants only some rows, so the next one has it again. Here a spare has done that before. To Spark both
daemons speak alike: where to connect on stdout, the ids of workers to kill on stdin, a worker's id first on its connection.
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
"""Before another spare is made while workers run: forked at once, it would take time from the task that the last went to."""
SHORT_PAUSE_MS = 30
"""Before one is made for a worker that ended: Spark hands the last rows to whoever waits for them."""

Rehearse = Callable[[], None]


def manage(rehearse: Rehearse) -> NoReturn:
    """What `pyspark.daemon.manager` does. `rehearse` is what spares do to pass the time."""
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
        Workers(listener, rehearse).serve(os.fdopen(sys.stdin.fileno(), "rb", 4))
        code = 0
    finally:
        end(code)


class Workers:
    """Forked from here, at most one of them without a connection: the spare. Each holds one end of a pair of sockets, by
    which it tells that it got its connection, and either side learns of the other's end."""

    def __init__(self, listener: socket.socket, rehearse: Rehearse) -> None:
        self._listener = listener
        self._rehearse = rehearse
        self._ties: dict[int, socket.socket] = {}
        """Our ends, by descriptor."""
        self._spare: socket.socket | None = None

    def serve(self, orders: BinaryIO) -> None:
        """Until Spark closes `orders`."""
        pause_ms = PAUSE_MS
        while True:
            poller = select.poll()
            for fd in (orders.fileno(), *self._ties):
                poller.register(fd, select.POLLIN)
            if self._spare is None:
                poller.register(self._listener, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(None if self._spare else pause_ms)}
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
            for fd in ready & self._ties.keys():
                if self._has_ended(self._ties[fd]):
                    pause_ms = SHORT_PAUSE_MS

    def _has_ended(self, tie: socket.socket) -> bool:
        """Whether a worker ended that had a connection: the next task will miss it. Else it is one that got its own."""
        was_spare = tie is self._spare
        if was_spare:
            self._spare = None
        if tie.recv(1):
            return False
        del self._ties[tie.fileno()]
        tie.close()
        return not was_spare

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
            self._ties[ours.fileno()] = self._spare = ours
            return
        code = 1
        try:
            # A spare that waits is to end with the daemon.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for tie in (ours, *self._ties.values()):
                tie.close()
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

    def _work(self, tie: socket.socket) -> None:
        connection = self._connection(tie)
        if connection is None:
            return
        tie.send(b"\0")
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

    def _connection(self, tie: socket.socket) -> socket.socket | None:
        """The first that comes, None when the daemon has ended."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(tie, select.POLLIN)
        has_rehearsed = False
        while True:
            ready = {fd for fd, _ in poller.poll(None if has_rehearsed else 0)}
            if tie.fileno() in ready:
                return None
            if ready:
                connection, _ = self._listener.accept()
                return connection
            has_rehearsed = True
            with suppress(Exception):
                self._rehearse()


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
