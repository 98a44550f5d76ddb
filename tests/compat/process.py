"""A Headrace broker as a process of its own, started the way a user starts it, so that tests meet what users meet."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ADDRESS = re.compile(r"ready on 127\.0\.0\.1:(\d+)")
START_LIMIT_S = 90
STOP_LIMIT_S = 60


class HeadraceProcess:
    """`headrace up` on one data folder. The port is chosen at the first start and kept for later ones.

    `headrace` is the command itself, for one that is installed elsewhere."""

    def __init__(
        self,
        data: Path,
        *,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        args: Sequence[str] = (),
        headrace: Sequence[str] = (sys.executable, "-m", "headrace.cli.main"),
    ) -> None:
        self.headrace = headrace
        self.data = data
        self.port = port
        self.args = list(args)
        self.log_file = data.with_name(data.name + ".out")
        self.process: subprocess.Popen[bytes] | None = None
        data.parent.mkdir(parents=True, exist_ok=True)
        if config:
            file = data.with_name(data.name + ".properties")
            file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
            self.args += ["--config", str(file)]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self) -> Self:
        command = [*self.headrace, "up", "--data", str(self.data), "--port", str(self.port)]
        # A file and not a pipe: nobody has to read it for the broker to go on, and it is there after a crash.
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen([*command, *self.args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while (found := ADDRESS.search(self.output())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill9()
                raise RuntimeError(f"headrace did not start:\n{self.output()[-3000:]}")
            time.sleep(0.01)
        self.port = int(found[1])
        return self

    def output(self) -> str:
        return self.log_file.read_text(errors="replace")

    def stop(self) -> int:
        """Clean shutdown; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP, and wait until its loop stands: from here on it answers nobody."""
        process = self.process
        assert process is not None, "not started"
        process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.0005)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def _end(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9() if kind else self.stop()
