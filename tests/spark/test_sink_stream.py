"""Streams into topics: whatever is killed, and when, every record arrives; marks tell those that came twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.testing.broker import TestBroker
from tests.spark.drivers import MOMENTS, kill_workers, numbers, run_driver
from tests.spark.patience import run_to_end
from tests.spark.topics import make_topic, records_of
from tests.waiting import eventually

LIMIT_S = 400.0


@pytest.fixture(scope="module")
def bootstrap(spark: SparkSession) -> Iterator[str]:
    with TestBroker() as broker:
        yield broker.bootstrap


def fill(spark: SparkSession, bootstrap: str, topic: str, count: int, first: int = 0) -> None:
    frame = spark.range(first, first + count).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    frame.write.format("headrace").mode("append").options(
        **{"kafka.bootstrap.servers": bootstrap, "topic": topic}
    ).save()


def start(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: Path, **options: Any
) -> StreamingQuery:
    """A query from topic to topic, some batches long, that ends when all is read."""
    frame = (
        spark.readStream.format("headrace")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", "500")
        .load()
        .select("key", "value")
    )
    settings = {"kafka.bootstrap.servers": bootstrap, "topic": target, "checkpointLocation": str(checkpoint), **options}
    return frame.writeStream.format("headrace").options(**settings).trigger(availableNow=True).start()


def finish(spark: SparkSession, *where: Any, **options: Any) -> None:
    """Run a query to its end."""
    run_to_end(lambda: start(spark, *where, **options))


def marks(bootstrap: str, topic: str) -> set[tuple[tuple[bytes | None, ...], bytes | None]]:
    names = ("headrace.query", "headrace.batch", "headrace.partition", "headrace.row")
    return {
        (tuple(dict(r.headers)[name] for name in names), r.value)
        for records in records_of(bootstrap, topic).values()
        for r in records
    }


def test_a_batch_that_runs_again_doubles_records_under_the_same_marks(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    make_topic(bootstrap, "again-in", partitions=2)
    make_topic(bootstrap, "again-out", partitions=2)
    fill(spark, bootstrap, "again-in", 1200)
    finish(spark, bootstrap, "again-in", "again-out", tmp_path / "cp", dedupHeaders="true")
    assert numbers(bootstrap, "again-out") == Counter(range(1200))
    before = marks(bootstrap, "again-out")
    assert len(before) == 1200 and {batch for (_, batch, _, _), _ in before} == {b"0", b"1", b"2"}
    # As after a crash between the last batch's write and its commit.
    for name in ("2", ".2.crc"):
        (tmp_path / "cp" / "commits" / name).unlink(missing_ok=True)
    finish(spark, bootstrap, "again-in", "again-out", tmp_path / "cp", dedupHeaders="true")
    doubled = numbers(bootstrap, "again-out")
    assert set(doubled) == set(range(1200)) and max(doubled.values()) == 2
    assert marks(bootstrap, "again-out") == before


def test_killed_workers_lose_nothing(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    make_topic(bootstrap, "kill-in", partitions=3)
    make_topic(bootstrap, "kill-out", partitions=3)
    fill(spark, bootstrap, "kill-in", 2000)
    query = start(spark, bootstrap, "kill-in", "kill-out", tmp_path / "cp")
    eventually(
        lambda: sum(numbers(bootstrap, "kill-out").values()) >= 500 or not query.isActive,
        "the stream comes so far",
        LIMIT_S,
    )
    killed = kill_workers()
    assert killed or not query.isActive
    try:
        query.awaitTermination(LIMIT_S)
    except Exception as error:
        # One attempt per task on a local master: the query ends, and says why.
        assert killed or "failed to connect back" in str(error), str(error)
    finish(spark, bootstrap, "kill-in", "kill-out", tmp_path / "cp")
    found = numbers(bootstrap, "kill-out")
    assert set(found) == set(range(2000))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_a_killed_driver_loses_nothing(spark: SparkSession, bootstrap: str, tmp_path: Path, moment: str) -> None:
    topic = f"driver-{moment.replace(' ', '-')}"
    make_topic(bootstrap, f"{topic}-in", partitions=3)
    make_topic(bootstrap, f"{topic}-out", partitions=3)
    fill(spark, bootstrap, f"{topic}-in", 3000)
    first = run_driver(bootstrap, f"{topic}-in", f"{topic}-out", tmp_path / "cp")
    eventually(lambda: MOMENTS[moment](bootstrap, f"{topic}-out", tmp_path / "cp"), "the stream comes so far", LIMIT_S)
    # The driver and all that it started, at once.
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = run_driver(bootstrap, f"{topic}-in", f"{topic}-out", tmp_path / "cp")
    assert second.wait(2 * LIMIT_S) == 0
    assert set(numbers(bootstrap, f"{topic}-out")) == set(range(3000))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("round_number", range(4))
def test_a_killed_broker_loses_and_doubles_nothing_within_a_query(
    spark: SparkSession, tmp_path: Path, round_number: int
) -> None:
    with TestBroker(tmp_path / "broker") as broker:
        make_topic(broker.bootstrap, "in", partitions=3)
        make_topic(broker.bootstrap, "out", partitions=3)
        fill(spark, broker.bootstrap, "in", 4000)
        query = start(spark, broker.bootstrap, "in", "out", tmp_path / "cp")
        eventually(
            lambda: sum(numbers(broker.bootstrap, "out").values()) >= 500 * (round_number + 1),
            "the stream comes so far",
            LIMIT_S,
        )
        broker.kill()
        broker.start()
        assert query.awaitTermination(LIMIT_S)
        assert set(numbers(broker.bootstrap, "out")) == set(range(4000))


def test_a_wrong_option_ends_a_stream_before_it_writes(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    make_topic(bootstrap, "wrong-in")
    with pytest.raises(Exception, match="did you mean 'dedupHeaders'"):
        finish(spark, bootstrap, "wrong-in", "wrong-out", tmp_path / "cp", dedupHeader="true")
