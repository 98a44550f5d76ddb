"""Which brokers hold the replicas of new partitions.

Brokers are walked rack by rack from a random start: leaders go round robin, the first followers start one broker
further, the second followers two further, and neighbours are in different racks as long as racks last. A topic with
more partitions than brokers is shuffled after each full round, so that leaders do not share the same followers for
ever. The dice is an argument: `dice(n)` returns a number in [0, n).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from headrace.errors import Err, KafkaError

Dice = Callable[[int], int]
T = TypeVar("T")


class UsableBroker(msgspec.Struct, frozen=True, gc=False):
    """A registered broker that is not shutting down."""

    id: int
    rack: str | None
    fenced: bool


class _Cycle:
    """Brokers of one rack in one state, handed out from a start that moves on by one with every partition."""

    __slots__ = ("brokers", "index", "offset", "round")

    def __init__(self) -> None:
        self.brokers: list[int] = []
        self.index = 0
        self.offset = 0
        self.round = 0

    def start(self, dice: Dice) -> None:
        if self.brokers:
            self.brokers.sort()
            self.offset = dice(len(self.brokers))

    def next(self, round_: int) -> int:
        """The next broker for the partition `round_`, or -1 when this partition has had them all."""
        brokers = self.brokers
        if not brokers:
            return -1
        if self.round != round_:
            self.round = round_
            self.index = 0
            self.offset = (self.offset + 1) % len(brokers)
        if self.index >= len(brokers):
            return -1
        broker = brokers[(self.index + self.offset) % len(brokers)]
        self.index += 1
        return broker


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self) -> None:
        self.fenced = _Cycle()
        self.unfenced = _Cycle()

    def next(self, round_: int) -> int:
        broker = self.unfenced.next(round_)
        return broker if broker >= 0 else self.fenced.next(round_)


def _shuffle(items: list[T], dice: Dice) -> None:
    for last in range(len(items) - 1, 0, -1):
        other = dice(last + 1)
        items[last], items[other] = items[other], items[last]


class _Racks:
    """All racks in order of name, the brokers without a rack first, as one rack."""

    def __init__(self, brokers: Iterable[UsableBroker], dice: Dice) -> None:
        self.dice = dice
        self.racks: dict[str | None, _Rack] = {}
        self.total = 0
        self.unfenced = 0
        for broker in brokers:
            rack = self.racks.setdefault(broker.rack, _Rack())
            (rack.fenced if broker.fenced else rack.unfenced).brokers.append(broker.id)
            self.total += 1
            self.unfenced += not broker.fenced
        self.names: list[str | None] = sorted(self.racks, key=lambda name: (name is not None, name or ""))
        for name in self.names:
            self.racks[name].fenced.start(dice)
            self.racks[name].unfenced.start(dice)
        self.offset = dice(len(self.names)) if self.names else 0
        self.round = 0

    def place(self, replication_factor: int) -> list[int]:
        if self.round == self.unfenced and self.unfenced > 1:
            self._reshuffle()
            self.round = 0
        if self.offset == len(self.names):
            self.offset = 0
        leader_rack, leader = self._leader()
        replicas = [leader]
        at = self.offset
        while len(replicas) < replication_factor:
            broker = -1
            if at == leader_rack:
                # Only the first pass leaves out the leader's rack: later passes may have to use it again.
                leader_rack = -1
            else:
                broker = self.racks[self.names[at]].next(self.round)
            at = (at + 1) % len(self.names)
            if broker >= 0:
                replicas.append(broker)
        self.round += 1
        self.offset += 1
        return replicas

    def _leader(self) -> tuple[int, int]:
        at = self.offset
        while True:
            broker = self.racks[self.names[at]].unfenced.next(self.round)
            if broker >= 0:
                return at, broker
            at = (at + 1) % len(self.names)

    def _reshuffle(self) -> None:
        _shuffle(self.names, self.dice)
        for name in sorted(self.racks, key=lambda name: (name is not None, name or "")):
            _shuffle(self.racks[name].fenced.brokers, self.dice)
            _shuffle(self.racks[name].unfenced.brokers, self.dice)


def place(brokers: Sequence[UsableBroker], partitions: int, replication_factor: int, dice: Dice) -> list[list[int]]:
    """Replicas for each of `partitions` new partitions, the preferred leader first; no broker twice in one."""
    racks = _Racks(brokers, dice)
    if replication_factor <= 0:
        raise KafkaError(Err.INVALID_REPLICATION_FACTOR, f"replication factor {replication_factor} is not positive")
    if racks.unfenced == 0:
        raise KafkaError(Err.INVALID_REPLICATION_FACTOR, "all brokers are currently fenced")
    if replication_factor > racks.total:
        raise KafkaError(
            Err.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, and only {racks.total} are registered",
        )
    return [racks.place(replication_factor) for _ in range(partitions)]
