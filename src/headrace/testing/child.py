"""One broker's process: started, told what to do, watched by what it says, stopped, killed or frozen."""

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from headrace.local_cluster.process import environment_of_its_own
from headrace.testing.control import Control, ControlLost
from headrace.testing.nursery import Forked, NurseryLost, warm_up

START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
READY = b" ready on "
LOG_BYTES = 64 << 10

alive: "weakref.WeakSet[Child]" = weakref.WeakSet()
"""All that were started and not closed, for reports of failed tests."""


class Injection:
    """A fault that was asked for. `with broker.inject(...)`: it is taken back at the end."""

    def __init__(self, parts: Sequence[tuple[Control, int]]) -> None:
        self.parts = parts
        """Each broker that has it, and its number there."""

    @property
    def hits(self) -> int:
        """How many requests it has met."""
        return sum(int(control.call("hits", number=number)) for control, number in self.parts)

    def remove(self) -> None:
        """Take it back; requests that are being delayed stay so."""
        for control, number in self.parts:
            control.call("remove", number=number)

    def __enter__(self) -> "Injection":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Child:
    """`name` is for messages; what it says is appended to the file `log`.

    With `prefix`, words before its command, it is a plain `headrace up`: it takes no faults, and its clock stays.
    """

    __test__ = False
    failed: ClassVar[type[Exception]] = Exception
    """Raised when it does not start or stop as it should; the message ends with what it said."""

    def __init__(self, name: str, log: Path, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.prefix = list(prefix)
        self.is_frozen = False
        self._log = log
        self._from = 0
        self._ahead_ms = 0
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._control: Control | None = None
        alive.add(self)

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
        self._hang_up()
        # A file and not a pipe: nobody has to read it for the node to go on, and it is there after a crash.
        with self._log.open("ab") as log:
            self._from = log.tell()
        if self.prefix:
            self._process = self._started([*self.prefix, sys.executable, "-m", "headrace.cli.main", "up", *words])
            return
        mine, theirs = socket.socketpair()
        self._control = Control(mine)
        with theirs:
            nursery = warm_up()
            if nursery is not None:
                try:
                    self._process = nursery.fork(words, self._log, theirs, self._ahead_ms)
                    return
                except NurseryLost:
                    pass  # somebody has ended it: then as where there is none
            line = theirs.fileno()
            command = [sys.executable, "-m", "headrace.testing.node", str(line), str(self._ahead_ms), *words]
            self._process = self._started(command, line)

    def _started(self, command: Sequence[str], *lines: int) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment_of_its_own(), pass_fds=lines
            )

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> str:
        """The line in which it says that it serves, and where."""
        deadline = time.monotonic() + limit_s
        while True:
            is_running = self.is_running
            if self._control is not None:
                self._hear(limit_s)
            for line in self._said().splitlines(keepends=True):
                if READY in line and line.endswith(b"\n"):
                    return line.decode(errors="replace")
            if not is_running:
                raise self.failed(f"{self.name} did not start: {self.output()}")
            if time.monotonic() > deadline:
                raise self.failed(f"{self.name} was not ready within {limit_s:g} s: {self.output()}")
            time.sleep(0.01)

    def _hear(self, limit_s: float) -> None:
        """Wait for the word that it serves. It comes after the line in the log."""
        assert self._control is not None
        try:
            self._control.wait(limit_s)
        except (ControlLost, TimeoutError):
            self._hang_up()

    # -- faults

    @property
    def control(self) -> Control:
        """The line to the process."""
        if self._control is None:
            raise self.failed(f"{self.name} cannot be told anything: it is not running, or was started with a prefix")
        return self._control

    def inject(
        self,
        api: str | None = None,
        *,
        error: str | None = None,
        delay_s: float = 0.0,
        drop: str | None = None,
        times: int | None = 1,
        skip: int = 0,
        client_id: str | None = None,
        between_brokers: bool = False,
    ) -> Injection:
        """Have the next `times` requests of an API (None: of any) meet a fault, the first `skip` of them excepted.

        `error` is a name of Kafka's, and the request is not handled. `delay_s` passes before anything else is done.
        `drop` loses the connection `"before"` the request is handled, or `"after"` it, instead of the answer. `times`
        None: until it is taken back. `client_id` may have wildcards. Requests of other nodes are passed over unless
        `between_brokers`; so are those of this kit. Raises ValueError if there is no such API or error.
        """
        __tracebackhide__ = True
        number = self.control.call(
            "inject",
            api=api,
            error=error,
            delay_s=delay_s,
            drop=drop,
            times=times,
            skip=skip,
            client_id=client_id,
            between_brokers=between_brokers,
        )
        return Injection([(self.control, number)])

    def clear_faults(self) -> None:
        """Take all faults back."""
        self.control.call("remove")

    def advance(self, seconds: float | timedelta) -> None:
        """Have time pass for the broker: sessions of groups, transactions and retention end without anybody's waiting.

        What is due by then is begun at once. The clock stays ahead, also after a restart. Sessions between brokers and
        requests in flight are not touched.
        """
        total = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if total < 0:
            raise ValueError(f"time cannot be taken back: {total:g} s")
        self.control.call("advance", ms=round(total * 1000))
        self._ahead_ms += round(total * 1000)

    # -- ends

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

    def forget(self) -> None:
        """It is over: reports need not show it any more."""
        alive.discard(self)

    # -- what it says

    def output(self, limit_bytes: int = 4_000) -> str:
        """The end of what it has said since its last start."""
        return self._said()[-limit_bytes:].decode(errors="replace").strip()

    def log_end(self) -> int:
        """How long its log is, over all starts."""
        return self._log.stat().st_size if self._log.exists() else 0

    def log_from(self, position: int) -> str:
        """What it has said since its log was so long, or the end of that."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(max(position, self.log_end() - LOG_BYTES))
            return log.read().decode(errors="replace").strip()

    def _said(self) -> bytes:
        with self._log.open("rb") as log:
            log.seek(self._from)
            return log.read()

    def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()

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
        finally:
            self._hang_up()
