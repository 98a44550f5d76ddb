"""The guide tells of every key, in the words of the table that reads them, and its example is a good spec."""

import re
from pathlib import Path

import pytest

from headrace.spark.pipelines.new_project import ProjectExists, template_names, write_project
from headrace.spark.pipelines.spec import keys
from headrace.spark.pipelines.spec.load import load_pipeline

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "pipelines.md"


@pytest.mark.parametrize(
    "table", ["PIPELINE", "SPARK", "RETRIES", "SOURCE", "VALUE", "WATERMARK", "EXPECT", "TRANSFORM", "SINK"]
)
def test_guide_has_every_key(table: str) -> None:
    text = GUIDE.read_text()
    for name, key in getattr(keys, table).items():
        assert f"| `{name}` | {key.doc}" in text


def test_example_of_the_guide_is_a_good_spec(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(name: shop.*?)```", GUIDE.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "data/customers").mkdir(parents=True)
    (tmp_path / "pipeline.yaml").write_text(example[1])
    pipeline = load_pipeline(tmp_path / "pipeline.yaml", {})
    assert pipeline.transforms["per_minute"].inputs == ("clean",)


@pytest.mark.parametrize("template", ["files", "topics"])
def test_templates_are_good_specs(tmp_path: Path, template: str) -> None:
    write_project(tmp_path, template, "made")
    assert load_pipeline(tmp_path / "pipeline.yaml", {}).name == "made"
    with pytest.raises(ProjectExists):
        write_project(tmp_path, template, "made")


def test_templates_are_all_there() -> None:
    assert template_names() == ["files", "spark-pipelines", "topics"]
