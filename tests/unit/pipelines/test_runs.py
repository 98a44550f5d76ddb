"""The registry of runs, as other processes see it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.pipelines.run import registry as runs
from headrace.spark.pipelines.run.registry import (
    AlreadyRunning,
    RunEntry,
    checkpoints_locked,
    create_run,
    find_run,
    list_runs,
    process_start,
    read_run,
    request_stop,
)


def make(registry: Path, name: str = "p", storage: str = "/s") -> RunEntry:
    return create_run(
        name, Path("/x/pipeline.yaml"), master="local[2]", mode="continuous", storage=storage, registry=registry
    )


def test_own_run_is_live_and_found_by_name_and_id(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path, "q")
    assert {run.info.run_id for run in list_runs(tmp_path)} == {first.info.run_id, second.info.run_id}
    found = find_run("p", tmp_path, live=True)
    assert found is not None and found.info == first.info and found.state == "starting"
    assert find_run(second.info.run_id, tmp_path, live=True) is not None
    assert find_run("other", tmp_path, live=False) is None


def test_two_runs_in_one_second_have_names_of_their_own(tmp_path: Path) -> None:
    assert make(tmp_path).info.run_id != make(tmp_path).info.run_id


def test_ended_and_lost_runs_are_not_live(tmp_path: Path) -> None:
    entry = make(tmp_path)
    entry.write_progress({"state": "done", "queries": []})
    assert find_run("p", tmp_path, live=True) is None
    entry = make(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    info = json.loads((entry.folder / "run.json").read_text())
    (entry.folder / "run.json").write_text(json.dumps({**info, "pid": child.pid}))
    found = read_run(entry.folder)
    assert found is not None and found.state == "lost"


def test_process_with_the_same_id_that_started_later_is_another(tmp_path: Path) -> None:
    entry = make(tmp_path)
    info = json.loads((entry.folder / "run.json").read_text())
    (entry.folder / "run.json").write_text(json.dumps({**info, "process_start": info["process_start"] - 1}))
    found = read_run(entry.folder)
    assert found is not None and found.state == "lost"


def test_runs_of_other_hosts_live_by_their_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = make(tmp_path)
    info = json.loads((entry.folder / "run.json").read_text())
    (entry.folder / "run.json").write_text(json.dumps({**info, "host": "elsewhere", "pid": 1}))
    found = read_run(entry.folder)
    assert found is not None and found.is_live
    later = runs.now_ms() + runs.HEARTBEAT_LIMIT_MS + 1
    monkeypatch.setattr(runs, "now_ms", lambda: later)
    found = read_run(entry.folder)
    assert found is not None and found.state == "lost"


def test_stop_is_seen_by_the_run(tmp_path: Path) -> None:
    entry = make(tmp_path)
    assert entry.stop_requested() is None
    found = find_run("p", tmp_path, live=True)
    assert found is not None
    request_stop(found)
    assert entry.stop_requested() == "graceful"
    request_stop(found, now=True)
    assert entry.stop_requested() == "now"


def test_second_run_on_the_same_checkpoints_is_refused_by_name(tmp_path: Path) -> None:
    entry = make(tmp_path, storage="/here")
    code = (
        "import sys; from pathlib import Path; from headrace.spark.pipelines.run.registry import *\n"
        "with checkpoints_locked('/here', 'p', Path(sys.argv[1])): print('held')"
    )
    with checkpoints_locked("/here", "p", tmp_path):
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert AlreadyRunning.__name__ in other.stderr
        assert f"run {entry.info.run_id}, process {os.getpid()}" in other.stderr
        with checkpoints_locked("/elsewhere", "p", tmp_path):
            pass
    assert (
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True).stdout == "held\n"
    )


def test_driver_that_outlives_its_run_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = make(tmp_path, storage="/here")
    entry.write_progress({"state": "done", "queries": []})
    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    entry.note_driver(driver.pid)
    monkeypatch.setattr(runs, "DRIVER_LIMIT_S", 0.3)
    with pytest.raises(AlreadyRunning, match=f"process {driver.pid}"), checkpoints_locked("/here", "p", tmp_path):
        pass
    driver.communicate(b"\n")
    with checkpoints_locked("/here", "p", tmp_path):
        pass


def test_old_runs_are_removed_and_broken_folders_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_RUNS", 2)
    for _ in range(5):
        make(tmp_path).write_progress({"state": "done", "queries": []})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    live = make(tmp_path)
    assert len(list_runs(tmp_path)) == 3
    assert find_run(None, tmp_path, live=True).info == live.info  # type: ignore[union-attr]


def test_process_start_tells_processes_apart() -> None:
    assert process_start(os.getpid()) > 0
    assert process_start(2**22 - 3) == 0
