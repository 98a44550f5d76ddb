"""A driver killed at each step of a stream and started again: nothing is lost, and files of batches hold each row
once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.broker import TestBroker
from tests.spark.source_data import committed, make, put_numbers

LIMIT_S = 400


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


class Job:
    """The job's processes, one behind the other over the same folder."""

    def __init__(self, broker: TestBroker, topic: str, folder: Path, **options: object) -> None:
        self.options = {"bootstrap": broker.bootstrap, "topic": topic, "folder": str(folder), **options}
        self.folder = folder
        self.log = folder / "log.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **more: object) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.stream_job", json.dumps(self.options | more)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            assert self.process is not None and self.process.poll() is None, f"ended before {what}: {self._said()}"
            assert time.monotonic() < deadline, f"not in time: {what}: {self._said()}"
            time.sleep(0.05)

    def has_begun(self) -> bool:
        return (self.folder / "checkpoint" / "offsets" / "0").exists()

    def kill(self) -> None:
        assert self.process is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def wait_dead(self) -> None:
        assert self.process is not None
        assert self.process.wait(LIMIT_S) == -signal.SIGKILL, self._said()
        self.kill()

    def finish(self) -> list[int]:
        """Run to the end of what is there; every number that any batch has."""
        self.start(once=True, die=None)
        assert self.process is not None
        assert self.process.wait(LIMIT_S) == 0, self._said()
        return self.numbers()

    def numbers(self) -> list[int]:
        return sorted(n for path in self.folder.glob("batch-*.json") for n in json.loads(path.read_text()))

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def test_killed_between_its_start_and_its_first_rows(broker: TestBroker, tmp_path: Path) -> None:
    """ "latest" has moved on by the restart: only the checkpoint says where the query began."""
    make(broker.bootstrap, "t", 2)
    put_numbers(broker.bootstrap, "t", 0, range(100))
    job = Job(broker, "t", tmp_path, die="batch-0-before")
    job.start()
    job.wait_until(job.has_begun, "the start kept")
    put_numbers(broker.bootstrap, "t", 0, range(100, 150))
    job.wait_dead()
    put_numbers(broker.bootstrap, "t", 1, range(150, 160))
    assert job.finish() == list(range(100, 160))
    assert committed(broker.bootstrap, "spark-kafka-source-t") == {("t", 0): 150, ("t", 1): 10}


STEPS = ["batch-0-before", "batch-0-after", "batch-1-before", "batch-1-after", "batch-2-before", "batch-3-after"]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(broker: TestBroker, tmp_path: Path, step: str, starting: str) -> None:
    make(broker.bootstrap, "t", 2)
    put_numbers(broker.bootstrap, "t", 0, range(1000))
    job = Job(broker, "t", tmp_path, starting=starting, read={"maxOffsetsPerTrigger": "200"})
    job.start(die=step)
    job.wait_until(job.has_begun, "the start kept")
    put_numbers(broker.bootstrap, "t", 1, range(1000, 1500))
    job.wait_dead()
    put_numbers(broker.bootstrap, "t", 0, range(1500, 1600))
    assert job.finish() == list(range(0 if starting == "earliest" else 1000, 1600))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_at_any_moment_again_and_again(broker: TestBroker, tmp_path: Path) -> None:
    make(broker.bootstrap, "t", 3)
    job = Job(broker, "t", tmp_path, read={"maxOffsetsPerTrigger": "500"}, starting="earliest")
    made = 0
    for turn in range(8):
        job.start()
        deadline = time.monotonic() + 6 + turn
        while time.monotonic() < deadline:
            put_numbers(broker.bootstrap, "t", turn % 3, range(made, made + 200))
            made += 200
            time.sleep(0.2)
        job.kill()
    assert job.finish() == list(range(made))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_broker_killed_and_started_again_under_a_running_stream(broker: TestBroker, tmp_path: Path) -> None:
    make(broker.bootstrap, "t", 2)
    put_numbers(broker.bootstrap, "t", 0, range(5000))
    job = Job(
        broker, "t", tmp_path, starting="earliest", read={"maxOffsetsPerTrigger": "300", "fetchOffset.numRetries": "30"}
    )
    job.start()
    job.wait_until(lambda: len(job.numbers()) > 1000, "some batches")
    broker.kill()
    time.sleep(2)
    broker.start()
    put_numbers(broker.bootstrap, "t", 1, range(5000, 5100))
    job.wait_until(lambda: len(job.numbers()) == 5100, "the rest")
    job.kill()
    assert job.numbers() == list(range(5100))
