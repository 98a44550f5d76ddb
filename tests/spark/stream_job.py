"""A streaming query in a process of its own, to be killed: numbers of a topic into one file per batch.

`python -m tests.spark.stream_job <options as JSON>`: bootstrap, topic, folder, die (a step at which it kills itself and
its JVM: batch-<n>-before, batch-<n>-after), once (ends when everything is read), starting, read (more options of the
read).
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    from headrace.spark.launch.session import spark_session

    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    spark = spark_session("local[2]", "stream-job", {"spark.sql.shuffle.partitions": "2"}, build_class_cache=False)
    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", given["bootstrap"])
    stream = stream.option("subscribe", given["topic"]).option("startingOffsets", given.get("starting", "latest"))
    stream = stream.options(**given.get("read", {}))

    def take(frame: Any, number: int) -> None:
        if given.get("die") == f"batch-{number}-before":
            die()
        values = sorted(int(row["value"]) for row in frame.select("value").collect())
        # One name per batch and one rename: a batch that is repeated replaces what it wrote.
        part = folder / f"batch-{number}.part"
        part.write_text(json.dumps(values))
        part.rename(folder / f"batch-{number}.json")
        if given.get("die") == f"batch-{number}-after":
            die()

    writer = stream.load().writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    writer = (
        writer.trigger(availableNow=True) if given.get("once") else writer.trigger(processingTime="100 milliseconds")
    )
    writer.start().awaitTermination()
    spark.stop()


def die() -> None:
    """kill -9 of the driver, its JVM and its workers at once."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
