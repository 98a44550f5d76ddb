"""Formats that need jars: what is missing, or made for another Spark, is said before any Spark starts."""

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.pipelines.checks import jars
from headrace.spark.pipelines.run.start import driver_settings
from headrace.spark.pipelines.spec.load import load_pipeline

SPEC = """
name: p
spark: {SPARK}
sources:
  rows: {files: in, format: json, schema: id BIGINT}
sinks:
  out: {from: rows, SINK}
"""
DELTA = "files: out, format: delta"
ICEBERG = "table: lake.db.t, format: iceberg"


@pytest.fixture(autouse=True)
def spark_4_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "spark_release", lambda: "4.3.0")


def load(folder: Path, sink: str, spark: str = "{}") -> Any:
    (folder / "in").mkdir(exist_ok=True)
    path = folder / "pipeline.yaml"
    path.write_text(SPEC.replace("{SPARK}", spark).replace("SINK", sink))
    return load_pipeline(path)


def said(folder: Path, sink: str, spark: str = "{}") -> str:
    return "\n".join(str(problem) for problem in jars.check_jars(load(folder, sink, spark)))


@pytest.mark.parametrize(
    "sink, coordinates",
    [
        (DELTA, "io.delta:delta-spark_4.3_2.13:VERSION"),
        (ICEBERG, "org.apache.iceberg:iceberg-spark-runtime-4.3_2.13:VERSION"),
        ("files: out, format: avro", "org.apache.spark:spark-avro_2.13:4.3.0"),
    ],
)
def test_a_missing_jar_is_named_with_the_place_and_what_to_fetch(tmp_path: Path, sink: str, coordinates: str) -> None:
    found = said(tmp_path, sink)
    assert "pipeline.yaml:7" in found and "sinks.out.format" in found and coordinates in found
    assert said(tmp_path, sink, f"{{packages: ['{coordinates.replace('VERSION', '9.0.0')}']}}") == ""


@pytest.mark.parametrize(
    "sink, spark, version",
    [
        (DELTA, "{packages: ['io.delta:delta-spark_4.2_2.13:4.4.0']}", "4.2"),
        (DELTA, "{packages: ['io.delta:delta-spark_2.13:4.0.0']}", "4.1"),
        (DELTA, "{jars: [lib/delta-spark_4.2_2.13-4.4.0.jar]}", "4.2"),
        (DELTA, "{conf: {spark.driver.extraClassPath: '/a/x.jar:/b/delta-spark_4.2_2.13-4.4.0.jar'}}", "4.2"),
        (ICEBERG, "{packages: ['org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0']}", "4.1"),
    ],
)
def test_a_jar_for_another_spark_is_refused(tmp_path: Path, sink: str, spark: str, version: str) -> None:
    found = said(tmp_path, sink, spark)
    assert f"is made for Spark {version} and fails on Spark 4.3" in found and "_4.3_2.13" in found.replace(
        "-4.3_", "_4.3_"
    )


def test_jars_of_a_connect_server_are_its_own_business(tmp_path: Path) -> None:
    assert said(tmp_path, DELTA, "{master: 'sc://there'}") == ""


def test_a_delta_that_names_no_spark_is_taken_once_it_is_newer_than_all_that_are_known(tmp_path: Path) -> None:
    assert said(tmp_path, DELTA, "{packages: ['io.delta:delta-spark_2.13:4.5.0']}") == ""


def test_what_delta_and_iceberg_want_to_be_told(tmp_path: Path) -> None:
    given = "{packages: ['io.delta:delta-spark_4.3_2.13:9.0.0'], conf: {spark.sql.extensions: a.B}}"
    settings = driver_settings(load(tmp_path, DELTA, given))
    assert settings["spark.sql.extensions"] == "a.B,io.delta.sql.DeltaSparkSessionExtension"
    assert settings["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    settings = driver_settings(load(tmp_path, ICEBERG))
    assert settings["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert settings["spark.sql.catalog.lake.warehouse"].startswith(str(tmp_path))
