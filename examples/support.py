"""What the examples share: a broker if none is given, topics with sample records in them, and a Spark session."""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.client.admin.admin import Admin
from headrace.client.produce.partitioner import partition_for_key
from headrace.client.produce.producer import OutgoingBatch, ProducerCore
from headrace.records.batch import BatchBuilder
from headrace.spark.launch.session import spark_session
from headrace.terminal import print_table
from headrace.testing.broker import TestBroker

Row = tuple[str, dict[str, Any]]
"""Key, and value to be sent as JSON."""

FINISH_S = 300
LOOK_S = 0.2
_started_s = time.monotonic()


@dataclass(frozen=True)
class Result:
    """What an example has found: one sentence, and a table that shows it."""

    summary: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numbers: Sequence[str] = ()
    """The columns that hold numbers."""


def say(text: str) -> None:
    """What happens now, and how long the example has been at work."""
    print(f"[{time.monotonic() - _started_s:3.0f} s] {text}", flush=True)


def show(result: Result) -> None:
    """The end of an example."""
    print()
    print_table(result.columns, result.rows, numbers=result.numbers)
    print(f"\n{result.summary}", flush=True)


def example(run: Callable[[SparkSession, str, Path], Result]) -> None:
    """Run an example from the command line: against `--bootstrap`, or a broker of its own that is gone afterwards."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument(
        "--bootstrap", default=os.environ.get("HEADRACE_BOOTSTRAP"), help="a running cluster [one of its own]"
    )
    parser.add_argument("--spark", default="local[2]", help="where Spark runs [local[2]]")
    parser.add_argument("--folder", type=Path, help="where tables and checkpoints go [a temporary folder]")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-example-")))
        if arguments.bootstrap is None:
            say("starting a broker of its own")
        bootstrap = arguments.bootstrap or stack.enter_context(TestBroker()).bootstrap
        say(f"starting Spark on {arguments.spark}, which takes a while")
        spark = spark_session(arguments.spark, f"headrace example {run.__module__}")
        stack.callback(spark.stop)
        show(run(spark, bootstrap, folder))


def fill(bootstrap: str, topic: str, rows: Iterable[Row], partitions: int = 4, *, apart_ms: int = 0) -> int:
    """Make a topic and put JSON records into it, by key as every Kafka client does; returns how many.

    The last record is of now, those before it each `apart_ms` older.
    """
    found = list(rows)
    say(f"putting {len(found):,} records into the topic {topic}" if found else f"making the topic {topic}")
    return asyncio.run(_fill(bootstrap, topic, found, partitions, apart_ms))


async def _fill(bootstrap: str, topic: str, rows: list[Row], partitions: int, apart_ms: int) -> int:
    builders: dict[int, BatchBuilder] = {}
    start_ms = int(time.time() * 1000) - len(rows) * apart_ms
    for number, (key, value) in enumerate(rows):
        timestamp_ms = start_ms + number * apart_ms
        index = partition_for_key(key.encode(), partitions)
        builders.setdefault(index, BatchBuilder()).append(timestamp_ms, key.encode(), json.dumps(value).encode())
    async with Admin(bootstrap) as admin:
        if topic not in {found.name for found in await admin.list_topics()}:
            await admin.create_topic(topic, partitions)
        async with ProducerCore(admin.cluster) as producer:
            await producer.partition_count(topic)
            await producer.send(
                OutgoingBatch(topic, index, memoryview(bytearray(builder.build())), builder.count)
                for index, builder in builders.items()
            )
            await producer.flush()
    return len(rows)


def make_topic(bootstrap: str, topic: str, partitions: int = 4) -> None:
    fill(bootstrap, topic, [], partitions)


def stream(spark: SparkSession, bootstrap: str, topic: str, schema: str | None = None) -> DataFrame:
    """A topic from its start; with a schema, JSON values come as typed columns in the struct `value`."""
    reader = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if schema is not None:
        reader = reader.option("valueFormat", "json").option("valueSchema", schema)
    return reader.load()


def table(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """All that a topic holds now."""
    return spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


def rows_of(spark: SparkSession, bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The JSON values of a topic."""
    return [json.loads(row.value) for row in table(spark, bootstrap, topic).select("value").collect()]


def to_end(query: StreamingQuery) -> None:
    """Wait until a query that was started with availableNow has read all there was, and tell of each batch."""
    deadline = time.monotonic() + FINISH_S
    batch = -1
    has_ended = False
    while not has_ended:
        has_ended = bool(query.awaitTermination(LOOK_S))
        for report in query.recentProgress:
            if report["batchId"] > batch and "addBatch" in report["durationMs"]:
                batch = report["batchId"]
                say(f"  batch {batch}: {report['numInputRows']:,} records in {report['batchDuration'] / 1000:.1f} s")
        if not has_ended and time.monotonic() > deadline:
            query.stop()
            raise TimeoutError(f"the query did not end within {FINISH_S} s")


@contextlib.contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Settings of the session for a while; dots are written as underscores twice."""
    names = {name.replace("__", "."): value for name, value in values.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
