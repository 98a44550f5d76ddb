"""The Spark pipeline, a process of its own: shop-events in; sales per window out, to Parquet and from there to a topic.

Its folder comes as JSON on the command line, so that Spark starts at once; where the brokers are and what to read, as
soon as they run, in the first line of stdin. It writes what it does as JSON lines to stdout, and ends when its stdin
does: a demo that dies leaves no Spark behind. `read`, `clean` and `sell` are the pipeline; the rest runs it.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.demo.expected import STALE_AFTER_MS, WATERMARK_MS, WINDOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SCHEMA = (
    "event_id string not null, event_time bigint not null, customer bigint, action string not null, "
    "category string not null, country string, cents bigint not null"
)
TABLE = "window_ms bigint, category string, events bigint, orders bigint, cents bigint"
TRIGGER = "1 second"
ROWS_AT_ONCE_S, ROWS_AT_ONCE_MIN = 12, 2_000
"""A batch reads at most so many seconds of the feed, enough to end a window: one that takes all that came while Spark
started on a slow machine would show its result much later, and everything after it too."""
LOOK_S = 0.4
RESTARTS_MAX = 3
ORPHAN_S = 0.5

SELL, PUBLISH = "sales", "publish"
"""The queries. `sales` reads the feed and fills the table; `publish` reads the table, so that windows are computed
once."""


def group_of(query: str) -> str:
    """The group under which a query's progress can be seen by every lag tool."""
    return f"spark-{query}"


# -- the pipeline


def read(spark: "SparkSession", bootstrap: str, topic: str, rejects: str, rows_max: int) -> "DataFrame":
    """Events as typed columns; what is no event goes to the topic `rejects`, with the reason in its headers."""
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_max)
        .option("valueFormat", "json")
        .option("valueSchema", SCHEMA)
        .option("badRows", "deadLetter")
        .option("deadLetterTopic", rejects)
        .option("kafka.group.id", group_of(SELL))
        .load()
    )


def clean(events: "DataFrame") -> "DataFrame":
    """Events that are not too old, each once however often it was sent."""
    from pyspark.sql import functions as F

    return (
        events.where(F.unix_millis("timestamp") - F.col("value.event_time") <= STALE_AFTER_MS)
        .select("value.*", F.timestamp_millis("value.event_time").alias("happened"))
        .withWatermark("happened", f"{WATERMARK_MS} milliseconds")
        .dropDuplicatesWithinWatermark(["event_id"])
    )


def sell(events: "DataFrame") -> "DataFrame":
    """Sales per window and category."""
    from pyspark.sql import functions as F

    windows = events.groupBy(F.window("happened", f"{WINDOW_MS} milliseconds"), "category").agg(
        F.count("*").alias("events"),
        F.sum(F.when(F.col("action") == "order", 1).otherwise(0)).alias("orders"),
        F.sum("cents").alias("cents"),
    )
    return windows.select(F.unix_millis("window.start").alias("window_ms"), "category", "events", "orders", "cents")


def to_records(sales: "DataFrame") -> "DataFrame":
    """A window as a record: keyed by what it is about, so that a compacted topic would keep the latest."""
    from pyspark.sql import functions as F

    fields = ("window_ms", "category", "events", "orders", "cents")
    return sales.select(
        F.concat_ws(" ", "window_ms", "category").cast("binary").alias("key"),
        F.to_json(F.struct(*fields)).cast("binary").alias("value"),
    )


# -- running it


