"""The measure of coverage that `make test` takes: what is counted to which package, and when a run is refused."""

import subprocess
import sys

from tests.coverage import LEFT_OUT, ROOT, SOURCE, SWITCH, below, floors, package_of, shares


def test_each_room_of_the_broker_is_a_package_of_its_own() -> None:
    assert package_of("storage/log.py") == package_of("storage/deeper/log.py") == "storage"
    assert package_of("broker/net/outbox.py") == package_of("broker/net/deeper/outbox.py") == "broker/net"
    assert package_of("broker/server.py") == "broker"
    assert package_of("errors.py") == "headrace"


def test_a_share_is_of_all_lines_also_of_files_that_nobody_imports() -> None:
    lines = {"raft/node.py": {1, 2, 3}, "raft/never.py": {1}, "clock.py": {1, 2}}
    seen = {"raft/node.py": {1, 2, 9}, "clock.py": {1, 2}}
    assert shares(lines, seen) == {"headrace": 100.0, "raft": 50.0}


def test_a_fall_below_a_floor_is_one_line() -> None:
    assert below({"raft": 90.0, "storage": 95.0}, {"raft": 90, "storage": 94.5}) == []
    assert below({"raft": 89.94, "storage": 95.0}, {"raft": 90, "storage": 94}) == [
        "coverage: raft is at 89.9 %, below its floor of 90 % in pyproject.toml"
    ]


def test_a_floor_goes_with_its_package() -> None:
    assert below({"new": 90.0}, {"gone": 50}) == ["coverage: gone has a floor in pyproject.toml and no code"]
    packages = {package_of(path.relative_to(SOURCE).as_posix()) for path in SOURCE.rglob("*.py")}
    assert floors().keys() <= packages


def test_what_is_left_out_exists() -> None:
    assert all((SOURCE / name).exists() for name in LEFT_OUT)


def test_lines_are_seen_and_a_part_of_the_tests_is_not_judged() -> None:
    """A run of its own that measures: this process may be one that does not."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "tests/unit/raft/test_rules.py"]
    program = f"import os, sys; os.environ[{SWITCH!r}] = '1'; os.environ.pop('PYTEST_XDIST_WORKER', 0); "
    program += f"os.execv(sys.executable, {command!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (line for line in done.stdout.splitlines() if line.startswith("coverage: ") and "lines (" in line)
    seen = dict(part.rsplit(" ", 1) for part in summary.partition("(")[2].rstrip(")").split(", "))
    assert 0 < float(seen["raft"]) < 100 and float(seen["demo"]) == 0
    assert "coverage: not compared with the floors, since this is a part of the tests" in done.stdout
