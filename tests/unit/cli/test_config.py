"""`headrace config` and `headrace topic delete-records` against a broker."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.app import run
from headrace.client.admin.admin import EARLIEST, Admin
from headrace.client.raw import produce
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from tests.compat.process import HeadraceProcess

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(headrace: HeadraceProcess, capsys: pytest.CaptureFixture[str]) -> Call:
    def go(*words: str) -> tuple[int, str, str]:
        try:
            code = run([*words, "-b", headrace.bootstrap])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return go


def described(call: Call, *words: str) -> dict[str, tuple[str, str]]:
    code, out, err = call("config", "describe", *words, "--json")
    assert code == 0, err
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(out)}


def test_a_broker_is_told_another_value_while_it_runs(call: Call) -> None:
    assert described(call, "log.cleaner.threads", "--broker", "1") == {"log.cleaner.threads": ("1", "DEFAULT")}
    assert call("config", "alter", "--broker", "1", "--set", "log.cleaner.threads=2")[:2] == (
        0, "broker 1: log.cleaner.threads=2\n",
    )  # fmt: skip
    assert described(call, "--broker", "1")["log.cleaner.threads"] == ("2", "DYNAMIC_BROKER")
    code, out, _ = call("config", "describe", "log.cleaner.threads", "--broker", "1")
    assert code == 0 and out.splitlines()[1].split() == ["log.cleaner.threads", "2", "this", "broker,", "by", "command"]
    assert call("config", "alter", "--broker", "1", "--unset", "log.cleaner.threads")[0] == 0
    assert "log.cleaner.threads" not in described(call, "--broker", "1"), "only what differs is shown"


def test_all_brokers_are_told_at_once(call: Call) -> None:
    words = ("--all-brokers", "--set", "log.retention.ms=86400000", "--json")
    assert json.loads(call("config", "alter", *words)[1]) == {
        "broker": None, "set": {"log.retention.ms": "86400000"}, "unset": [],
    }  # fmt: skip
    assert described(call, "--all-brokers")["log.retention.ms"] == ("86400000", "DYNAMIC_DEFAULT")
    assert call("config", "alter", "--all-brokers", "--unset", "log.retention.ms")[0] == 0
    assert "log.retention.ms" not in described(call, "--all-brokers")


def test_topics_and_groups_have_options_too(call: Call) -> None:
    assert call("topic", "create", "config-topic", "--set", "retention.ms=7")[0] == 0
    shown = described(call, "--topic", "config-topic")
    assert shown["retention.ms"] == ("7", "TOPIC") and "segment.bytes" not in shown
    assert len(described(call, "--topic", "config-topic", "--all")) > 20
    assert call("config", "alter", "--group", "config-group", "--set", "consumer.session.timeout.ms=50000")[0] == 0
    assert described(call, "--group", "config-group")["consumer.session.timeout.ms"] == ("50000", "GROUP")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("describe",), "say whose options: one of --broker ID"),
        (("describe", "--broker", "1", "--topic", "t"), "say whose options: one of --broker ID"),
        (("alter", "--broker", "1"), "nothing to alter"),
        (("describe", "log.retention.mss", "--broker", "1"), "no such broker option (did you mean log.retention.ms?)"),
        (("alter", "--all-brokers", "--unset", "log.retention.mss"), "did you mean log.retention.ms?"),
        (("alter", "--broker", "1", "--set", "log.dirs=/tmp"), "log.dirs"),
        (("alter", "--broker", "1", "--set", "log.cleaner.thread=2"), "did you mean log.cleaner.threads?"),
        (("alter", "--all-brokers", "--set", "log.retention.mss=5"), "did you mean log.retention.ms?"),
    ],
)
def test_what_cannot_be_is_said(call: Call, words: tuple[str, ...], said: str) -> None:
    code, out, err = call("config", *words)
    assert code == 1 and not out and said in err and len(err.splitlines()) == 1


def test_an_option_that_only_a_plugin_knows_is_set(call: Call) -> None:
    for name in ("my.plugin.limit", "listener.name.plaintext.max.connections"):
        assert call("config", "alter", "--broker", "1", "--set", f"{name}=5")[0] == 0
        assert call("config", "alter", "--broker", "1", "--unset", name)[0] == 0


@pytest.fixture
def filled(headrace: HeadraceProcess, call: Call) -> Iterator[str]:
    """A topic with ten records in each of two partitions, the first four of them two hours old."""
    name = f"delete-{time.monotonic_ns()}"
    now_ms = time.time_ns() // 1_000_000

    async def fill() -> None:
        async with Admin(headrace.bootstrap) as admin:
            await admin.create_topic(name, 2)
            for number in range(20):
                time_ms = now_ms - 7_200_000 if number < 8 else now_ms
                await produce(admin.cluster, name, number % 2, build_batch([Record(0, time_ms, None, b"x")]))

    asyncio.run(fill())
    yield name
    call("topic", "delete", name)


def starts(bootstrap: str, topic: str) -> list[int]:
    async def look() -> list[int]:
        async with Admin(bootstrap) as admin:
            return [row.offset for row in (await admin.list_offsets(topic, {0: EARLIEST, 1: EARLIEST})).values()]

    return asyncio.run(look())


def test_records_are_deleted_by_offset_age_file_or_all(
    headrace: HeadraceProcess, call: Call, filled: str, tmp_path: Path
) -> None:
    assert call("topic", "delete-records", f"{filled}:1", "--before", "2")[0] == 0
    assert starts(headrace.bootstrap, filled) == [0, 2]
    code, out, _ = call("topic", "delete-records", filled, "--older-than", "1h", "--json")
    assert code == 0 and [(row["start_offset"], row["deleted"]) for row in json.loads(out)] == [(4, 4), (4, 2)]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": filled, "partition": 0, "offset": 6}]}))
    assert call("topic", "delete-records", "--offset-json-file", str(file))[0] == 0
    assert starts(headrace.bootstrap, filled) == [6, 4]
    # Beyond the end of a partition there is nothing to delete.
    code, out, _ = call("topic", "delete-records", filled, "--before", "1000")
    assert code == 0 and [line.split()[1:] for line in out.splitlines()[1:]] == [["0", "10", "4"], ["1", "10", "6"]]
    assert call("topic", "delete-records", filled, "--all")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say which records, in one way"),
        (("orders", "--all", "--before", "1"), "say which records, in one way"),
        (("--all",), "name a topic"),
        (("orders", "--older-than", "soon"), "--older-than soon: write 30m"),
        (("orders:x", "--all"), "such as orders:3"),
        (("no-such-topic", "--all"), "no-such-topic"),
        (("--offset-json-file", "/no/file"), "cannot read /no/file"),
    ],
)
def test_what_cannot_be_deleted_is_said(call: Call, words: tuple[str, ...], said: str) -> None:
    code, out, err = call("topic", "delete-records", *words)
    assert code == 1 and not out and said in err
