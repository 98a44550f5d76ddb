"""What the guides tell readers to type works: their blocks run from their text, against a broker of their own.

Only `headrace` and Python are run, never what else a shell could do to the machine. A block that cannot run has a
comment above it that says why. `headrace up` is not typed again: the test's broker is what it starts. The answers that
a block shows are those that the commands give, but for numbers and ids.
"""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.listeners.metrics import COUNTED, GAUGES
from headrace.testing.broker import TestBroker
from tests.commands import unknown_options
from tests.documents import DOCUMENTS, ROOT, Block, blocks, forms, headings, headrace_commands, words_in_code
from tests.reference.apache import free_ports
from tests.registry.server import RegistryServer

SPARK = {"spark.md", "pipelines.md"}
"""Run by the tests of Spark."""
GUIDES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs/guide").glob("*.md")) if path.name not in SPARK)]
TYPED = {"console", "sh", "python"}
PATIENCE_S = 60
ADDRESS = "127.0.0.1:9092"
"""The broker of the guides."""
REGISTRY = "http://127.0.0.1:8081"
"""Their schema registry."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TestBroker]:
    (port,) = free_ports(1)
    settings = {"group.initial.rebalance.delay.ms": "0", "metrics.port": str(port)}
    with TestBroker(tmp_path, settings) as running:
        (tmp_path / "headrace-data").symlink_to(running.data)
        yield running


COMMANDS = """
import shlex, sys
from headrace.cli.main import dispatch
for line in sys.argv[1:]:
    print("$", line, flush=True)
    if status := dispatch(shlex.split(line)[1:]):
        sys.exit(status)
"""


def script(block: Block, folder: Path) -> list[str]:
    """What Python is given to run a block: commands one after the other, a test by pytest, anything else as it is."""
    if block.kind == "console":
        lines = [
            *block.run_after.splitlines(),
            *(line for line in block.commands if not line.startswith("headrace up")),
        ]
        assert all(line.startswith("headrace ") for line in lines), lines
        return ["-c", COMMANDS, *lines]
    assert block.kind == "python"
    if "def test_" not in block.text:
        return ["-c", f"{block.run_after}\n{block.text}"]
    test = folder / "test_of_the_guide.py"
    test.write_text(block.text)
    return ["-m", "pytest", "-q", "-p", "headrace.testing.plugin", "-p", "no:cacheprovider", str(test)]


def run(block: Block, broker: TestBroker, registry: str, folder: Path) -> str:
    """Run a block; returns what went wrong, or nothing."""
    words = (word.replace(ADDRESS, broker.bootstrap).replace(REGISTRY, registry) for word in script(block, folder))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "HEADRACE_BOOTSTRAP": broker.bootstrap},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        return f"line {block.line}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return "\n".join(unlike(block, done.stdout)) if block.kind == "console" else ""


def unlike(block: Block, printed: str) -> list[str]:
    """Where the answers in a block are not those that its commands gave; `...` stands for lines left out."""
    answers = dict(re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", printed, re.M))
    wrong = []
    for command, shown in block.transcript:
        lines = answers.get(command, "").splitlines()
        if block.other_rows:
            if headings(lines) and headings(shown) != headings(lines):
                wrong.append(f"line {block.line}: $ {command}\nshown: {headings(shown)}\ngiven: {headings(lines)}")
            continue
        given = forms(lines)
        pattern = r"\n".join(".*" if line == "..." else re.escape(line) for line in forms(shown))
        if pattern and command in answers and not re.fullmatch(pattern, "\n".join(given), re.S):
            wrong.append(f"line {block.line}: $ {command}\nshown: {forms(shown)}\ngiven: {given}")
    return wrong


def to_run(guide: Path) -> list[Block]:
    return [block for block in blocks(guide) if block.kind in TYPED and not block.not_run]


@pytest.mark.parametrize("guide", [path for path in GUIDES if to_run(path)], ids=lambda path: path.name)
def test_blocks_run_as_they_are_written(guide: Path, broker: TestBroker, tmp_path: Path) -> None:
    with RegistryServer() as registry:
        for block in to_run(guide):
            assert run(block, broker, registry.url, tmp_path) == ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_and_options_that_are_named_exist(path: Path) -> None:
    for words in headrace_commands(path):
        assert unknown_options(words) == [], words


def test_metrics_that_are_named_are_served(broker: TestBroker) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.settings['metrics.port']}/metrics") as answer:
        served = set(re.findall(r"^# TYPE (headrace_\w+)", answer.read().decode(), re.M))
    named: dict[str, str] = {}
    for path in DOCUMENTS:
        for word in words_in_code(path):
            if found := re.fullmatch(r"(headrace_\w+?)(\{.*\})?", word):
                named[found[1]] = path.name
    fixtures = set(re.findall(r"def (headrace_\w+)", (ROOT / "src/headrace/testing/plugin.py").read_text()))
    listeners = {f"headrace_listener_{name}_total" for name in COUNTED}
    listeners |= {f"headrace_listener_{name}" for name, _, _ in GAUGES} | {"headrace_listener_handler_seconds"}
    assert {name: place for name, place in named.items() if name not in served | fixtures | listeners} == {}
