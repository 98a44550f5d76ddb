"""`--json`: on every command, one document on stdout and nothing else there."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.app import app, run
from headrace.cli.up import parser
from tests.compat.process import HeadraceProcess


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its words; a group that does something by itself is one, too."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if children is None or (path and command.invoke_without_command):
            yield " ".join(path), command
        for name, child in (children or {}).items():
            yield from below(child, (*path, name))

    yield from below(typer.main.get_command(app), ())


COMMANDS = dict(commands())
GIVEN_TO_MANY = ("watch", "command_config")
"""Options that commands do not name themselves."""


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_takes_json(words: str) -> None:
    if words == "up":  # it has a parser of its own
        assert "--json" in parser().format_help()
        return
    names = [parameter.name for parameter in COMMANDS[words].params if parameter.name not in GIVEN_TO_MANY]
    assert names[-1] == "as_json", "the same option, at the same place in every help"
    (option,) = [parameter for parameter in COMMANDS[words].params if parameter.name == "as_json"]
    assert option.opts == ["--json"]


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    try:
        found = run([*words, "--json"])
    except SystemExit as stop:
        found = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert found == code, (out, err)
    return json.loads(out)


def test_changes_and_checks_of_a_broker(capsys: pytest.CaptureFixture[str], headrace: HeadraceProcess) -> None:
    at = ("-b", headrace.bootstrap)
    answer(capsys, "topic", "create", "json-topic", "-p", "1", *at)
    words = ("topic", "alter", "json-topic", "-p", "2", "--set", "retention.ms=5", "--unset", "retention.bytes")
    assert answer(capsys, *words, *at) == {
        "topic": "json-topic", "set": {"retention.ms": "5"}, "unset": ["retention.bytes"], "partitions": 2,
    }  # fmt: skip
    assert answer(capsys, "cluster", "reassign", "--cancel", *at) == []
    assert answer(capsys, "cluster", "elect", "--unclean", *at) == []
    found = answer(capsys, "doctor", "--data", str(headrace.data), *at)
    verdicts = {one["verdict"] for one in found["cluster"]}
    assert found["healthy"] and "ok" in verdicts <= {"ok", "note"}  # a note on topics that other tests have made
    assert any("node 1 of cluster" in one["text"] for one in found["machine"])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{nobody.getsockname()[1]}"
        found = answer(capsys, "doctor", "--data", str(headrace.data), "-b", gone, code=1)
    assert not found["healthy"] and found["cluster"][0]["verdict"] == "bad" and found["cluster"][0]["advice"]


def test_what_needs_no_broker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert set(answer(capsys, "version")) == {"version"}
    assert len(answer(capsys, "format", "--random-id")["id"]) == 22
    made = answer(capsys, "format", "--data", str(tmp_path / "data"), "--node-id", "7")
    assert made["formatted"] and made["log_dirs"] == [str(tmp_path / "data")] and made["node_id"] == 7
    again = answer(capsys, "format", "--data", str(tmp_path / "data"), "--node-id", "7")
    assert again == {**made, "formatted": False}
    begun = answer(capsys, "pipeline", "init", str(tmp_path / "orders"))
    assert begun["pipeline"] == "orders" and all(Path(path).is_file() for path in begun["files"])
