"""The registry of runs: a folder per run that any process of this user can read, follow and ask to stop.

`run.json` says what the run is, `progress.json` how it goes (its time is the heartbeat), a file `stop` asks it to end.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.platform import process_started

HEARTBEAT_LIMIT_MS = 15_000
DRIVER_LIMIT_S = 30.0
KEPT_RUNS = 50
ENDED = frozenset({"done", "stopped", "failed", "lost"})


class AlreadyRunning(RuntimeError):
    """Two runs must not share checkpoints; the message names the other."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What does not change while a run lasts."""

    run_id: str
    pipeline: str
    spec: str
    master: str
    mode: str
    storage: str
    host: str
    pid: int
    process_start: int
    started_ms: int
    description: str = ""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as others see it. `state`: starting, running, stopping, done, stopped, failed; lost if its process is
    gone."""

    info: RunInfo
    folder: Path
    state: str
    progress: Mapping[str, Any]

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED


def registry_folder(environment: Mapping[str, str] | None = None) -> Path:
    environment = os.environ if environment is None else environment
    if environment.get("HEADRACE_RUNS"):
        return Path(environment["HEADRACE_RUNS"])
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "headrace" / "runs"


class RunEntry:
    """This process's own run in the registry."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.folder = folder
        self.info = info

    @property
    def log_file(self) -> Path:
        return self.folder / "spark.log"

    def write_progress(self, snapshot: Mapping[str, Any]) -> None:
        _write_json(self.folder / "progress.json", {**snapshot, "heartbeat_ms": now_ms()})

    def note_driver(self, pid: int) -> None:
        """The JVM's own process: it may outlive this one for a moment, with its hands on the checkpoints."""
        _write_json(self.folder / "driver.json", {"pid": pid, "process_start": process_start(pid)})

    def stop_requested(self) -> str | None:
        """`graceful` or `now` once someone has asked."""
        try:
            return (self.folder / "stop").read_text().strip() or "graceful"
        except OSError:
            return None


def create_run(
    pipeline: str,
    spec: Path,
    *,
    master: str,
    mode: str,
    storage: str,
    description: str = "",
    registry: Path | None = None,
) -> RunEntry:
    base = registry_folder() if registry is None else registry
    base.mkdir(parents=True, exist_ok=True)
    _prune(base)
    started = now_ms()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started / 1000))
    for number in range(1, 1000):
        run_id = f"{pipeline}-{stamp}" + (f"-{number}" if number > 1 else "")
        try:
            (base / run_id).mkdir()
            break
        except FileExistsError:
            continue
    info = RunInfo(
        run_id, pipeline, str(spec), master, mode, storage, socket.gethostname(), os.getpid(),
        process_start(os.getpid()), started, description
    )  # fmt: skip
    entry = RunEntry(base / run_id, info)
    _write_json(entry.folder / "run.json", asdict(info))
    entry.write_progress({"state": "starting", "queries": []})
    return entry


@contextlib.contextmanager
def checkpoints_locked(storage: str, pipeline: str, registry: Path | None = None) -> Iterator[None]:
    """Held while a run uses `storage`; the system lets go of it with the process, however that ends."""
    base = registry_folder() if registry is None else registry
    locks = base / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(storage.encode()).hexdigest()[:24]
    with (locks / name).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = next((run for run in list_runs(base) if run.is_live and run.info.storage == storage), None)
            which = f"run {other.info.run_id}, process {other.info.pid}" if other else "another process"
            raise AlreadyRunning(
                f"{pipeline} is already running on {storage} ({which}): stop it with `headrace pipeline stop"
                f" {pipeline}`, or give this one a `storage:` of its own"
            ) from None
        _wait_for_drivers(base, storage)
        yield


def _wait_for_drivers(base: Path, storage: str) -> None:
    """A run that was killed leaves a driver that notices a little later; two must not write the same checkpoints."""
    deadline = time.monotonic() + DRIVER_LIMIT_S
    for run in list_runs(base):
        if run.info.storage != storage or run.info.host != socket.gethostname():
            continue
        try:
            driver = json.loads((run.folder / "driver.json").read_text())
        except (OSError, ValueError):
            continue
        while driver["process_start"] and process_start(driver["pid"]) == driver["process_start"]:
            if time.monotonic() > deadline:
                raise AlreadyRunning(
                    f"the Spark driver of run {run.info.run_id}, process {driver['pid']}, has not ended and uses"
                    f" {storage}: end it first"
                )
            time.sleep(0.1)


def list_runs(registry: Path | None = None) -> list[RunView]:
    """All runs, the latest first."""
    base = registry_folder() if registry is None else registry
    found = []
    for folder in base.iterdir() if base.is_dir() else ():
        view = read_run(folder)
        if view is not None:
            found.append(view)
    return sorted(found, key=lambda run: (run.info.started_ms, run.info.run_id), reverse=True)


def read_run(folder: Path) -> RunView | None:
    try:
        info = RunInfo(**json.loads((folder / "run.json").read_text()))
        progress = json.loads((folder / "progress.json").read_text())
    except (OSError, ValueError, TypeError):
        return None
    state = str(progress.get("state", "starting"))
    if state not in ENDED and not _is_alive(info, progress):
        state = "lost"
    return RunView(info, folder, state, progress)


def find_run(name: str | None, registry: Path | None = None, *, live: bool) -> RunView | None:
    """By run id or by pipeline, the latest first; without a name, the latest."""
    for run in list_runs(registry):
        if (not live or run.is_live) and name in (None, run.info.run_id, run.info.pipeline):
            return run
    return None


def request_stop(run: RunView, *, now: bool = False) -> None:
    handle, fresh = tempfile.mkstemp(dir=run.folder)
    with os.fdopen(handle, "w") as file:
        file.write("now" if now else "graceful")
    os.replace(fresh, run.folder / "stop")


def _is_alive(info: RunInfo, progress: Mapping[str, Any]) -> bool:
    """Of another host's runs only the heartbeat can be seen."""
    if info.host == socket.gethostname():
        return process_start(info.pid) == info.process_start
    return now_ms() - int(progress.get("heartbeat_ms", 0)) < HEARTBEAT_LIMIT_MS


def process_start(pid: int) -> int:
    """When a process started, as the system counts, which tells it from a later one with its id; 0 if it is gone."""
    return process_started(pid) or 0


def _prune(base: Path) -> None:
    for run in [run for run in list_runs(base) if not run.is_live][KEPT_RUNS:]:
        shutil.rmtree(run.folder, ignore_errors=True)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all: readers may look at any moment."""
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(value, file)
    os.replace(fresh, path)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
