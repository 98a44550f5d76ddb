"""Raft's safety under seeded trouble, on the pure core; and bugs planted to show that the checks would see them."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.raft import fetching, leader, membership, voting
from headrace.raft.leader import NEVER_MS
from headrace.raft.states import Nominee, Unattached
from headrace.raft.types import OffsetEpoch, RaftError
from tests.simulation.harness import seeds_within
from tests.simulation.raft_model import Model, Stuck, Violation

QUICK_SEEDS = 300
QUICK_SECONDS = 5.0
"""The default run stops here; the rest is for `make soak`."""
SOAK_SEEDS = 5000
TROUBLE_MS = 8000


def model(seed: int) -> Model:
    dice = Random(f"shape {seed}")
    voters, observers = dice.choice(((1, 0), (2, 1), (3, 0), (3, 0), (3, 2), (5, 0)))
    return Model(seed, voters, observers, loss=dice.choice((0.0, 0.02, 0.1, 0.2)), changes=seed % 3 == 0)


def test_safety_holds_under_trouble() -> None:
    for seed in seeds_within(QUICK_SECONDS, range(QUICK_SEEDS), at_least=20):
        model(seed).run(TROUBLE_MS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_safety_holds_under_much_trouble() -> None:
    for seed in range(QUICK_SEEDS, SOAK_SEEDS):
        model(seed).run(TROUBLE_MS)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def seen(shape: Any, seeds: int = 200) -> str:
    """What the checks say of a planted bug, from the first seed that shows it."""
    for seed in range(seeds):
        try:
            shape(seed).run(TROUBLE_MS)
        except Stuck:
            continue  # a sign of many things; what is wanted is the check that knows what was broken
        except (Violation, RaftError, AssertionError) as error:
            return str(error)
    return ""


def troubled(seed: int) -> Model:
    return Model(seed, 3, loss=0.1)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch


def test_a_vote_that_is_told_before_it_is_saved_is_seen() -> None:
    def shape(seed: int) -> Model:
        found = Model(seed, 5, loss=0.2)
        found.says_before_saving = True
        found.crash_voters = 0.5
        return found

    assert seen(shape)


def test_a_follower_that_counts_before_its_disk_does_is_seen(patch: pytest.MonkeyPatch) -> None:
    def next_ms(raft: Any) -> int:
        fetcher = raft.fetcher
        return NEVER_MS if fetcher.in_flight is not None or fetcher.storing else fetcher.at_ms

    patch.setattr(fetching, "next_ms", next_ms)
    assert seen(troubled)


def test_a_leader_that_counts_before_its_disk_does_is_seen(patch: pytest.MonkeyPatch) -> None:
    right = leader.Leader.advance
    patch.setattr(leader.Leader, "advance", lambda self, durable_end: right(self, durable_end + 5))

    def shape(seed: int) -> Model:
        found = Model(seed, 3, loss=0.1, writes_every_ms=40)
        found.betrayals = 1.0
        return found

    assert seen(shape)


def test_a_vote_for_a_shorter_log_is_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetEpoch, "at_least", lambda self, other: True)
    assert seen(troubled)


def test_a_vote_that_is_forgotten_is_seen(patch: pytest.MonkeyPatch) -> None:
    right = voting._may_grant

    def forgetful(raft: Any, request: Any) -> bool:
        if not request.pre_vote and raft.election.voted is not None and isinstance(raft.state, Unattached):
            raft.election = raft.election._replace(voted=None)
        return right(raft, request)

    patch.setattr(voting, "_may_grant", forgetful)
    assert "twice" in seen(troubled) or "both lead" in seen(troubled)


def test_an_election_won_without_a_majority_is_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Nominee, "won", property(lambda self: len(self.granted) >= len(self.voters) // 2))
    assert seen(troubled)


def test_a_log_that_is_not_cut_where_it_differs_is_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetching, "_truncation", lambda raft, diverging: max(raft.log.end_offset - 1, diverging.offset))
    patch.setattr(fetching, "_not_of_this_log", lambda raft, request: None)
    assert seen(troubled)


def test_two_changes_of_the_voters_at_once_are_seen(patch: pytest.MonkeyPatch) -> None:
    right = membership._refusal

    def lenient(raft: Any, state: Any) -> Any:
        state.change = None
        refusal = right(raft, state)
        return None if refusal is not None and "not yet committed" in refusal[1] else refusal

    patch.setattr(membership, "_refusal", lenient)
    assert seen(lambda seed: Model(seed, 3, 3, loss=0.1, changes=True, changes_share=0.5), 600)
