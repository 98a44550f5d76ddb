"""Linux's own calls. `portable.py` has the same names, in the same order, for all other systems.

Hints (writeback, advice, priorities) promise nothing, so a kernel or a container that refuses one is not an error.
"""

import ctypes
import mmap
import os
import platform
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# -- files and their pages

_CACHESTAT = 451
_SYNC_FILE_RANGE_WRITE = 2

sync_data: Callable[[int], None] = os.fdatasync
"""A file's bytes, and as much about it as is needed to read them, are on the disk afterwards."""
sync_all: Callable[[int], None] = os.fsync
"""The same with all that the system keeps about a file; or a folder's names."""


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):  # a libc without it
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_sync_file_range = _find_sync_file_range()


def start_writeback(fd: int, position: int, length: int) -> None:
    """Begin to write a range out, without waiting for it."""
    if _sync_file_range is not None:
        _sync_file_range(fd, position, length, _SYNC_FILE_RANGE_WRITE)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def page_counter() -> Callable[[int, int, int], int | None] | None:
    """What counts the pages of (descriptor, position, length) that are in memory; for one thread.

    None before Linux 6.5, which has no way to ask; the count is None where this file cannot be asked about.
    """
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    range_, stat = _Range(), _Stat()
    range_at, stat_at = ctypes.byref(range_), ctypes.byref(stat)

    def count(fd: int, position: int, length: int) -> int | None:
        range_.offset = position
        range_.length = length
        if syscall(_CACHESTAT, fd, range_at, stat_at, 0) != 0:
            return None
        return int(stat.cached)

    fd = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        return count if count(fd, 0, PAGE_BYTES) is not None else None
    finally:
        os.close(fd)


def read_cached(fd: int, length: int, position: int) -> bytes | None:
    """What the page cache has, if it has all of it and the system can tell."""
    buffer = bytearray(length)
    try:
        return bytes(buffer) if os.preadv(fd, [buffer], position, os.RWF_NOWAIT) == length else None
    except OSError:
        return None  # not in memory, or a file system that cannot tell


def will_need(fd: int, position: int, length: int) -> None:
    """Have the system read a range ahead."""
    with suppress(OSError):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)


def read_no_further(fd: int) -> None:
    """Have the system read nothing of a file but what is asked for."""
    with suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def drop_cached(fd: int, position: int, length: int) -> None:
    """Let the page cache forget a range."""
    with suppress(OSError):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)


@contextmanager
def file_in_memory(content: bytes) -> Iterator[str]:
    """The path of a file that never touches a disk."""
    descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as memory:
            memory.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


# -- sockets

CAN_SENDFILE = True
"""Whether a slice of a file goes to a socket without being read: `send_file` is used only then."""
MORE_FOLLOWS = int(socket.MSG_MORE)
"""Flag of `send`: wait for what comes next rather than send a small packet."""
_UNPACED = b"cubic"

send_file: Callable[[int, int, int, int], int] = os.sendfile
"""(to, from, position, length): how much was sent."""


def send_unpaced(sock: socket.socket) -> None:
    """Do without the pacing of a congestion control that has it, if the system lets us choose."""
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)


def keep_alive(sock: socket.socket, idle_s: int, probe_s: int, probes: int) -> None:
    """Notice a peer that vanished without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


# -- processes and memory

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
"""Number of the system call, which libc has no function for."""
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13
"""Only when nobody else wants the disk. Schedulers that know no priorities pass it over."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

yield_processor: Callable[[], None] = os.sched_yield
"""Let whoever has work to do go first."""


def end_with_parent(how: int) -> None:
    """Have this process get signal `how` when the one that started it is gone, however it went."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)


def process_started(pid: int) -> int | None:
    """When a process started, in units of the system's own: it tells it from a later one with its number. None if it
    is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def process_age_s() -> float:
    """Seconds since this process was started, interpreter included."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.process_time()


def name_process(name: str) -> None:
    """What `top` calls this process; the words of its command line stay."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def use_idle_disk_time() -> None:
    """Have this process read and write only what others leave it of the disk's time."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def put_session_behind(nice: int) -> None:
    """Have the processes of this session give way to all others.

    To the scheduler a session is one group, and a nice value counts only among the processes of a group: against all
    others, the group's own one does.
    """
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def open_files_max(limit: int) -> int:
    """Raise the soft limit on open files to the hard one; returns how many there may be, at most `limit`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit if hard == resource.RLIM_INFINITY else min(hard, limit)


def return_freed_memory() -> Callable[[], None]:
    """What has the C library return pages that are free to the system; glibc alone can."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is None:
        return lambda: None
    return lambda: found(0)


def keep_freed_memory(kept_bytes: int, mapped_bytes_min: int) -> None:
    """Have the C library hold on to so much that is free, and take less than `mapped_bytes_min` from it."""
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        adjust(_M_TRIM_THRESHOLD, kept_bytes)
        adjust(_M_MMAP_THRESHOLD, mapped_bytes_min)


def use_huge_pages(memory: mmap.mmap) -> None:
    """A few large pages instead of many small ones, where the system has them."""
    with suppress(OSError, AttributeError):  # a kernel, or a Python, that was built without
        memory.madvise(mmap.MADV_HUGEPAGE)
