"""`python -m bench.spark_source`: Spark reads from one topic, three ways in one session, turn by turn: rows/s, CPU,
first row.

headrace is format("headrace"); kafka is Spark's own connector (its jar); bare is a Python source that yields finished
Arrow batches of the same rows over and over: what Spark's path from Python to the JVM takes by itself. Cold, each way
has a driver of its own, and its first row is that driver's first.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.measure import median
from bench.spark_turns import Figures, parser, run, take_turns
from headrace.client.admin.admin import Admin
from headrace.client.net.cluster import Cluster
from headrace.client.raw import produce
from headrace.records.batch import Record, build_batch

BATCH_ROWS = {100: 150}
"""Bytes of a record -> records of a batch, else:"""
BATCH_ROWS_ELSE = 200
PARTITIONS = 2
FIRST_ROW_ROUNDS = 9
GOALS = {"over kafka": 1.5, "over kafka, by CPU": 1.5, "of bare": 1 / 1.3, "of bare, by CPU": 1 / 1.3}


def fill(bootstrap: str, topic: str, size: int, per_batch: int, total: int) -> int:
    """Random values of one size with short keys; returns the rows."""

    async def write() -> int:
        batches = [
            build_batch([Record(0, 1_700_000_000_000 + i, b"%08d" % i, os.urandom(size - 8)) for i in range(per_batch)])
            for _ in range(8)
        ]
        rounds = total // (size * per_batch * PARTITIONS)
        async with Admin(bootstrap) as admin:
            await admin.create_topic(topic, PARTITIONS, 1, {"retention.ms": "-1"})
        async with Cluster(bootstrap) as cluster:
            for start in range(0, rounds, 16):
                await asyncio.gather(
                    *(
                        produce(cluster, topic, partition, batches[index % len(batches)], acks=1)
                        for index in range(start, min(start + 16, rounds))
                        for partition in range(PARTITIONS)
                    )
                )
        return rounds * per_batch * PARTITIONS

    return asyncio.run(write())


def bare_source(size: int, rows: int) -> type:
    """A Python source that gives the same columns without reading anything; made here, so that Spark pickles it
    whole."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class BareReader(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(index) for index in range(PARTITIONS)]

        def read(self, partition: Any) -> Any:
            from headrace.client.columnar.decode import Decoder
            from headrace.records.batch import Record, build_batch

            decoder = Decoder(
                "topic", partition.value, ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
            )
            count = max(1, min(16_000, 2_000_000 // size))
            data = build_batch([Record(0, 1_700_000_000_000 + i, b"%08d" % i, bytes(size - 8)) for i in range(count)])
            (batch,) = list(decoder.decode(data, 0, 1 << 60))
            left = rows // PARTITIONS
            while left > 0:
                yield batch.slice(0, min(left, count))
                left -= count

    class Bare(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"bare{size}"

        def schema(self) -> str:
            return (
                "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
                " timestampType int"
            )

        def reader(self, schema: Any) -> BareReader:
            return BareReader()

    return Bare


def ways(
    spark: Any, bootstrap: str, topic: str, size: int, rows: int, with_kafka: bool
) -> dict[str, Callable[[], Any]]:
    def of(kind: str) -> Callable[[], Any]:
        def load() -> Any:
            reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
            return reader.load()

        return load

    spark.dataSource.register(bare_source(size, rows))
    found = {"headrace": of("headrace"), "bare": lambda: spark.read.format(f"bare{size}").load()}
    return found | ({"kafka": of("kafka")} if with_kafka else {})


def first_row_s(load: Callable[[], Any]) -> float:
    start = time.perf_counter()
    load().limit(1).collect()
    return time.perf_counter() - start


def first_rows_s(loads: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians of turns, each way going first as often as the others: the JVM goes on compiling, and whatever is
    measured later is faster."""
    took: dict[str, list[float]] = {name: [] for name in loads}
    names = [*loads]
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = first_row_s(loads[name])
            if turn:
                took[name].append(seconds)
    return {name: median(seconds) for name, seconds in took.items()}


def cold(given: argparse.Namespace) -> int:
    """One way in a driver that has done nothing yet: prints the seconds to a session, and from there to a row."""
    from tests.reference import spark_kafka

    from headrace.spark.launch.session import spark_session

    (size,) = given.sizes
    start = time.perf_counter()
    spark = spark_session("local[2]", "bench", spark_kafka.class_path() if given.cold == "kafka" else {})
    session_s = time.perf_counter() - start
    load = ways(spark, given.bootstrap, f"bench-{size}", size, PARTITIONS * 100_000, with_kafka=True)[given.cold]
    print(json.dumps([session_s, first_row_s(load)]))
    spark.stop()
    return 0


def cold_first_row_s(name: str, bootstrap: str, size: int) -> tuple[float, float]:
    words = ("-m", "bench.spark_source", "--cold", name, "--bootstrap", bootstrap, "--sizes", str(size))
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    session_s, row_s = json.loads(done.stdout.splitlines()[-1])
    return session_s, row_s


def measure(spark: Any, bootstrap: str, size: int, given: argparse.Namespace, with_kafka: bool) -> Figures:
    topic = f"bench-{size}"
    rows = fill(bootstrap, topic, size, BATCH_ROWS.get(size, BATCH_ROWS_ELSE), given.mb << 20)
    loads = ways(spark, bootstrap, topic, size, rows, with_kafka)

    def of(load: Callable[[], Any]) -> Callable[[int], Callable[[], None]]:
        return lambda turn: load().write.format("noop").mode("overwrite").save

    figures = take_turns({name: of(load) for name, load in loads.items()}, size, rows, given.rounds)
    # Last, since Spark ends a worker whose rows it no longer wants.
    figures["first_row_s"] = first_rows_s(loads, FIRST_ROW_ROUNDS)
    print(f"  {size:>5} B  first row, s:", {name: round(took, 2) for name, took in figures["first_row_s"].items()})
    if size == given.sizes[0]:
        took = {name: cold_first_row_s(name, bootstrap, size) for name in loads}
        figures["cold_session_s"] = {name: session_s for name, (session_s, _) in took.items()}
        figures["cold_first_row_s"] = {name: row_s for name, (_, row_s) in took.items()}
        for words in ("cold_session_s", "cold_first_row_s"):
            print(f"  {words}:", {name: round(seconds, 2) for name, seconds in figures[words].items()})
    return figures


def options() -> argparse.Namespace:
    found = parser("spark_source", __doc__, mb=200)
    found.add_argument("--cold", choices=("headrace", "bare", "kafka"), help=argparse.SUPPRESS)
    return found.parse_args()


if __name__ == "__main__":
    given = options()
    sys.exit(cold(given) if given.cold else run(given, measure, GOALS))
