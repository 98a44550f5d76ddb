"""Executors of a real cluster killed at each step of a running stream: topics lose nothing, and files hold each row
once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from headrace.demo.check import committed_files
from headrace.testing.broker import TestBroker
from tests.committed import committed_records
from tests.spark.servers import standalone_cluster
from tests.spark.source_data import committed, make, put_numbers
from tests.spark.topics import records_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LIMIT_S = 400
NUMBERS = 3000
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "pyspark.daemon"


def processes(folder: Path, kind: str) -> list[int]:
    """Those of this test's cluster: workers start executors in folders of their own below `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(kind in word for word in words) and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Steps:
    """What a stream has come to, by its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"

    def planned(self, batch: int) -> bool:
        return (self.checkpoint / "offsets" / str(batch)).exists()

    def done(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()


TARGETS = {"files": [], "topic": ["out"], "topic once": ["out", "exactly-once"]}


@pytest.mark.parametrize("to", ["files", "topic", "topic once"])
def test_executors_killed_at_each_step(tmp_path: Path, to: str) -> None:
    steps, folder = Steps(tmp_path), tmp_path.resolve()
    with TestBroker() as broker, standalone_cluster(tmp_path) as master:
        make(broker.bootstrap, "t", 2)
        make(broker.bootstrap, "out", 2)
        for partition in range(2):
            put_numbers(broker.bootstrap, "t", partition, range(partition, NUMBERS, 2))
        words = [sys.executable, "-m", "tests.spark.cluster_job", master, broker.bootstrap, "t", str(tmp_path)]
        log = tmp_path / "driver.log"
        with log.open("wb") as output:
            driver = subprocess.Popen(
                words + TARGETS[to], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True
            )  # fmt: skip
        try:
            killed = 0
            for batch, (ready, kind) in enumerate(MOMENTS, start=1):
                _wait(lambda ready=ready, batch=batch: ready(steps, batch), driver, log)  # type: ignore[misc]
                for pid in processes(folder, kind):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            assert driver.wait(LIMIT_S) == 0, log.read_text()[-3000:]
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
        assert killed >= len(MOMENTS), "there was nobody to kill"
        if to == "topic once":
            once = asyncio.run(committed_records(broker.bootstrap, "out"))
            values = [int(record.value or b"") for records in once.values() for record in records]
            assert sorted(values) == list(range(NUMBERS))
        elif to == "files":
            rows = [
                row["value"]
                for path in committed_files(tmp_path / "out")
                for row in parquet.ParquetFile(path).read().to_pylist()
            ]
            assert sorted(map(int, rows)) == list(range(NUMBERS))
        else:
            found = [
                int(record.value or b"")
                for records in records_of(broker.bootstrap, "out").values()
                for record in records
            ]
            assert set(found) == set(range(NUMBERS))
        end = {("t", 0): NUMBERS // 2, ("t", 1): NUMBERS // 2}
        assert committed(broker.bootstrap, "spark-kafka-source-t") == end


def later(seconds: float) -> bool:
    """Somewhere in the middle of a task, which no file tells."""
    time.sleep(seconds)
    return True


MOMENTS: list[tuple[Callable[[Steps, int], bool], str]] = [
    (lambda steps, batch: steps.planned(batch), EXECUTOR),
    (lambda steps, batch: steps.done(batch), EXECUTOR),
    (lambda steps, batch: steps.planned(batch) and later(0.3), EXECUTOR),
    (lambda steps, batch: steps.planned(batch), WORKER),
    (lambda steps, batch: steps.planned(batch) and later(0.1), EXECUTOR),
]
"""When, in batch 1, 2 and so on, and who: whole executors, or the Python processes within them."""


def _wait(ready: Callable[[], bool], driver: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert driver.poll() is None, f"the driver ended: {log.read_text()[-3000:]}"
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.02)
