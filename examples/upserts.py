"""Change data to a table: inserts, updates and deletes from a topic, merged into Parquet by key.

Each micro-batch makes a new version of the table beside the old one and then moves one small file that says which
version counts: readers see whole versions, and a batch that runs again after a crash makes the same version again.
(Where Delta or Iceberg are at hand, `MERGE INTO` does this in one statement.) Run it: `python -m examples.upserts`
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.window import Window

from examples.support import Result, Row, example, fill, say, stream, to_end

SCHEMA = "op string, id bigint, name string, city string, version bigint"
TABLE = "id bigint, name string, city string, version bigint"


class ParquetTable:
    """A table whose versions are folders; the file `current` names the one that counts."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def version(self) -> int:
        pointer = self.folder / "current"
        return int(pointer.read_text()) if pointer.exists() else -1

    def read(self) -> DataFrame:
        if self.version < 0:
            return self._spark.createDataFrame([], TABLE)
        return self._spark.read.schema(TABLE).parquet(str(self.folder / f"v{self.version}"))

    def replace(self, rows: DataFrame, version: int) -> None:
        """Write a version, then let it count; the one before it stays for readers that are at it."""
        rows.write.mode("overwrite").parquet(str(self.folder / f"v{version}"))
        pointer = self.folder / "current.new"
        pointer.write_text(str(version))
        os.replace(pointer, self.folder / "current")
        shutil.rmtree(self.folder / f"v{version - 2}", ignore_errors=True)


def merge_into(table: ParquetTable) -> Callable[[DataFrame, int], None]:
    """The pipeline: what one micro-batch of changes does to the table."""

    def merge(changes: DataFrame, batch_id: int) -> None:
        if table.version >= batch_id:
            return  # this batch was merged before a crash, and only Spark does not know it yet
        changes = changes.persist()  # looked at twice below, and read once
        newest_first = Window.partitionBy("id").orderBy(F.desc("version"))
        latest = changes.withColumn("rank", F.row_number().over(newest_first)).where("rank = 1").drop("rank")
        before = table.read()
        # A change that came late must not undo a newer one.
        known = before.select("id", F.col("version").alias("known"))
        latest = latest.join(known, "id", "left").where("known is null or version > known").drop("known")
        kept = before.join(latest.select("id"), "id", "left_anti")
        added = latest.where("op <> 'd'").select("id", "name", "city", "version")
        table.replace(kept.unionByName(added), batch_id)
        changes.unpersist()

    return merge


def changes(customers: int = 50, count: int = 400, seed: int = 1) -> Iterator[Row]:
    """What a database tells of its customers: they come, move, and go."""
    dice = random.Random(seed)
    alive: set[int] = set()
    for version in range(count):
        customer = dice.randrange(customers)
        if customer not in alive:
            op = "c"
            alive.add(customer)
        else:
            op = "d" if dice.random() < 0.15 else "u"
            if op == "d":
                alive.discard(customer)
        value = {"op": op, "id": customer, "version": version}
        if op != "d":
            value |= {"name": f"customer {customer}", "city": dice.choice(("Berlin", "Lyon", "Oslo", "Porto"))}
        yield str(customer), value


def expected(rows: Iterator[Row]) -> dict[int, tuple[str, int]]:
    """The table as the database itself has it: id -> (city, version)."""
    found: dict[int, tuple[str, int]] = {}
    for _, value in rows:
        if value["op"] == "d":
            found.pop(value["id"], None)
        else:
            found[value["id"]] = (value["city"], value["version"])
    return found


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Result:
    """Keep a table in step with a stream of changes."""
    count = fill(bootstrap, "customers.changes", changes())
    table = ParquetTable(spark, folder / "customers")
    say(f"merging inserts, updates and deletes into the table {table.folder}")
    query = (
        stream(spark, bootstrap, "customers.changes", SCHEMA)
        .select("value.*")
        .writeStream.foreachBatch(merge_into(table))
        .option("checkpointLocation", str(folder / "checkpoint-customers"))
        .trigger(availableNow=True)
        .start()
    )
    to_end(query)
    found = {row.id: (row.city, row.version) for row in table.read().collect()}
    right = "as in the database" if found == expected(changes()) else "NOT as in the database"
    cities = Counter(city for city, _ in found.values())
    return Result(
        f"{count:,} changes made a table of {len(found):,} customers, {right}",
        ("CITY", "CUSTOMERS"),
        sorted(cities.items()),
        numbers=("CUSTOMERS",),
    )


if __name__ == "__main__":
    example(run)
