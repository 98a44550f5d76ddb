"""The same project on a real standalone cluster, on a Connect server, and by Spark's own declarative engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.spark.pipelines.new_project import write_project
from headrace.testing.broker import TestBroker
from tests.spark.pipeline_data import create, orders, read_all, send
from tests.spark.servers import connect_server, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def run_once(project: Path, runs: Path, *words: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "pipeline", "run", str(project), "--once", "--json", *words],
        env=os.environ | {"HEADRACE_RUNS": str(runs)} | environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def check_files(spark: "SparkSession", project: Path, snapshot: dict[str, Any]) -> None:
    assert snapshot["state"] == "done"
    counts = snapshot["queries"][0]["expectations"]["clean.positive_amount"]
    assert counts == {"rows": 200, "failed": 12}
    assert spark.read.parquet(str(project / "out/orders")).count() == 188
    assert spark.read.json(str(project / "out/rejected")).count() == 12
    assert spark.read.parquet(str(project / "out/revenue")).selectExpr("sum(orders)").first()[0] > 0


def test_standalone_cluster(spark: "SparkSession", tmp_path: Path) -> None:
    """By configuration only; topics and files, executors in processes of their own."""
    project = tmp_path / "shop"
    write_project(project, "files", "shop")
    topical = tmp_path / "topical"
    write_project(topical, "topics", "topical")
    with standalone_cluster(tmp_path) as master, TestBroker() as broker:
        python = (
            "--spark",
            master,
            "--conf",
            f"spark.pyspark.python={sys.executable}",
            "--conf",
            "spark.executor.memory=512m",
        )
        check_files(spark, project, run_once(project, tmp_path / "runs", *python))
        create(broker, "orders", "orders-unreadable")
        send(broker, "orders", [*orders(0, 100, 0), *orders(100, 10, 9)])
        done = run_once(topical, tmp_path / "runs", *python, HEADRACE_BOOTSTRAP=broker.bootstrap)
        assert done["state"] == "done"
        assert spark.read.parquet(str(topical / "out/orders")).count() == 99
        revenue = [json.loads(message.value()) for message in read_all(broker, "revenue")]
        assert sum(row["orders"] for row in revenue) == 90
        assert len(list((tmp_path / "work-1").glob("app-*"))) + len(list((tmp_path / "work-2").glob("app-*"))) >= 2


def test_connect_server(spark: "SparkSession", tmp_path: Path) -> None:
    project = tmp_path / "shop"
    write_project(project, "files", "shop")
    with connect_server(tmp_path) as address:
        check_files(spark, project, run_once(project, tmp_path / "runs", "--spark", address))


def test_project_of_sparks_own_declarative_pipelines(tmp_path: Path) -> None:
    project = tmp_path / "declared"
    write_project(project, "spark-pipelines", "declared")
    for _ in range(2):
        words = [sys.executable, "-m", "headrace", "pipeline", "run", str(project), "--spark", "local[2]"]
        done = subprocess.run(
            words,
            env=os.environ | {"HEADRACE_RUNS": str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        noise = [text for text in (done.stdout + done.stderr).splitlines() if not text.startswith("20")]
        assert noise == []
    assert list((project / "spark-warehouse/positive").glob("*.parquet"))
