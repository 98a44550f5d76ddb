"""Spark's own Kafka connector and format("headrace") in one session over one topic; prints what each of them read.

`python -m tests.spark.connector_job <bootstrap> <topic> <folder>`. A process of its own: the connector's jars must be
there when a driver starts.
"""

import json
import sys
from typing import Any


def main() -> None:
    from headrace.spark.launch.session import spark_session
    from tests.reference.spark_kafka import class_path

    bootstrap, topic, folder = sys.argv[1:]
    spark = spark_session("local[2]", "connector-job", class_path(), build_class_cache=False)
    found: dict[str, Any] = {}
    for kind in ("kafka", "headrace"):
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
        found[kind] = {
            "schema": spark.read.format(kind).options(**options).load().schema.simpleString(),
            "all": rows(spark.read.format(kind).options(**options).load()),
            "some": rows(
                spark.read.format(kind)
                .options(**options)
                .option("startingOffsets", json.dumps({topic: {"0": 3, "1": -2}}))
                .option("endingOffsets", json.dumps({topic: {"0": -1, "1": 5}}))
                .option("minPartitions", "5")
                .load()
            ),
            "since": rows(
                spark.read.format(kind)
                .options(**options)
                .option("startingTimestamp", "1700000000004")
                .option("startingOffsetsByTimestampStrategy", "latest")
                .load()
            ),
            "stream": stream(spark, kind, options, f"{folder}/{kind}"),
        }
    # The connector writes to this broker as well.
    frame = spark.range(50).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic + "-out").save()
    out = spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic + "-out")
    found["written"] = sorted(int(row["value"]) for row in out.load().collect())
    print("FOUND " + json.dumps(found))
    spark.stop()


def rows(frame: Any) -> list[Any]:
    picked = frame.selectExpr(
        "hex(key)", "hex(value)", "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType",
        "transform(headers, h -> concat(h.key, '=', coalesce(hex(h.value), 'null')))",
    )  # fmt: skip
    return sorted((list(row) for row in picked.collect()), key=lambda row: (row[3], row[4]))


def stream(spark: Any, kind: str, options: dict[str, str], folder: str) -> list[int]:
    """How many rows each batch of a limited stream has."""
    sizes: list[int] = []
    frame = spark.readStream.format(kind).options(**options).option("startingOffsets", "earliest")
    writer = frame.option("maxOffsetsPerTrigger", "9").load().writeStream.option("checkpointLocation", folder)
    writer.foreachBatch(lambda batch, number: sizes.append(batch.count())).trigger(
        availableNow=True
    ).start().awaitTermination()
    return [size for size in sizes if size]


if __name__ == "__main__":
    main()
