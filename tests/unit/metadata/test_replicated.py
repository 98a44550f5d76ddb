"""Nothing that was committed is lost by what the controller decides, whatever happens to brokers and to itself."""

import pytest

from headrace.metadata import partitions
from headrace.metadata.image import Partition
from headrace.metadata.partitions import Rules, Wanted
from tests.unit.metadata.replicated import Replicated, Wrong

SEEDS = 100
STEPS = 100


def run(seed: int, switching: bool) -> Replicated:
    history = Replicated(seed, switching)
    try:
        for _ in range(STEPS):
            history.step()
        history.events.append("finish")
        history.finish()
    except Wrong as error:
        raise Wrong(f"seed {seed}: {error}; {history.events}") from error
    return history


@pytest.mark.parametrize("switching", [False, True])
def test_whoever_leads_has_all_that_was_committed(switching: bool) -> None:
    histories = [run(seed, switching) for seed in range(SEEDS)]
    assert sum(len(history.committed) for history in histories) > SEEDS


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("switching", [False, True])
def test_whoever_leads_has_all_that_was_committed_in_many_histories(switching: bool) -> None:
    for seed in range(SEEDS, 20_000):
        run(seed, switching)


# Bugs planted on purpose.


def test_eligible_ones_that_lost_something_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = partitions._fill_elr

    def forgiving(partition: Partition, wanted: Wanted, rules: Rules) -> None:
        wanted.unclean_shutdown = ()
        fill(partition, wanted, rules)

    monkeypatch.setattr(partitions, "_fill_elr", forgiving)
    with pytest.raises(Wrong, match="committed records"):
        for seed in range(20 * SEEDS):
            run(seed, switching=False)
