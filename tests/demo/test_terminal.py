"""The demo in a terminal: it draws, keys do what they say, and the terminal is as before when it ends."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

LIMIT_S = 120.0
ROWS, COLUMNS = 40, 130


class Terminal:
    """A command on a terminal of its own, and all that it has written there."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.settings = termios.tcgetattr(slave)
        self._slave = slave
        environment = {**os.environ, "TMPDIR": str(folder), "TERM": "xterm-256color"}
        # The terminal says how large it is, whatever is said of the one that the tests were started in.
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "demo", *words],
            stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=own_terminal,
        )  # fmt: skip
        self.written = ""

    def read(self) -> None:
        while select.select([self._master], [], [], 0.1)[0]:
            self.written += os.read(self._master, 65536).decode(errors="replace")

    def wait_for(self, pattern: str) -> None:
        """Until it is on the screen, drawn after this call."""
        start = len(self.written)
        deadline = time.monotonic() + LIMIT_S
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.written[start:])):
            assert time.monotonic() < deadline and self.process.poll() is None, (
                f"no {pattern!r} in {self.written[-3000:]!r}"
            )
            self.read()

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        return self.process.wait(1)

    def is_restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.settings and self.written.rstrip().count(
            "\x1b[?1049h"
        ) == self.written.count("\x1b[?1049l")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path, "--no-spark", "--rate", "200", "--brokers", "1")
    yield found
    found.close()


def test_keys_do_what_the_screen_says_and_q_ends_it(terminal: Any, tmp_path: Path) -> None:
    terminal.wait_for(r"[1-9]\d* events/s")
    # One joins by itself after a while, here perhaps before the key is pressed: the fourth is there by a key in any
    # case.
    terminal.press(b"ww")
    terminal.wait_for("order-queue-4 joins")
    terminal.press(b"l")
    terminal.wait_for("order-queue-1 leaves")
    terminal.press(b"k")
    terminal.wait_for("kill -9 of broker 1")
    terminal.wait_for("broker 1 is back")
    terminal.press(b"q")
    assert terminal.end() == 0 and "Stopped after" in terminal.written
    assert terminal.is_restored() and not list(tmp_path.iterdir())


def test_ctrl_c_in_the_terminal_ends_it(terminal: Any, tmp_path: Path) -> None:
    terminal.wait_for(r"[1-9]\d* events/s")
    terminal.press(b"\x03")
    assert terminal.end() == 0 and "Traceback" not in terminal.written
    assert terminal.is_restored() and not list(tmp_path.iterdir())
