"""Order and pictures of a pipeline's graph."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from headrace.spark.pipelines.spec.graph import build_order, cycle_in, mermaid, needed_for, svg, tree
from headrace.spark.pipelines.spec.load import load_pipeline
from headrace.spark.pipelines.spec.model import Pipeline

SPEC = """\
name: p
sources:
  a: {topic: a}
  b: {files: ., format: text, static: true}
transforms:
  last: {sql: SELECT * FROM middle JOIN b}
  middle: {sql: SELECT * FROM a, expect: [{name: x, check: "value <> '<>'", action: drop}]}
sinks:
  out: {from: last, topic: out}
  bad: {from: middle.rejected, console: true}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "pipeline.yaml").write_text(SPEC)
    return load_pipeline(tmp_path / "pipeline.yaml", {})


def test_order_and_needs(pipeline: Pipeline) -> None:
    assert build_order(pipeline) == ["a", "b", "middle", "last"]
    assert needed_for(pipeline, "middle") == {"middle", "a"}


@pytest.mark.parametrize(
    ("inputs", "cycle"),
    [({"a": ["b"], "b": []}, []), ({"a": ["a"]}, ["a"]), ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b",
     "c"]), ({"a": ["b", "c"], "b": ["c"], "c": []}, [])],
)  # fmt: skip
def test_circles(inputs: dict[str, list[str]], cycle: list[str]) -> None:
    assert cycle_in(inputs) == cycle


def test_tree(pipeline: Pipeline) -> None:
    assert tree(pipeline).splitlines()[:4] == [
        "out -> topic out",
        "└─ last: SQL",
        "   ├─ middle: SQL, 1 expectation",
        "   │  └─ a: topic a",
    ]
    assert "bad -> the screen (rejected rows)" in tree(pipeline)


def test_mermaid_and_svg_hold_every_part(pipeline: Pipeline) -> None:
    picture = mermaid(pipeline)
    assert picture.startswith("flowchart LR\n") and picture.count("-->") == 5
    root = ET.fromstring(svg(pipeline))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a", "b", "middle", "last", "out", "bad"} <= set(texts)
