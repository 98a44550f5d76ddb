"""Assignors of the classic protocol, which the group's leader runs: who reads what. Pure.

`cooperative-sticky` keeps partitions where they are, and hands one over only after its owner has given it up; the
others give everything up at each rebalance.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.coordinator.assignors import MemberSpec, range_, uniform

COOPERATIVE_STICKY = "cooperative-sticky"

TopicPartition = tuple[str, int]


class Subscriber(NamedTuple):
    """What a member has said when it joined."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[str, int]
"""Partitions of each topic that exists."""
Assigned = dict[str, frozenset[TopicPartition]]


def cooperative_sticky(members: Subscribers, counts: Counts) -> Assigned:
    """Equal shares with few moves. What would move from one member to another is given to nobody yet: its owner gives
    it up first, and joins again."""
    owner = _owners(members)
    target = _by_names(uniform, members, counts, owner)
    return {
        member: frozenset(at for at in partitions if owner.get(at, member) == member)
        for member, partitions in target.items()
    }


def ranges(members: Subscribers, counts: Counts) -> Assigned:
    """Contiguous runs of each topic, so that equal topics go together."""
    return _by_names(range_, members, counts, {})


def round_robin(members: Subscribers, counts: Counts) -> Assigned:
    """One partition after the other to one member after the other, among those that subscribe to it."""
    found: dict[str, set[TopicPartition]] = {member: set() for member in members}
    order = sorted(members, key=lambda member: (members[member].instance_id or member, member))
    turn = 0
    for topic in sorted(counts):
        if not any(topic in one.topics for one in members.values()):
            continue
        for index in range(counts[topic]):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            found[order[turn % len(order)]].add((topic, index))
            turn += 1
    return {member: frozenset(partitions) for member, partitions in found.items()}


ASSIGNORS: dict[str, Callable[[Subscribers, Counts], Assigned]] = {
    COOPERATIVE_STICKY: cooperative_sticky,
    "range": ranges,
    "roundrobin": round_robin,
}


def _owners(members: Subscribers) -> dict[TopicPartition, str]:
    """Who has what, by the members' own words. Of two who claim the same, the later generation has it, or neither."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member, one in members.items():
        for at in one.owned:
            claims.setdefault(at, []).append((one.generation, member))
    found: dict[TopicPartition, str] = {}
    for at, claimed in claims.items():
        claimed.sort()
        if len(claimed) == 1 or claimed[-1][0] != claimed[-2][0]:
            found[at] = claimed[-1][1]
    return found


def _by_names(
    assign: Callable[..., Mapping[str, Mapping[bytes, Iterable[int]]]],
    members: Subscribers,
    counts: Counts,
    owner: Mapping[TopicPartition, str],
) -> Assigned:
    """The broker's own assignors know topics by ids: here each topic has one in the order of names."""
    names = sorted(counts)
    ids = {name: number.to_bytes(16, "big") for number, name in enumerate(names)}
    specs: dict[str, MemberSpec] = {}
    for member, one in members.items():
        owned: dict[bytes, list[int]] = {}
        for topic, index in sorted(one.owned):
            if owner.get((topic, index)) == member and topic in one.topics and index < counts.get(topic, 0):
                owned.setdefault(ids[topic], []).append(index)
        specs[member] = MemberSpec(
            {ids[topic] for topic in one.topics if topic in ids},
            {topic_id: tuple(indexes) for topic_id, indexes in owned.items()},
            one.instance_id,
        )
    same = len({frozenset(spec.topic_ids) for spec in specs.values()}) <= 1
    assigned = assign(specs, {ids[name]: counts[name] for name in names}, same)
    found: Assigned = {}
    for member in members:
        rows = assigned.get(member, {})
        found[member] = frozenset(
            (names[int.from_bytes(topic_id, "big")], index) for topic_id, indexes in rows.items() for index in indexes
        )
    return found
