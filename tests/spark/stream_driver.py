"""A Spark driver of its own that copies one topic to another; tests kill it. Arguments: brokers, from, to,
checkpoint, delivery."""

import sys

from headrace.spark.launch.session import spark_session
from tests.spark.patience import run_to_end


def main(bootstrap: str, source: str, target: str, checkpoint: str, delivery: str) -> None:
    spark = spark_session("local[2]", "copy", {"spark.sql.shuffle.partitions": "2"}, build_class_cache=False)
    frame = (
        spark.readStream.format("headrace")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", "500")
        .load()
        .select("key", "value")
    )
    settings = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": target,
        "checkpointLocation": checkpoint,
        "delivery": delivery,
    }
    run_to_end(frame.writeStream.format("headrace").options(**settings).trigger(availableNow=True).start)


if __name__ == "__main__":
    main(*sys.argv[1:])
