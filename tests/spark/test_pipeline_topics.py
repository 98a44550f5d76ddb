"""Pipelines from topics to topics and files: typed values, dead letters, groups that show the lag, what is refused
before Spark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.spark.pipelines.checks.preflight import check_before_start
from headrace.spark.pipelines.run.pipeline_run import PipelineRun
from headrace.spark.pipelines.spec.problems import SpecInvalid
from headrace.testing.broker import TestBroker
from tests.spark.pipeline_data import create, orders, read_all, send
from tests.spark.pipeline_project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """\
name: topical
bootstrap: ${BROKER}
sources:
  orders:
    topic: orders
    value: {format: json, schema: "id BIGINT, country STRING, amount DOUBLE, at TIMESTAMP", dead_letters: unreadable}
    watermark: {column: at, delay: 10 seconds}
    options: {maxOffsetsPerTrigger: 150}
transforms:
  clean:
    sql: SELECT id, country, amount, at, _key, _offset FROM orders
    expect: [{name: positive, check: amount > 0, action: drop}]
  per_minute:
    sql: |
      SELECT window.start AS minute, country, count(*) AS orders
      FROM clean GROUP BY window(at, '1 minute'), country
sinks:
  archive: {from: clean, files: out/clean}
  counts: {from: per_minute, topic: counts, key: country, headers: {made_by: "'headrace'"}, create_partitions: 2,
           delivery: exactly-once}
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "topical")


def committed(broker: TestBroker, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    found = consumer.committed([TopicPartition(topic, one) for one in range(3)], 30)
    consumer.close()
    return sum(one.offset for one in found if one.offset > 0)


def test_topic_to_topic_and_files(spark: "SparkSession", broker: TestBroker, project: Project) -> None:
    create(broker, "orders", "unreadable")
    send(broker, "orders", [*orders(0, 150, 0), b"not json", *orders(150, 50, 0), *orders(200, 50, 9)])
    pipeline = project.spec(SPEC, BROKER=broker.bootstrap)
    check_before_start(pipeline, create_topics=True)
    snapshots: list[dict[str, Any]] = []
    outcome = PipelineRun(pipeline, spark, bounded=True, on_update=snapshots.append).go()
    assert (outcome.state, outcome.error) == ("done", "")

    rows = project.rows(spark, "out/clean", "id")
    assert [row[0] for row in rows] == [n for n in range(250) if n % 10]
    counts = read_all(broker, "counts")
    values = [json.loads(message.value()) for message in counts]
    assert {
        (value["country"], value["orders"]) for value in values if value["minute"].startswith("2024-01-01T00:00")
    } == {
        ("CH", 100),
        ("DE", 80),
    }
    assert all(message.key().decode() == value["country"] for message, value in zip(counts, values))
    assert counts[0].headers() == [("made_by", b"headrace")]
    assert b"not json" in [message.value() for message in read_all(broker, "unreadable")]
    read_and_dead = {(query["rows_in"], sum(query["dead_letters"].values())) for query in outcome.snapshot["queries"]}
    assert read_and_dead == {(251, 1)}
    assert {query["sink"]: query["rows_out"] for query in outcome.snapshot["queries"]} == {
        "archive": len(rows),
        "counts": len(counts),
    }
    # Both queries have read everything, and any tool can see that.
    assert committed(broker, "topical-archive", "orders") == 251
    assert committed(broker, "topical-counts", "orders") == 251
    fractions = [one["fraction"] for one in snapshots if one["fraction"] is not None]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0

    send(broker, "orders", orders(250, 20, 20))
    outcome = PipelineRun(project.spec(SPEC, BROKER=broker.bootstrap), spark, bounded=True).go()
    assert outcome.state == "done"
    assert {query["rows_in"] for query in outcome.snapshot["queries"]} == {20}
    assert len(project.rows(spark, "out/clean", "id")) == 225 + 18


UPDATES = """\
name: updates
bootstrap: ${BROKER}
sources:
  clicks: {topic: clicks, value: text, options: {maxOffsetsPerTrigger: 2}}
transforms:
  totals: {sql: "SELECT value AS page, count(*) AS clicks FROM clicks GROUP BY value"}
sinks:
  totals: {from: totals, topic: totals, key: page, value: CAST(clicks AS STRING), mode: update, create_partitions: 1}
"""


def test_changed_rows_reach_a_topic(spark: "SparkSession", broker: TestBroker, project: Project) -> None:
    create(broker, "clicks")
    send(broker, "clicks", [b"a", b"b", b"a", b"a"])
    pipeline = project.spec(UPDATES, BROKER=broker.bootstrap)
    check_before_start(pipeline, create_topics=True)
    outcome = PipelineRun(pipeline, spark, bounded=True).go()
    assert (outcome.state, outcome.error) == ("done", "")
    last = {message.key(): message.value() for message in read_all(broker, "totals")}
    assert last == {b"a": b"3", b"b": b"1"}


def problems(project: Project, text: str, **environment: str) -> str:
    with pytest.raises(SpecInvalid) as raised:
        check_before_start(project.spec(text, **environment))
    return str(raised.value)


def test_what_is_wrong_outside_is_said_before_spark_starts(broker: TestBroker, project: Project) -> None:
    create(broker, "visits")
    text = problems(project, SPEC.replace("topic: orders\n", "topic: visit\n"), BROKER=broker.bootstrap)
    assert "pipeline.yaml:5: sources.orders.topic: there is no topic visit" in text and "did you mean 'visits'?" in text
    text = problems(
        project,
        SPEC.replace(", create_partitions: 2", "").replace("topic: counts", "topic: nowhere"),
        BROKER=broker.bootstrap,
    )
    assert "sinks.counts.topic: there is no topic nowhere" in text and "create_partitions" in text
    text = problems(project, SPEC.replace("maxOffsetsPerTrigger", "maxOffsetPerTriger"), BROKER=broker.bootstrap)
    assert "sources.orders.options.maxOffsetPerTriger: " in text and "did you mean 'maxOffsetsPerTrigger'?" in text
    text = problems(
        project, SPEC.replace("topic: orders\n", "topic: orders\n    start: soon\n"), BROKER=broker.bootstrap
    )
    assert "pipeline.yaml:6: sources.orders.start: " in text and "soon" in text
    text = problems(project, SPEC.replace("amount DOUBLE, at", "amount DUBLE, at"), BROKER=broker.bootstrap)
    assert "pipeline.yaml:6: sources.orders.value.schema: " in text
    text = problems(project, SPEC, BROKER="127.0.0.1:1")
    assert "pipeline.yaml:2: bootstrap: the broker 127.0.0.1:1 cannot be asked" in text and "headrace up" in text
    text = problems(
        project, SPEC.replace("files: out/clean", "files: out/clean, format: delta"), BROKER=broker.bootstrap
    )
    assert "sinks.archive.format: Spark has no jar for delta" in text and "packages" in text
