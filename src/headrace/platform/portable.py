"""What every POSIX system has in the place of Linux's own calls: the same names as in `linux.py`, in the same order.

Hints become nothing. What is promised (syncing, ending with one's parent) is kept by other means.
"""

import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

# -- files and their pages

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its fsync hands bytes to the disk, which may keep them in memory of its own; this has the disk write them."""
_NO_FULL_SYNC = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOTTY})
"""What file systems say that do not know it, such as network drives. Any other failure is one."""


def sync_all(
    fd: int,
    full_sync: int | None = _FULL_SYNC,
    control: Callable[[int, int], object] = fcntl.fcntl,
    sync: Callable[[int], None] = os.fsync,
) -> None:
    """A file's bytes and all that the system keeps about it, or a folder's names, are on the disk afterwards."""
    if full_sync is not None:
        try:
            control(fd, full_sync)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    sync(fd)


def sync_data(fd: int) -> None:
    """There is no lesser way that all systems have."""
    sync_all(fd)


def start_writeback(fd: int, position: int, length: int) -> None:
    """The system writes out when it likes."""


def page_counter() -> Callable[[int, int, int], int | None] | None:
    """Nobody can tell what is in memory."""
    return None


def read_cached(fd: int, length: int, position: int) -> bytes | None:
    """Nobody can tell what is in memory."""
    return None


def will_need(fd: int, position: int, length: int) -> None:
    """Whoever needs it reads it."""


def read_no_further(fd: int) -> None:
    """The system reads ahead as it likes."""


def drop_cached(fd: int, position: int, length: int) -> None:
    """The page cache forgets what it likes."""


@contextmanager
def file_in_memory(content: bytes) -> Iterator[str]:
    """A temporary file, which nobody else may read."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


# -- sockets

CAN_SENDFILE = False
MORE_FOLLOWS = 0


def send_file(to: int, source: int, position: int, length: int) -> int:
    """Never called: `CAN_SENDFILE` says no. Systems have a call of this name, and each means something else by it."""
    raise NotImplementedError


def send_unpaced(sock: socket.socket) -> None:
    """The system's own choice stays."""


def keep_alive(sock: socket.socket, idle_s: int, probe_s: int, probes: int) -> None:
    """As far as the system has these options; macOS calls the first one by another name."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {"TCP_KEEPIDLE": idle_s, "TCP_KEEPALIVE": idle_s, "TCP_KEEPINTVL": probe_s, "TCP_KEEPCNT": probes}
    for name, value in values.items():
        if hasattr(socket, name):
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# -- processes and memory

_PARENT_LOOK_S = 0.25
_PS_LIMIT_S = 10.0
_UNKNOWN_START = 1
_OPEN_FILES = 10_240
"""What macOS grants at least where it says that there is no limit, and refuses one that is higher."""

_imported_s = time.monotonic() - time.process_time()


def yield_processor() -> None:
    """Let whoever has work to do go first."""
    time.sleep(0)


def end_with_parent(how: int) -> None:
    """A thread looks who this process's parent is: an orphan gets another one."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_LOOK_S)
        os.kill(os.getpid(), signal.Signals(how))

    threading.Thread(target=watch, name="headrace-parent", daemon=True).start()


def process_started(pid: int) -> int | None:
    """In seconds, as `ps` tells it; 1 where there is no `ps`. None if it is gone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except OSError:
        return None
    words = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    try:
        said = subprocess.run(
            words, capture_output=True, text=True, timeout=_PS_LIMIT_S, env={**os.environ, "LC_ALL": "C"}
        )
        state, _, started = said.stdout.strip().partition(" ")
        if state.startswith("Z") or said.returncode:
            return None
        return int(datetime.strptime(started.strip(), "%a %b %d %H:%M:%S %Y").timestamp())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return _UNKNOWN_START


def process_age_s() -> float:
    """Counted from the first import of this, and the processor's time before."""
    return time.monotonic() - _imported_s


def name_process(name: str) -> None:
    """It keeps the name that it has."""


def use_idle_disk_time() -> None:
    """All have the same share of the disk."""


def put_session_behind(nice: int) -> None:
    """Each process has a nice value of its own."""


def open_files_max(limit: int) -> int:
    """Raise the soft limit on open files as far as the system lets us; returns how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        wished = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        for count in (wished, _OPEN_FILES):
            if soft == resource.RLIM_INFINITY or count <= soft:
                break
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
                break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if soft == resource.RLIM_INFINITY else min(soft, limit)


def return_freed_memory() -> Callable[[], None]:
    """The C library returns what it likes."""
    return lambda: None


def keep_freed_memory(kept_bytes: int, mapped_bytes_min: int) -> None:
    """The C library keeps what it likes."""


def use_huge_pages(memory: mmap.mmap) -> None:
    """The system's own choice stays."""
