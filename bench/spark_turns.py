"""What the two benches of Spark share: one session with Spark's own connector beside ours, ways measured turn by turn.

CPU is that of driver, JVM, workers and broker together, also of those that have ended: on a machine that is busy with
other things it is the figure to go by.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.reference import spark_kafka
from tests.reference.apache import Unavailable

from bench.measure import TICKS_PER_S, family, median
from headrace.testing.broker import TestBroker

SIZES = (100, 1000)
"""Bytes of a record."""

Figures = dict[str, Any]
Measure = Callable[[Any, str, int, argparse.Namespace, bool], Figures]
"""(session, broker, size, options, whether there is Spark's own connector) -> what was found"""


def parser(name: str, about: str | None, mb: int) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(f"python -m bench.{name}", description=about)
    add = found.add_argument
    add("--mb", type=int, default=mb, help=f"how much is moved in each turn [{mb}]")
    add("--rounds", type=int, default=3, help="turns per way behind one to warm up; their median counts [3]")
    add("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help=f"sizes of a record {list(SIZES)}")
    add("--bootstrap", help="a broker that runs already, instead of one of our own")
    add("--json", type=Path, help="write the figures there")
    return found


def spent_s() -> float:
    total = 0
    for member in family(os.getpid()):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_S


def take_turns(ways: Mapping[str, Callable[[int], Callable[[], None]]], size: int, rows: int, rounds: int) -> Figures:
    """Rows/s and CPU of each way. A way is given the turn's number, makes ready, and returns what is measured."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    gb = rows * size / 1e9
    for turn in range(rounds + 1):
        for name, prepare in ways.items():
            work = prepare(turn)
            start, spent = time.perf_counter(), spent_s()
            work()
            took, spent = time.perf_counter() - start, spent_s() - spent
            print(f"  {size:>5} B  {name:<9} {rows / took / 1e6:6.2f} M rows/s  {spent / gb:6.2f} cpu-s/GB", flush=True)
            # The first turn compiles, loads classes and starts workers.
            if turn:
                seconds[name].append(took)
                cpu[name].append(spent / gb)
    rates = {name: rows / median(took) for name, took in seconds.items()}
    costs = {name: median(spent) for name, spent in cpu.items()}
    figures: Figures = {"size": size, "rows": rows, "rows_per_s": rates, "cpu_s_per_gb": costs}
    for other, words in (("bare", "of bare"), ("kafka", "over kafka")):
        if other in ways:
            figures[words] = rates["headrace"] / rates[other]
            figures[f"{words}, by CPU"] = costs[other] / costs["headrace"]
    if "once" in ways:
        figures["exactly once of at least once"] = rates["once"] / rates["headrace"]
        figures["exactly once of at least once, by CPU"] = costs["headrace"] / costs["once"]
    return figures


def run(given: argparse.Namespace, measure: Measure, goals: Mapping[str, float]) -> int:
    try:
        jars = spark_kafka.class_path()
    except Unavailable as missing:
        print(f"without Spark's own connector: {missing}", file=sys.stderr)
        jars = {}
    from headrace.client.columnar import native
    from headrace.spark.launch.session import spark_session

    native.load()
    spark = spark_session("local[2]", "bench", jars | {"spark.driver.memory": "2g"})
    results = []
    broker = None if given.bootstrap else TestBroker(settings={"durability": "replicated"}).start()
    try:
        bootstrap = given.bootstrap or (broker.bootstrap if broker else "")
        for size in given.sizes:
            figures = measure(spark, bootstrap, size, given, bool(jars))
            results.append(figures)
            for name, bound in goals.items():
                if name in figures:
                    print(
                        f"  {'ok' if figures[name] >= bound else 'NO'} {size} B: {figures[name]:.2f}x {name} (goal ≥"
                        f" {bound:.2f})"
                    )
    finally:
        spark.stop()
        if broker is not None:
            broker.close()
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0
