"""Clickstream sessions: clicks in, one record per visit out.

A visit is a customer's clicks with less than half a minute between them. When the watermark has passed the last click
by that much, the visit is over and goes to the topic `visits`. Run it: `python -m examples.sessions`
"""

import random
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from examples.support import Result, Row, example, fill, make_topic, rows_of, say, stream, to_end

START_MS = 1_800_000_000_000
GAP_S = 30
SCHEMA = "customer string, page string, at bigint"
SHOWN = 10
PAGES = ("home", "search", "product", "cart", "checkout")


def visits(clicks: DataFrame) -> DataFrame:
    """The pipeline: typed clicks to finished visits."""
    happened = clicks.select("value.*", F.timestamp_millis("value.at").alias("happened"))
    sessions = (
        happened.withWatermark("happened", "10 seconds")
        .groupBy(F.session_window("happened", f"{GAP_S} seconds"), "customer")
        .agg(
            F.count("*").alias("clicks"),
            F.max(F.col("page") == "checkout").alias("bought"),
            F.max("at").alias("last_ms"),
        )
    )
    return sessions.select(
        F.col("customer").cast("binary").alias("key"),
        F.to_json(
            F.struct("customer", "clicks", "bought", F.unix_millis("session_window.start").alias("start_ms"), "last_ms")
        ).alias("value"),
    )


def clicks(customers: int = 40, seed: int = 1) -> Iterator[Row]:
    """Visits of some customers, minutes apart; and one click long after, which ends them all."""
    dice = random.Random(seed)
    found: list[Row] = []
    for customer in range(customers):
        at_ms = START_MS + dice.randrange(60_000)
        for _ in range(dice.randint(1, 3)):
            for _ in range(dice.randint(1, 8)):
                found.append((f"c{customer}", {"customer": f"c{customer}", "page": dice.choice(PAGES), "at": at_ms}))
                at_ms += dice.randrange(1_000, 20_000)
            at_ms += dice.randrange(60_000, 120_000)
    yield from sorted(found, key=lambda row: row[1]["at"])
    yield "nobody", {"customer": "nobody", "page": "home", "at": START_MS + 3_600_000}


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Result:
    """Cut clicks into visits."""
    count = fill(bootstrap, "clicks", clicks())
    make_topic(bootstrap, "visits")
    say(f"cutting clicks into visits wherever {GAP_S} s pass without one")
    query = (
        visits(stream(spark, bootstrap, "clicks", SCHEMA))
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "visits")
        .option("checkpointLocation", str(folder / "checkpoint-visits"))
        .trigger(availableNow=True)
        .start()
    )
    to_end(query)
    found = rows_of(spark, bootstrap, "visits")
    bought = sum(row["bought"] for row in found)
    longest = sorted(found, key=lambda row: (-row["clicks"], row["customer"]))[:SHOWN]
    return Result(
        f"{count:,} clicks were {len(found):,} visits, {bought:,} of which saw the checkout; the longest are above",
        ("CUSTOMER", "CLICKS", "SECONDS", "CHECKOUT"),
        [
            (row["customer"], row["clicks"], (row["last_ms"] - row["start_ms"]) // 1000, "yes" if row["bought"] else "")
            for row in longest
        ],
        numbers=("CLICKS", "SECONDS"),
    )


if __name__ == "__main__":
    example(run)
