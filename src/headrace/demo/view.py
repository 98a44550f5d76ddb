"""How the demo is shown: a live screen with keys where there is a terminal, plain lines where there is none."""

import asyncio
import sys
import termios
import tty
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live

from headrace.demo.dashboard import draw, line
from headrace.demo.status import Status

FRAME_S = 0.25
LINE_S, STILL_LINE_S = 5.0, 30.0
"""How often there is a line: while things move, and while they stand still."""


class View(Protocol):
    async def show(self) -> None: ...


class Screen:
    """The dashboard, drawn a few times a second until cancelled."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status

    async def show(self) -> None:
        console, status = self._console, self._status
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(draw(status, console.width, console.height), refresh=True)
                await asyncio.sleep(FRAME_S)


class Lines:
    """A line now and then, and one for whatever happens."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._told = 0
        self._next_s, self._news = 0.0, ""

    async def show(self) -> None:
        while True:
            self.tell()
            if self._status.phase in ("running", "draining"):
                self.progress(self._status.elapsed_s)
            await asyncio.sleep(FRAME_S)

    def progress(self, now_s: float) -> None:
        """How far things are, if it is time to say so again."""
        text = line(self._status)
        news = text.partition(" ")[2]  # but for the time
        if now_s >= self._next_s + (0 if news != self._news else STILL_LINE_S - LINE_S):
            self._next_s, self._news = now_s + LINE_S, news
            self._print(text)

    def tell(self) -> None:
        """What has happened since the last call."""
        notes = list(self._status.notes)
        for _, text in notes[self._told :]:
            self._print(f"- {text}")
        self._told = len(notes)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Keys:
    """Single keys without Enter while it is entered; the terminal is as before afterwards."""

    def __init__(self, actions: Mapping[str, Callable[[], None]]) -> None:
        self._actions = actions
        self._before: Any = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
            asyncio.get_running_loop().add_reader(sys.stdin, self._pressed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def _pressed(self) -> None:
        action = self._actions.get(sys.stdin.read(1).lower())
        if action is not None:
            action()
