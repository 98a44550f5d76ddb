"""The documents keep up with the tree: links lead somewhere, and files and names that they mention exist."""

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, ROOT, anchors, prose, words_in_code

ROOMS = ("src/", "tests/", "docs/", "bench/", "examples/", "deploy/")
"""A path in backticks that begins so is meant from the top of the tree."""

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"headrace(\.\w+)+")
_ATTRIBUTE = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)(?:\(\))?")


@cache
def tree() -> list[str]:
    """Every file that a document may speak of, from the top of the tree."""
    return [
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


@cache
def sources() -> dict[str, str]:
    """The text of each module, by its path from the top of the tree."""
    return {name: (ROOT / name).read_text() for name in tree() if name.startswith("src/") and name.endswith(".py")}


def missing_path(word: str) -> bool:
    """Whether `word` looks like a path of this tree and is none."""
    if word.endswith(".py"):
        return not any(fnmatch(name, f"*/{word}") or fnmatch(name, word) for name in tree())
    if word.startswith(ROOMS):
        return not (any(ROOT.glob(word.rstrip("/"))) or any(name.startswith(word) for name in tree()))
    return False


def missing_module(word: str) -> bool:
    """Whether `word` is like `headrace.client.Admin`, and neither a module nor a name in one."""
    parts = word.split(".")
    for known in range(len(parts), 0, -1):
        base = ROOT / "src" / Path(*parts[:known])
        module = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if module.is_file():
            return not all(re.search(rf"\b{name}\b", module.read_text()) for name in parts[known : known + 1])
    return True


def missing_attribute(word: str) -> bool:
    """Whether `word` is like `Partition.append`, of a class whose package (it may inherit there) has no such name."""
    found = _ATTRIBUTE.fullmatch(word)
    if found is None:
        return False
    homes = {
        name.rpartition("/")[0] for name, text in sources().items() if re.search(rf"^class {found[1]}\b", text, re.M)
    }
    packages = (text for name, text in sources().items() if name.rpartition("/")[0] in homes)
    return bool(homes) and not any(re.search(rf"\b{found[2]}\b", text) for text in packages)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
class TestDocuments:
    def test_links_lead_somewhere(self, path: Path) -> None:
        lost = []
        for link in _LINK.findall(prose(path)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists() or (anchor and anchor not in anchors(target)):
                lost.append(link)
        assert lost == []

    def test_files_and_names_that_are_mentioned_exist(self, path: Path) -> None:
        lost = []
        for word in (word for code in words_in_code(path) for word in code.split()):
            named = _MODULE.fullmatch(word)
            if missing_path(word) or missing_attribute(word) or (named and missing_module(word)):
                lost.append(word)
        assert lost == []


DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name)
class TestDecisions:
    def test_each_has_the_same_form(self, path: Path) -> None:
        text = path.read_text()
        assert re.match(rf"# {path.name[:4]}: \S", text)
        assert re.findall(r"^- (\w+): \S", text.partition("\n## ")[0], re.M) == ["Status", "Date"]
        sections = re.findall(r"^## (.+)$", text, re.M)
        assert sections[0] == "Context" and sections[1] == "Decision" and "Consequences" in sections[2:]

    def test_the_list_names_it(self, path: Path) -> None:
        assert f"]({path.name})" in (ROOT / "docs/decisions/README.md").read_text()


ARCHITECTURE = ROOT / "docs/architecture.md"
BENEATH_THE_MAP = {"clock", "errors", "lazy_exports", "platform", "terminal", "version"}
"""Small modules that everything may use: arrows to them would say nothing."""


def imports() -> dict[str, set[str]]:
    """Which packages each package of headrace imports, wherever in a file that is, for types too."""
    found: dict[str, set[str]] = {}
    for name, text in sources().items():
        package = Path(name).relative_to("src").parts
        if package[0] != "headrace" or len(package) < 3 or "templates" in package:
            continue
        modules = {
            node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module
        }
        used = {module.split(".")[1] for module in modules if module.startswith("headrace.")}
        found.setdefault(package[1], set()).update(used - {package[1]} - BENEATH_THE_MAP)
    return found


def reachable(arrows: dict[str, set[str]], start: str) -> set[str]:
    """All that a package imports, itself or through others."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in arrows.get(waiting.pop(), set()) - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def test_the_map_draws_each_import_that_no_others_imply() -> None:
    real = {package: used for package, used in imports().items() if package not in BENEATH_THE_MAP}
    expected = {
        package: {one for one in used if not any(one in reachable(real, other) for other in used - {one})}
        for package, used in real.items()
    }
    drawn = {package: set[str]() for package in re.findall(r"^  (\w+)\[", ARCHITECTURE.read_text(), re.M)}
    for package, targets in re.findall(r"^  (\w+)\[.*\] --> (.+)$", ARCHITECTURE.read_text(), re.M):
        drawn[package] = set(targets.split(" & "))
    assert drawn == expected


def test_the_table_of_concerns_names_modules() -> None:
    table = ARCHITECTURE.read_text().partition("| concern |")[2].partition("\n\n")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines()[2:]]
    lost = [
        f"{package}/{name}"
        for row in rows
        for package, cell in zip(("storage", "broker"), row[1:])
        for name in re.findall(r"`([^`]+)`", cell)
        if not (ROOT / "src/headrace" / package / f"{name}.py").is_file()
    ]
    assert len(rows) > 5 and lost == []
