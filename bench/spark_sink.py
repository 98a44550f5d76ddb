"""`python -m bench.spark_sink`: rows/s of Spark writes of one cached table to topics, three ways in one session, turn by turn.

headrace is format("headrace"); kafka is Spark's own connector (its jar), both with acks=all and idempotence; bare is a
Python sink that only counts the Arrow batches it gets: what Spark's path from the JVM to Python takes by itself.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.reference import spark_kafka
from tests.reference.apache import Unavailable

from bench.measure import TICKS_PER_S, family, median
from headrace.client.admin import Admin
from headrace.testing.broker import TestBroker

SIZES = (100, 1000)
PARTITIONS = 4
TASKS = 4
GOALS = {"over kafka": 1.0, "of bare": 1 / 1.3}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.spark_sink", description=__doc__)
    add = parser.add_argument
    add("--mb", type=int, default=100, help="size of each table [100]")
    add("--rounds", type=int, default=3, help="turns per way behind one to warm up; their median counts [3]")
    add("--keys", action="store_true", help="give each row a key, so that rows spread over partitions by it")
    add("--codec", default="none", help="compression.type of both [none]")
    add("--bootstrap", help="a broker that runs already, instead of one of our own")
    add("--json", type=Path, help="write the figures there")
    return parser.parse_args()


def bare_sink() -> type:
    """A Python sink that counts; made here, so that Spark pickles it whole."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class BareWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

    class Bare(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bare_sink"

        def writer(self, schema: Any, overwrite: bool) -> BareWriter:
            return BareWriter()

    return Bare


def table(spark: Any, size: int, rows: int, keys: bool) -> Any:
    """Values of one size that do not compress too well, held in memory so that both sinks are given them as fast."""
    key = "CAST(id AS STRING) AS key" if keys else "CAST(NULL AS STRING) AS key"
    value = f"substr(repeat(sha2(CAST(id AS STRING), 256), {size // 64 + 1}), 1, {size}) AS value"
    frame = spark.range(0, rows, 1, TASKS).selectExpr(key, f"CAST({value.removesuffix(' AS value')} AS BINARY) AS value").persist()
    assert frame.count() == rows
    return frame


def topics(bootstrap: str, names: tuple[str, ...], make: bool) -> None:
    async def change() -> None:
        async with Admin(bootstrap) as admin:
            for name in names:
                await (admin.create_topic(name, PARTITIONS, 1) if make else admin.delete_topic(name))

    asyncio.run(change())


def end_offsets(bootstrap: str, topic: str) -> int:
    async def ask() -> int:
        async with Admin(bootstrap) as admin:
            return sum(found.offset for found in (await admin.list_offsets(topic)).values())

    return asyncio.run(ask())


def spent_s() -> float:
    """CPU time of this driver, its JVM and all workers, also those that have ended: what a busy machine does not blur."""
    total = 0
    for member in family(os.getpid()):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_S


def ways(frame: Any, bootstrap: str, codec: str, with_kafka: bool) -> dict[str, Callable[[str], None]]:
    def to(kind: str) -> Callable[[str], None]:
        def save(topic: str) -> None:
            settings = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
            frame.write.format(kind).mode("append").options(**settings).save()

        return save

    def bare(topic: str) -> None:
        frame.write.format("bare_sink").mode("append").save()

    return {"headrace": to("headrace"), "bare": bare} | ({"kafka": to("kafka")} if with_kafka else {})


def measure(spark: Any, bootstrap: str, size: int, given: argparse.Namespace, with_kafka: bool) -> dict[str, Any]:
    rows = (given.mb << 20) // size
    frame = table(spark, size, rows, given.keys)
    found = ways(frame, bootstrap, given.codec, with_kafka)
    seconds: dict[str, list[float]] = {name: [] for name in found}
    cpu: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(given.rounds + 1):
        for name, save in found.items():
            topic = f"sink-{size}-{name}-{turn}"
            topics(bootstrap, (topic,), make=True)
            start, spent = time.perf_counter(), spent_s()
            save(topic)
            took, spent = time.perf_counter() - start, spent_s() - spent
            assert name == "bare" or end_offsets(bootstrap, topic) == rows
            topics(bootstrap, (topic,), make=False)
            print(f"  {size:>5} B  {name:<9} {rows / took / 1e6:6.2f} M rows/s   {spent:6.2f} cpu-s", flush=True)
            # The first turn compiles, loads classes and starts workers.
            if turn:
                seconds[name].append(took)
                cpu[name].append(spent)
    frame.unpersist(blocking=True)
    rates = {name: rows / median(took) for name, took in seconds.items()}
    figures: dict[str, Any] = {"size": size, "rows": rows, "keys": given.keys, "codec": given.codec, "rows_per_s": rates}
    figures["cpu_s"] = {name: median(spent) for name, spent in cpu.items()}
    figures["of bare"] = rates["headrace"] / rates["bare"]
    if with_kafka:
        figures["over kafka"] = rates["headrace"] / rates["kafka"]
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
    spark.dataSource.register(bare_sink())
    results = []
    broker = None if given.bootstrap else TestBroker(settings={"durability": "replicated"}).start()
    try:
        bootstrap = given.bootstrap or (broker.bootstrap if broker else "")
        for size in SIZES:
            figures = measure(spark, bootstrap, size, given, bool(jars))
            results.append(figures)
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
