"""`headrace run`: the listeners of an app as a program, and again whenever its code changes."""

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import print_json
from headrace.client.errors import ClientError

if TYPE_CHECKING:
    from headrace.listeners.app import App

LOOK_S = 0.3
STOP_LIMIT_S = 60.0
FILES_MAX = 20_000


def run_app(
    target: str = typer.Argument(..., metavar="MODULE:APP", help="Where the app is, such as billing:app."),
    reload: bool = typer.Option(False, "--reload", help="Start again when code changes, for development."),
    reload_dir: Path = typer.Option(Path(), "--reload-dir", metavar="DIR", help="Where --reload looks for code."),
    metrics_port: int | None = typer.Option(
        None, "--metrics-port", metavar="N", min=0, max=65535, help="Serve /metrics, /health and /ready there."
    ),
    log_level: str = typer.Option("info", "--log-level", metavar="LEVEL", help="debug, info, warning or error."),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON, at the end.")] = False,
) -> None:
    """Run the listeners of an app until SIGTERM or Ctrl-C.

    What runs is finished and committed. A listener that fails for good ends the program with status 1.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise ClientError(f"--log-level {log_level}: write debug, info, warning or error")
    if reload:
        more = [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
        more += ["--json"] if as_json else []
        raise typer.Exit(Reloader(reload_dir, [target, "--log-level", log_level, *more]).run())
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    from headrace.listeners.runner import ListenerFailed

    app = find_app(target)
    if metrics_port is not None:
        app.metrics_port = metrics_port
    try:
        app.run_forever()
        status = 0
    except ListenerFailed as error:
        print(f"headrace: {error}", file=sys.stderr)
        status = 1
    if as_json:
        print_json(
            {
                "app": app.name,
                "status": status,
                "listeners": [
                    {"name": one.spec.name, "state": one.state} | one.counters.shown() for one in app.listeners
                ],
            }
        )
    _leave(status)


def _leave(status: int) -> None:
    """A handler that hangs in a thread would keep the process for ever, though all is said and done."""
    if any(one.name.startswith("listener ") and one.is_alive() for one in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if status:
        raise typer.Exit(status)


def find_app(target: str) -> "App":
    """The app that `module:name` stands for; the folder the command runs in is looked at first."""
    from headrace.listeners.app import App

    module_name, _, name = target.partition(":")
    name = name or "app"
    if not module_name or module_name.endswith(".py") or "/" in module_name:
        raise ClientError(
            f"{target}: write MODULE:APP, such as billing:app for `app = headrace.App(...)` in billing.py"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise ClientError(f"there is no module {module_name!r} in {Path.cwd()}, nor is one installed") from None
    app = getattr(found, name, None)
    if not isinstance(app, App):
        apps = sorted(key for key, value in vars(found).items() if isinstance(value, App))
        hint = f"did you mean {module_name}:{apps[0]}?" if apps else "write app = headrace.App(...) in it"
        raise ClientError(f"{target}: {module_name} has no app named {name!r}; {hint}")
    return app


class Reloader:
    """A child process with the app, ended in order and started again when a Python file changes."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "headrace.cli.main", "run", *words]
        self._stopping = threading.Event()

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        seen = self._files()
        child = self._start()
        try:
            while not self._stopping.wait(LOOK_S):
                now = self._files()
                if now == seen:
                    continue
                changed = sorted(path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path))
                print(f"headrace: {changed[0]} has changed, starting again", file=sys.stderr, flush=True)
                seen = now
                _end(child)
                child = self._start()
        finally:
            _end(child)
        return 0

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command)

    def _files(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for root, folders, names in os.walk(self._folder):
            folders[:] = [
                one for one in folders if not one.startswith(".") and one not in ("__pycache__", "node_modules")
            ]
            for name in names:
                if name.endswith(".py") and len(found) < FILES_MAX:
                    path = os.path.join(root, name)
                    try:
                        found[path] = os.stat(path).st_mtime_ns
                    except OSError:  # gone in between
                        continue
        return found


def _end(child: "subprocess.Popen[bytes]") -> None:
    """In order; one that has ended already is left as it is."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        limit = time.monotonic() + STOP_LIMIT_S
        while child.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
    if child.poll() is None:
        child.kill()
    child.wait()
