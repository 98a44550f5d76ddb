"""`python -m bench`: runs the parts asked for and writes docs/bench."""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.reference import apache

from bench import report
from bench.brokers import Brokers
from bench.parts import PARTS, Bench

RESULTS = Path(__file__).parents[1] / "docs" / "bench"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description="Headrace and Apache Kafka side by side.")
    add = parser.add_argument
    add("--only", metavar="PART,...", help=f"run these parts: {', '.join(PARTS)}")
    add("--seconds", type=float, default=5, help="length of one turn [5]")
    add("--rounds", type=int, default=3, help="turns per broker; their median counts [3]")
    add("--warm-seconds", type=float, default=10, help="length of the warm-up before each part [10]")
    add("--no-apache", action="store_true", help="measure Headrace alone")
    add(
        "--broker",
        metavar="NAME=PORT:PID",
        action="append",
        default=[],
        help="measure a broker that runs already, instead of ours",
    )
    add("--folder", type=Path, help="where the brokers keep their data [a temporary folder]")
    add(
        "--results",
        type=Path,
        default=RESULTS,
        help="where to write results.md, results.json and ratios.png [docs/bench]",
    )
    add("--dry", action="store_true", help="print the results, write nothing")
    return parser.parse_args()


def apache_is_here() -> bool:
    try:
        apache.java()
        apache.libs()
    except apache.Unavailable as missing:
        print(f"without Apache Kafka: {missing}", file=sys.stderr)
        return False
    return True


def main() -> int:
    given = options()
    wanted = given.only.split(",") if given.only else list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    external = {}
    for name, _, where in (text.partition("=") for text in given.broker):
        port, _, pid = where.partition(":")
        external[name] = int(port), int(pid)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=given.folder, ignore_cleanup_errors=True) as folder:
        brokers = Brokers(Path(folder), external, not given.no_apache and apache_is_here())
        bench = Bench(brokers, Path(folder), given.seconds, given.rounds, given.warm_seconds)
        done = {part.name: part for part in ([] if given.dry else report.read(given.results))}
        try:
            for name in wanted:
                begin = time.monotonic()
                part = done[name] = PARTS[name](bench)
                print(
                    "\n".join([f"\n{part.title}  ({time.monotonic() - begin:.0f} s)", *report.table(part.rows, name)])
                )
                for goal in part.goals:
                    sign = "≥" if goal.at_least else "≤"
                    print(
                        f"  {'ok ' if goal.is_met else 'NO '} {goal.what}: {goal.ratio:.2f}x (goal {sign}"
                        f" {goal.bound:g}x)"
                    )
                sys.stdout.flush()
                if not given.dry:
                    report.write([done[n] for n in PARTS if n in done], given.results)
        finally:
            brokers.stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
