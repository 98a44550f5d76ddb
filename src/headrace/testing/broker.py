"""A broker of one's own for tests: a process on a free port and a folder of its own, gone when the test is over."""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0

_ADDRESS = re.compile(r" ready on (\S+):(\d+)")


class BrokerFailed(Exception):
    """The broker did not start or stop as it should; the message ends with what it said."""


class TestBroker:
    """`with TestBroker() as broker: Producer({"bootstrap.servers": broker.bootstrap})`.

    `data` is kept between `stop` and `start`, as is the port; without one a temporary folder is used and removed.
    `settings` are options of server.properties.
    """

    __test__ = False
    """Not a class of tests, whatever its name makes pytest think."""

    def __init__(self, data: str | Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-test-") if data is None else None
        self.data = Path(self._temporary.name if self._temporary is not None else str(data)) / "data"
        self.settings = dict(settings or {})
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile(prefix="headrace-test-log-")  # noqa: SIM115

    @property
    def bootstrap(self) -> str:
        """What clients call bootstrap.servers."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> Self:
        """Returns when clients are served. Raises BrokerFailed."""
        assert self._process is None, "the broker is running already"
        command = [sys.executable, "-m", "headrace.cli.main", "up", "--data", str(self.data), "--port", str(self.port)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        # Whatever the user has set for brokers of their own must not change this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, env=environment
        )
        line = self._first_line(self._process)
        found = _ADDRESS.search(line)
        if found is None:
            self.kill()
            raise BrokerFailed(f"the broker did not start: {line}{self.output()}")
        self.host, self.port = found[1], int(found[2])
        return self

    def stop(self) -> None:
        """In order, as by SIGTERM."""
        code = self._end(signal.SIGTERM)
        if code:
            raise BrokerFailed(f"the broker's stop ended with code {code}: {self.output()}")

    def kill(self) -> None:
        """As by kill -9: nothing is flushed, no client is told."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def output(self, limit_bytes: int = 4_000) -> str:
        """The end of what the broker has logged so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), limit_bytes, max(0, size - limit_bytes)).decode(errors="replace").strip()

    def close(self) -> None:
        """Kill if still running, and remove the temporary folder."""
        self.kill()
        self._log.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _first_line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + START_LIMIT_S
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 4096) if ready else b""
            if not piece:
                break
            data += piece
        return data.decode(errors="replace")

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"the broker did not stop within {STOP_LIMIT_S:g} s: {self.output()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
