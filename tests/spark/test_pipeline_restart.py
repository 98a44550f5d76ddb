"""Crashes at each step of a batch: the next run goes on from the checkpoint, and files hold every row exactly once.

A batch takes these steps: offsets planned, files written, files committed (the sink's log), batch committed. Crashes
between them leave exactly the folders that these tests make by taking later steps' marks away; one real kill -9 of
driver and all is here too, and a soak run kills at many more moments.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.spark.pipelines.run.pipeline_run import PipelineRun
from headrace.spark.pipelines.spec.model import Pipeline
from tests.spark.pipeline_project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """\
name: again
sources:
  rows: {files: in, format: json, schema: "id BIGINT", options: {maxFilesPerTrigger: 1}}
transforms:
  slow: {python: slow.py:slow}
sinks:
  out: {from: slow, files: out}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 1}}
"""
SLOW = """\
import time
from pyspark.sql.functions import udf

def slow(rows):
    def pause(x):
        time.sleep({pause_s})
        return x
    return rows.withColumn("id", udf(pause, "long")("id"))
"""
FILES, ROWS = 5, 3


def make(folder: Path, pause_s: float = 0.0) -> tuple[Project, Pipeline]:
    project = Project(folder)
    project.write("slow.py", SLOW.format(pause_s=pause_s))
    for n in range(FILES):
        project.feed([{"id": n * ROWS + k} for k in range(ROWS)])
    return project, project.spec(SPEC)


def ids(spark: "SparkSession", project: Project) -> list[Any]:
    return [row[0] for row in project.rows(spark, "out", "id")]


def run(spark: "SparkSession", pipeline: Pipeline) -> dict[str, Any]:
    outcome = PipelineRun(pipeline, spark, bounded=True).go()
    assert outcome.state == "done", outcome.error
    return dict(outcome.snapshot["queries"][0])


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def finished(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended well, to be copied and cut back by each test."""
    folder = tmp_path_factory.mktemp("finished") / "project"
    project, pipeline = make(folder)
    run(spark, pipeline)
    assert ids(spark, project) == list(range(FILES * ROWS))
    return folder


def cut_before_batch_commit(folder: Path) -> None:
    """Files committed, batch not: the repeated batch must not add its files again."""
    remove(folder / ".headrace/again/checkpoints/out/commits" / str(FILES - 1))


def cut_before_sink_commit(folder: Path) -> None:
    """Files written but not committed: they must not be read, and are written again."""
    cut_before_batch_commit(folder)
    remove(folder / "out/_spark_metadata" / str(FILES - 1))


def cut_before_files(folder: Path) -> None:
    """Offsets planned, nothing written."""
    cut_before_sink_commit(folder)
    newest = max((folder / "out").glob("part-*"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()


@pytest.mark.parametrize(
    "cut", [cut_before_batch_commit, cut_before_sink_commit, cut_before_files], ids=lambda cut: cut.__name__
)
def test_crash_between_steps(
    spark: "SparkSession", finished: Path, tmp_path: Path, cut: Callable[[Path], None]
) -> None:
    # Paths are part of what Spark keeps, so the copy takes the place of the original.
    kept = tmp_path / "kept"
    shutil.copytree(finished, kept)
    try:
        cut(finished)
        project = Project.__new__(Project)
        project.folder, project.files = finished, FILES
        again = run(spark, project.spec(SPEC))
        assert again["batches"] == 1 and again["batch"] == FILES - 1
        assert ids(spark, project) == list(range(FILES * ROWS))
    finally:
        shutil.rmtree(finished)
        shutil.copytree(kept, finished)


class Driver:
    """`headrace pipeline run --once` as a process that can be killed with all that it started."""

    def __init__(self, project: Project, registry: Path) -> None:
        words = [sys.executable, "-m", "headrace", "pipeline", "run", str(project.folder), "--once", "--json"]
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"HEADRACE_RUNS": str(registry)}, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> bool:
        """Whether there was something left to kill."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()
        return self.process.returncode == -signal.SIGKILL

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Whether it came true before the process ended."""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            if condition():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.002)
        raise AssertionError("neither came true nor ended")


def batch_is_open(project: Project, number: int) -> Callable[[], bool]:
    checkpoint = project.folder / ".headrace/again/checkpoints/out"
    return lambda: (
        (checkpoint / "offsets" / str(number)).exists() and not (checkpoint / "commits" / str(number)).exists()
    )


def test_driver_killed_in_mid_batch_goes_on_exactly_once(spark: "SparkSession", tmp_path: Path) -> None:
    project, pipeline = make(tmp_path / "project", pause_s=0.3)
    driver = Driver(project, tmp_path / "runs")
    assert driver.wait_for(batch_is_open(project, 2))
    driver.kill()
    # Another driver goes on, here the one that is there: starting a second one would take longer than all the rest.
    again = run(spark, pipeline)
    assert 0 < again["batches"] < FILES and again["batch"] == FILES - 1
    assert ids(spark, project) == list(range(FILES * ROWS))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_driver_killed_at_many_moments(spark: "SparkSession", tmp_path: Path) -> None:
    project, _ = make(tmp_path / "project", pause_s=0.1)
    checkpoint, out = project.folder / ".headrace/again/checkpoints/out", project.folder / "out"
    files, struck = FILES, 0
    for _ in range(FILES):
        for kind in ("open", "written", "committed"):
            # There is always something to do when the next driver starts, however far the last one came.
            project.feed([{"id": files * ROWS + k} for k in range(ROWS)])
            files += 1
            number = sum(path.name.isdigit() for path in (checkpoint / "commits").glob("*"))
            moments: dict[str, Callable[[], bool]] = {
                "open": batch_is_open(project, number),
                "written": (out / "_spark_metadata" / str(number)).exists,
                "committed": (checkpoint / "commits" / str(number)).exists,
            }
            driver = Driver(project, tmp_path / "runs")
            driver.wait_for(moments[kind])
            struck += driver.kill()
    driver = Driver(project, tmp_path / "runs")
    output = driver.process.communicate()[0]
    assert driver.process.returncode == 0, output
    assert ids(spark, project) == list(range(files * ROWS))
    assert struck >= FILES
