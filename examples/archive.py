"""Archive and replay: a topic into Parquet, exactly once, and from there into a topic again.

The archive keeps key, value, headers, time and place of every record, so that a replay gives each partition the same
records in the same order. Run it: `python -m examples.archive`
"""

import random
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from examples.support import Result, Row, example, fill, make_topic, say, table, to_end

PARTITIONS = 4


def archive(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """Everything that is new since the last time goes into the archive, a folder per day."""
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    query = (
        records.withColumn("day", F.to_date("timestamp"))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("path", str(folder / "archive"))
        .option("checkpointLocation", str(folder / "checkpoint-archive"))
        .trigger(availableNow=True)
        .start()
    )
    to_end(query)


def replay(spark: SparkSession, bootstrap: str, folder: Path, topic: str, days: str = "true") -> None:
    """Archived records into a topic: the same partitions, the same order. `days` narrows it, such as "day >=
    '2026-11-01'"."""
    archived = spark.read.parquet(str(folder / "archive")).where(days)
    (
        archived.repartition(PARTITIONS, "partition")
        .sortWithinPartitions("partition", "offset")
        .select("key", "value", "headers", "partition", "timestamp")
        .write.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("includeHeaders", "true")
        .option("timestampColumn", "timestamp")
        .mode("append")
        .save()
    )


def orders(count: int = 2_000, seed: int = 1, first: int = 0) -> Iterator[Row]:
    dice = random.Random(seed)
    for number in range(first, first + count):
        customer = f"customer-{dice.randrange(100)}"
        yield customer, {"order": number, "cents": dice.randrange(100, 10_000)}


def ordered(records: DataFrame) -> dict[int, list[tuple[bytes, bytes, int]]]:
    """Each partition's records in their order."""
    found: dict[int, list[tuple[bytes, bytes, int]]] = {}
    rows = records.orderBy("partition", "offset").select(
        "partition", "key", "value", F.unix_millis("timestamp").alias("at")
    )
    for row in rows.collect():
        found.setdefault(row.partition, []).append((bytes(row.key), bytes(row.value), row["at"]))
    return found


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Result:
    """Archive a topic in two goes, then replay it."""
    count = fill(bootstrap, "orders", orders(), PARTITIONS, apart_ms=60_000)
    say("archiving the topic orders as Parquet, a folder per day")
    archive(spark, bootstrap, "orders", folder)
    count += fill(bootstrap, "orders", orders(500, seed=2, first=count), PARTITIONS)
    say("archiving what is new since")
    archive(spark, bootstrap, "orders", folder)
    make_topic(bootstrap, "orders.replayed", PARTITIONS)
    say("replaying the archive into the topic orders.replayed")
    replay(spark, bootstrap, folder, "orders.replayed")
    say("comparing both topics, record by record")
    before, after = (ordered(table(spark, bootstrap, topic)) for topic in ("orders", "orders.replayed"))
    days = len(list((folder / "archive").glob("day=*")))
    verdict = "the same in the same order" if before == after else "DIFFERENT"
    return Result(
        f"{count:,} orders of {days} days archived and replayed: {verdict}",
        ("PARTITION", "RECORDS", "REPLAYED", "THE SAME"),
        [
            (index, len(records), len(after.get(index, [])), "yes" if records == after.get(index) else "NO")
            for index, records in before.items()
        ],
        numbers=("PARTITION", "RECORDS", "REPLAYED"),
    )


if __name__ == "__main__":
    example(run)
