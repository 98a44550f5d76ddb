"""Placement as texts about Kafka draw it: one list of brokers, and followers shifted along it.

The brokers are put into a list whose neighbours are in different racks, in random order and from a random start.
Leaders go round robin. The first follower of a partition starts at the broker behind its leader, so the first followers
begin with the second broker of the list, the second followers with the third. A broker whose rack has a replica is
passed over while another rack has none. With every full round followers start one broker further, so that the
partitions that a broker leads do not all share their followers.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from .brokers import Dice, UsableBroker, shuffle


def place_shifted(
    brokers: Sequence[UsableBroker], partitions: int, replication_factor: int, dice: Dice
) -> list[list[int]]:
    """At least one broker is not fenced, and there are enough of them: the caller has checked that."""
    ring = alternating([broker for broker in brokers if not broker.fenced], dice)
    spare = alternating([broker for broker in brokers if broker.fenced], dice)
    return [_replicas(ring, spare, number, replication_factor) for number in range(partitions)]


def alternating(brokers: Iterable[UsableBroker], dice: Dice) -> list[UsableBroker]:
    """All brokers in a random order in which neighbours are in different racks, as long as racks last."""
    racks: dict[str | None, list[UsableBroker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker)
    waiting = list(racks.values())
    shuffle(waiting, dice)
    for rack in waiting:
        shuffle(rack, dice)
    found: list[UsableBroker] = []
    last: list[UsableBroker] | None = None
    while waiting:
        # The rack with the most brokers left comes next: left for the end, they would be each other's neighbours.
        last = max((rack for rack in waiting if rack is not last), key=len, default=waiting[0])
        found.append(last.pop(0))
        waiting = [rack for rack in waiting if rack]
    if not found:
        return found
    start = (dice(len(found)) + 1) % len(found)
    return found[start:] + found[:start]


def _replicas(ring: list[UsableBroker], spare: list[UsableBroker], number: int, count: int) -> list[int]:
    leader = ring[number % len(ring)]
    chosen, racks = [leader.id], {leader.rack}
    # Another rack comes first, even if only a fenced broker is there: fenced brokers come back, replicas do not move.
    for any_rack in (False, True):
        for broker in chain(_behind(ring, number), spare):
            if len(chosen) == count:
                return chosen
            if broker.id not in chosen and (any_rack or broker.rack not in racks):
                chosen.append(broker.id)
                racks.add(broker.rack)
    return chosen


def _behind(ring: list[UsableBroker], number: int) -> Iterator[UsableBroker]:
    """The brokers in the order in which they follow the leader of a partition."""
    size, others = len(ring), len(ring) - 1
    turn, at = divmod(number, size)
    return (ring[(at + 1 + (turn + step) % others) % size] for step in range(others))
