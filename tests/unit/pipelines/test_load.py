"""Good specs become pipelines; bad ones are refused with file, line, key and fix, all at once."""

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.pipelines.spec.load import find_spec, load_pipeline
from headrace.spark.pipelines.spec.problems import SpecInvalid

GOOD = """\
name: orders
bootstrap: ${BROKERS:-localhost:9092}
trigger: 2 seconds
spark:
  master: local[2]
  conf: {spark.sql.shuffle.partitions: 2, spark.some.flag: true}
retries: {attempts: 3, backoff: 500 ms}
sources:
  orders:
    topic: orders
    value: {format: json, schema: "id BIGINT, amount DOUBLE, at TIMESTAMP", dead_letters: orders-bad}
    watermark: {column: at, delay: 10 minutes}
  customers:
    files: data
    format: json
    schema: id BIGINT, country STRING
    static: true
transforms:
  clean:
    sql: |
      SELECT o.*, c.country
      FROM orders o
      JOIN customers c ON o.id = c.id
    expect:
      - {name: positive, check: amount > 0, action: drop}
      - {name: known, check: country IS NOT NULL}
  per_minute:
    sql_file: per_minute.sql
  scored:
    python: score.py:score
sinks:
  archive: {from: clean, files: out/clean, partition_by: country}
  totals: {from: per_minute, topic: totals, key: country, create_partitions: 2}
  bad: {from: clean.rejected, files: out/bad, format: json}
  screen: {from: scored, console: 5, trigger: 1 min}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "per_minute.sql").write_text(
        "SELECT window(at, '1 minute') w, country, sum(amount) s\nFROM clean\nGROUP BY 1, 2;\n"
    )
    (tmp_path / "score.py").write_text("def score(clean, spark, customers):\n    return clean\n")
    return tmp_path


def load(project: Path, text: str, **environment: str) -> Any:
    spec = project / "pipeline.yaml"
    spec.write_text(text)
    return load_pipeline(spec, environment)


def problems(project: Path, text: str, **environment: str) -> list[str]:
    with pytest.raises(SpecInvalid) as raised:
        load(project, text, **environment)
    return [f"{p.where.line} {p.where.key}: {p.message} | {p.fix}" for p in raised.value.problems]


def test_a_good_spec_in_full(project: Path) -> None:
    pipeline = load(project, GOOD)
    assert pipeline.bootstrap == "localhost:9092"
    assert pipeline.trigger_ms == 2000
    assert pipeline.storage == str(project / ".headrace/orders")
    assert pipeline.spark.conf == {"spark.sql.shuffle.partitions": "2", "spark.some.flag": "true"}
    assert (pipeline.retries.attempts, pipeline.retries.backoff_ms, pipeline.retries.backoff_max_ms) == (3, 500, 60_000)
    orders = pipeline.sources["orders"]
    assert orders.topic == ("orders",)
    assert orders.watermark is not None and orders.watermark.delay_ms == 600_000
    assert orders.value is not None and (orders.value.on_error, orders.value.dead_letters) == (
        "dead-letter",
        "orders-bad",
    )
    assert pipeline.transforms["clean"].inputs == ("orders", "customers")
    assert pipeline.transforms["clean"].sql_line == 21
    assert pipeline.transforms["per_minute"].inputs == ("clean",)
    assert not pipeline.transforms["per_minute"].sql.endswith(";")
    assert pipeline.transforms["scored"].inputs == ("clean", "customers")
    assert pipeline.transforms["scored"].wants_spark
    assert [one.action for one in pipeline.transforms["clean"].expect] == ["drop", "warn"]
    assert pipeline.sinks["archive"].files == str(project / "out/clean")
    assert pipeline.sinks["archive"].format == "parquet"
    assert pipeline.sinks["bad"].takes_rejected
    assert pipeline.sinks["screen"].trigger_ms == 60_000


def test_variables_come_from_the_environment(project: Path) -> None:
    text = GOOD.replace("2 seconds", "${EVERY} seconds").replace("attempts: 3", "attempts: '${TRIES}'")
    pipeline = load(project, text, EVERY="7", TRIES="9", BROKERS="b:1")
    assert (pipeline.trigger_ms, pipeline.retries.attempts, pipeline.bootstrap) == (7000, 9, "b:1")
    assert problems(project, text, EVERY="7") == [
        "7 retries.attempts: the variable TRIES is not set | export TRIES=..., or write ${TRIES:-default}"
    ]


REPLACED = [
    ("    topic: orders\n", "    topik: orders\n",
     ["10 sources.orders.topik: a source has no such key | did you mean 'topic'?"]),
    ("name: orders\n", "",
     ["1 : name is missing | add `name:`. What the pipeline is called; begins its runs' and checkpoints' names."]),
    ("name: orders\n", "name: my orders\n",
     ["1 name: 'my orders' is no name | use letters, digits and _, beginning with a letter"]),
    ("trigger: 2 seconds", "trigger: 2",
     ["3 trigger: this must be a time with its unit | write it as 500 ms, 10 seconds, 5 minutes, 1 hour or 2 days"]),
    ("attempts: 3", "attempts: many",
     ["7 retries.attempts: this must be a whole number, 0 or more | write a number such as 5"]),
    ("format: json, schema:", "format: jsn, schema:",
     ["11 sources.orders.value.format: 'jsn' is not one of json, avro, protobuf, text, bytes | did you mean 'json'?"]),
    ("FROM orders o", "FROM ordrs o",
     ["22 transforms.clean: 'ordrs' is no source or transform | did you mean 'orders'?"
      " (write tables of Spark's catalog as database.table)"]),
    ("from: clean,", "from: claen,",
     ["32 sinks.archive.from: 'claen' is no source or transform | did you mean 'clean'?"]),
    ("from: clean.rejected", "from: scored.rejected",
     ["34 sinks.bad.from: scored drops no rows, so there is no scored.rejected"
      " | give scored an expectation with action: drop"]),
    ("    static: true", "    static: maybe",
     ["17 sources.customers.static: this must be true or false | write true or false"]),
    ("    files: data", "    files: nowhere/*.json", ["there is no folder {project}/nowhere | create it"]),
    ("score.py:score", "score.py:scor",
     ["30 transforms.scored.python: score.py has no function scor | did you mean 'score'?"]),
    ("sql_file: per_minute.sql", "sql_file: no.sql",
     ["28 transforms.per_minute.sql_file: there is no file no.sql | correct the path"]),
    ("console: 5,", "console: 5, topic: x,", ["35 sinks.screen.console: a sink has both topic and console"]),
    ("    topic: orders\n", "    topic: orders\n    topic: more\n",
     ["11 sources.orders.topic: given twice | keep one; the other is on line 10"]),
    ("action: drop", "action: dorp",
     ["25 transforms.clean.expect[0].action: 'dorp' is not one of warn, drop, fail | did you mean 'drop'?"]),
    ("delay: 10 minutes", "delay: late", ["12 sources.orders.watermark.delay"]),
    ("  archive: {from", "  my-archive: {from", ["32 sinks.my-archive: 'my-archive' is no name"]),
    ("  customers:\n", "  ORDERS:\n", ["13 sources.ORDERS: there is another ORDERS on line 9"]),
    ("files: out/bad, format: json", "files: out/bad, format: iceberg", ["Iceberg knows tables, not folders"]),
    ("files: out/bad, format: json", "files: out/bad, mode: complete", ["files can only be appended to"]),
    ("files: out/bad, format: json", "jdbc: jdbc:x", ["34 sinks.bad: the database's table is missing"]),
    ("key: country", "driver: x", ["33 sinks.totals.driver: this is only for jdbc | remove it"]),
    ("    schema: id BIGINT, country STRING\n", "", ["14 sources.customers.files: the files' schema is missing"]),
    (', schema: "id BIGINT, amount DOUBLE, at TIMESTAMP"', "", ["11 sources.orders.value: json values need a schema"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"), REPLACED, ids=[new.strip() or f"no {old.strip()}" for old, new, _ in REPLACED]
)
def test_bad_specs_name_place_and_fix(project: Path, old: str, new: str, expected: list[str]) -> None:
    assert old in GOOD
    found = problems(project, GOOD.replace(old, new, 1))
    for line in expected:
        assert any(line.format(project=project) in one for one in found), found


def test_all_problems_are_said_at_once_in_the_order_of_the_file(project: Path) -> None:
    text = (
        GOOD.replace("topic: orders\n", "topik: orders\n", 1)
        .replace("action: drop", "action: dorp")
        .replace("console: 5", "console: no")
    )
    lines = [int(one.split()[0]) for one in problems(project, text)]
    assert lines == sorted(lines) and len(lines) >= 3


def test_circles_are_shown(project: Path) -> None:
    (project / "per_minute.sql").write_text("SELECT * FROM scored")
    (project / "score.py").write_text("def score(per_minute):\n    return per_minute\n")
    assert any("this reads itself: per_minute -> scored -> per_minute" in one for one in problems(project, GOOD))


def test_errors_in_sql_files_point_into_them(project: Path) -> None:
    (project / "per_minute.sql").write_text("SELECT *\nFROM cleen\n")
    with pytest.raises(SpecInvalid) as raised:
        load(project, GOOD)
    problem = raised.value.problems[0]
    assert (problem.where.file.name, problem.where.line) == ("per_minute.sql", 2)
    assert "did you mean 'clean'" in str(problem)


def test_broken_python_points_into_the_file(project: Path) -> None:
    (project / "score.py").write_text("def score(clean):\n    return (\n")
    with pytest.raises(SpecInvalid, match=r"score.py:2.*no Python"):
        load(project, GOOD)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1 : the file is empty"),
        ("- a\n- b\n", "1 : a spec is a map"),
        ("name: [x\n", "this is no YAML"),
        ("name: x\n\tsources: 1\n", "this is no YAML"),
    ],
)
def test_files_that_are_no_spec(project: Path, text: str, expected: str) -> None:
    assert expected in problems(project, text)[0]


def test_inputs_must_match_the_function(project: Path) -> None:
    text = GOOD.replace("python: score.py:score", "python: score.py:score\n    inputs: [orders]")
    assert any("score takes 2 inputs, 1 are given" in one for one in problems(project, text))
    good = load(
        project, GOOD.replace("python: score.py:score", "python: score.py:score\n    inputs: [orders, customers]")
    )
    assert good.transforms["scored"].inputs == ("orders", "customers")


def test_spec_is_found_by_folder_and_missing_ones_say_what_to_do(project: Path) -> None:
    with pytest.raises(SpecInvalid, match="headrace pipeline init"):
        find_spec(project)
    (project / "pipeline.yml").write_text("x")
    assert find_spec(project) == project / "pipeline.yml"
    with pytest.raises(SpecInvalid, match="no such file"):
        find_spec(project / "other.yaml")


def test_functions_under_the_decorators_of_pyspark_pipelines_read_by_name(project: Path) -> None:
    (project / "score.py").write_text(
        "from pyspark import pipelines as dp\n"
        "@dp.temporary_view(name='scores')\n"
        "def score():\n"
        "    other = spark.sql('SELECT * FROM orders')\n"
        "    return spark.readStream.table('clean').join(spark.read.table('db.t'))\n"
    )
    scored = load(project, GOOD).transforms["scored"]
    assert scored.decorated and scored.function == "scores"
    assert set(scored.inputs) == {"clean", "orders"}
