"""Server-side assignors: from members, what they subscribe to and what they have, to what each should have.

`uniform` balances over all subscribed topics and moves as little as it can; `range` gives each member a contiguous run
of every topic, so that equal topics are co-partitioned. Both are pure and deterministic: order comes from sorting,
never from hashing. As in Kafka 4.3, racks do not influence either.
"""

from collections.abc import Callable, Collection, Mapping
from struct import Struct
from typing import NamedTuple

from headrace.errors import Err, KafkaError

Partitions = tuple[int, ...]
Assignment = Mapping[bytes, Partitions]
"""Partitions by topic id, ascending; topics without partitions do not appear."""

NO_ASSIGNMENT: Assignment = {}
BALANCING_ROUNDS_MAX = 16
"""Members whose subscriptions overlap in part can pull partitions to and fro; each round about halves the imbalance."""

_SIGNED_ID = Struct(">qq")


class MemberSpec(NamedTuple):
    """What an assignor knows of one member: existing topics it subscribes to, and its target assignment so far."""

    topic_ids: Collection[bytes]
    assignment: Assignment = NO_ASSIGNMENT
    instance_id: str | None = None


Members = Mapping[str, MemberSpec]
PartitionCounts = Mapping[bytes, int]
Assignor = Callable[[Members, PartitionCounts, bool], dict[str, Assignment]]
"""(members, partition counts by topic id, whether all members subscribe to the same topics) -> target assignment."""


def _partition_count(counts: PartitionCounts, topic_id: bytes) -> int:
    count = counts.get(topic_id)
    if count is None:
        raise KafkaError(Err.UNKNOWN_SERVER_ERROR, f"members subscribe to topic {topic_id.hex()}, which does not exist")
    return count


def uniform(members: Members, counts: PartitionCounts, homogeneous: bool) -> dict[str, Assignment]:
    """Equal shares first, then as few moves as possible."""
    if not members:
        return {}
    if homogeneous:
        return _uniform_same_topics(members, counts)
    return _UniformMixedTopics(members, counts).build()


# Uniform, one set of topics for all ---------------------------------------------------------------------------------


def _uniform_same_topics(members: Members, counts: PartitionCounts) -> dict[str, Assignment]:
    member_ids = sorted(members)
    topic_ids = set(members[member_ids[0]].topic_ids)
    if not topic_ids:
        return {}
    total = sum(_partition_count(counts, topic_id) for topic_id in topic_ids)
    free = _unassigned(members, sorted(topic_ids), counts)
    least, members_with_one_more = divmod(total, len(member_ids))

    target: dict[str, Assignment] = {}
    unfilled: list[tuple[str, int]] = []
    for index, member_id in enumerate(member_ids):
        old = members[member_id].assignment
        quota = least + (members_with_one_more > 0)
        may_have_extra = members_with_one_more > 0
        target[member_id], quota = _retain(old, topic_ids, quota, free)
        if quota and may_have_extra and len(member_ids) - index > members_with_one_more:
            # Not needed here: a later member may already own its extra partition, and should not have to move it.
            quota -= 1
            may_have_extra = False
        if quota:
            unfilled.append((member_id, quota))
        if may_have_extra:
            members_with_one_more -= 1

    position = 0
    for member_id, quota in unfilled:
        target[member_id] = _extended(target[member_id], free[position : position + quota])
        position += quota
    assert position >= len(free), "quotas add up to the number of partitions"
    return target


def _unassigned(members: Members, topic_ids: list[bytes], counts: PartitionCounts) -> list[tuple[bytes, int]]:
    assigned: dict[bytes, set[int]] = {topic_id: set() for topic_id in topic_ids}
    for spec in members.values():
        for topic_id, partitions in spec.assignment.items():
            if topic_id in assigned:
                assigned[topic_id].update(partitions)
    return [
        (topic_id, partition)
        for topic_id in topic_ids
        for partition in range(counts[topic_id])
        if partition not in assigned[topic_id]
    ]


