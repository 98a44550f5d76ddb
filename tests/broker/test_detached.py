"""`headrace up --detach`, `logs` and `down`, as a person types them one after the other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.detached import Running, pid_file, running_in


def headrace(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *map(str, words)], capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("more", [(), ("--brokers", 2)], ids=["broker", "cluster"])
def test_a_detached_broker_serves_until_it_is_told_to_stop(tmp_path: Path, more: tuple[object, ...]) -> None:
    data = tmp_path / "data"
    try:
        begun = headrace("up", "--detach", "--port", 0, "--data", data, *more)
        assert begun.returncode == 0 and " ready on " in begun.stdout, begun
        address = begun.stdout.partition(" ready on ")[2].split()[0]
        assert headrace("topic", "create", "kept", "-b", address).returncode == 0
        again = headrace("up", "--detach", "--port", 0, "--data", data, *more)
        assert again.returncode == 1 and f"headrace down --data {data}" in again.stderr
        assert " ready on " in headrace("logs", "--data", data).stdout
        ended = headrace("down", "--data", data)
        assert ended.returncode == 0 and "stopped process" in ended.stdout
        assert running_in(data) is None
        assert "nothing that was started with --detach runs" in headrace("down", "--data", data).stderr
    finally:
        headrace("down", "--now", "--data", data)


def test_scripts_get_json(tmp_path: Path) -> None:
    data = tmp_path / "data"
    try:
        begun = json.loads(headrace("up", "--detach", "--port", 0, "--data", data, "--json").stdout)
        running = running_in(data)
        assert running is not None and begun["pid"] == running.pid and begun["log"] == str(tmp_path / "data.log")
        assert headrace("topic", "list", "-b", begun["ready"]).returncode == 0
        lines = [json.loads(line) for line in headrace("logs", "--data", data, "--json").stdout.splitlines()]
        assert any(" ready on " in line for line in lines)
        assert json.loads(headrace("down", "--data", data, "--json").stdout) == {
            "stopped": running.pid, "data": str(data),
        }  # fmt: skip
    finally:
        headrace("down", "--now", "--data", data)


@pytest.mark.parametrize("more", [(), ("--brokers", 2)], ids=["broker", "cluster"])
def test_a_start_says_where_it_is_as_json(tmp_path: Path, more: tuple[object, ...]) -> None:
    words = ["up", "--port", 0, "--data", tmp_path / "data", "--json", *more]
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            assert headrace("topic", "list", "-b", ready["ready"]).returncode == 0
            assert ready["data"] == str(tmp_path / "data") and ready["started_s"] > 0
        finally:
            process.terminate()
        assert process.stdout.read() == ""


def test_a_start_that_fails_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "holidays"
    folder.mkdir()
    (folder / "beach.jpg").write_bytes(b"")
    failed = headrace("up", "--detach", "--port", 0, "--data", folder)
    assert failed.returncode == 1 and "--data" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["holidays"]
    assert [path.name for path in folder.iterdir()] == ["beach.jpg"]


def test_a_number_that_another_process_has_now_is_not_taken_for_ours(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        found = Running.of(sleeper.pid)
        assert found is not None
        pid_file(tmp_path / "data").write_text(f"{found.pid} {found.started}\n")
        assert running_in(tmp_path / "data") == found
        pid_file(tmp_path / "data").write_text(f"{found.pid} {int(found.started) - 1}\n")
        assert running_in(tmp_path / "data") is None
    finally:
        sleeper.kill()
        sleeper.wait()
    assert Running.of(sleeper.pid) is None
