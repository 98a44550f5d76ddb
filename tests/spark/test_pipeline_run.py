"""Pipelines over files in the shared driver: what comes out, what is counted, what fails, what is tried again."""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.spark.pipelines.run.pipeline_run import Outcome, PipelineRun
from headrace.spark.pipelines.spec.model import Pipeline
from headrace.spark.pipelines.spec.problems import SpecInvalid
from tests.spark.pipeline_project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """\
name: shop
sources:
  orders:
    files: in
    format: json
    schema: id BIGINT, customer BIGINT, amount DOUBLE, at TIMESTAMP
    options: {maxFilesPerTrigger: 1}
    watermark: {column: at, delay: 10 seconds}
  customers:
    files: customers
    format: json
    schema: id BIGINT, country STRING
    static: true
transforms:
  clean:
    sql: |
      SELECT o.id, o.amount, o.at, c.country
      FROM orders o
      LEFT JOIN customers c ON o.customer = c.id
    expect:
      - {name: positive, check: amount > 0, action: drop}
      - {name: known, check: country IS NOT NULL, action: warn}
  per_minute:
    sql: |
      SELECT window.start AS minute, country, count(*) AS orders, sum(amount) AS revenue
      FROM clean
      GROUP BY window(at, '1 minute'), country
  doubled:
    python: steps.py:doubled
sinks:
  archive: {from: clean, files: out/clean}
  minutes: {from: per_minute, files: out/minutes}
  bad: {from: clean.rejected, files: out/bad, format: json}
  twice: {from: doubled, files: out/twice, format: parquet, partition_by: country}
"""
STEPS = """\
from helper import FACTOR
from pyspark.sql.functions import udf

def doubled(clean):
    times = udf(lambda amount: amount * FACTOR, "double")
    return clean.withColumn("amount", times("amount")).dropna()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "shop")
    made.write("steps.py", STEPS)
    made.write("helper.py", "FACTOR = 2.0\n")
    made.feed([{"id": 1, "country": "CH"}, {"id": 2, "country": "DE"}], "customers")
    return made


def orders(first: int, count: int, minute: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": n, "customer": 1 + n % 3, "amount": float(n % 5 - 0), "at": f"2024-01-01T00:{minute:02}:{n % 60:02}Z"}
        for n in range(first, first + count)
    ]


def run(pipeline: Pipeline, spark: "SparkSession", **more: Any) -> Outcome:
    return PipelineRun(pipeline, spark, bounded=True, **more).go()


def test_bounded_run_cleans_joins_windows_and_counts(spark: "SparkSession", project: Project) -> None:
    project.feed(orders(0, 30, 0))
    project.feed(orders(30, 30, 0))
    project.feed(orders(60, 30, 5))
    pipeline = project.spec(SPEC)
    snapshots: list[dict[str, Any]] = []
    outcome = run(pipeline, spark, on_update=snapshots.append)
    assert (outcome.state, outcome.error) == ("done", "")

    expected = [n for n in range(90) if n % 5 > 0]
    assert [row[0] for row in project.rows(spark, "out/clean", "id")] == expected
    bad = spark.read.json(str(project.folder / "out/bad")).orderBy("id").collect()
    assert [row["id"] for row in bad] == [n for n in range(90) if n % 5 == 0]
    assert bad[0]["_rejected_by"] == ["positive"]
    minutes = project.rows(spark, "out/minutes", "orders")
    # The watermark has passed minute 0 only: minute 5 is still open.
    assert sum(row[2] for row in minutes) == len([n for n in range(60) if n % 5 > 0])
    assert {str(row[0]) for row in minutes} == {"2024-01-01 00:00:00"}
    twice = spark.read.parquet(str(project.folder / "out/twice"))
    assert twice.where("country = 'CH'").count() == len([n for n in expected if n % 3 == 0])
    assert twice.selectExpr("max(amount)").first()[0] == 8.0

    archive = next(query for query in outcome.snapshot["queries"] if query["sink"] == "archive")
    assert (archive["rows_in"], archive["batches"], archive["state"], archive["fraction"]) == (90, 3, "done", 1.0)
    written = {query["sink"]: query["rows_out"] for query in outcome.snapshot["queries"]}
    assert written == {"archive": 72, "minutes": len(minutes), "bad": 18, "twice": twice.count()}
    assert archive["expectations"] == {
        "clean.positive": {"rows": 90, "failed": 18},
        "clean.known": {"rows": 90, "failed": 30},
    }
    assert outcome.snapshot["fraction"] == 1.0
    fractions = [one["fraction"] for one in snapshots if one["fraction"] is not None]
    assert fractions == sorted(fractions)


def test_second_run_goes_on_where_the_first_ended(spark: "SparkSession", project: Project) -> None:
    pipeline = project.spec(SPEC)
    project.feed(orders(0, 20))
    assert run(pipeline, spark).state == "done"
    project.feed(orders(20, 20))
    outcome = run(pipeline, spark)
    assert outcome.state == "done"
    assert {query["rows_in"] for query in outcome.snapshot["queries"]} == {20}
    assert [row[0] for row in project.rows(spark, "out/clean", "id")] == [n for n in range(40) if n % 5 > 0]


ONE_SINK = """\
name: small
trigger: 100 ms
retries: {{attempts: 3, backoff: 50 ms}}
sources:
  orders: {{files: in, format: json, schema: "id BIGINT, amount DOUBLE", options: {{maxFilesPerTrigger: 1}}}}