def _retain(
    old: Assignment, topic_ids: set[bytes], quota: int, free: list[tuple[bytes, int]]
) -> tuple[Assignment, int]:
    """As much of `old` as the quota allows, what is left of the quota; the rest goes to `free`."""
    kept: dict[bytes, Partitions] = {}
    changed = False
    for topic_id in sorted(old):
        if topic_id not in topic_ids:
            changed = True
            continue
        partitions = old[topic_id]
        if len(partitions) > quota:
            changed = True
            free.extend((topic_id, partition) for partition in partitions[quota:])
            partitions = partitions[:quota]
        quota -= len(partitions)
        if partitions:
            kept[topic_id] = partitions
    return (kept if changed else old), quota


def _extended(old: Assignment, more: list[tuple[bytes, int]]) -> Assignment:
    if not more:
        return old
    added: dict[bytes, list[int]] = {}
    for topic_id, partition in more:
        added.setdefault(topic_id, []).append(partition)
    merged = dict(old)
    for topic_id, partitions in added.items():
        merged[topic_id] = tuple(sorted((*merged.get(topic_id, ()), *partitions)))
    return merged


# Uniform, members with different topics -----------------------------------------------------------------------------


class _Loads:
    """The subscribers of one topic by load: hands out the least and the most loaded in turn, levelling as it goes.

    Members at either end form a range of equal load. Walking once through the least loaded range gives each of its
    members one partition and so raises the whole range by one, until it meets the next; the most loaded range likewise
    sinks. No heap is needed, and the order among equals is that of the member indexes.
    """

    __slots__ = (
        "_high_end",
        "_high_load",
        "_high_next",
        "_high_start",
        "_low_end",
        "_low_load",
        "_low_next",
        "_members",
        "_sizes",
    )

    def __init__(self, sizes: list[int], members: list[int]) -> None:
        self._sizes = sizes
        self._members = sorted(members, key=lambda index: (sizes[index], index))
        self._low_end = 0
        self._low_load = sizes[self._members[0]] - 1
        self._low_next = 0
        self._high_start = self._high_end = len(members)
        self._high_load = sizes[self._members[-1]] + 1
        self._high_next = len(members) - 1

    @property
    def imbalance(self) -> int:
        return self._sizes[self._members[-1]] - self._sizes[self._members[0]]

    @property
    def balanced(self) -> bool:
        return self._high_load - self._low_load <= 1

    def next_least(self) -> int:
        if self._low_next >= self._low_end:
            self._low_load += 1
            while self._low_end < len(self._members) and self._sizes[self._members[self._low_end]] == self._low_load:
                self._low_end += 1
            self._low_next = 0
        member = self._members[self._low_next]
        self._low_next += 1
        return member

    def next_most(self) -> int | None:
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # The range was emptied by `exclude`: jump to the load of the next member down.
                self._high_load = self._sizes[self._members[self._high_start - 1]]
            else:
                self._high_load -= 1
            while self._high_start > 0 and self._sizes[self._members[self._high_start - 1]] == self._high_load:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return None
        member = self._members[self._high_next]
        self._high_next -= 1
        return member

    def exclude(self) -> None:
        """The member last given by `next_most` has nothing to give: move it out of the most loaded range."""
        here, last = self._high_next + 1, self._high_end - 1
        self._members[here], self._members[last] = self._members[last], self._members[here]
        self._high_end -= 1


