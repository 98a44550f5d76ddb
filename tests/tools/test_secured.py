"""Every command that moves records, and apps, against a secured Apache Kafka: TLS with a certificate of the client's,
and a login over TLS. Settings come from a file, as `--command-config` takes it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.testing.broker import TestBroker
from tests.reference.apache import Unavailable
from tests.reference.secured import SecuredKafka, secured_kafka
from tests.tools.support import cli, new_name, refused, within
from tests.waiting import eventually

pytestmark = pytest.mark.reference

APP = """
import headrace

app = headrace.App("secured", bootstrap="{bootstrap}", **{options!r})

@app.listener("{topic}", consumer={{"auto_offset_reset": "earliest"}}, dead_letter="{topic}.dlq",
              retry=headrace.Retry(attempts=1, topics=("200ms",)), send_to="{topic}.out", exactly_once=True)
def shout(text: str) -> str:
    if text == "bad":
        raise ValueError("no")
    return text.upper()
"""


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    try:
        with secured_kafka() as broker:
            yield broker
    except Unavailable as missing:
        pytest.skip(str(missing))


class Way:
    """How a client comes in."""

    def __init__(self, kafka: SecuredKafka, listener: str, folder: Path) -> None:
        self.bootstrap = kafka.at(listener)
        self.settings = kafka.settings(listener, "SCRAM-SHA-512")
        if listener == "MUTUAL":
            pem = folder / "client.pem"
            pem.write_text(kafka.client.key_pem() + kafka.client.pem)
            self.settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem)}
        self.file = folder / "client.properties"
        escaped = {name: value.replace("\\", "\\\\") for name, value in self.settings.items()}
        self.file.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))

    def run(self, *words: str) -> str:
        return copy_context().run(cli, *words, "-b", self.bootstrap, "--command-config", str(self.file)).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def ends(self, topic: str) -> int:
        """How many offsets a topic has."""

        async def work() -> int:
            async with headrace.Admin(self.bootstrap, config=self.settings) as admin:
                return sum(found.offset for found in (await admin.list_offsets(topic)).values())

        return within(work)

    def read(self, topic: str, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            found: list[bytes] = []
            options: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
            async with headrace.Consumer(topic, bootstrap=self.bootstrap, config=self.settings, **options) as consumer:
                while len(found) < count:
                    found += [record.value for record in await consumer.poll(1)]
            return found

        return within(work)


@pytest.fixture(params=["MUTUAL", "BOTH"])
def way(kafka: SecuredKafka, request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    return Way(kafka, request.param, tmp_path)


def test_records_go_in_and_come_out(way: Way, tmp_path: Path) -> None:
    topic, copy = new_name(), new_name()
    way.run("topic", "create", topic, "--partitions", "2")
    way.run("produce", topic, "--key", "anna", "--value", '{"cents": 30}', "--value", '{"cents": 12}')
    lines = way.run("consume", topic, "--from", "earliest", "--until-end", "--json").splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["anna", "anna"]
    file = tmp_path / "records.jsonl"
    assert way.json("export", topic, str(file))["records"] == 2
    assert way.json("import", str(file), copy, "--create")["records"] == 2
    row = way.json("sql", f"select sum((value->>'cents')::int) as cents from \"{copy}\"")
    assert row == {"cents": 42}


def test_looking_and_loading(way: Way) -> None:
    assert way.json("bench", "--for", "0.3s", "--rate", "100", "--partitions", "1", "--size", "50")
    found = way.json("top", "--once", "--every", "0.2")
    assert [node["is_up"] for node in found["brokers"]] == [True]


def test_a_mirror_out_of_and_into_a_secured_cluster(way: Way) -> None:
    topic = new_name()
    way.run("topic", "create", topic)
    way.run("produce", topic, "--value", "one", "--value", "two")
    with TestBroker() as open_broker:
        out = ["--source", way.bootstrap, "--source-config", str(way.file), "--target", open_broker.bootstrap]
        copy_context().run(cli, "mirror", topic, *out, "--until-end", "--json")
        # In a context of its own: a command's settings are those of its process.
        read = ["consume", topic, "-b", open_broker.bootstrap, "--from", "earliest", "--until-end"]
        assert copy_context().run(cli, *read).stdout.split() == ["one", "two"]
        back = ["--source", open_broker.bootstrap, "--target", way.bootstrap, "--target-config", str(way.file)]
        copy_context().run(cli, "mirror", topic, *back, "--prefix", "back.", "--until-end", "--json")
    assert way.read(f"back.{topic}", 2) == [b"one", b"two"]


def test_an_app_its_dead_letters_and_their_replay(way: Way, tmp_path: Path) -> None:
    topic = new_name()
    for name in (topic, f"{topic}.dlq", f"{topic}.out"):
        way.run("topic", "create", name)
    way.run("produce", topic, "--value", "good", "--value", "bad", "--value", "better")
    options = {"config": way.settings}
    (tmp_path / "shouting.py").write_text(APP.format(bootstrap=way.bootstrap, options=options, topic=topic))
    running = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "run", "shouting:app"], cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        eventually(lambda: running.poll() is not None or way.ends(f"{topic}.out"), "there are results")
        assert running.poll() is None, running.communicate()
        assert way.read(f"{topic}.out", 2) == [b"GOOD", b"BETTER"]
        assert way.read(f"{topic}.dlq", 1) == [b"bad"]
    finally:
        running.send_signal(signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert "no" in way.run("dlq", "show", f"{topic}.dlq")
    way.run("dlq", "replay", f"{topic}.dlq", "--yes")
    assert way.read(topic, 4)[-1] == b"bad"


@pytest.mark.parametrize(
    "words",
    [
        ["produce", "t", "--value", "x"], ["consume", "t", "--until-end"], ["export", "t", "t.jsonl"],
        ["sql", "select * from t"], ["bench", "--for", "1s"], ["top", "--once"], ["dlq", "show", "t"],
    ],
)  # fmt: skip
def test_who_does_not_trust_the_broker_is_told_so(
    kafka: SecuredKafka, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.properties").write_text("security.protocol=SSL\n")
    said = refused(*words, "-b", kafka.at("TLS"), "--command-config", "empty.properties")
    assert "certificate" in said, said
