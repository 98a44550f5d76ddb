"""What the guides on Spark and pipelines show works: their Python, YAML and SQL run from their text, on one driver.

Blocks of Spark's guide run one after the other, as a reader would try them; those of pipelines are one project's files.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.spark.pipelines.checks.preflight import check_before_start
from headrace.spark.pipelines.dataframes.build import build
from headrace.spark.pipelines.run.pipeline_run import PipelineRun
from headrace.spark.pipelines.spec.load import load_pipeline
from headrace.testing.broker import TestBroker
from tests.documents import ROOT, Block, blocks
from tests.spark.pipeline_data import create, orders, read_all, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK, PIPELINES = ROOT / "docs/guide/spark.md", ROOT / "docs/guide/pipelines.md"
ADDRESS = "127.0.0.1:9092"
"""The broker of the guides."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TestBroker]:
    with TestBroker(tmp_path / "broker") as running:
        yield running


def to_run(guide: Path, kind: str) -> list[Block]:
    return [block for block in blocks(guide) if block.kind == kind and not block.not_run]


def test_the_spark_guide_runs_from_its_text(spark: "SparkSession", broker: TestBroker, tmp_path: Path) -> None:
    create(broker, "orders", "orders-copy", "orders-unreadable")
    places = {
        ADDRESS: broker.bootstrap,
        '"checkpoints/': f'"{tmp_path}/checkpoints/',
        '"headrace-data"': f'"{broker.data}"',
    }
    names: dict[str, Any] = {}
    for number, block in enumerate(to_run(SPARK, "python")):
        text = f"{block.run_after}\n{block.text}"
        for shown, real in places.items():
            text = text.replace(shown, real)
        exec(compile(text, f"{SPARK.name}, the block at line {block.line}", "exec"), names)
        if number == 0:
            assert names["spark"] is spark
            # Listeners belong to a session, and those of the shared one stay as they are.
            names["spark"] = spark.newSession()
        if (query := names.pop("query", None)) is not None:
            query.processAllAvailable()
            query.stop()
    copied = sorted(message.value() for message in read_all(broker, "orders-copy"))
    assert [json.loads(value)["ID"] for value in copied] == [1, 2]
    assert names["orders"].columns == ["id", "country", "cents"]
    assert "value" in names["old"].columns


def test_the_pipelines_guide_runs_from_its_text(spark: "SparkSession", broker: TestBroker, tmp_path: Path) -> None:
    whole, python = to_run(PIPELINES, "yaml")
    plain, decorated = to_run(PIPELINES, "python")
    create(broker, "orders", "orders-unreadable")
    send(broker, "orders", [*orders(0, 20, 0), b"not json", *orders(20, 5, 9)])
    (tmp_path / "data/customers").mkdir(parents=True)
    (tmp_path / "data/customers/1.csv").write_text("id,name,country\n1,Ann,CH\n")
    (tmp_path / "pipeline.yaml").write_text(whole.text)
    pipeline = load_pipeline(tmp_path / "pipeline.yaml", {"HEADRACE_BOOTSTRAP": broker.bootstrap})
    check_before_start(pipeline, create_topics=True)
    outcome = PipelineRun(pipeline, spark, bounded=True).go()
    assert (outcome.state, outcome.error) == ("done", "")
    assert {sum(query["dead_letters"].values()) for query in outcome.snapshot["queries"]} == {1}

    for functions in (plain, decorated):
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        (tmp_path / "steps.py").write_text(f"{functions.run_after}\n{functions.text}")
        (tmp_path / "pipeline.yaml").write_text(whole.text.replace("transforms:\n", python.text, 1))
        pipeline = load_pipeline(tmp_path / "pipeline.yaml", {"HEADRACE_BOOTSTRAP": broker.bootstrap})
        frames = build(spark.newSession(), pipeline).frames
        assert "score" in frames["scored"].columns
