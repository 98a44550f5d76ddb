"""`headrace run` and `headrace dlq`, as a user types them."""

import io
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import dispatch
from headrace.cli.run import find_app
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.api.types import Record
from headrace.client.errors import ClientError
from headrace.listeners.core.headers import Origin, failure_headers
from headrace.testing.broker import TestBroker
from tests.consumer.conftest import QUICK
from tests.listeners.support import fill
from tests.waiting import eventually, run

BILLING = """
import os, headrace
app = headrace.App("{group}", bootstrap="{bootstrap}")

@app.listener("{topic}", dead_letter="{topic}.dlq", retry=headrace.Retry(attempts=1))
def bill(number: int) -> None:
    if number in {bad}:
        raise ValueError(f"no table {{number}}")
    with open("handled", "a") as file:
        file.write(f"{{number}}\\n")
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(settings=QUICK) as running:
        yield running


def headrace(*words: str, status: int = 0) -> str:
    """What a command says, run in this process: a start of Python each would cost more than the rest."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            found = dispatch(list(words))
        except SystemExit as ended:
            found = int(ended.code or 0)
    assert found == status, said.getvalue()
    return said.getvalue()


def run_in(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "run", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


class Program:
    """`headrace run ...` in a folder of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "headrace.cli.main", "run", *words]
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def handled(self) -> list[int]:
        path = self.folder / "handled"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            finally:
                self.process.kill()
                self.process.wait()


def write(folder: Path, broker: TestBroker, topic: str, bad: Any = ()) -> None:
    text = BILLING.format(group=f"{topic}-group", bootstrap=broker.bootstrap, topic=topic, bad=bad)
    (folder / "billing.py").write_text(text)


def test_an_app_is_run_with_metrics_and_stopped_in_order(broker: TestBroker, tmp_path: Path) -> None:
    run(fill(broker.bootstrap, "served", 0, 20))
    write(tmp_path, broker, "served")
    with Program(tmp_path, "billing:app", "--metrics-port", "0") as program:
        eventually(lambda: len(program.handled()) == 20, "all are handled")
        address = next(word for word in program.log.read_text().split() if word.startswith("http://"))
        metrics = urllib.request.urlopen(address).read().decode()
        assert 'headrace_listener_processed_total{app="served-group",listener="bill"} 20.0' in metrics
        assert 'headrace_listener_up{app="served-group",listener="bill"} 1.0' in metrics
        with urllib.request.urlopen(address.replace("/metrics", "/ready")) as answer:
            assert json.load(answer)["listeners"][0]["state"] == "running"
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(30) == 0


def test_a_listener_that_fails_ends_the_program_with_a_status(broker: TestBroker, tmp_path: Path) -> None:
    run(fill(broker.bootstrap, "ends", 0, 1))
    text = BILLING.format(group="ends", bootstrap=broker.bootstrap, topic="ends", bad=(0,))
    (tmp_path / "billing.py").write_text(text.replace('dead_letter="ends.dlq", ', ""))
    status, said = run_in(tmp_path, "billing", "--json")
    assert '"state": "failed"' in said and '"failures": 1' in said
    assert status == 1 and "CRITICAL" in said and "listener 'bill' has failed: no table 0" in said


def test_what_is_no_app_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text("import headrace\nmine = headrace.App('x')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for target, advice in (
        ("other.py", "write MODULE:APP"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("other", "did you mean other:mine"),
    ):
        with pytest.raises(ClientError, match=advice):
            find_app(target)


def test_changed_code_is_loaded_again(broker: TestBroker, tmp_path: Path) -> None:
    run(fill(broker.bootstrap, "changing", 0, 3))
    write(tmp_path, broker, "changing")
    with Program(tmp_path, "billing", "--reload") as program:
        eventually(lambda: len(program.handled()) == 3, "the first code runs")
        write(tmp_path, broker, "changing")
        source = tmp_path / "billing.py"
        source.write_text(source.read_text().replace("{number}", "{number + 1000}"))
        eventually(lambda: b"starting again" in program.log.read_bytes(), "the change is seen")
        run(fill(broker.bootstrap, "changing", 3, 4))
        eventually(lambda: 1003 in program.handled(), "the new code runs")


def test_dead_letters_are_shown_and_sent_back_once(broker: TestBroker, tmp_path: Path) -> None:
    run(fill(broker.bootstrap, "failing", 0, 10))
    write(tmp_path, broker, "failing", bad=(3, 4))
    with Program(tmp_path, "billing") as program:
        eventually(lambda: len(program.handled()) == 8, "the others are handled")
        eventually(lambda: program.log.read_text().count("goes to the dead letters") == 2, "two are put aside")
    at = ("--bootstrap", broker.bootstrap)
    table = headrace("dlq", "show", "failing.dlq", *at)
    assert "ValueError: no table 3" in table and "k4" in table
    facts = json.loads(headrace("dlq", "show", "failing.dlq", "--json", *at))
    assert sorted(one["value"] for one in facts) == ["3", "4"]
    assert {one["origin"]["topic"] for one in facts} == {"failing"}
    assert "Traceback" in headrace("dlq", "show", "failing.dlq", "--trace", *at)
    assert "would send 2 back to failing" in headrace("dlq", "replay", "failing.dlq", "--dry-run", *at)
    assert "sent 2 back to failing" in headrace("dlq", "replay", "failing.dlq", *at)
    assert "nothing to send back" in headrace("dlq", "replay", "failing.dlq", *at)
    place = f"{facts[0]['partition']}:{facts[0]['offset']}"
    assert "sent 1 back to elsewhere" in headrace(
        "dlq", "replay", "failing.dlq", "--only", place, "--to", "elsewhere", *at
    )
    assert "write PARTITION:OFFSET" in headrace("dlq", "replay", "failing.dlq", "--only", "x", *at, status=1)
    write(tmp_path, broker, "failing")
    with Program(tmp_path, "billing") as program:
        eventually(lambda: sorted(program.handled()) == list(range(10)), "they are handled after the cure")


def test_letters_of_nobody_say_what_to_do(broker: TestBroker) -> None:
    async def put() -> None:
        async with Producer(broker.bootstrap) as producer:
            await producer.send("strange.dlq", b"x")

    run(put())
    at = ("--bootstrap", broker.bootstrap)
    assert "with --to" in headrace("dlq", "replay", "strange.dlq", *at, status=1)
    assert "unknown" in headrace("dlq", "show", "strange.dlq", *at)


def test_a_replayed_letter_has_its_headers_and_says_how_often_it_came_back(broker: TestBroker) -> None:
    async def put() -> None:
        async with Producer(broker.bootstrap) as producer:
            told = failure_headers(
                (("trace", b"1"),), Origin("back", 0, 0, 0, "g"), ValueError("x"), listener="l", attempts=1
            )
            await producer.send("back", b"first")
            await producer.send("back.dlq", b"x", headers=told)

    async def read() -> Record:
        async with Consumer("back", bootstrap=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            records = aiter(consumer)
            await anext(records)
            return await anext(records)

    run(put())
    headrace("dlq", "replay", "back.dlq", "--bootstrap", broker.bootstrap)
    assert run(read()).headers == (("trace", b"1"), ("headrace-replays", b"1"))
