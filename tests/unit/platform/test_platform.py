"""Linux's own calls and the portable ways: the same names, the same promises, no Linux-only call elsewhere."""

import ast
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace import platform
from headrace.platform import linux, portable
from tests.waiting import eventually

SOURCE = Path(headrace.__file__).parent
DOOR = SOURCE / "platform"

LINUX_ONLY = {
    "cachestat", "fdatasync", "sync_file_range", "posix_fadvise", "posix_fallocate", "fallocate", "sendfile",
    "splice", "copy_file_range", "memfd_create", "eventfd", "pidfd_open", "epoll", "preadv", "RWF_NOWAIT", "O_DIRECT",
    "O_TMPFILE", "O_PATH", "MSG_MORE", "TCP_CONGESTION", "TCP_QUICKACK", "TCP_CORK", "TCP_KEEPIDLE",
    "SO_BINDTODEVICE", "prctl", "sched_yield", "sched_setaffinity", "sched_getaffinity", "ioprio_set", "malloc_trim",
    "mallopt", "setrlimit", "F_FULLFSYNC", "CLOCK_BOOTTIME", "MADV_HUGEPAGE", "CDLL", "SEEK_DATA", "SEEK_HOLE",
}  # fmt: skip
"""Calls and constants that not every POSIX system has, or that each means differently. `CDLL` leads to all others."""
LINUX_PATHS = ("/proc/", "/sys/", "/dev/shm")


def linux_only(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of each Linux-only thing that code names; texts of documentation may speak of anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in LINUX_ONLY:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and node.id in LINUX_ONLY:
            yield node.lineno, node.id
        elif isinstance(node, ast.alias) and node.name.rpartition(".")[2] in LINUX_ONLY:
            yield node.lineno, node.name
        elif isinstance(node, ast.Constant) and is_linux_only(node.value):
            yield node.lineno, str(node.value)


def is_linux_only(text: object) -> bool:
    return isinstance(text, str) and (text.startswith(LINUX_PATHS) or text in LINUX_ONLY)


def test_linux_only_calls_are_seen() -> None:
    lines = (
        "os.fdatasync(1)",
        'open(f"/proc/{1}/stat")',
        "from os import sendfile",
        'getattr(os, "preadv")',
        "'sendfile!'",
    )
    text = "\n".join(lines)
    assert [line for line, _ in sorted(linux_only(ast.parse(text)))] == [1, 2, 3, 4]


def test_no_linux_only_call_is_outside_of_the_door() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if DOOR not in path.parents
        for line, what in linux_only(ast.parse(path.read_text()))
    ]
    assert found == [], "give it a name in headrace.platform, with a portable way"


