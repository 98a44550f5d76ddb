"""`python -m bench.demo`: how soon `headrace demo` shows a first window, and how long its micro-batches take.

Cold is a user's first run: no class cache of the JVM yet, and one built in the background, a minute later. Compiled
modules and the page cache are as the machine has them. The clock starts with the demo.

`--picture docs/img/demo.svg` runs it once, and keeps its screen of the moment in which a broker is down.
"""

import argparse
import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from headrace.cli.demo import KEYS
from headrace.demo import job
from headrace.demo.brokers import LocalBrokers
from headrace.demo.dashboard import draw
from headrace.demo.run import Options, Run
from headrace.demo.status import Status

GOALS = {"cold": 30.0, "warm": 15.0}
BATCH_GOAL_S = 1.5
WARMING = 4
"""So many batches are not counted: the JVM compiles in them."""
CACHES = "XDG_CACHE_HOME"

PICTURE_COLUMNS, PICTURE_ROWS = 125, 42
WINDOWS_SHOWN = 4
FONTS = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'

Figures = dict[str, float | bool]


def once(seconds: float) -> Figures:
    """One run of the demo in this process."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        status = Status(limit_s=seconds)
        run = Run(Options(seconds), LocalBrokers(folder, 3), folder, status)
        checks = asyncio.run(run.whole())
    steady = [took_s for _, took_s in status.queries[job.SELL].durations[WARMING:]]
    if status.first_window_s is None or not steady:
        sys.exit(f"the machine was too busy: {len(steady)} batches after the first {WARMING}; try more --seconds")
    return {
        "first window s": status.first_window_s,
        "micro-batch s": median(steady),
        "micro-batches": len(steady),
        "kept": all(check.kept for check in checks),
        "load before": 0.0,
    }


def photograph(seconds: float, file: Path) -> None:
    """The dashboard of a real run, as a picture."""

    async def run_and_look(folder: Path) -> str:
        status = Status(limit_s=seconds, keys=KEYS)
        run = Run(Options(seconds), LocalBrokers(folder, 3), folder, status)
        running = asyncio.create_task(run.whole())
        while not running.done() and len(status.windows) < WINDOWS_SHOWN:
            await asyncio.sleep(0.1)
        run.act(run.kill_broker)
        while not running.done() and all(node.is_up for node in status.nodes):
            await asyncio.sleep(0.1)
        drawn = picture(status)
        await running
        return drawn

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        file.write_text(asyncio.run(run_and_look(Path(name))))


def picture(status: Status) -> str:
    """The screen as SVG that fetches nothing: by itself rich takes its fonts from the network."""
    console = Console(width=PICTURE_COLUMNS, height=PICTURE_ROWS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(draw(status, PICTURE_COLUMNS, PICTURE_ROWS), height=PICTURE_ROWS)
    drawn = console.export_svg(title="make run", unique_id="demo")
    return re.sub(r"@font-face {.*?}\s*", "", drawn, flags=re.S).replace("Fira Code, monospace", FONTS)


def measure(how: str, seconds: float) -> Figures:
    """The same in a process of its own, with caches as `how` says."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="headrace-caches-") as empty:
        environment = os.environ | ({CACHES: empty} if how == "cold" else {})
        command = [sys.executable, "-m", "bench.demo", "--once", str(seconds)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        if how == "cold":
            await_class_cache(Path(empty))
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures | {"load before": before}


def await_class_cache(caches: Path, limit_s: float = 300.0) -> None:
    """What is built in the background belongs to this run, and must not take from the next."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        built = [*caches.glob("headrace/java*/driver.classes"), *caches.glob("headrace/java*/*failed.txt")]
        if built or not list(caches.glob("headrace/java*/*.lock")):
            return
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.demo", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind; their median counts [3]")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the feed of each run lasts [30]")
    parser.add_argument("--only", choices=GOALS, action="append", help="cold or warm alone")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--once", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--picture", type=Path, help="only draw the dashboard of one run there")
    given = parser.parse_args()
    if given.picture:
        photograph(given.seconds, given.picture)
        return 0
    if given.once:
        print(json.dumps(once(given.once)))
        return 0
    results: dict[str, list[Figures]] = {}
    for how in given.only or GOALS:
        if how == "warm":
            from headrace.spark.launch.class_cache import build_class_cache

            build_class_cache()
        results[how] = []
        for _ in range(given.rounds):
            figures = measure(how, given.seconds)
            results[how].append(figures)
            print(how, "  ".join(f"{name} {value:g}" for name, value in figures.items()), flush=True)
        first = median(float(row["first window s"]) for row in results[how])
        batch = median(float(row["micro-batch s"]) for row in results[how])
        print(f"  {'ok' if first <= GOALS[how] else 'NO'} {how}: first window {first:.1f} s (goal ≤ {GOALS[how]:g})")
        print(f"  {'ok' if batch <= BATCH_GOAL_S else 'NO'} {how}: micro-batch {batch:.2f} s (goal ≤ {BATCH_GOAL_S:g})")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
