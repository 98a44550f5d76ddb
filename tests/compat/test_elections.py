"""Idempotent producers at their defaults under elections, as fast as a controller can hold them: nothing twice, nothing
lost, nothing out of order, nothing given up."""

import pytest

from headrace.testing.cluster import TestCluster
from tests.compat import elections
from tests.compat.elections import CLIENTS, Told, judge
from tests.reference.apache import Unavailable


def held(kinds: list[str], count: int, **more: int) -> None:
    try:
        for kind in kinds:
            CLIENTS[kind]()
    except Unavailable as why:
        pytest.skip(str(why))
    with TestCluster(3) as cluster:
        done, verdicts = elections.run(cluster, kinds, count, **more)
    said = "\n".join(map(str, verdicts))
    assert done >= count and all(verdict.clean for verdict in verdicts), said
    assert not any(verdict.told.bumps for verdict in verdicts), said


@pytest.mark.timeout(300)
def test_a_few() -> None:
    held(["confluent-kafka"], 40)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_by_the_thousand(seed: int) -> None:
    held(list(CLIENTS), 2000, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_producers_that_have_just_begun() -> None:
    """Of an unknown producer any sequence may come first."""
    held(list(CLIENTS), 1000, each=40)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_with_nodes_killed_in_between(seed: int) -> None:
    held(list(CLIENTS), 600, kills=6, seed=seed)


def test_the_verdict_finds_what_is_wrong() -> None:
    log = {0: {0: b"c-0", 1: b"c-2", 2: b"c-2", 3: b"c-6", 4: b"c-4", 5: b"other-1"}, 1: {0: b"c-1", 1: b"c-3"}}
    verdict = judge(log, Told("c", 8, failed={5: "given up"}))
    assert (verdict.twice, verdict.lost, verdict.reordered, verdict.clean) == ([2], [7], 1, False)
    assert judge({0: {0: b"c-0", 1: b"c-1"}}, Told("c", 2)).clean
