"""The guide "The architecture, shown" names tests that are there, and all of these, for every sentence of the texts."""

import re
from pathlib import Path

from tests.documents import ROOT, anchors, words_in_code

PAGE = ROOT / "docs/guide/architecture-shown.md"


def named_in(folder: Path) -> set[str]:
    return {name for path in folder.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_every_test_that_the_page_names_is_there() -> None:
    named = {word for word in words_in_code(PAGE) if word.startswith("test_")}
    assert len(named) > 20 and named - named_in(ROOT / "tests") == set()


def test_the_page_names_every_test_of_the_documents() -> None:
    own = set(re.findall(r"def (test_\w+)", Path(__file__).read_text()))
    bad_input = {
        "test_an_assignment_that_cannot_be_says_what_to_do",
        "test_a_broker_that_is_not_there_gets_no_replica",
        "test_a_page_that_is_not_there_is_refused_before_anything_starts",
        "test_a_proof_of_what_is_not_there_is_refused_before_anything_starts",
    }
    assert named_in(Path(__file__).parent) - own - bad_input <= set(words_in_code(PAGE))


SENTENCES = 29


def test_every_sentence_has_a_heading_and_a_test_that_is_there() -> None:
    table = PAGE.read_text().partition("## What the texts say\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len({said for said, *_ in rows}) == SENTENCES
    there = named_in(ROOT / "tests")
    for said, shown, tests in rows:
        place, _, anchor = re.findall(r"\]\(([^)]+)\)", shown)[0].partition("#")
        assert anchor in anchors(PAGE.parent / place if place else PAGE), f"{said}: no heading {shown}"
        named = re.findall(r"`(test_\w+)`", tests)
        assert named and set(named) <= there, f"{said}: {tests}"