class Job:
    """The queries of the pipeline, restarted from their checkpoints should one fail."""

    def __init__(self, spark: "SparkSession", options: dict[str, Any], say: Callable[..., None]) -> None:
        self._spark = spark
        self._options = options
        self._say = say
        self._folder = Path(options["folder"])
        self._queries: dict[str, StreamingQuery] = {}
        self._restarts: dict[str, int] = {}
        self._starters = {SELL: self._sell, PUBLISH: self._publish}

    def start(self) -> None:
        for name, starter in self._starters.items():
            self._queries[name] = starter()

    def watch(self) -> None:
        """Start again what has failed; raise when that does not help."""
        for name, query in self._queries.items():
            if query.isActive:
                continue
            error = query.exception()
            self._restarts[name] = self._restarts.get(name, 0) + 1
            text = str(error).strip().splitlines()[0][:300] if error is not None else "it ended by itself"
            if self._restarts[name] > RESTARTS_MAX:
                raise RuntimeError(f"query {name} failed {RESTARTS_MAX + 1} times, at last with: {text}")
            self._say(restarted=name, error=text)
            self._queries[name] = self._starters[name]()

    def look(self) -> None:
        """Tell how far the batches are that run at this moment."""
        tracker = self._spark.sparkContext.statusTracker()
        active = set(tracker.getActiveJobsIds())
        for name, query in self._queries.items():
            jobs = [tracker.getJobInfo(job) for job in active.intersection(tracker.getJobIdsForGroup(str(query.runId)))]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            known = [stage for stage in stages if stage is not None]
            if known:
                number, rows = planned(self._folder / "checkpoints" / name)
                done = sum(stage.numCompletedTasks for stage in known)
                tasks = sum(stage.numTasks for stage in known)
                self._say(batch={"query": name, "number": number, "rows": rows, "done": done, "tasks": tasks})

    def stop(self) -> None:
        for query in self._queries.values():
            query.stop()

    def _write(self, frame: "DataFrame", name: str) -> Any:
        writer = frame.writeStream.queryName(name).outputMode("append").trigger(processingTime=TRIGGER)
        return writer.option("checkpointLocation", str(self._folder / "checkpoints" / name))

    def _sell(self) -> "StreamingQuery":
        options = self._options
        rows_max = max(ROWS_AT_ONCE_MIN, int(ROWS_AT_ONCE_S * options["rate"]))
        events = read(self._spark, options["bootstrap"], options["events"], options["rejects"], rows_max)
        return self._write(sell(clean(events)), SELL).format("parquet").option("path", options["table"]).start()

    def _publish(self) -> "StreamingQuery":
        Path(self._options["table"]).mkdir(exist_ok=True)
        table = self._spark.readStream.schema(TABLE).parquet(self._options["table"])
        writer = self._write(to_records(table), PUBLISH).format("headrace").option("topic", self._options["sales"])
        writer = writer.option("delivery", "exactly-once")
        return writer.option("kafka.bootstrap.servers", self._options["bootstrap"]).start()


def listen(spark: "SparkSession", say: Callable[..., None]) -> None:
    """Tell of every micro-batch."""
    from pyspark.sql.streaming import StreamingQueryListener

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:
            say(started=event.name)

        def onQueryProgress(self, event: Any) -> None:
            say(progress=json.loads(event.progress.json))

        def onQueryTerminated(self, event: Any) -> None:
            return None

    spark.streams.addListener(Listener())


def planned(checkpoint: Path) -> tuple[int, int]:
    """The number of the latest batch, and how many records it reads: Spark writes down where it ends before it begins.
    Of a source whose offsets are no numbers of records, 0."""
    numbers = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    if not numbers:
        return 0, 0
    end, start = (_offsets(checkpoint / "offsets" / str(number)) for number in (numbers[-1], numbers[-1] - 1))
    return numbers[-1], sum(offset - start.get(place, 0) for place, offset in end.items())


def _offsets(entry: Path) -> dict[tuple[str, str], int]:
    """Offsets by topic and partition, of one entry of Spark's log of batches."""
    try:
        found = json.loads(entry.read_text().splitlines()[-1])
        return {(topic, index): int(offset) for topic, places in found.items() for index, offset in places.items()}
    except (OSError, ValueError, IndexError, AttributeError):
        return {}


def listen_to(orders: "queue.SimpleQueue[bytes]", ended: threading.Event, parent: int) -> None:
    """The first line of stdin is the orders. It ends when the demo asks for the end, and when it is killed: then
    nobody waits for an orderly one."""
    orders.put(sys.stdin.buffer.readline())
    sys.stdin.buffer.read()
    ended.set()
    time.sleep(ORPHAN_S)
    if os.getppid() != parent and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def settings(options: dict[str, Any]) -> dict[str, str]:
    """For small batches, soon: of a job that runs for minutes on a few thousand rows at a time."""
    java = [
        # Everything that Spark puts aside goes where the demo removes it, also after a kill -9.
        f"-Djava.io.tmpdir={options['scratch']}",
        # The second compiler pays off after minutes; until then it takes the processors that the batches want.
        "-XX:TieredStopAtLevel=1",
        # A collector without threads of its own beside the batches starts sooner, and the heap is small.
        "-XX:+UseSerialGC",
    ]
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": options["scratch"],
        "spark.driver.extraJavaOptions": " ".join(java),
    }


def main() -> int:
    options = json.loads(sys.argv[1])
    lock = threading.Lock()

    def say(**words: Any) -> None:
        with lock:
            sys.stdout.write(json.dumps(words) + "\n")
            sys.stdout.flush()

    from headrace.spark.launch.java import JavaMissing
    from headrace.spark.launch.session import spark_session

    ended = threading.Event()
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen_to, args=(orders, ended, os.getppid()), daemon=True).start()
    log = Path(options["folder"]) / "spark.log"
    try:
        spark = spark_session(options.get("master", "local[2]"), "headrace demo", settings(options), log_file=log)
    except JavaMissing as error:
        say(failed=str(error))
        return 1
    try:
        say(session=spark.version)
        listen(spark, say)
        if text := orders.get():
            job = Job(spark, options | json.loads(text), say)
            job.start()
            while not ended.wait(LOOK_S):
                job.watch()
                job.look()
            job.stop()
        say(stopped=True)
    except Exception as error:
        say(failed=f"{type(error).__name__}: {error}"[:2000])
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
