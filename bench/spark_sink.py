"""`python -m bench.spark_sink`: rows/s of Spark writes of one cached table to topics, four ways in one session, turn
by turn.

headrace is format("headrace"), at least once; once is the same with delivery=exactly-once; kafka is Spark's own
connector (its jar), all with acks=all and idempotence; bare is a Python sink that only counts the Arrow batches it
gets: what Spark's path from the JVM to Python takes by itself.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench.spark_turns import Figures, parser, run, take_turns
from headrace.client.admin.admin import Admin

PARTITIONS = 4
TASKS = 4
GOALS = {"over kafka": 1.0, "of bare": 1 / 1.3, "exactly once of at least once": 0.8}


def options() -> argparse.Namespace:
    found = parser("spark_sink", __doc__, mb=100)
    found.add_argument(
        "--keys", action="store_true", help="give each row a key, so that rows spread over partitions by it"
    )
    found.add_argument("--codec", default="none", help="compression.type of both [none]")
    return found.parse_args()


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
    frame = (
        spark.range(0, rows, 1, TASKS)
        .selectExpr(key, f"CAST({value.removesuffix(' AS value')} AS BINARY) AS value")
        .persist()
    )
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


def ways(frame: Any, bootstrap: str, codec: str, with_kafka: bool) -> dict[str, Callable[[str], None]]:
    def to(kind: str, *, once: bool = False) -> Callable[[str], None]:
        def save(topic: str) -> None:
            settings = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
            if once:
                settings |= {"delivery": "exactly-once", "writeId": topic}
            frame.write.format(kind).mode("append").options(**settings).save()

        return save

    def bare(topic: str) -> None:
        frame.write.format("bare_sink").mode("append").save()

    return {"headrace": to("headrace"), "once": to("headrace", once=True), "bare": bare} | (
        {"kafka": to("kafka")} if with_kafka else {}
    )


def measure(spark: Any, bootstrap: str, size: int, given: argparse.Namespace, with_kafka: bool) -> Figures:
    rows = (given.mb << 20) // size
    spark.dataSource.register(bare_sink())
    frame = table(spark, size, rows, given.keys)
    used: list[str] = []

    def of(name: str, save: Callable[[str], None]) -> Callable[[int], Callable[[], None]]:
        def prepare(turn: int) -> Callable[[], None]:
            topic = f"sink-{size}-{name}-{turn}"
            topics(bootstrap, tuple(used), make=False)
            topics(bootstrap, (topic,), make=True)
            used[:] = [topic]
            return lambda: save(topic)

        return prepare

    saves = ways(frame, bootstrap, given.codec, with_kafka)
    figures = take_turns({name: of(name, save) for name, save in saves.items()}, size, rows, given.rounds)
    for name in saves:
        if name != "bare":
            topics(bootstrap, (f"check-{size}-{name}",), make=True)
            saves[name](f"check-{size}-{name}")
            # In transactions, each task has a marker in each partition that it wrote to.
            more = TASKS * PARTITIONS if name == "once" else 0
            assert rows <= end_offsets(bootstrap, f"check-{size}-{name}") <= rows + more
    frame.unpersist(blocking=True)
    return figures | {"keys": given.keys, "codec": given.codec}


if __name__ == "__main__":
    sys.exit(run(options(), measure, GOALS))
