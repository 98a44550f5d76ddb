"""One `headrace up` as a child process: started, watched by what it says, stopped, killed or frozen."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from headrace.local_cluster.process import environment_of_its_own

START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
READY = b" ready on "


class Child:
    """`name` is for messages; what it says is appended to the file `log`. `prefix`: words before the command."""

    __test__ = False
    failed: ClassVar[type[Exception]] = Exception
    """Raised when it does not start or stop as it should; the message ends with what it said."""

    def __init__(self, name: str, log: Path, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.prefix = list(prefix)
        self.is_frozen = False
        self._log = log
        self._from = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives; a frozen one does."""
        return self._process is not None and self._process.poll() is None

    def run(self, words: Sequence[str]) -> None:
        """Start the process with options of `headrace up`; `wait_ready` returns when it serves."""
        assert not self.is_running, f"{self.name} is running already"
        command = [*self.prefix, sys.executable, "-m", "headrace.cli.main", "up", *words]
        with self._log.open("ab") as log:
            self._from = log.tell()
            # A file and not a pipe: nobody has to read it for the node to go on, and it is there after a crash.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment_of_its_own()
            )

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> str:
        """The line in which it says that it serves, and where."""
        deadline = time.monotonic() + limit_s
        while True:
            is_running = self.is_running
            for line in self._said().splitlines(keepends=True):
                if READY in line and line.endswith(b"\n"):
                    return line.decode(errors="replace")
            if not is_running:
                raise self.failed(f"{self.name} did not start: {self.output()}")
            if time.monotonic() > deadline:
                raise self.failed(f"{self.name} was not ready within {limit_s:g} s: {self.output()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """In order, as by SIGTERM: what it leads is handed over first."""
        code = self._end(signal.SIGTERM)
        if code:
            raise self.failed(f"{self.name} stopped with code {code}: {self.output()}")

    def kill(self) -> None:
        """As by kill -9: nothing is flushed, nobody is told."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """As by SIGSTOP: it keeps its connections and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let a frozen one go on; others are left as they are."""
        if self.is_frozen:
            os.kill(self.pid, signal.SIGCONT)
            self.is_frozen = False

    def output(self, limit_bytes: int = 4_000) -> str:
        """The end of what it has said since its last start."""
        return self._said()[-limit_bytes:].decode(errors="replace").strip()

    def _said(self) -> bytes:
        with self._log.open("rb") as log:
            log.seek(self._from)
            return log.read()

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if self.is_frozen and how != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        self.is_frozen = False
        process.send_signal(how)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise self.failed(f"{self.name} did not stop within {STOP_LIMIT_S:g} s: {self.output()}") from None
