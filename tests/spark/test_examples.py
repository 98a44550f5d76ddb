"""The examples, as they are run by hand, but on the shared driver: each result against what plain Python says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.testing.broker import TestBroker

examples = pytest.importorskip("examples.support", reason="examples are part of the repository, not of the package")

from examples import archive, fraud, sessions, upserts  # noqa: E402


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


def expected_visits(rows: Any) -> Any:
    """Clicks of a customer with less than the gap between them, as sets of (customer, start, last, clicks)."""
    by_customer: dict[str, list[int]] = {}
    for customer, value in rows:
        by_customer.setdefault(customer, []).append(value["at"])
    found = set()
    for customer, times in by_customer.items():
        start = last = times[0]
        count = 0
        for at_ms in sorted(times):
            if at_ms - last >= sessions.GAP_S * 1000:
                found.add((customer, start, last, count))
                start, count = at_ms, 0
            last, count = at_ms, count + 1
        found.add((customer, start, last, count))
    return {row for row in found if row[0] != "nobody"}


def test_clicks_become_visits(
    spark: SparkSession, broker: TestBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sessions.run(spark, broker.bootstrap, tmp_path)
    found = examples.rows_of(spark, broker.bootstrap, "visits")
    visits = {(row["customer"], row["start_ms"], row["last_ms"], row["clicks"]) for row in found}
    assert visits == expected_visits(sessions.clicks()) and len(found) == len(visits)
    assert f"{len(visits)} visits" in said.summary and len(said.rows) == sessions.SHOWN
    # It says what it does while it does it, and ends with a table.
    steps = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert steps[:3] == [
        f"putting {len(list(sessions.clicks()))} records into the topic clicks",
        "making the topic visits",
        "cutting clicks into visits wherever 30 s pass without one",
    ]
    assert steps[3].startswith("  batch 0: ")
    examples.show(said)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split() == ["CUSTOMER", "CLICKS", "SECONDS", "CHECKOUT"] and shown[-1] == said.summary


def test_frauds_are_found_and_honest_payments_left_alone(
    spark: SparkSession, broker: TestBroker, tmp_path: Path
) -> None:
    said = fraud.run(spark, broker.bootstrap, tmp_path)
    found = examples.rows_of(spark, broker.bootstrap, "alerts")
    assert {row["payment"] for row in found} == fraud.FRAUDS and len(found) == 3
    assert "3 alerts" in said.summary and {row[1] for row in said.rows} == fraud.FRAUDS


def test_a_card_is_scored_by_what_it_has_done_before() -> None:
    card = fraud.Card()
    for hour in range(4):
        assert card.score(1_000, "DE", hour * 3_600_000) == (0, [])
    assert card.score(100_000, "DE", 5 * 3_600_000)[1] == ["far above the usual amount"]
    assert card.score(1_000, "US", 5 * 3_600_000 + 60_001)[1] == ["two countries within half an hour"]


def test_a_table_follows_its_changes_also_when_a_batch_comes_again(
    spark: SparkSession, broker: TestBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = upserts.run(spark, broker.bootstrap, tmp_path)
    read = re.findall(r"batch \d+: ([\d,]+) records", capsys.readouterr().out)
    assert sum(int(count.replace(",", "")) for count in read) == len(list(upserts.changes()))  # each of them once
    assert "as in the database" in said.summary and "NOT" not in said.summary
    table = upserts.ParquetTable(spark, tmp_path / "customers")
    before = sorted(map(tuple, table.read().collect()))
    late = spark.createDataFrame([("u", before[0][0], "old news", "Rome", 0)], upserts.SCHEMA)
    upserts.merge_into(table)(late, table.version)
    upserts.merge_into(table)(late, table.version + 1)
    assert sorted(map(tuple, table.read().collect())) == before


def test_a_replayed_archive_is_the_topic_again(spark: SparkSession, broker: TestBroker, tmp_path: Path) -> None:
    said = archive.run(spark, broker.bootstrap, tmp_path)
    assert "2,500 orders" in said.summary and "the same in the same order" in said.summary
    assert {row[3] for row in said.rows} == {"yes"} and sum(row[1] for row in said.rows) == 2_500
