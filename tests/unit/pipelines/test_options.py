"""Options and schemas of topics: what the connector would refuse is a problem at its line, whatever kind it is."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.spark.pipelines.checks.options import check_options
from headrace.spark.pipelines.spec.load import load_pipeline
from headrace.spark.pipelines.spec.model import Pipeline
from headrace.spark.pipelines.spec.problems import SpecInvalid
from headrace.spark.pipelines.spec.topic_options import ERROR_COLUMN, ISOLATION, sink_options, source_options

SPEC = """\
name: small
sources:
  orders:
    topic: orders
    value:
      format: json
      {value}
sinks:
  out: {{from: orders, files: out}}
"""


def load(folder: Path, value: str) -> Pipeline:
    (folder / "pipeline.yaml").write_text(SPEC.format(value=value))
    return load_pipeline(folder / "pipeline.yaml", {})


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        ("schema: id BIGINTT", "sources.orders.value.schema", "is not a schema"),
        ("registry: http://127.0.0.1:1", "sources.orders.value.registry", "Connection refused"),
        ("registry: nowhere", "sources.orders.value.registry", "is not a registry's URL"),
    ],
)
def test_a_schema_that_cannot_be_had_is_a_problem_at_its_line(
    tmp_path: Path, value: str, key: str, message: str
) -> None:
    (problem,) = check_options(load(tmp_path, value))
    assert (problem.where.line, problem.where.key) == (7, key) and message in str(problem)


def test_values_that_may_be_dead_letters_are_counted(tmp_path: Path) -> None:
    for value in (
        "schema: id BIGINT\n      dead_letters: bad",
        "schema: id BIGINT\n    options: {badRows: deadLetter, deadLetterTopic: bad}",
    ):
        pipeline = load(tmp_path, value)
        assert source_options(pipeline, pipeline.sources["orders"])["errorColumn"] == ERROR_COLUMN
    pipeline = load(tmp_path, "schema: id BIGINT")
    assert "errorColumn" not in source_options(pipeline, pipeline.sources["orders"])


TOPICS = """\
name: small
sources:
  orders: {{topic: orders{reading}}}
sinks:
  out: {{from: orders, topic: copies, delivery: exactly-once, mode: {mode}}}
  plain: {{from: orders, topic: others}}
"""


@pytest.mark.parametrize(
    ("mode", "reading", "isolation"),
    [
        ("append", "", "read_committed"),
        ("update", "", "read_committed"),
        ("append", ", options: {kafka.isolation.level: read_uncommitted}", "read_uncommitted"),
    ],
)
def test_one_word_writes_exactly_once_what_was_committed(
    tmp_path: Path, mode: str, reading: str, isolation: str
) -> None:
    (tmp_path / "pipeline.yaml").write_text(TOPICS.format(mode=mode, reading=reading))
    pipeline = load_pipeline(tmp_path / "pipeline.yaml", {})
    assert check_options(pipeline) == []
    out, plain = pipeline.sinks["out"], pipeline.sinks["plain"]
    assert source_options(pipeline, pipeline.sources["orders"], out)[ISOLATION] == isolation
    written = sink_options(pipeline, out)
    assert written["delivery"] == "exactly-once" and written.get("writeId") == ("out" if mode == "update" else None)
    assert "delivery" not in sink_options(pipeline, plain)
    if not reading:
        assert ISOLATION not in source_options(pipeline, pipeline.sources["orders"], plain)


def test_delivery_is_for_topics(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(
        "name: small\nsources:\n  orders: {topic: orders}\nsinks:\n"
        "  out: {from: orders, files: out, delivery: exactly-once}\n"
    )
    with pytest.raises(SpecInvalid, match="delivery"):
        load_pipeline(tmp_path / "pipeline.yaml", {})
