"""`python -m tests.damage alone 17 [18 ...] [--kinds "closed log,index"]`: run seeds, or `17-40`, and say what was
found."""

import argparse
import logging
import sys
import time
import traceback

from tests.damage import alone, processes, trio

RUNNERS = {"alone": alone.run, "trio": trio.run, "real-alone": processes.alone, "real-trio": processes.trio}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runner", choices=RUNNERS)
    parser.add_argument("seeds", nargs="+")
    parser.add_argument("--kinds", help="only these kinds of files, with commas between them")
    parser.add_argument("--log", default="CRITICAL", help="the brokers' log level")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log)
    kinds = frozenset(arguments.kinds.split(",")) if arguments.kinds else None
    done = bad = 0
    started = time.monotonic()
    for words in arguments.seeds:
        first, _, last = words.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            done += 1
            try:
                result = RUNNERS[arguments.runner](seed, kinds)
            except Exception:
                bad += 1
                print(f"seed {seed}:", traceback.format_exc(), flush=True)
                continue
            bad += bool(result.findings)
            if result.findings or (len(arguments.seeds) == 1 and not last):
                print(result, flush=True)
    print(f"{bad} of {done} seeds with findings, {time.monotonic() - started:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
