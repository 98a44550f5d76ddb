"""What is compared, and what was found. Pure."""

from collections.abc import Collection
from itertools import product
from typing import NamedTuple

import msgspec

REPLICAS = (1, 2, 3)
MIN_IN_SYNC = (1, 2, 3)
ACKS = ("0", "1", "all")
DURABILITIES = ("fsync", "replicated")
QUICK = {(1, 1), (2, 1), (3, 1), (3, 2)}
"""Replicas and minimum of `--quick`: where the answers differ most."""


class Case(NamedTuple):
    """One setting of the four screws, with a topic of its own."""

    durability: str
    replicas: int
    min_in_sync: int
    acks: str

    @property
    def topic(self) -> str:
        return f"replicas-{self.replicas}.min-{self.min_in_sync}.acks-{self.acks}"


class Choice(NamedTuple):
    """Which cases to try; empty is all."""

    quick: bool = False
    replicas: Collection[int] = ()
    min_in_sync: Collection[int] = ()
    acks: Collection[str] = ()
    durabilities: Collection[str] = ()

    def cases(self) -> list[Case]:
        """In the order of the table."""
        durabilities = DURABILITIES[:1] if self.quick else DURABILITIES
        found = [Case(*one) for one in product(self.durabilities or durabilities, REPLICAS, MIN_IN_SYNC, ACKS)]
        return [case for case in found if self._has(case)]

    def _has(self, case: Case) -> bool:
        quick = not self.quick or ((case.replicas, case.min_in_sync) in QUICK and case.acks != "0")
        return (
            quick
            and (not self.replicas or case.replicas in self.replicas)
            and (not self.min_in_sync or case.min_in_sync in self.min_in_sync)
            and (not self.acks or case.acks in self.acks)
        )


class Stage(msgspec.Struct, frozen=True):
    """What one case was like at one point: with all brokers, with one lost, with two lost."""

    written: bool
    """Whether a record that was sent then is in the log: acknowledged, if the producer asked, and read again."""
    offline: bool
    """No replica may lead. What is lost was found out after an unclean election, if any replica was left."""
    acknowledged: int
    """Records so far."""
    lost: int
    """How many of these cannot be read any more."""
    twice: int
    latency_ms: float | None
    """Median from sending a record to its acknowledgement, one at a time. None where nothing is written."""
    slowest_ms: float | None
    """The 99th of 100."""
    records_per_s: float | None


class Progress(NamedTuple):
    """How far a proof is."""

    doing: str
    done: int
    total: int
    """Measurements: three for each case."""


class Result(msgspec.Struct, frozen=True):
    durability: str
    replicas: int
    min_in_sync: int
    acks: str
    stages: list[Stage]
    """With all brokers, after one is lost, after two are lost."""
