"""`python -m bench.spark_source`: Spark reads from one topic, three ways in one session, turn by turn: rows/s, CPU, first row.

headrace is format("headrace"); kafka is Spark's own connector (its jar); bare is a Python source that yields finished
Arrow batches of the same rows over and over: what Spark's path from Python to the JVM takes by itself. CPU is that of driver, JVM, workers and broker together: on a
machine that is busy with other things it is the figure to go by.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reference import spark_kafka
from tests.reference.apache import Unavailable

from bench.measure import cpu_s, median
from headrace.client.admin import Admin
from headrace.client.cluster import Cluster
from headrace.client.raw import produce
from headrace.records.batch import Record, build_batch
from headrace.testing.broker import TestBroker

SIZES = {100: 150, 1000: 200}
"""Bytes of a record -> records of a batch."""
PARTITIONS = 2
GOALS = {"over kafka": 1.5, "over kafka, by CPU": 1.5, "of bare": 1 / 1.3, "of bare, by CPU": 1 / 1.3}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.spark_source", description=__doc__)
    add = parser.add_argument
    add("--mb", type=int, default=200, help="size of each topic [200]")
    add("--rounds", type=int, default=3, help="turns per way behind one to warm up; their median counts [3]")
    add("--bootstrap", help="a broker that runs already, instead of one of our own")
    add("--json", type=Path, help="write the figures there")
    return parser.parse_args()


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
    """A Python source that gives the same columns without reading anything; made here, so that Spark pickles it whole."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class BareReader(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(index) for index in range(PARTITIONS)]

        def read(self, partition: Any) -> Any:
            from headrace.client.columnar.decode import Decoder
            from headrace.records.batch import Record, build_batch

            decoder = Decoder("topic", partition.value, ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"])
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
            return "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"

        def reader(self, schema: Any) -> BareReader:
            return BareReader()

    return Bare


def ways(spark: Any, bootstrap: str, topic: str, size: int, rows: int, with_kafka: bool) -> dict[str, Callable[[], Any]]:
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


def measure(spark: Any, bootstrap: str, size: int, given: argparse.Namespace, with_kafka: bool) -> dict[str, Any]:
    topic = f"bench-{size}"
    rows = fill(bootstrap, topic, size, SIZES[size], given.mb << 20)
    found = ways(spark, bootstrap, topic, size, rows, with_kafka)
    seconds: dict[str, list[float]] = {name: [] for name in found}
    cpu: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(given.rounds + 1):
        for name, load in found.items():
            start, used = time.perf_counter(), cpu_s(os.getpid())
            load().write.format("noop").mode("overwrite").save()
            took, used = time.perf_counter() - start, cpu_s(os.getpid()) - used
            print(
                f"  {size:>5} B  {name:<9} {rows / took / 1e6:6.2f} M rows/s  {used / rows * 1e6:6.2f} cpu-s/M rows",
                flush=True,
            )
            # The first turn compiles, loads classes and starts workers.
            if turn:
                seconds[name].append(took)
                cpu[name].append(used / rows * 1e6)
    # Last, since Spark ends a worker whose rows it no longer wants.
    first = {name: [first_row_s(load) for _ in range(given.rounds)] for name, load in found.items()}
    rates = {name: rows / median(took) for name, took in seconds.items()}
    figures: dict[str, Any] = {"size": size, "rows": rows, "rows_per_s": rates}
    figures["cpu_s_per_m_rows"] = {name: median(used) for name, used in cpu.items()}
    figures["first_row_s"] = {name: median(took) for name, took in first.items()}
    costs = figures["cpu_s_per_m_rows"]
    figures["of bare"] = rates["headrace"] / rates["bare"]
    figures["of bare, by CPU"] = costs["bare"] / costs["headrace"]
    if with_kafka:
        figures["over kafka"] = rates["headrace"] / rates["kafka"]
        figures["over kafka, by CPU"] = costs["kafka"] / costs["headrace"]
    return figures


def main() -> int:
    given = options()
    try:
        jars = spark_kafka.class_path()
    except Unavailable as missing:
        print(f"without Spark's own connector: {missing}", file=sys.stderr)
        jars = {}
    from headrace.client.columnar import native
    from headrace.spark.session import spark_session

    native.load()
    spark = spark_session("local[2]", "bench", jars | {"spark.driver.memory": "2g"})
    results = []
    broker = None if given.bootstrap else TestBroker(settings={"durability": "replicated"}).start()
    try:
        bootstrap = given.bootstrap or (broker.bootstrap if broker else "")
        for size in SIZES:
            figures = measure(spark, bootstrap, size, given, bool(jars))
            results.append(figures)
            print(f"  {size:>5} B  first row, s:", {name: round(took, 2) for name, took in figures["first_row_s"].items()})
            for name, bound in GOALS.items():
                if name in figures:
                    print(f"  {'ok' if figures[name] >= bound else 'NO'} {size} B: {figures[name]:.2f}x {name} (goal ≥ {bound:.2f})")
    finally:
        spark.stop()
        if broker is not None:
            broker.close()
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
