"""delivery=exactly-once: whatever Spark runs again, readers of committed records find each row once."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.transactions import Transactions
from headrace.spark.sink.exactly_once.decision_log import TOPIC
from headrace.testing.broker import TestBroker
from tests.committed import committed_records
from tests.spark.drivers import MOMENTS, kill_workers, run_driver
from tests.spark.patience import run_to_end
from tests.spark.source_data import make, put_numbers
from tests.spark.topics import make_topic, records_of
from tests.waiting import eventually

LIMIT_S = 400.0


@pytest.fixture(scope="module")
def bootstrap(spark: SparkSession) -> Iterator[str]:
    with TestBroker(settings={"transaction.state.log.num.partitions": "4"}) as broker:
        yield broker.bootstrap


def committed(bootstrap: str, topic: str, *, to_the_end: bool = True) -> Counter[int]:
    found = asyncio.run(committed_records(bootstrap, topic, to_the_end=to_the_end))
    return Counter(int(record.value or b"") for records in found.values() for record in records)


def open_transactions(bootstrap: str) -> list[str]:
    async def ask() -> list[str]:
        async with Admin(bootstrap) as admin:
            return [one.transactional_id for one in await Transactions(admin).list_transactions(["Ongoing"])]

    return asyncio.run(ask())


def transactional_ids(bootstrap: str, prefix: str) -> list[str]:
    async def ask() -> list[str]:
        async with Admin(bootstrap) as admin:
            found = await Transactions(admin).list_transactions()
            return [one.transactional_id for one in found if one.transactional_id.startswith(prefix)]

    return asyncio.run(ask())


def numbers_in(bootstrap: str, topic: str, count: int, partitions: int = 2) -> None:
    make(bootstrap, topic, partitions)
    for partition in range(partitions):
        put_numbers(bootstrap, topic, partition, range(partition, count, partitions))


def stream(spark: SparkSession, bootstrap: str, source: str) -> DataFrame:
    return (
        spark.readStream.format("headrace")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", "500")
        .load()
        .select("key", "value")
    )


def start(spark: SparkSession, bootstrap: str, name: str, checkpoint: Path, **options: Any) -> StreamingQuery:
    """A query from topic to topic that ends when all is read."""
    settings = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": f"{name}-out",
        "checkpointLocation": str(checkpoint),
        "delivery": "exactly-once",
        **options,
    }
    frame = stream(spark, bootstrap, f"{name}-in")
    return frame.writeStream.format("headrace").options(**settings).trigger(availableNow=True).start()


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As after a crash between the last batch's write and Spark's note of it."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_batch_that_runs_again_is_there_once(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    numbers_in(bootstrap, "again-in", 1200)
    make_topic(bootstrap, "again-out", partitions=2)
    checkpoint = tmp_path / "cp"
    run_to_end(lambda: start(spark, bootstrap, "again", checkpoint))
    assert committed(bootstrap, "again-out") == Counter(range(1200))
    forget_commit(checkpoint, 2)
    run_to_end(lambda: start(spark, bootstrap, "again", checkpoint))
    assert committed(bootstrap, "again-out") == Counter(range(1200))
    everything = Counter(int(r.value or b"") for rs in records_of(bootstrap, "again-out").values() for r in rs)
    assert max(everything.values()) == 2, "the batch ran again, and what it wrote was aborted"
    assert open_transactions(bootstrap) == []
    # Spark's own source reads it in the same two ways.
    for isolation, rows in (("read_committed", Counter(range(1200))), ("read_uncommitted", everything)):
        settings = {"kafka.bootstrap.servers": bootstrap, "subscribe": "again-out", "kafka.isolation.level": isolation}
        found = (
            spark.read.format("headrace").options(**settings).load().selectExpr("CAST(value AS STRING) AS n").collect()
        )
        assert Counter(int(row.n) for row in found) == rows
    # Three batches of two tasks, and one of them again in another run.
    ids = transactional_ids(bootstrap, "headrace-spark/")
    assert len(ids) <= 6, ids


def test_a_named_batch_write_counts_once_however_often_it_is_run(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "named", partitions=2)
    frame = spark.range(0, 3000, 1, 2).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "named", "delivery": "exactly-once"}
    for _ in range(2):
        frame.write.format("headrace").mode("append").options(**options, writeId="load of 2026-11-18").save()
        assert committed(bootstrap, "named") == Counter(range(3000))
    with pytest.raises(Exception, match="delivery=exactly-once needs option 'writeId' here: nothing else tells"):
        frame.write.format("headrace").mode("append").options(**options).save()
    assert committed(bootstrap, "named") == Counter(range(3000)) and open_transactions(bootstrap) == []


def test_nothing_of_a_batch_is_seen_when_one_of_its_tasks_fails(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "torn", partitions=2)
    frame = spark.range(0, 2000, 1, 2).selectExpr("IF(id = 1999, raise_error('no'), CAST(id AS STRING)) AS value")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "torn", "delivery": "exactly-once", "writeId": "torn"}
    with pytest.raises(Exception, match="no"):
        frame.write.format("headrace").mode("append").options(**options).save()
    assert committed(bootstrap, "torn") == Counter()
    assert open_transactions(bootstrap) == []


def test_foreach_batch_writes_each_batch_once(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    numbers_in(bootstrap, "each-in", 600)
    make_topic(bootstrap, "each-a", partitions=2)
    make_topic(bootstrap, "each-b", partitions=1)
    options = {"kafka.bootstrap.servers": bootstrap, "delivery": "exactly-once"}

    def write(frame: DataFrame, batch: int) -> None:
        for topic in ("each-a", "each-b"):
            frame.write.format("headrace").mode("append").options(**options, topic=topic, writeId=topic).save()

    def begin() -> StreamingQuery:
        writer = stream(spark, bootstrap, "each-in").writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()

    run_to_end(begin)
    forget_commit(tmp_path / "cp", 1)
    run_to_end(begin)
    for topic in ("each-a", "each-b"):
        assert committed(bootstrap, topic) == Counter(range(600))


def test_killed_workers_neither_lose_nor_double(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    numbers_in(bootstrap, "kill-in", 2000)
    make_topic(bootstrap, "kill-out", partitions=3)
    query = start(spark, bootstrap, "kill", tmp_path / "cp")
    eventually(
        lambda: sum(committed(bootstrap, "kill-out", to_the_end=False).values()) >= 500 or not query.isActive,
        "a first batch is committed",
        LIMIT_S,
    )
    killed = kill_workers()
    assert killed or not query.isActive
    try:
        query.awaitTermination(LIMIT_S)
    except Exception as error:
        # One attempt per task on a local master: the query ends, and says why.
        assert killed or "failed to connect back" in str(error), str(error)
    run_to_end(lambda: start(spark, bootstrap, "kill", tmp_path / "cp"))
    assert committed(bootstrap, "kill-out") == Counter(range(2000))
    assert open_transactions(bootstrap) == []


def test_dead_letters_are_part_of_the_transaction(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "letters-out")
    make_topic(bootstrap, "letters-dead")
    schema = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
    options = {
        "kafka.bootstrap.servers": bootstrap, "topic": "letters-out", "delivery": "exactly-once", "writeId": "letters",
        "valueFormat": "avro", "valueSchema": schema, "badRows": "deadLetter", "deadLetterTopic": "letters-dead",
    }  # fmt: skip
    frame = spark.range(10).selectExpr("IF(id = 3, NULL, id) AS id")
    for _ in range(2):
        frame.write.format("headrace").mode("append").options(**options).save()
    counts = {
        topic: sum(map(len, asyncio.run(committed_records(bootstrap, topic)).values()))
        for topic in ("letters-out", "letters-dead")
    }
    assert counts == {"letters-out": 9, "letters-dead": 1}


def test_the_topic_of_decisions_is_compacted(spark: SparkSession, bootstrap: str) -> None:
    async def ask() -> str | None:
        async with Admin(bootstrap) as admin:
            entries = await admin.describe_configs(Resource.TOPIC, TOPIC, ["cleanup.policy"])
            return entries[0].value

    assert asyncio.run(ask()) == "compact"


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_a_killed_driver_neither_loses_nor_doubles(
    spark: SparkSession, bootstrap: str, tmp_path: Path, moment: str
) -> None:
    topic = f"driver-{moment.replace(' ', '-')}"
    numbers_in(bootstrap, f"{topic}-in", 3000, 3)
    make_topic(bootstrap, f"{topic}-out", partitions=3)
    words = (bootstrap, f"{topic}-in", f"{topic}-out", tmp_path / "cp", "exactly-once")
    first = run_driver(*words)
    eventually(lambda: MOMENTS[moment](bootstrap, f"{topic}-out", tmp_path / "cp"), moment, LIMIT_S)
    # The driver and all that it started, at once.
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert run_driver(*words).wait(2 * LIMIT_S) == 0
    assert committed(bootstrap, f"{topic}-out") == Counter(range(3000))
    assert open_transactions(bootstrap) == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("round_number", range(4))
def test_a_killed_broker_neither_loses_nor_doubles(spark: SparkSession, tmp_path: Path, round_number: int) -> None:
    with TestBroker(tmp_path / "broker") as broker:
        numbers_in(broker.bootstrap, "t-in", 4000)
        make_topic(broker.bootstrap, "t-out", partitions=3)
        query = start(spark, broker.bootstrap, "t", tmp_path / "cp")
        wanted = 500 * (round_number + 1)
        eventually(
            lambda: sum(committed(broker.bootstrap, "t-out", to_the_end=False).values()) >= wanted,
            "the stream comes so far",
            LIMIT_S,
        )
        broker.kill()
        broker.start()
        assert query.awaitTermination(int(LIMIT_S))
        assert committed(broker.bootstrap, "t-out") == Counter(range(4000))
