"""What lists show, how names are completed, help in one style, and what is asked before it is gone."""

import asyncio
import os
import subprocess
import sys

import pytest
import typer

from headrace.cli.app import app, run
from headrace.cli.group_reset import parse_duration
from headrace.cli.plain_help import without_bounds
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.raw import produce
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from tests.compat.process import HeadraceProcess


@pytest.fixture(scope="module")
def filled(headrace: HeadraceProcess) -> str:
    """A broker with ten records in `lists-orders`, of which the group `lists-billing` has committed four."""

    async def fill() -> None:
        async with Admin(headrace.bootstrap) as admin:
            await admin.create_topic("lists-orders", 1)
            for number in range(10):
                await produce(admin.cluster, "lists-orders", 0, build_batch([Record(0, 1_000, b"k", b"%d" % number)]))
            await Groups(admin).commit("lists-billing", {("lists-orders", 0): 4})

    asyncio.run(fill())
    return headrace.bootstrap


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        code = run(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_topic_list_has_records_and_size(capsys: pytest.CaptureFixture[str], filled: str) -> None:
    code, out, _ = printed(capsys, "topic", "list", "-b", filled)
    header, *rows = out.splitlines()
    assert code == 0 and header.split() == ["TOPIC", "PARTITIONS", "REPLICAS", "RECORDS", "SIZE"]
    (row,) = [row.split() for row in rows if row.startswith("lists-orders ")]
    assert row[:4] == ["lists-orders", "1", "1", "10"] and row[4] != "0"
    assert "RECORDS" not in printed(capsys, "topic", "list", "--brief", "-b", filled)[1]


def test_group_list_has_the_lag(capsys: pytest.CaptureFixture[str], filled: str) -> None:
    _, out, _ = printed(capsys, "group", "list", "-b", filled)
    (row,) = [row.split() for row in out.splitlines() if row.startswith("lists-billing ")]
    assert row[-1] == "6"


def test_a_reset_says_that_there_is_no_such_group(capsys: pytest.CaptureFixture[str], filled: str) -> None:
    code, out, err = printed(
        capsys, "group", "reset-offsets", "lists-bilng", "--topic", "lists-orders", "--by-duration", "2h", "-b", filled
    )
    assert code == 0 and "nothing was changed" in out
    assert "there is no group 'lists-bilng' yet" in err and "did you mean lists-billing?" in err


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("1d12h", 129_600), ("90s", 90), ("PT30M", 1800), ("P1D", 86_400)]
)
def test_durations_are_read_as_people_and_as_kafka_write_them(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds * 1000


def completed(words: str, bootstrap: str) -> list[str]:
    environment = {
        **os.environ, "_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "HEADRACE_BOOTSTRAP": bootstrap,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "headrace"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    return done.stdout.split()


def test_the_tab_key_knows_topics_and_groups(filled: str) -> None:
    assert completed("headrace topic describe lists-", filled) == ["lists-orders"]
    assert completed("headrace group describe lists-", filled) == ["lists-billing"]
    assert completed("headrace topic describe lists-", "127.0.0.1:1") == [], "no broker: nothing, and no error"


def commands() -> list[tuple[str, ...]]:
    def below(command: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        children = getattr(command, "commands", None)
        if children is None:
            return [path]
        return [found for name, child in children.items() for found in below(child, (*path, name))]

    return [path for path in below(typer.main.get_command(app), ()) if path != ("up",)]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_shows_no_types_and_no_bounds_of_python(capsys: pytest.CaptureFixture[str], path: tuple[str, ...]) -> None:
    code, out, _ = printed(capsys, *path, "--help")
    assert code == 0 and "Usage: headrace" in out
    for oddity in ("<str>", "<int>", "list[", "x<", "x>", "<path>"):
        assert oddity not in out, out


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("How many.  [x<=32767]", "How many."),
        ("How many.  [default: 3; 1<=x<=9]", "How many.  [default: 3]"),
        ("How many.  [default: 3; x>=1; required]", "How many.  [default: 3; required]"),
        ("How many.  [1<=x<=9; required]", "How many.  [required]"),
        ("How many.  [default: 3]", "How many.  [default: 3]"),
    ],
)
def test_bounds_are_left_out_of_help(text: str, left: str) -> None:
    assert without_bounds(text) == left


def test_deleting_asks_a_person_and_no_script(
    capsys: pytest.CaptureFixture[str], filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(capsys, "topic", "create", "lists-gone", "-b", filled)[0] == 0
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("headrace.cli.output.typer.confirm", no)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert printed(capsys, "topic", "delete", "lists-gone", "-b", filled)[0] == 1
    assert asked == ["Delete lists-gone and all records?"]
    assert printed(capsys, "topic", "delete", "lists-gone", "--yes", "--json", "-b", filled)[:2] == (
        0, '[\n  {\n    "topic": "lists-gone",\n    "deleted": true\n  }\n]\n',
    )  # fmt: skip