transforms:
  clean:
    {transform}
    {expect}
sinks:
  {sink}
"""


def small(
    project: Project,
    *,
    transform: str = "sql: SELECT * FROM orders",
    expect: str = "",
    sink: str = "out: {from: clean, files: out}",
) -> Pipeline:
    return project.spec(ONE_SINK.format(transform=transform, expect=expect, sink=sink))


def test_expectation_that_must_hold_stops_the_run_without_writing_or_retrying(
    spark: "SparkSession", project: Project
) -> None:
    pipeline = small(project, expect="expect: [{name: sane, check: amount < 100, action: fail}]")
    project.feed([{"id": 1, "amount": 5}])
    project.feed([{"id": 2, "amount": 500}])
    outcome = run(pipeline, spark)
    assert outcome.state == "failed"
    assert "expectation sane of clean failed on the row" in outcome.error and '"amount":500' in outcome.error
    assert outcome.snapshot["queries"][0]["attempts"] == 0
    assert [row[0] for row in project.rows(spark, "out", "id")] == [1]


def test_failed_query_starts_again_and_goes_on(spark: "SparkSession", project: Project) -> None:
    project.write(
        "flaky.py",
        "import os\n"
        "from pyspark.sql.functions import udf\n"
        f"MARK = {str(project.folder / 'failed-once')!r}\n"
        "def flaky(orders):\n"
        "    def once(x):\n"
        "        if x == 2 and not os.path.exists(MARK):\n"
        "            open(MARK, 'w').close()\n"
        "            raise OSError('the network went away')\n"
        "        return x\n"
        "    return orders.withColumn('id', udf(once, 'long')('id'))\n",
    )
    pipeline = small(project, transform="python: flaky.py:flaky")
    for n in range(4):
        project.feed([{"id": n, "amount": 1}])
    snapshots: list[dict[str, Any]] = []
    outcome = run(pipeline, spark, on_update=snapshots.append)
    assert outcome.state == "done"
    assert [row[0] for row in project.rows(spark, "out", "id")] == [0, 1, 2, 3]
    assert outcome.snapshot["queries"][0]["attempts"] == 1
    errors = {query["error"] for one in snapshots for query in one["queries"]}
    assert "OSError: the network went away" in errors


def test_query_that_keeps_failing_ends_the_run(spark: "SparkSession", project: Project) -> None:
    project.write(
        "broken.py",
        "from pyspark.sql.functions import udf\ndef broken(orders):\n    return orders.withColumn('id', udf(lambda x: 1"
        " // 0, 'long')('id'))\n",
    )
    pipeline = small(project, transform="python: broken.py:broken")
    project.feed([{"id": 1, "amount": 1}])
    outcome = run(pipeline, spark)
    assert outcome.state == "failed"
    assert outcome.error == "sink out: ZeroDivisionError: integer division or modulo by zero (tried 4 times)"


def test_continuous_run_takes_new_files_until_it_is_told_to_stop(spark: "SparkSession", project: Project) -> None:
    shown: list[str] = []
    pipeline = small(project, sink="screen: {from: clean, console: 2}\n  out: {from: clean, files: out}")
    going = PipelineRun(pipeline, spark, bounded=False, show=shown.append)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(going.go()))
    project.feed([{"id": 0, "amount": 1}])
    thread.start()
    deadline = time.monotonic() + 60
    while not any("id=0" in text for text in shown) and time.monotonic() < deadline:
        time.sleep(0.05)
    project.feed([{"id": n, "amount": 1} for n in (1, 2, 3)])
    while len(shown) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    going.stop()
    thread.join(60)
    assert outcomes and outcomes[0].state == "stopped"
    assert shown[1].splitlines()[-1] == "  ..."
    assert run(pipeline, spark).state == "done"
    assert [row[0] for row in project.rows(spark, "out", "id")] == [0, 1, 2, 3]


def refused(spark: "SparkSession", pipeline: Pipeline) -> str:
    with pytest.raises(SpecInvalid) as raised:
        PipelineRun(pipeline, spark, bounded=True).go()
    return str(raised.value)


def test_what_spark_finds_wrong_is_said_at_its_line(
    spark: "SparkSession", project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    sql = "sql: |\n      SELECT id,\n        amont\n      FROM orders"
    text = refused(spark, small(project, transform=sql))
    assert text.endswith("pipeline.yaml:10: transforms.clean: there is no column amont; did you mean 'amount'?")
    text = refused(spark, small(project, transform="sql: |\n      SELECT id,\n      FROM orders WHERE\n      GROUP id"))
    assert "pipeline.yaml:1" in text and "transforms.clean: Syntax error" in text and "correct the SQL" in text
    text = refused(spark, small(project, transform="sql: SELECT count(*) c FROM orders"))
    assert "sinks.out.from: Invalid streaming output mode: append" in text and "watermark" in text
    text = refused(spark, small(project, expect="expect: [{name: x, check: amout > 0}]"))
    assert text.endswith("transforms.clean.expect[0].check: there is no column amout; did you mean 'amount'?")
    text = refused(spark, small(project, expect="expect: [{name: x, check: id + 1}]"))
    assert "pipeline.yaml:9: transforms.clean.expect[0].check: the check is of type BIGINT, not BOOLEAN" in text
    text = refused(spark, small(project, sink="out: {from: clean, files: out, partition_by: day}"))
    assert "sinks.out.partition_by: there is no column day; columns: id, amount" in text
    project.write("none.py", "def none(orders):\n    return 1\n")
    assert "none returned int\n    fix: return a DataFrame" in refused(
        spark, small(project, transform="python: none.py:none")
    )
    # Spark and PySpark print none of it besides.
    assert capfd.readouterr() == ("", "")


def test_rows_reach_a_database(spark: "SparkSession", project: Project) -> None:
    url = f"jdbc:derby:;databaseName={project.folder / 'db'};create=true"
    pipeline = small(
        project, sink=f"db: {{from: clean, jdbc: '{url}', table: orders, driver: org.apache.derby.jdbc.EmbeddedDriver}}"
    )
    project.feed([{"id": 1, "amount": 2}, {"id": 2, "amount": 3}])
    project.feed([{"id": 3, "amount": 4}])
    assert run(pipeline, spark).state == "done"
    table = spark.read.jdbc(url, "orders", properties={"driver": "org.apache.derby.jdbc.EmbeddedDriver"})
    assert [row["id"] for row in table.orderBy("id").collect()] == [1, 2, 3]


def test_update_and_complete_modes_reach_the_screen(spark: "SparkSession", project: Project) -> None:
    shown: list[str] = []
    pipeline = small(
        project,
        transform="sql: SELECT count(*) AS n FROM orders",
        sink="screen: {from: clean, console: true, mode: complete}",
    )
    project.feed([{"id": 1, "amount": 2}])
    project.feed([{"id": 2, "amount": 2}])
    assert run(pipeline, spark, show=shown.append).state == "done"
    assert [text.splitlines()[1].strip() for text in shown] == ["n=1", "n=2"]


def test_function_under_a_decorator_of_pyspark_pipelines(spark: "SparkSession", project: Project) -> None:
    project.write(
        "declared.py",
        "from pyspark import pipelines as dp\n\n"
        "@dp.temporary_view\n"
        "def large():\n"
        "    return spark.readStream.table('orders').where('amount > 1')\n",
    )
    pipeline = small(project, transform="python: declared.py:large")
    project.feed([{"id": 1, "amount": 1}, {"id": 2, "amount": 5}])
    assert run(pipeline, spark).state == "done"
    assert [row[0] for row in project.rows(spark, "out", "id")] == [2]