class _UniformMixedTopics:
    def __init__(self, members: Members, counts: PartitionCounts) -> None:
        self._members = members
        self._member_ids = sorted(members)
        self._subscribers: dict[bytes, list[int]] = {}
        self._sizes = [0] * len(members)
        self._changed: set[int] = set()
        for index, member_id in enumerate(self._member_ids):
            for topic_id in members[member_id].topic_ids:
                self._subscribers.setdefault(topic_id, []).append(index)
        self._owners: dict[bytes, list[int | None]] = {
            topic_id: [None] * _partition_count(counts, topic_id) for topic_id in self._subscribers
        }

    def build(self) -> dict[str, Assignment]:
        if not self._subscribers:
            return {}
        self._keep_subscribed()
        for topic_id in self._in_order(self._subscribers):
            self._assign_free_partitions(topic_id)
        self._balance([t for t in self._in_order(self._subscribers) if len(self._subscribers[t]) >= 2])
        return self._result()

    def _in_order(self, topic_ids: Collection[bytes]) -> list[bytes]:
        """Topics with the most partitions per subscriber first: they leave the least freedom."""

        def key(topic_id: bytes) -> tuple[float, int, int, int]:
            subscribers = len(self._subscribers[topic_id])
            return (-len(self._owners[topic_id]) / subscribers, subscribers, *_SIGNED_ID.unpack(topic_id))

        return sorted(topic_ids, key=key)

    def _keep_subscribed(self) -> None:
        for index, member_id in enumerate(self._member_ids):
            spec = self._members[member_id]
            for topic_id, partitions in spec.assignment.items():
                if topic_id not in spec.topic_ids:
                    self._changed.add(index)
                    continue
                owners = self._owners[topic_id]
                for partition in partitions:
                    owners[partition] = index
                self._sizes[index] += len(partitions)

    def _assign_free_partitions(self, topic_id: bytes) -> None:
        owners = self._owners[topic_id]
        free = [partition for partition, owner in enumerate(owners) if owner is None]
        if not free:
            return
        loads = _Loads(self._sizes, self._subscribers[topic_id])
        for partition in free:
            self._give(owners, partition, loads.next_least())

    def _give(self, owners: list[int | None], partition: int, member: int) -> None:
        old = owners[partition]
        if old is not None:
            self._sizes[old] -= 1
            self._changed.add(old)
        owners[partition] = member
        self._sizes[member] += 1
        self._changed.add(member)

    def _balance(self, topic_ids: list[bytes]) -> None:
        last_moved = -1
        for _ in range(BALANCING_ROUNDS_MAX):
            for index, topic_id in enumerate(topic_ids):
                if index == last_moved:
                    return  # a whole round since the last move
                if self._balance_topic(topic_id) or last_moved == -1:
                    last_moved = index

    def _balance_topic(self, topic_id: bytes) -> int:
        loads = _Loads(self._sizes, self._subscribers[topic_id])
        if loads.imbalance <= 1:
            return 0
        owners = self._owners[topic_id]
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            assert owner is not None, "every partition of a subscribed topic is assigned by now"
            owned.setdefault(owner, []).append(partition)
        moved = 0
        while not loads.balanced:
            giver = loads.next_most()
            while giver is not None and not owned.get(giver):
                loads.exclude()
                giver = loads.next_most()
            if giver is None:
                break
            partition = owned[giver].pop()
            taker = loads.next_least()
            if loads.balanced:
                break
            self._give(owners, partition, taker)
            moved += 1
        return moved

    def _result(self) -> dict[str, Assignment]:
        collected: list[dict[bytes, list[int]]] = [{} for _ in self._member_ids]
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner is not None and owner in self._changed:
                    collected[owner].setdefault(topic_id, []).append(partition)
        return {
            member_id: {t: tuple(p) for t, p in collected[index].items()}
            if index in self._changed
            else self._members[member_id].assignment
            for index, member_id in enumerate(self._member_ids)
        }


# Range --------------------------------------------------------------------------------------------------------------


def range_(members: Members, counts: PartitionCounts, homogeneous: bool) -> dict[str, Assignment]:
    """Static members first and in the order of their instance ids, so that a restart gives them the same partitions."""
    del homogeneous  # the same rule serves both
    subscribers: dict[bytes, int] = {}
    for spec in members.values():
        for topic_id in spec.topic_ids:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    given: dict[bytes, int] = dict.fromkeys(subscribers, 0)
    """How many subscribers of a topic have had their share."""

    def order(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (True, member_id) if instance_id is None else (False, instance_id)

    target: dict[str, Assignment] = {}
    for member_id in sorted(members, key=order):
        assignment: dict[bytes, Partitions] = {}
        for topic_id in members[member_id].topic_ids:
            least, one_more = divmod(_partition_count(counts, topic_id), subscribers[topic_id])
            place = given[topic_id]
            given[topic_id] = place + 1
            start = place * least + min(place, one_more)
            end = start + least + (place < one_more)
            if start < end:
                assignment[topic_id] = tuple(range(start, end))
        target[member_id] = assignment
    return target


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
