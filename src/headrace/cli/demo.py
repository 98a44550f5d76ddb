"""`headrace demo`: the main job on brokers of its own, live or bounded, with a verdict where it ends by itself."""

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.client.errors import ClientError
from headrace.demo.brokers import LocalBrokers
from headrace.demo.check import Check
from headrace.demo.dashboard import command
from headrace.demo.report import write_report
from headrace.demo.run import DemoFailed, Options, Run
from headrace.demo.status import Status
from headrace.demo.view import Keys, Lines, Screen
from headrace.terminal import console

PLAIN_LIMIT_S = 60.0
"""How long the demo runs where nobody can press Ctrl-C."""
INTERRUPTED = 130
KEYS = "k: kill -9 a broker   w: a worker joins   l: a worker leaves   q: end"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration_s(text: str) -> float:
    """`60`, `60s`, `5m`, `1h`. Raises ClientError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise ClientError(f"--for {text}: write a time such as 60s, 5m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def demo(options: Options, report: Path | None, brokers: int, keep: bool) -> int:
    """Run it; returns the exit code: 0 if every promise was kept, 1 if not, 130 if it was interrupted."""
    out = console()
    if options.limit_s is None and not (sys.stdout.isatty() and sys.stdin.isatty()):
        options = Options(PLAIN_LIMIT_S, options.rate, options.seed, options.spark)
        out.print(
            f"No terminal: running for {PLAIN_LIMIT_S:.0f} s, then checking what came out (--for sets another time)."
        )
    if report is not None:
        refuse_unwritable(report)
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    status = Status(limit_s=options.limit_s)
    run = Run(options, LocalBrokers(folder, brokers), folder, status)
    code = 1
    try:
        checks = asyncio.run(perform(run, out))
        code = conclude(out, run, checks, report)
    except asyncio.CancelledError:
        code = INTERRUPTED if options.limit_s is not None else 0
        out.print(
            f"Stopped after {status.sent:,} events. `{command()} demo --for 60s --report out.html` checks every one of"
            " them."
        )
    except (DemoFailed, ClientError, RuntimeError) as error:
        out.print(f"[red]failed:[/] {error}", highlight=False)
        keep = True
    finally:
        if keep:
            out.print(f"Data and logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def refuse_unwritable(report: Path) -> None:
    """Said before the run and not after it. Raises ClientError."""
    folder = report.absolute().parent
    if not folder.is_dir():
        raise ClientError(f"--report {report}: there is no folder {folder}")
    if report.is_dir():
        raise ClientError(f"--report {report}: that is a folder; name a file in it")
    if not os.access(report if report.exists() else folder, os.W_OK):
        raise ClientError(f"--report {report} cannot be written: choose another place")


async def perform(run: Run, out: Console) -> list[Check]:
    """The run and its picture, side by side; signals end it in order, a second one at once."""
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(run.whole(), name="demo")
    signals = 0

    def interrupt() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            work.cancel()
        elif run.spark is not None:
            run.spark.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    live = out.is_terminal and sys.stdin.isatty()
    lines = Lines(out, run.status)
    view = asyncio.create_task((Screen(out, run.status) if live else lines).show())
    actions = {
        "k": lambda: run.act(run.kill_broker),
        "w": lambda: run.act(run.hire),
        "l": lambda: run.act(run.dismiss),
        "q": interrupt,
    }
    run.status.keys = KEYS if live else ""
    try:
        with Keys(actions if live else {}):
            return await work
    finally:
        view.cancel()
        await asyncio.gather(view, return_exceptions=True)
        if not live:
            lines.tell()


def conclude(out: Console, run: Run, checks: Sequence[Check], report: Path | None) -> int:
    for check in checks:
        mark = "[green]kept[/]  " if check.kept else "[bold red]BROKEN[/]"
        found = f"[bold]{check.name}[/]: {check.detail}"
        if out.is_terminal:
            row = Table.grid(padding=(0, 1))
            row.add_row(mark, found)
            out.print(row)
        else:  # in a log, each is one line
            out.print(f"{mark} {found}", soft_wrap=True)
    kept = bool(checks) and all(check.kept for check in checks)
    if run.spark is None:
        out.print(f"Spark: {run.status.spark}", markup=False)
    if report is not None:
        try:
            write_report(report, run.status, checks, run.facts)
            out.print(f"The report is in {report}")
        except OSError as error:  # the verdict stands without it
            out.print(f"[red]The report could not be written to {report}: {error.strerror}[/]")
    sent = run.feed.acknowledged if run.feed is not None else 0
    out.print(
        f"[green]All is right:[/] {sent:,} events, none lost, none doubled."
        if kept
        else "[red]Not every promise was kept.[/]"
    )
    return 0 if kept else 1
