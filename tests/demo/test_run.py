"""The demo as its users start it: it ends well, by itself or by Ctrl-C, and leaves nothing behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "demo", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were given the folder: brokers, Spark's driver, its JVM and Python workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if any(word.startswith(f"TMPDIR={folder}".encode()) for word in path.read_bytes().split(b"\0")):
                found.append(path.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
        except OSError:
            continue
    return found


def wait_until(ready: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"no {text!r} in:\n{seen}")


def spying(command: str, tools: Path) -> Path:
    """Have `command` be a script in `tools` that notes each of its runs before it does what it should."""
    notes = tools / f"{command}.runs"
    script = tools / command
    script.write_text(f'#!/bin/sh\necho "$@" >> {notes}\nexec {shutil.which(command)} "$@"\n')
    script.chmod(0o755)
    return notes


def test_the_whole_job_keeps_every_promise_through_a_kill(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("pyspark")
    report = tmp_path / "out.html"
    tools = tmp_path_factory.mktemp("tools")
    forks = spying("readlink", tools)
    process = start(
        tmp_path, "--for", "16s", "--rate", "300", "--report", str(report), PATH=f"{tools}:{os.environ['PATH']}"
    )
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert not forks.exists(), f"checkpoints cost processes: {forks.read_text()[:500]}"
    assert "kill -9 of broker" in output and "kill -9 of Spark's driver" in output and "All is right" in output
    assert re.search(r"events are acknowledged again everywhere, [\d.]+ s after the kill", output)
    assert re.search(r"the first window is out, [\d.]+ s after the start", output)
    kept = re.findall(r"kept +(.+?):", output)
    assert kept == [
        "group order-queue", "group audit-log", "group recommender",
        "windows in the topic shop-revenue, exactly once", "windows in Parquet, exactly once",
        "rejects in the topic, at least once",
    ]  # fmt: skip
    text = report.read_text()
    assert text.count("<svg") == 6 and "Every event is accounted for." in text
    assert list(tmp_path.iterdir()) == [report]
    wait_until(lambda: not processes_of(tmp_path))


def test_without_spark_the_rest_is_shown_and_checked(tmp_path: Path) -> None:
    process = start(tmp_path, "--no-spark", "--for", "5s", "--rate", "200")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert output.count("kept") == 3 and "left out" in output and not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["ready on", "Spark: starting", "running"])
def test_ctrl_c_ends_everything_at_any_moment(tmp_path: Path, moment: str) -> None:
    process = start(tmp_path, "--for", "60s", "--rate", "200")
    seen = read_until(process, moment)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, seen + output
    assert "Traceback" not in output and not list(tmp_path.iterdir())
    # Spark's Python workers end by themselves when their JVM is gone, a moment later.
    wait_until(lambda: not processes_of(tmp_path))


def test_a_killed_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    process = start(tmp_path, "--for", "60s", "--rate", "200")
    read_until(process, "running")
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_of(tmp_path))


@pytest.mark.parametrize(
    "words,message",
    [
        (["--for", "soon"], "--for soon: write a time such as 60s, 5m or 1h"),
        (["--for", "0s"], "--for 0s: write a time"),
        (["--report", "/no/such/folder/out.html"], "there is no folder /no/such/folder"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    output, _ = (process := start(tmp_path, *words)).communicate()
    assert process.returncode == 1 and message in output and "Traceback" not in output and not list(tmp_path.iterdir())
