"""Whatever happens to a broker's files: no wrong or missing record without an error, no crash loop, no other topic
harmed.

A failing seed is repeated by `python -m tests.damage alone 17` (or trio, real-alone, real-trio).
"""

from collections.abc import Callable

import pytest

from tests.damage import alone, processes, trio
from tests.damage.alone import Run
from tests.simulation.harness import seeds_within

BOX_S = 4.0


def check_seeds(run: Callable[[int], Run], name: str, seeds: range, box_s: float, at_least: int) -> set[str]:
    """Kinds of files that were damaged. Every failing seed is shown, not only the first."""
    kinds: set[str] = set()
    found: list[str] = []
    for seed in seeds_within(box_s, seeds, at_least):
        try:
            result = run(seed)
        except Exception as error:
            found.append(f"python -m tests.damage {name} {seed}: {error!r}")
            continue
        kinds |= result.kinds
        if result.findings:
            found.append(f"python -m tests.damage {name} {seed}: {result}")
    assert not found, "\n".join(found)
    return kinds


def test_a_node_that_is_alone_answers_rightly_or_with_an_error() -> None:
    assert len(check_seeds(alone.run, "alone", range(300), BOX_S, 6)) > 3


def test_a_node_of_three_is_whole_again_from_the_others() -> None:
    assert len(check_seeds(trio.run, "trio", range(300), BOX_S, 4)) > 3


def test_real_processes() -> None:
    check_seeds(processes.alone, "real-alone", range(100), 0.0, 1)
    check_seeds(processes.trio, "real-trio", range(100), 0.0, 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "run"),
    [("alone", alone.run), ("trio", trio.run), ("real-alone", processes.alone), ("real-trio", processes.trio)],
)
def test_many_seeds(name: str, run: Callable[[int], Run]) -> None:
    check_seeds(run, name, range(300, 100_000), 900.0, 20)
