"""A session that anybody builds, run by a path without an activated environment: it knows Headrace, and errors are
sentences."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.broker import TestBroker
from tests.spark.topics import make_topic

JOB = """
import sys
{before}
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
{after}
address = sys.argv[1]

def tried(action):
    try:
        return action()
    except Exception as error:
        return str(error)

def reader(**options):
    return spark.read.format("headrace").option("kafka.bootstrap.servers", address).options(**options)

frame = spark.range(30000).selectExpr("cast(id as string) key", "repeat('x', 100) value")
writer = lambda: frame.write.format("headrace").option("kafka.bootstrap.servers", address).option("topic", "orders")
writer().save()
print("rows", reader(subscribe="orders").load().count())
print("overwrite", tried(lambda: writer().mode("overwrite").save()))
print("no topic", tried(lambda: reader(subscribe="nope").load().count()))
print("bad value", tried(lambda: reader(subscribe="orders", valueFormat="json", valueSchema="id INT").load().count()))
for _ in range(3):
    print("few", len(reader(subscribe="orders").load().limit(2).collect()))
"""


def run_job(broker: TestBroker, folder: Path, *, before: str = "", after: str = "") -> dict[str, str]:
    """What the job printed, by the first words of its lines. Fails where it ended badly or left a traceback of ours."""
    make_topic(broker.bootstrap, "orders")
    job = folder / "job.py"
    job.write_text(JOB.format(before=before, after=after))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "VIRTUAL_ENV"))}
    environment["PATH"] = "/usr/bin:/bin"  # no activated environment: `python3` there is another one, or none
    done = subprocess.run(
        [sys.executable, str(job), broker.bootstrap],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "BrokenPipeError" not in done.stderr
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        for name in ("rows", "overwrite", "no topic", "bad value", "few"):
            if line.startswith(name + " "):
                said[name] = line.removeprefix(name + " ")
    return said


def check(said: dict[str, str]) -> None:
    assert said["rows"] == "30000", "save() without a mode appends, as with Spark's Kafka connector"
    assert said["few"] == "2"
    for name, sentence in (
        ("overwrite", "a topic can only be appended to"),
        ("no topic", "there is no topic 'nope': create it first"),
    ):
        assert sentence in said[name] and said[name].index(sentence) < 200, said[name]
        assert "Traceback" not in said[name]


def test_importing_headrace_spark_is_enough(tmp_path: Path) -> None:
    with TestBroker() as broker:
        check(run_job(broker, tmp_path, before="import headrace.spark"))


@pytest.mark.soak
def test_a_session_that_was_there_before_the_import_learns_of_headrace(tmp_path: Path) -> None:
    with TestBroker() as broker:
        check(run_job(broker, tmp_path, after="import headrace.spark"))
