"""Nothing acknowledged is lost: the broker under load, its power cut at random moments, all it promised read back.

The planted bugs are the other half of the proof: a broker that acknowledges too early must be caught.
"""

import pytest

from headrace.storage.durability import SyncPlan
from headrace.testing.simulator.disk import CrashMode, MemoryDisk
from tests.simulation.harness import seeds_within
from tests.simulation.power_cuts import run

TIME_BOX_S = 4.0
SEEDS = 150
SOAK_SEEDS = 5_000


def check_seeds(seeds: range, time_box_s: float) -> None:
    """Run as many seeds as fit in the box. The first anomaly fails with its seed."""
    acknowledged = done = 0
    for seed in seeds_within(time_box_s, seeds, at_least=11):
        result = run(seed)
        result.assert_good(seed)
        assert result.did["final"] >= result.did["acknowledged"]
        acknowledged += result.did["acknowledged"]
        done += 1
    assert acknowledged > 100 * done, "the load was too light to prove anything"


def test_every_acknowledged_record_survives() -> None:
    check_seeds(range(SEEDS), TIME_BOX_S)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_acknowledged_record_survives_thousands_of_histories() -> None:
    check_seeds(range(SEEDS, SEEDS + SOAK_SEEDS), 1800.0)


@pytest.mark.parametrize("seed", [18, 30, 38, 91, 194])
def test_seeds_that_once_failed(seed: int) -> None:
    """They found a log dir whose name was never synced, and a folder that changed while it was being synced."""
    assert run(seed).anomalies == []


def anomalies_in(seeds: range, settings: dict[str, str] | None = None) -> set[str]:
    """Kinds of anomalies, of the first seed that has any."""
    for seed in seeds:
        try:
            result = run(seed, settings, modes=(CrashMode.LOSE, CrashMode.RANDOM))
        except Exception as error:
            # As good as an anomaly: a broker that cannot start, a topic that is gone.
            return {type(error).__name__}
        if result.anomalies:
            return {anomaly.kind for anomaly in result.anomalies}
    return set()


def test_acknowledging_before_the_sync_is_caught() -> None:
    """`durability=replicated` with one replica promises nothing about power cuts: the checkers must see that."""
    # In some histories the broker itself misses what it lost, and answers with an error.
    found = (anomalies_in(range(seed, seed + 1), {"durability": "replicated"}) for seed in range(20))
    assert any("lost-write" in kinds for kinds in found)


def test_a_sync_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(plan: SyncPlan) -> None:
        plan.done = True

    monkeypatch.setattr(SyncPlan, "run", lie)
    assert anomalies_in(range(20))


def test_a_missing_directory_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryDisk, "sync_dir", lambda disk, path: None)
    assert anomalies_in(range(20))


def test_one_seed_is_one_history() -> None:
    first, second = run(5), run(5)
    assert (first.events, first.did, first.finished_s) == (second.events, second.did, second.finished_s)
    assert first.disk == second.disk
