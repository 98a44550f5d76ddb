"""A project of somebody else's, with Headrace installed: its tests ask for brokers, and nothing else is set up."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 240.0
LOADED_MAX_S = 0.02
"""What the plugin may add to the start of any pytest run, in CPU time."""

PROJECT = {
    "conftest.py": """
import pytest

@pytest.fixture(scope="session")
def headrace_settings():
    return {"num.partitions": "3", "log.retention.hours": "2"}
""",
    "test_orders.py": """
from confluent_kafka import Consumer, Producer

def test_the_settings_are_the_projects_own(headrace_broker):
    headrace_broker.produce("three", *(("key %d" % n, "value") for n in range(50)))
    assert {record.partition for record in headrace_broker.consume("three", 50)} == {0, 1, 2}

def test_orders_arrive(headrace_broker):
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap})
    producer.produce("orders", b"one coffee")
    producer.flush()
    (record,) = headrace_broker.consume("orders", 1)
    assert record.value == b"one coffee"

def test_a_group_gets_its_partitions_at_once(headrace_broker):
    headrace_broker.produce("paid", "one coffee")
    where = {"bootstrap.servers": headrace_broker.bootstrap, "auto.offset.reset": "earliest"}
    consumer = Consumer({**where, "group.id": "g"})
    consumer.subscribe(["paid"])
    (message,) = consumer.consume(1, 30)
    assert message.value() == b"one coffee"
    consumer.close()

def test_the_broker_is_lost(fresh_headrace_broker):
    fresh_headrace_broker.produce("kept", "a")
    fresh_headrace_broker.kill()
    fresh_headrace_broker.start()
    assert [record.value for record in fresh_headrace_broker.consume("kept", 1)] == [b"a"]
""",
    "test_failing.py": """
def test_earlier(headrace_broker):
    headrace_broker.inject("Produce", drop="before", client_id="unsuspicious")

def test_that_fails(headrace_broker):
    headrace_broker.inject("Produce", drop="before", client_id="suspicious")
    assert False, "on purpose"
""",
    "test_blunt.py": """
def test_that_waits_in_vain(headrace_broker):
    headrace_broker.consume("never", count=1, timeout_s=0.1)

def test_that_misspells(headrace_broker):
    headrace_broker.inject(api="Produse")
""",
    "test_other.py": """
import sys

def test_that_needs_no_broker():
    assert [name for name in sys.modules if name.startswith("headrace.") and "testing.plugin" not in name] == ALLOWED

ALLOWED = ["headrace.lazy_exports", "headrace.version", "headrace.testing"]
""",
}


def pytest_of(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    # Not with this project's plugins and options: with those that are installed.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=project, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("downstream")
    for name, text in PROJECT.items():
        (folder / name).write_text(text)
    return folder


def test_a_project_gets_brokers_without_setting_anything_up(project: Path) -> None:
    done = pytest_of(project, "-q", "test_orders.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_brokers_log_stands_in_the_report_of_a_failed_test(project: Path) -> None:
    done = pytest_of(project, "test_failing.py")
    assert done.returncode == 1, done.stdout + done.stderr
    report = done.stdout.partition("test_that_fails")[2]
    assert "Headrace: log of the broker during call" in report
    assert "suspicious" in report.partition("Headrace: log of the broker")[2]
    assert "unsuspicious" not in report, "what was said before the test began is left out"


def test_a_failed_test_shows_its_own_line_and_not_the_kits_code(project: Path) -> None:
    done = pytest_of(project, "test_blunt.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "TooFewRecords: 0 of 1 records in never" in done.stdout
    assert "API 'Produse' does not exist; did you mean Produce?" in done.stdout
    for inner in ("asyncio", "During handling", "testing/records.py", "testing/control.py"):
        assert inner not in done.stdout


def test_nothing_is_imported_for_a_project_that_asks_for_no_broker(project: Path) -> None:
    done = pytest_of(project, "test_other.py")
    assert done.returncode == 0, done.stdout


def test_the_plugin_is_named_as_its_module_so_that_naming_it_again_does_no_harm(project: Path) -> None:
    (project / "again").mkdir()
    (project / "again" / "conftest.py").write_text('pytest_plugins = ["headrace.testing.plugin"]')
    (project / "again" / "test_again.py").write_text(
        "def test_it(headrace_settings):\n    assert headrace_settings == {}"
    )
    done = pytest_of(project / "again", "--trace-config", "--rootdir", ".", "--confcutdir", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ +headrace\.testing\.plugin *:", done.stdout, re.M)) == 1


def test_loading_the_plugin_costs_others_next_to_nothing() -> None:
    code = (
        "import time, pytest\n"
        "before = time.process_time()\n"
        "import headrace.testing.plugin\n"
        "print(time.process_time() - before)\n"
    )
    spent = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(spent) < LOADED_MAX_S