def public(module: ModuleType) -> set[str]:
    """What a module itself defines: functions, and names that it gives a value to."""
    tree = ast.parse(Path(module.__file__ or "").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_both_ways_have_the_same_names_and_the_door_offers_them() -> None:
    assert public(linux) - {"PAGE_BYTES"} == public(portable)
    assert public(platform) - {"IS_PORTABLE", "PORTABLE_VARIABLE"} == public(portable)


@pytest.mark.parametrize(("value", "chosen"), [("1", "portable"), ("0", "linux"), (None, "linux")])
def test_the_way_is_chosen_by_the_environment_at_import(value: str | None, chosen: str) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("elsewhere only the portable ways are there")
    environment = {name: text for name, text in os.environ.items() if name != platform.PORTABLE_VARIABLE}
    environment |= {} if value is None else {platform.PORTABLE_VARIABLE: value}
    code = "from headrace import platform; print(platform.will_need.__module__, platform.CAN_SENDFILE)"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [f"headrace.platform.{chosen}", str(chosen == "linux")]


# -- syncing


class Calls:
    """What a file system would be asked; `refusal` is what it says to a full sync."""

    def __init__(self, refusal: int | None = None) -> None:
        self.made: list[tuple[str, int]] = []
        self._refusal = refusal

    def control(self, fd: int, command: int) -> None:
        self.made.append(("control", command))
        if self._refusal is not None:
            raise OSError(self._refusal, os.strerror(self._refusal))

    def sync(self, fd: int) -> None:
        self.made.append(("fsync", fd))


def test_on_macos_a_sync_reaches_the_disk_itself() -> None:
    full_sync = 51  # macOS' F_FULLFSYNC
    calls = Calls()
    portable.sync_all(7, full_sync, calls.control, calls.sync)
    assert calls.made == [("control", full_sync)]


def test_a_network_drive_without_full_sync_gets_the_plain_one() -> None:
    calls = Calls(refusal=errno.ENOTSUP)
    portable.sync_all(7, 51, calls.control, calls.sync)
    assert calls.made == [("control", 51), ("fsync", 7)]


def test_a_full_sync_that_fails_is_never_taken_for_done() -> None:
    calls = Calls(refusal=errno.EIO)
    with pytest.raises(OSError):
        portable.sync_all(7, 51, calls.control, calls.sync)
    assert calls.made == [("control", 51)]


@pytest.mark.parametrize("way", [linux, portable])
def test_files_and_folders_can_be_synced(way: ModuleType, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    folder = os.open(tmp_path, os.O_RDONLY)
    os.write(fd, b"x")
    way.sync_data(fd)
    way.sync_all(fd)
    way.sync_all(folder)
    os.close(fd)
    os.close(folder)
    with pytest.raises(OSError):
        way.sync_data(fd)


# -- hints and small things


@pytest.mark.parametrize("way", [linux, portable])
def test_hints_are_taken_by_any_file(way: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 10_000)
    fd = os.open(tmp_path / "file", os.O_RDWR)
    try:
        way.start_writeback(fd, 0, 3_000)
        way.will_need(fd, 0, 3_000)
        way.read_no_further(fd)
        way.drop_cached(fd, 0, 3_000)
        assert way.read_cached(fd, 3, 3) in (b"abc", None)
        count = way.page_counter()
        assert count is None or count(fd, 0, 3) in (0, 1, None)
    finally:
        os.close(fd)
    with mmap.mmap(-1, 4 << 20) as memory:
        way.use_huge_pages(memory)
    way.yield_processor()


@pytest.mark.parametrize("way", [linux, portable])
def test_what_is_kept_in_memory_can_be_read_by_its_path(way: ModuleType) -> None:
    with way.file_in_memory(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
    assert not Path(path).exists()


@pytest.mark.parametrize("way", [linux, portable])
def test_sockets_are_kept_alive(way: ModuleType) -> None:
    with socket.socket() as sock:
        way.keep_alive(sock, 120, 15, 5)
        way.send_unpaced(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("way", [linux, portable])
def test_the_limit_on_open_files_is_raised_as_far_as_it_goes(way: ModuleType) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert way.open_files_max(1_000_000) >= min(before[0], 1_000_000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]


# -- processes


@pytest.mark.parametrize("way", [linux, portable])
def test_a_process_is_told_from_one_that_is_gone(way: ModuleType) -> None:
    started = way.process_started(os.getpid())
    assert started is not None and started == way.process_started(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    eventually(lambda: way.process_started(child.pid) is None, "ended, although nobody has asked how")
    child.wait()
    assert way.process_started(child.pid) is None
    assert 0 < way.process_age_s() < 24 * 3600


@pytest.mark.parametrize("way", ["linux", "portable"])
def test_a_process_ends_with_the_one_that_started_it(way: str, tmp_path: Path) -> None:
    child = (
        "import os, signal, sys, time\n"
        f"from headrace.platform import {way}\n"
        f"{way}.end_with_parent(signal.SIGTERM)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(600)\n"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        pid = int(process.stdout.readline())
        assert platform.process_started(pid) is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: platform.process_started(pid) is None, "ended with its parent")


def test_fcntl_has_what_the_portable_way_asks_for() -> None:
    assert getattr(fcntl, "F_FULLFSYNC", None) == portable._FULL_SYNC
