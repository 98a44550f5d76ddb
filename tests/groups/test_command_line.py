"""`headrace group`, as a user types it, against a running broker."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.app import run
from headrace.cli.group_reset import parse_datetime, parse_duration, parse_topics, read_file
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError
from tests.compat.process import HeadraceProcess
from tests.groups.harness import consume, create_topic, quiet_producer

RECORDS = 60


class Shell:
    """Runs a command; remembers what it said."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys
        self.out = ""

    def __call__(self, *words: str, fails: bool = False) -> str:
        self._capsys.readouterr()
        code = 0
        try:
            code = run(["group", *words, "--bootstrap", self.bootstrap])
        except SystemExit as exited:
            code = int(exited.code or 0)
        said = self._capsys.readouterr()
        assert (code != 0) is fails, said
        if fails:
            assert said.err.count("\n") == 1, "one line says what is wrong"
        self.out = said.out
        return said.err if fails else said.out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shell(broker: HeadraceProcess, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(broker.bootstrap, capsys)


@pytest.fixture
def topic(broker: HeadraceProcess, request: pytest.FixtureRequest) -> str:
    """Thirty records in each of two partitions, one a minute since the start of 2026."""
    name = str(request.node.name).replace("[", "-").replace("]", "")
    create_topic(broker.bootstrap, name, 2)
    with quiet_producer(broker.bootstrap) as producer:
        for number in range(RECORDS):
            moment = parse_datetime("2026-01-01T00:00:00") + number // 2 * 60_000
            producer.produce(name, b"%d" % number, partition=number % 2, timestamp=moment)
    return name


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    async def work() -> None:
        async with Admin(bootstrap) as admin:
            await Groups(admin).commit(group, {(topic, 0): offset, (topic, 1): offset})

    asyncio.run(work())


def news(shell: Shell, *words: str) -> list[int]:
    return [row["new"] for row in shell.json("reset-offsets", *words)["offsets"]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members(shell: Shell, topic: str, protocol: str) -> None:
    group = f"living-{protocol}"
    consumer = consume(shell.bootstrap, topic, group, protocol, count=40)
    try:
        assert re.search(rf"^{group}\s+Stable\s+{protocol}\s+\d+$", shell("list"), re.M)
        assert group in shell("list", "--state", "Stable", "--type", protocol)
        assert group not in shell("list", "--state", "Empty")
        found = shell.json("describe", group)[0]
        assert (found["state"], found["type"], len(found["members"])) == ("Stable", protocol, 1)
        assert sum(row["lag"] for row in found["partitions"]) == 20
        assert all(row["member_id"] == found["members"][0]["member_id"] for row in found["partitions"])
        behind = [row for row in found["partitions"] if row["lag"]]
        assert behind and all(row["lag_seconds"] > 3600 for row in behind)
        assert "1 member" in shell("describe", group, "--members")
        assert "stop its consumers first" in shell("reset-offsets", group, "--all-topics", "--to-earliest", fails=True)
        assert "has members" in shell("delete", group, fails=True)
    finally:
        consumer.close()
    shell("delete", group)
    assert "no group of this name" in shell("describe", group, fails=True)


def test_one_group_that_is_not_there_does_not_hide_the_others(shell: Shell, topic: str) -> None:
    shell("reset-offsets", f"here-{topic}", "--topic", topic, "--to-offset", "7", "--execute")
    assert "'nowhere'" in shell("describe", "nowhere", f"here-{topic}", fails=True)
    assert f"here-{topic}" in shell.out


def test_every_way_of_resetting(shell: Shell, topic: str, tmp_path: Path) -> None:
    group = "resets"
    commit(shell.bootstrap, group, topic, 10)
    chosen = (group, "--topic", topic)
    assert news(shell, *chosen, "--to-earliest") == [0, 0]
    assert news(shell, *chosen, "--to-latest") == [30, 30]
    assert news(shell, *chosen, "--to-current") == [10, 10]
    assert news(shell, *chosen, "--to-offset", "7") == [7, 7]
    assert news(shell, *chosen, "--to-offset", "999") == [30, 30], "no further than the end"
    assert news(shell, *chosen, "--shift-by", "-3") == [7, 7]
    assert news(shell, *chosen, "--shift-by", "-30") == [0, 0]
    assert news(shell, *chosen, "--to-datetime", "2026-01-01T00:12:00") == [12, 12]
    assert news(shell, *chosen, "--to-datetime", "2026-01-01T01:12:00+01:00") == [12, 12]
    assert news(shell, *chosen, "--to-datetime", "2100-01-01T00:00:00") == [30, 30]
    assert news(shell, *chosen, "--by-duration", "P9999D") == [0, 0]
    assert news(shell, group, "--topic", f"{topic}:1", "--to-earliest") == [0]
    assert news(shell, group, "--all-topics", "--to-earliest") == [0, 0]
    assert shell.json("describe", group)[0]["partitions"][0]["committed_offset"] == 10, "all of these were dry runs"

    file = tmp_path / "offsets.csv"
    file.write_text(shell("reset-offsets", *chosen, "--to-offset", "21", "--export"))
    assert file.read_text() == f"{topic},0,21\n{topic},1,21\n"
    shell("reset-offsets", group, "--from-file", str(file), "--execute")
    assert [row["committed_offset"] for row in shell.json("describe", group)[0]["partitions"]] == [21, 21]
    assert "add --execute" in shell("reset-offsets", *chosen, "--to-earliest")


def test_a_group_may_be_given_offsets_before_it_runs(shell: Shell, topic: str) -> None:
    shell("reset-offsets", "not-yet", "--topic", topic, "--to-latest", "--execute")
    assert [row["committed_offset"] for row in shell.json("describe", "not-yet")[0]["partitions"]] == [30, 30]
    shell("delete", "not-yet")
    assert "there is no group" in shell("delete", "not-yet", "--if-exists")
    assert "no such group" in shell("delete", "not-yet", fails=True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--topic", "t"), "in one way"),
        (("--topic", "t", "--to-earliest", "--to-latest"), "you gave --to-earliest, --to-latest"),
        (("--to-earliest",), "--all-topics"),
        (("--topic", "t:x", "--to-earliest"), "--topic t:x"),
        (("--topic", "nowhere", "--to-earliest"), "no topic of this name"),
        (("--topic", "t", "--to-datetime", "yesterday"), "--to-datetime yesterday"),
        (("--topic", "t", "--by-duration", "1 day"), "--by-duration 1 day"),
        (("--from-file", "/nowhere/x.csv"), "/nowhere/x.csv"),
        (("--all-topics", "--to-earliest"), "no committed offsets"),
        (("--topic", "t", "--to-earliest", "--execute", "--dry-run"), "either"),
    ],
)
def test_mistakes_are_explained_in_one_line(shell: Shell, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in shell("reset-offsets", "mistaken", *words, fails=True)


def test_filters_are_spelt_as_the_broker_spells_them(shell: Shell, topic: str) -> None:
    commit(shell.bootstrap, "filtered", topic, 1)
    assert "filtered" in shell("list", "--state", "empty", "--type", "Classic")
    assert "filtered" not in shell("list", "--state", "stable")
    assert "--state Stabel: write one of Empty, " in shell("list", "--state", "Stabel", fails=True)
    assert "--type consumr: write one of classic, " in shell("list", "--type", "consumr", fails=True)


def test_words_are_read_as_kafkas_tool_reads_them(tmp_path: Path) -> None:
    assert parse_topics(["a", "b:0,2", "b:5", "a:1"]) == {"a": None, "b": {0, 2, 5}}
    assert parse_duration("P1DT2H3M4.5S") == ((26 * 60 + 3) * 60 + 4.5) * 1000
    assert parse_duration("PT90S") == 90_000
    assert parse_datetime("1969-12-31T23:59:59.998") == 0, "-2 would be the start, -1 the end"
    for wrong in ("P", "PT", "1x", "P1H", "", "P999999999999D"):
        with pytest.raises(ClientError):
            parse_duration(wrong)
    file = tmp_path / "x.csv"
    file.write_text("g,t,0,5\nother,t,1,6\nt,2,7\n\n")
    assert read_file(file, "g") == {("t", 0): 5, ("t", 2): 7}
    file.write_bytes(b"t,0,\xff\n")
    with pytest.raises(ClientError, match="is no text"):
        read_file(file, "g")
    file.write_text("t,zero,5\n")
    with pytest.raises(ClientError, match="line 1"):
        read_file(file, "g")
