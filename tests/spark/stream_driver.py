"""A Spark driver of its own that copies one topic to another; tests kill it. Arguments: brokers, from, to, checkpoint."""

import sys

from pyspark.errors import StreamingQueryException

from headrace.spark.session import spark_session

ATTEMPTS = 5


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    spark = spark_session("local[2]", "copy", {"spark.sql.shuffle.partitions": "2"}, train=False)
    frame = (
        spark.readStream.format("headrace")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", "500")
        .load()
        .select("key", "value")
    )
    settings = {"kafka.bootstrap.servers": bootstrap, "topic": target, "checkpointLocation": checkpoint}
    for attempt in range(ATTEMPTS):
        try:
            frame.writeStream.format("headrace").options(**settings).trigger(availableNow=True).start().awaitTermination()
            return
        except StreamingQueryException as error:
            # PySpark gives its own processes ten seconds to start, which a busy machine may not.
            if "failed to connect back" not in str(error) or attempt == ATTEMPTS - 1:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
