"""Spark drivers and workers that tests kill, and when: shared by the tests of streams into topics."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.spark.topics import records_of

ROOT = Path(__file__).parents[2]


def numbers(bootstrap: str, topic: str) -> Counter[int]:
    return Counter(int(r.value or b"") for records in records_of(bootstrap, topic).values() for r in records)


def kill_workers() -> list[int]:
    """Every Python process that runs tasks of this process's Spark, or waits for one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    killed, left = [], list(children.get(os.getpid(), ()))
    while left:
        pid = left.pop()
        left += children.get(pid, ())
        try:
            if not children.get(pid) and Path(f"/proc/{pid}/comm").read_text() == "pyspark.worker\n":
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue
    return killed


def run_driver(
    bootstrap: str, source: str, target: str, checkpoint: Path, delivery: str = "at-least-once"
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.stream_driver", bootstrap, source, target, str(checkpoint), delivery],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


MOMENTS: dict[str, Callable[[str, str, Path], bool]] = {
    "planned": lambda bootstrap, target, checkpoint: (checkpoint / "offsets" / "1").exists(),
    "half written": lambda bootstrap, target, checkpoint: sum(numbers(bootstrap, target).values()) > 700,
    "committed": lambda bootstrap, target, checkpoint: (checkpoint / "commits" / "1").exists(),
    "late": lambda bootstrap, target, checkpoint: (checkpoint / "commits" / "3").exists(),
}
