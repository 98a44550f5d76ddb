"""The shape of the tree: few and small import cycles, short files, few files at the top of the broker, and tests that
do not lean on one another.

Which room may import which is held by the contracts in pyproject.toml.
"""

import re
from pathlib import Path

import grimp
import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
ROOT = Path(__file__).parents[2]
CYCLE_MAX = 6
LINES_MAX = 600
BROKER_FILES_MAX = 12


def imports() -> dict[str, set[str]]:
    """Module -> what it imports, also where that is for type checking only."""
    graph = grimp.build_graph("headrace", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that all import one another, directly or not: Tarjan's strongly connected components."""
    found: list[list[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module] & graph.keys()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = stack.index(module)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1:
                found.append(sorted(members))

    for module in graph:
        if module not in number:
            visit(module)
    return found


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"elsewhere"}}
    assert cycles(graph) == [["a", "b", "c"]]


def test_no_import_cycle_has_more_than_a_few_modules() -> None:
    large = [members for members in cycles(imports()) if len(members) > CYCLE_MAX]
    assert large == [], "give the lower one what it needs in its constructor, as a part or a Protocol"


def test_only_those_who_run_a_broker_import_it() -> None:
    who = {module for module, others in imports().items() if "headrace.broker.server" in others}
    rooms = {module.split(".")[1] for module in who}
    assert rooms <= {"cli", "local_cluster", "testing"}, sorted(who)


@pytest.mark.parametrize("room", ["src", "tests", "bench", "examples"])
def test_no_file_is_too_long_to_read_at_once(room: str) -> None:
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / room).rglob("*.py")}
    assert [f"{path.relative_to(ROOT)}: {count}" for path, count in lines.items() if count > LINES_MAX] == []


def test_the_broker_has_few_files_outside_of_its_rooms() -> None:
    assert len(list((SOURCE / "broker").glob("*.py"))) <= BROKER_FILES_MAX


def test_no_test_takes_a_helper_from_another() -> None:
    taken = re.compile(r"^\s*from tests\.(?:\w+\.)*test_\w+ import", re.M)
    assert [str(path) for path in (ROOT / "tests").rglob("*.py") if taken.search(path.read_text())] == []
