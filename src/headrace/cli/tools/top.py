"""`headrace top`: what a cluster is doing, live."""

import asyncio
import contextlib
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import typer

from headrace.cli.output import BOOTSTRAP, SECURITY, print_json
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.terminal import console
from headrace.tools.live.rates import View, view_of
from headrace.tools.live.sample import Sample, Sampler

if TYPE_CHECKING:
    from headrace.cli.tools.top_view import Screen

INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
HISTORY = 120
LETTERS = "q0123jksp+-"


def top(
    interval_s: float = typer.Option(2.0, "--every", "-n", metavar="SECONDS", min=0.2, help="How often to look."),
    once: bool = typer.Option(False, "--once", help="Look twice, print what happened in between, and end."),
    internal: bool = typer.Option(False, "--internal", help="Also topics of the cluster's own."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = typer.Option(False, "--json", help="With --once: print JSON."),
) -> None:
    """Watch a cluster: throughput, lag, leaders, who is slow.

    in/s are records written, out/s records that groups have committed; bytes are those on disk. A broker's answer is
    the time of one small request. Without a terminal, --once is what is done.
    """
    once = once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty())
    work = Top(bootstrap, interval_s, internal)
    try:
        if not once:
            asyncio.run(work.live())
            return
        view = asyncio.run(work.once())
    except ConnectionRefused as error:
        raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None
    if as_json:
        print_json(msgspec.to_builtins(view))
    else:
        from headrace.cli.tools.top_view import Screen

        out = console()
        out.print(Screen().draw(view, out.width, None))


class Top:
    """One run of the command."""

    def __init__(self, bootstrap: str, interval_s: float, internal: bool) -> None:
        self._bootstrap = bootstrap
        self._interval_s = interval_s
        self._internal = internal
        self._pressed = asyncio.Event()
        self._keys: list[str] = []

    async def once(self) -> View:
        async with Admin(self._bootstrap, security=SECURITY.get()) as admin:
            sampler = Sampler(admin, internal=self._internal)
            before = await sampler.look()
            await asyncio.sleep(self._interval_s)
            return view_of(await sampler.look(), before)

    async def live(self) -> None:
        from rich.live import Live

        from headrace.cli.tools.top_view import Screen
        from headrace.demo.view import Keys

        out, screen = console(), Screen()
        async with Admin(self._bootstrap, security=SECURITY.get()) as admin:
            sampler = Sampler(admin, internal=self._internal)
            before: Sample | None = None
            now = await sampler.look()
            note = ""
            with (
                Keys({letter: partial(self._press, letter) for letter in LETTERS}),
                Live(console=out, screen=True, auto_refresh=False) as live,
            ):
                looked = time.monotonic()
                while True:
                    view = view_of(now, before)
                    live.update(screen.draw(view, out.width, out.height, note), refresh=True)
                    if not await self._wait(screen, looked):
                        return
                    if screen.is_paused or time.monotonic() - looked < self._interval_s:
                        continue
                    looked = time.monotonic()
                    try:
                        fresh = await sampler.look()
                        before, now, note = now, fresh, ""
                        screen.history.append(view_of(now, before).in_per_s or 0.0)
                        del screen.history[:-HISTORY]
                    except ClientError as error:  # brokers that are away for a moment are a part of what is watched
                        note = str(error)

    def _press(self, key: str) -> None:
        self._keys.append(key)
        self._pressed.set()

    async def _wait(self, screen: "Screen", looked: float) -> bool:
        """Until the next look is due or a key is pressed; False: to end."""
        left = max(0.05, looked + self._interval_s - time.monotonic())
        self._pressed.clear()
        if not self._keys:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._pressed.wait()
        while self._keys:
            key = self._keys.pop(0)
            if key == "q":
                return False
            if key in "+-":
                self._interval_s = _next_interval(self._interval_s, longer=key == "+")
            else:
                screen.press(key)
        return True


def _next_interval(now_s: float, *, longer: bool) -> float:
    if longer:
        return min((one for one in INTERVALS_S if one > now_s), default=now_s)
    return max((one for one in INTERVALS_S if one < now_s), default=now_s)
