"""Kafka 4.3's placement: racks in turn, and within each rack its brokers in turn.

Each partition starts one rack further, from a random start, and takes one broker of each rack. A topic with more
partitions than brokers is shuffled after each full round, so that leaders do not share the same followers for ever.
"""

from collections.abc import Iterable, Sequence

from .brokers import Dice, UsableBroker, shuffle


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


class _Racks:
    """All racks in order of name, the brokers without a rack first, as one rack."""

    def __init__(self, brokers: Iterable[UsableBroker], dice: Dice) -> None:
        self.dice = dice
        self.racks: dict[str | None, _Rack] = {}
        self.unfenced = 0
        for broker in brokers:
            rack = self.racks.setdefault(broker.rack, _Rack())
            (rack.fenced if broker.fenced else rack.unfenced).brokers.append(broker.id)
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
        shuffle(self.names, self.dice)
        for name in sorted(self.racks, key=lambda name: (name is not None, name or "")):
            shuffle(self.racks[name].fenced.brokers, self.dice)
            shuffle(self.racks[name].unfenced.brokers, self.dice)


def place_striped(
    brokers: Sequence[UsableBroker], partitions: int, replication_factor: int, dice: Dice
) -> list[list[int]]:
    """At least one broker is not fenced, and there are enough of them: the caller has checked that."""
    racks = _Racks(brokers, dice)
    return [racks.place(replication_factor) for _ in range(partitions)]
