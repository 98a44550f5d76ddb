"""A streaming query on a cluster, in a process of its own: numbers of a topic into Parquet or another topic, then the
end.

`python -m tests.spark.cluster_job MASTER BROKER TOPIC FOLDER [TARGET [DELIVERY]]`: with a target, to that topic.
"""

import sys
from pathlib import Path


def main(
    master: str, bootstrap: str, topic: str, folder: str, target: str | None = None, delivery: str = "at-least-once"
) -> None:
    from headrace.spark.launch.session import spark_session

    conf = {
        "spark.pyspark.python": sys.executable,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        # A second attempt of whatever takes longer than others: one of the two has to lose.
        "spark.speculation": str(delivery == "exactly-once").lower(),
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    spark = spark_session(master, "cluster-job", conf, log_file=Path(folder) / "spark.log", build_class_cache=False)
    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    numbers = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "200").load()
    numbers = numbers.selectExpr("CAST(value AS STRING) AS value")
    if target is None:
        writer = numbers.writeStream.format("parquet").option("path", f"{folder}/out")
    else:
        writer = (
            numbers.writeStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("delivery", delivery)
        )
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
