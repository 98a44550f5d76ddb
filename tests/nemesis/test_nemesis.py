"""Many faults at once on real processes, disks and links: nothing acknowledged is lost, doubled or out of order.

`make test` has a few seconds of it. `make soak` has minutes: HEADRACE_NEMESIS_SEED (the first of the seeds),
HEADRACE_NEMESIS_RUNS and HEADRACE_NEMESIS_SECONDS say which and how long.
"""

import os
from pathlib import Path

import pytest

from tests.nemesis import cage
from tests.reference.apache import Unavailable, libs

FIRST = int(os.environ.get("HEADRACE_NEMESIS_SEED", "1000"))
RUNS = int(os.environ.get("HEADRACE_NEMESIS_RUNS", "4"))
SECONDS = float(os.environ.get("HEADRACE_NEMESIS_SECONDS", "120"))
LIMIT_S = 240.0

pytestmark = pytest.mark.timeout(SECONDS * 4 + LIMIT_S + 60)


@pytest.fixture(autouse=True)
def possible() -> None:
    if why := cage.missing():
        pytest.skip(f"no nemesis here: {why}")


def has_java() -> bool:
    try:
        libs()
    except Unavailable:
        return False
    return True


def unleash(folder: Path, *words: str, limit_s: float = LIMIT_S) -> str:
    """Run it in a cage; what it printed. A failure says how to repeat it, and keeps the folder's logs and histories."""
    output = folder / "output.txt"
    code = cage.run("tests.nemesis", [*words, "--caged", "--folder", str(folder)], output, limit_s)
    said = output.read_text(errors="replace")
    assert code == 0, (
        f"python -m tests.nemesis {' '.join(words)}\nended with {code}; all of it is in {folder}\n{said[-6000:]}"
    )
    return said


def test_power_partitions_and_pauses_at_once(tmp_path: Path) -> None:
    said = unleash(
        tmp_path,
        "--seed",
        "5",
        "--seconds",
        "8",
        "--every",
        "1",
        "--faults",
        "power,blackout,isolate,bridge,pause,kill,move,clock",
    )
    assert said.count("healed:") >= 4, said


def test_a_rolling_restart_at_clients_defaults(tmp_path: Path) -> None:
    said = unleash(tmp_path, "--seed", "1", "--rolling", "1")
    assert "given up {}" in said, said


def test_our_own_clients_through_kills_freezes_and_moves(tmp_path: Path) -> None:
    words = ["--own", "--seed", "5", "--seconds", "8", "--every", "1", "--faults", "kill,pause,move,isolate,power"]
    said = unleash(tmp_path, *words)
    assert said.count("healed:") >= 4 and "given up {}" in said, said


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_our_own_clients_through_everything_by_seeds(tmp_path: Path, seed: int) -> None:
    words = ["--own", "--seed", str(seed), "--seconds", f"{SECONDS:g}"]
    unleash(tmp_path, *words, limit_s=SECONDS * 3 + LIMIT_S)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_everything_at_once_by_seeds(tmp_path: Path, seed: int) -> None:
    words = ["--seed", str(seed), "--seconds", f"{SECONDS:g}", *(["--java"] if has_java() else [])]
    unleash(tmp_path, *words, limit_s=SECONDS * 3 + LIMIT_S)


@pytest.mark.soak
def test_with_few_descriptors(tmp_path: Path) -> None:
    unleash(tmp_path, "--seed", str(FIRST), "--seconds", f"{min(SECONDS, 60):g}", "--descriptors", "256")


@pytest.mark.soak
def test_rolling_restarts_at_clients_defaults(tmp_path: Path) -> None:
    said = unleash(tmp_path, "--seed", str(FIRST), "--rolling", "5", *(["--java"] if has_java() else []), limit_s=600)
    assert "given up {}" in said, said
