"""The chart of the README: eight questions, each in one direction, from the figures of the last bench."""

from pathlib import Path

import pytest
from bench import report

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parts() -> list[report.Part]:
    return report.read(ROOT / "docs" / "bench")


def test_every_one_of_the_eight_has_been_measured(parts: list[report.Part]) -> None:
    assert len(report.ASKED_FIRST) == 8
    for question, ways in report.ASKED_FIRST.items():
        for way in ways:
            assert way.times_better(parts) is not None, (question, way)


def test_more_is_better_whatever_was_measured() -> None:
    parts = [report.Part("a", "", {"headrace": {"MB/s": 30, "s": 2}, "apache": {"MB/s": 10, "s": 8}})]
    assert report.Way("", "a", "MB/s").times_better(parts) == 3
    assert report.Way("", "a", "s", more_is_better=False).times_better(parts) == 4
    assert report.Way("", "a", "unknown").times_better(parts) is None
    assert report.Way("", "b", "s").times_better(parts) is None


def test_what_is_worse_like_for_like_is_shown_too(parts: list[report.Part]) -> None:
    found = {way.told: way.times_better(parts) or 0.0 for ways in report.ASKED_FIRST.values() for way in ways}
    assert (
        found["looks into every record, as Kafka does"]
        < 1
        < found["checks each batch's header and checksum, the default"]
    )
    assert found["without its pauses"] < found["its defaults, with which it pauses"]


def test_the_chart_is_drawn_and_in_the_readme(parts: list[report.Part], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.headline_chart(parts, tmp_path / "compared.png")
    assert (tmp_path / "compared.png").read_bytes().startswith(b"\x89PNG")
    readme = (ROOT / "README.md").read_text()
    assert "docs/bench/compared.png" in readme and "ratios.png" not in readme
    assert "ratios.png" in (ROOT / "docs" / "bench" / "results.md").read_text()
