"""One run of the nemesis, by hand or by a test: `python -m tests.nemesis --seed 7 --seconds 60 --folder
/tmp/nemesis-7`.

It starts itself again in a cage. The folder keeps the nodes' logs, the history (`verdict.json`) and what was printed.
"""

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

from tests.nemesis import cage
from tests.nemesis.run import Wish, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--faults", help="only these kinds, with commas")
    parser.add_argument("--every", type=float, default=2.0, help="a new fault every so many seconds, on average")
    parser.add_argument("--java", action="store_true", help="with Apache Kafka's Java clients too")
    parser.add_argument("--one-by-one", action="store_true", help="each kind of fault by itself, to measure pauses")
    parser.add_argument(
        "--rolling", type=int, default=0, help="so many rolling restarts instead of faults, clients at their defaults"
    )
    parser.add_argument("--descriptors", type=int, help="files that each node may open")
    parser.add_argument("--own", action="store_true", help="Headrace's own clients instead of others")
    parser.add_argument("--caged", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder or Path(mkdtemp(prefix="headrace-nemesis-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not given.caged:
        if why := cage.missing():
            print(f"cannot run here: {why}")
            return 2
        if given.java:
            from tests.reference.apache import libs

            libs()  # fetched out here: there is no way out of the cage
        words = [*sys.argv[1:], "--caged", "--seed", str(given.seed), "--folder", str(folder)]
        code = cage.run("tests.nemesis", words, folder / "output.txt", limit_s=given.seconds * 3 + 600)
        print((folder / "output.txt").read_text())
        print(f"all of it is in {folder}")
        return code
    cage.furnish()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    kinds = tuple(given.faults.split(",")) if given.faults else None
    wish = Wish(
        given.seed, given.seconds, kinds, given.every, given.java, given.one_by_one, given.rolling, given.descriptors,
        given.own,
    )  # fmt: skip
    verdict = run(wish, folder)
    (folder / "verdict.json").write_text(json.dumps(verdict.as_dict(), indent=1))
    for line in verdict.findings():
        print(f"FOUND {line}")
    for line in verdict.reports():
        print(f"REPORTED {line}")
    print(
        f"acknowledged {verdict.acknowledged}, recovered in {verdict.recovery_s:.1f} s, given up"
        f" { ({n: len(f) for n, f in verdict.failed.items()}) }"
    )
    print(f"pauses {verdict.pauses_s}")
    print(f"latency {verdict.latency_ms}")
    sys.stdout.flush()
    # Not by `return`: consumers that hang would keep the interpreter from ending.
    os._exit(1 if verdict.findings() else 0)


sys.exit(main())
