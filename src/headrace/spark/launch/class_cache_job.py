"""A small Spark job that touches what pipelines use, run once per install to fill the JVM's class cache (see
class_cache.py)."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def main(folder: str) -> None:
    """SQL, Parquet and JSON, a stateful stream, Python code on both ends; then wait until Java has written its
    cache."""
    from pyspark.sql.functions import window

    from headrace.spark.launch.launcher import TRAINING_VARIABLE
    from headrace.spark.launch.session import spark_session

    spark = spark_session("local[2]", "headrace-class-cache")
    gateway = spark.sparkContext._gateway
    source, sink = f"{folder}/in", f"{folder}/out"
    rows = spark.range(1000).selectExpr(
        "id", "id % 7 as k", "timestamp_seconds(1700000000 + id) as at", "cast(id as string) as s"
    )
    rows.write.mode("append").json(source)
    rows.createOrReplaceTempView("rows")
    spark.sql(
        "select k, count(*) c, sum(id) s, max(at) m from rows join (select distinct k as j from rows) on k = j group by"
        " k order by k"
    ).collect()
    spark.sql("explain select from_json(s, 'a int') from rows where k > 2").collect()

    stream = spark.readStream.schema(rows.schema).json(source)
    counts = (
        stream.mapInArrow(_pass, stream.schema)
        .withWatermark("at", "10 seconds")
        .groupBy(window("at", "5 seconds"), "k")
        .count()
    )
    query = (
        counts.writeStream.format("parquet").option("path", sink).option("checkpointLocation", f"{folder}/checkpoint")
        .outputMode("append").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    query.recentProgress  # noqa: B018  (asked for its classes)
    stream.writeStream.foreachBatch(lambda batch, number: batch.write.format("noop").mode("overwrite").save()).option(
        "checkpointLocation", f"{folder}/checkpoint2"
    ).trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(sink).count()
    spark.stop()
    wanted = os.environ.get(TRAINING_VARIABLE)
    process = gateway.proc
    process.stdin.close()
    process.wait()
    # Newer Javas write the cache in a child of the JVM that ends after it.
    deadline = time.monotonic() + 60
    while wanted and not Path(wanted).exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def _pass(batches: Iterator[object]) -> Iterator[object]:
    yield from batches


if __name__ == "__main__":
    main(sys.argv[1])
