"""`headrace up --detach`, `headrace down` and `headrace logs`: a broker or a cluster that outlives its terminal.

What is needed to find it again lies beside the data folder, in which only a broker writes: `headrace-data.pid` names
the process, `headrace-data.log` has what it said.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.client.errors import ClientError
from headrace.platform import process_started

READY = " ready on "
"""What a broker and a cluster say once clients can connect."""
START_LIMIT_S, STOP_LIMIT_S = 120.0, 120.0
LOOK_S = 0.05
TAIL_BYTES = 64 << 10


def pid_file(folder: Path) -> Path:
    return _beside(folder, ".pid")


def log_file(folder: Path) -> Path:
    return _beside(folder, ".log")


def _beside(folder: Path, suffix: str) -> Path:
    whole = folder.absolute()
    return whole.with_name(whole.name + suffix)


class Running(NamedTuple):
    """A process, told from a later one that was given the same number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Running | None":
        started = process_started(pid)
        return None if started is None else cls(pid, str(started))


def running_in(folder: Path) -> Running | None:
    """The detached process of a data folder, if it runs."""
    try:
        pid, _, started = pid_file(folder).read_text().strip().partition(" ")
        found = Running.of(int(pid))
    except (OSError, ValueError):
        return None
    return found if found is not None and found.started == started else None


def start(words: Sequence[str], folder: Path, *, as_json: bool = False) -> int:
    """Run `headrace up` with these words beside this process, and return once it serves. Returns the exit code."""
    log_file(folder).parent.mkdir(parents=True, exist_ok=True)
    if (running := running_in(folder)) is not None:
        print(
            f"headrace: {folder} is in use by process {running.pid}: stop it with `headrace down --data {folder}`",
            file=sys.stderr,
        )
        return 1
    log_path = log_file(folder)
    with log_path.open("ab") as log:
        began_at = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "up", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    identity = Running.of(process.pid)
    pid_file(folder).write_text(f"{process.pid} {identity.started if identity else ''}\n")
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        said = _since(log_path, began_at)
        line = next((line for line in said.splitlines() if READY in line), None)
        if line is not None:
            if as_json:
                address = line.partition(READY)[2].split()[0]
                print(json.dumps({"ready": address, "pid": process.pid, "data": str(folder), "log": str(log_path)}))
            else:
                print(line)
                print(f"log in {log_path}; stop it with: headrace down --data {folder}")
            return 0
        if (code := process.poll()) is not None:
            pid_file(folder).unlink(missing_ok=True)
            lines = said.strip().splitlines()
            print(lines[-1] if lines else f"headrace: it ended with code {code} and said nothing", file=sys.stderr)
            if not began_at:
                log_path.unlink()  # perhaps it is nobody's data folder
            return code or 1
        time.sleep(LOOK_S)
    print(
        f"headrace: it is not ready after {START_LIMIT_S:.0f} s and goes on starting; see {log_path}", file=sys.stderr
    )
    return 1


def stop(folder: Path, *, now: bool) -> int | None:
    """Stop what runs in a data folder, in order; `now` kills it. Which process that was, None if nothing ran."""
    running = running_in(folder)
    if running is None:
        return None
    os.kill(running.pid, signal.SIGKILL if now else signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while running_in(folder) is not None:
        if time.monotonic() > deadline:
            raise ClientError(
                f"process {running.pid} has not ended after {STOP_LIMIT_S:.0f} s: see {log_file(folder)}, or kill it"
                " with --now"
            )
        time.sleep(LOOK_S)
    pid_file(folder).unlink(missing_ok=True)
    return running.pid


def log_lines(folder: Path, lines: int, follow: bool) -> Iterator[str]:
    """The last lines of what a detached process said, and with `follow` what it says from now on."""
    path = log_file(folder)
    try:
        size = path.stat().st_size
    except OSError:
        raise ClientError(f"there is no {path}: only `headrace up --detach` writes one") from None
    tail = _since(path, max(0, size - max(TAIL_BYTES, 400 * lines))).splitlines()
    yield from tail[-lines:] if lines else []
    begun = ""
    while follow:
        time.sleep(LOOK_S)
        now = path.stat().st_size
        if now > size:
            *whole, begun = (begun + _since(path, size, now)).split("\n")
            yield from whole
        size = now  # smaller, if somebody has emptied it


def _since(path: Path, position: int, end: int = -1) -> str:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(-1 if end < 0 else end - position).decode(errors="replace")
