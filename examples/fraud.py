"""Fraud scoring with a stateful operator: every payment is scored against what its card has done before.

A `StatefulProcessor` keeps a few numbers per card: usual amount, last country, recent payments. Scores above a limit
become alerts in the topic `alerts`, with the reasons. Run it: `python -m examples.fraud`
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from examples.support import Result, Row, example, fill, make_topic, rows_of, say, settings, stream, to_end

START_MS = 1_800_000_000_000
SCHEMA = "payment string, card string, cents bigint, country string, at bigint"
ALERT = "card string, payment string, score int, reasons string, at bigint"
STATE = "average double, payments bigint, country string, last_ms bigint, recent string"
ALERT_FROM = 50
BURST, BURST_MS = 5, 60_000
TRAVEL_MS = 30 * 60_000


class Card:
    """What is known of one card, and the score of its next payment. Plain Python: it can be tested without Spark."""

    def __init__(
        self,
        average: float = 0.0,
        payments: int = 0,
        country: str = "",
        last_ms: int = 0,
        recent: list[int] | None = None,
    ) -> None:
        self.average, self.payments = average, payments
        self.country, self.last_ms = country, last_ms
        self.recent = recent or []

    def score(self, cents: int, country: str, at_ms: int) -> tuple[int, list[str]]:
        """The score and its reasons; the payment becomes part of what is known."""
        reasons = {}
        if self.payments >= 3 and cents > 8 * self.average:
            reasons["far above the usual amount"] = 60
        if self.country and country != self.country and at_ms - self.last_ms < TRAVEL_MS:
            reasons["two countries within half an hour"] = 70
        self.recent = [moment for moment in self.recent if moment > at_ms - BURST_MS] + [at_ms]
        if len(self.recent) >= BURST:
            reasons["many payments within a minute"] = 50
        self.average = (self.average * self.payments + cents) / (self.payments + 1)
        self.payments += 1
        self.country, self.last_ms = country, at_ms
        return min(100, sum(reasons.values())), sorted(reasons)


class Scoring(StatefulProcessor):
    """Keeps a `Card` per key in Spark's state store."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("card", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        average, payments, country, last_ms, recent = (
            self._state.get() if self._state.exists() else (0.0, 0, "", 0, "[]")
        )
        card = Card(average, payments, country, last_ms, json.loads(recent))
        alerts = []
        # A micro-batch is in no order: payments are scored in the order in which they happened.
        for row in pd.concat(list(rows)).sort_values("at").itertuples():
            score, reasons = card.score(int(row.cents), row.country, int(row.at))
            if score >= ALERT_FROM:
                alerts.append((key[0], row.payment, score, "; ".join(reasons), int(row.at)))
        self._state.update((card.average, card.payments, card.country, card.last_ms, json.dumps(card.recent)))
        yield pd.DataFrame(alerts, columns=["card", "payment", "score", "reasons", "at"])

    def close(self) -> None:
        return None


def alerts(payments: DataFrame) -> DataFrame:
    """The pipeline: typed payments to alerts."""
    scored = (
        payments.select("value.*")
        .groupBy("card")
        .transformWithStateInPandas(Scoring(), outputStructType=ALERT, outputMode="Append", timeMode="None")
    )
    return scored.select(F.col("card").cast("binary").alias("key"), F.to_json(F.struct("*")).alias("value"))


FRAUDS = {"travel", "amount", "burst"}


def payments(cards: int = 30, each: int = 8, seed: int = 1) -> Iterator[Row]:
    """Honest payments, an hour apart, and three frauds on three cards, named after what is wrong with them."""
    dice = random.Random(seed)
    found: list[tuple[str, int, str, int, str]] = []
    for card in range(cards):
        country = dice.choice(("DE", "FR", "US"))
        usual = dice.randrange(1_000, 5_000)
        for number in range(each):
            at_ms = START_MS + number * 3_600_000 + card * 1_000
            found.append((f"card-{card}", usual + dice.randrange(-500, 500), country, at_ms, f"p-{card}-{number}"))
        end_ms = START_MS + each * 3_600_000
        if card == 3:
            found.append((f"card-{card}", usual, "XX", end_ms - 3_600_000 + 5 * 60_000, "travel"))
        elif card == 7:
            found.append((f"card-{card}", 20 * usual, country, end_ms, "amount"))
        elif card == 11:
            found += [
                (f"card-{card}", usual, country, end_ms + second * 5_000, f"b-{second}") for second in range(BURST - 1)
            ]
            found.append((f"card-{card}", usual, country, end_ms + 25_000, "burst"))
    for card_name, cents, country, at_ms, payment in sorted(found, key=lambda row: row[3]):
        yield card_name, {"payment": payment, "card": card_name, "cents": cents, "country": country, "at": at_ms}


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Result:
    """Score payments and raise alerts."""
    count = fill(bootstrap, "payments", payments())
    make_topic(bootstrap, "alerts")
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    say(f"scoring each payment by what its card did before; {ALERT_FROM} points raise an alert")
    with settings(spark, spark__sql__streaming__stateStore__providerClass=provider):
        query = (
            alerts(stream(spark, bootstrap, "payments", SCHEMA))
            .writeStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", "alerts")
            .option("checkpointLocation", str(folder / "checkpoint-alerts"))
            .trigger(availableNow=True)
            .start()
        )
        to_end(query)
    found = sorted(
        (row["card"], row["payment"], row["score"], row["reasons"]) for row in rows_of(spark, bootstrap, "alerts")
    )
    return Result(
        f"{count:,} payments, {len(found)} alerts", ("CARD", "PAYMENT", "SCORE", "REASONS"), found, numbers=("SCORE",)
    )


if __name__ == "__main__":
    example(run)
