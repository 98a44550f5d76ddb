"""How far groups are behind, in records and in seconds, for the metrics.

A round looks at every committed offset of the shards served here, a little at a time. Where a partition ends is known
from its replica here, or asked of its leader; ages, which cost more, are found for what will be shown only. A leader
that does not answer leaves what was last known of its partitions, and a sign that it is old.
"""

from collections.abc import Iterator, Mapping
from heapq import heappush, heappushpop
from typing import NamedTuple

from headrace.broker.coordinators.leader_offsets import LeaderOffsets
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.net.pauses import WORK_S, Pauses
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.record_age import age_ms
from headrace.broker.runtime import Runtime
from headrace.coordinator.offsets import ByPartition
from headrace.protocol.private_fields.record_age import UNKNOWN

REFRESH_MS = 10_000
REST = 20
"""A round is followed by so many times its own length of rest: a million offsets must not cost a large share of a
core."""
SHOWN_MAX = 1_000
"""Pairs of group and topic in the metrics: those with the largest lag. Names are the users', so there must be an
end."""


class Lag(NamedTuple):
    """One group in one topic: the sum over its partitions, and the age of the oldest record not consumed."""

    group: str
    topic: str
    records: int | None
    """None: of none of its partitions is it known where it ends."""
    seconds: float | None
    """None: a record that is waited for has no time, or its leader cannot tell it."""
    unknown: int
    """Partitions whose leaders did not answer: they count as last known, or not at all."""


class Round(NamedTuple):
    """What one round has found."""

    shown: list[Lag]
    hidden: int
    """Pairs beyond the limit."""
    unknown: int
    """Pairs with partitions whose leaders did not answer, shown or not."""
    groups: int
    offsets: int


class Seen:
    """A topic as one round finds it."""

    __slots__ = ("ends", "id", "silent", "written_ms")

    def __init__(self, topic_id: bytes) -> None:
        self.id = topic_id
        self.ends: dict[int, int] = {}
        """Of its partitions; of silent ones as last known."""
        self.silent: set[int] = set()
        """Partitions whose leaders did not answer."""
        self.written_ms: dict[int, dict[int, int]] = {}
        """Partition -> offset -> when what follows it was written, by the clock here."""

    def keep(self, before: "Seen | None") -> None:
        """Fill in what leaders did not say by what was known before."""
        if before is not None and before.id == self.id:
            for index in self.silent & before.ends.keys():
                self.ends[index] = before.ends[index]
                self.written_ms[index] = before.written_ms.get(index, {})


class Pair(NamedTuple):
    """A group and a topic, before anything is known about time."""

    records: int
    unknown: int
    number: int
    """Decides between equals, so that nothing below is compared."""
    group: str
    topic: str
    behind: dict[int, int]
    """Partition -> offset, where something is not consumed."""
    known: bool
    """Of at least one partition."""


class LagWatch:
    """Keeps the latest round."""

    def __init__(
        self,
        node_id: int,
        runtime: Runtime,
        metadata: MetadataCache,
        replicas: Replicas,
        groups: GroupCoordinator,
        leaders: LeaderOffsets,
    ) -> None:
        self._node_id = node_id
        self._runtime = runtime
        self._clock = runtime.clock
        self._metadata = metadata
        self._replicas = replicas
        self._groups = groups
        self._leaders = leaders
        self._pauses = Pauses(runtime.perf_counter)
        self._topics: dict[str, Seen] = {}
        self.latest = Round([], 0, 0, 0, 0)

    def rest_ms(self) -> int:
        """How long to wait after the latest round."""
        return max(REFRESH_MS, int(REST * self._pauses.count * WORK_S * 1000))

    async def refresh(self) -> None:
        """One round, between other work."""
        self._pauses = Pauses(self._runtime.perf_counter)
        hosts = list(self._groups.active())
        groups = sum(len(host.shard.state.groups.live) for host in hosts)
        offsets = sum(host.shard.offsets.count for host in hosts)
        topics = await self._ends(await self._named())
        largest, hidden, unknown = await self._largest(topics)
        await self._ages(largest, topics)
        now_ms = self._clock.wall_ms()
        shown: list[Lag] = []
        while largest:  # to give back a million offsets at once would take long, too
            pair = largest.pop()
            shown.append(_lag(pair, topics[pair.topic], now_ms))
            if self._pauses.due:
                await self._pauses.take()
        self.latest = Round(shown, hidden, unknown, groups, offsets)
        before, self._topics = self._topics, topics
        for seen in before.values():
            while seen.written_ms:
                seen.written_ms.popitem()
                if self._pauses.due:
                    await self._pauses.take()

    def _committed(self) -> Iterator[tuple[str, str, ByPartition]]:
        """(group, topic, offsets), of what may change while it is looked at."""
        for host in list(self._groups.active()):
            by_group = host.shard.offsets.by_group
            for group in list(by_group):
                for topic, committed in list(by_group.get(group, {}).items()):
                    yield group, topic, committed

    async def _named(self) -> dict[str, set[int]]:
        """Topics and partitions of which an offset is committed."""
        named: dict[str, set[int]] = {}
        for _, topic, committed in self._committed():
            named.setdefault(topic, set()).update(committed)
            if self._pauses.due:
                await self._pauses.take()
        return named

    async def _ends(self, named: Mapping[str, set[int]]) -> dict[str, Seen]:
        """Where partitions end that exist: here, or as their leaders say."""
        topics: dict[str, Seen] = {}
        elsewhere: dict[str, dict[int, tuple[int, ...]]] = {}
        for name, indexes in named.items():
            topic = self._metadata.image.topic_named(name)
            if topic is None:
                continue
            topics[name] = Seen(topic.id)
            for index in indexes:
                if self._here(name, index) is None and index in topic.partitions:
                    elsewhere.setdefault(name, {})[index] = ()
                if self._pauses.due:
                    await self._pauses.take()
        answers = await self._leaders.ask(elsewhere, self._pauses)
        for name, seen in topics.items():
            for index in named[name]:
                replica = self._here(name, index)
                told = answers.get((name, index))
                if replica is not None:
                    seen.ends[index] = replica.high_watermark
                elif told is not None:
                    seen.ends[index] = told.end_offset
                elif self._metadata.image.partition(seen.id, index) is not None:
                    seen.silent.add(index)
                if self._pauses.due:
                    await self._pauses.take()
            seen.keep(self._topics.get(name))
        return topics

    def _here(self, topic: str, index: int) -> Partition | None:
        """The replica on this node, if it knows where what can be read ends: as a follower does that is in sync."""
        replica = self._replicas.known(topic, index)
        if replica is None:
            return None
        if replica.leader is not None:
            return replica if replica.leader.knows_committed else None
        known = self._metadata.image.partition(replica.topic_id, index)
        in_sync = replica.copying is not None and known is not None and self._node_id in known.isr
        return replica if in_sync else None

    async def _largest(self, topics: Mapping[str, Seen]) -> tuple[list[Pair], int, int]:
        """The pairs to show, the furthest behind last; how many others there are; how many of all have silent
        leaders."""
        heap: list[Pair] = []
        hidden = unknown = number = 0
        for group, topic, committed in self._committed():
            seen = topics.get(topic)
            pair = None if seen is None else _pair(group, topic, committed, seen, number)
            if pair is not None:
                number -= 1
                unknown += pair.unknown > 0
                if len(heap) < SHOWN_MAX:
                    heappush(heap, pair)
                else:
                    heappushpop(heap, pair)
                    hidden += 1
            if self._pauses.due:  # not more often: a step is short, even for ten thousand partitions
                await self._pauses.take()
        return sorted(heap), hidden, unknown

    async def _ages(self, pairs: list[Pair], topics: Mapping[str, Seen]) -> None:
        """When what these groups wait for was written; looked up once, however many wait for the same."""
        wanted: dict[str, dict[int, set[int]]] = {}
        for pair in pairs:
            of_topic = wanted.setdefault(pair.topic, {})
            for index, offset in pair.behind.items():
                of_topic.setdefault(index, set()).add(offset)
            if self._pauses.due:
                await self._pauses.take()
        elsewhere: dict[str, dict[int, set[int]]] = {}
        for name, partitions in wanted.items():
            seen = topics[name]
            while partitions:
                index, offsets = partitions.popitem()
                if self._here(name, index) is not None:
                    seen.written_ms[index] = await self._times(name, index, offsets)
                elif index not in seen.silent:
                    elsewhere.setdefault(name, {})[index] = offsets
        now_ms = self._clock.wall_ms()  # not afterwards: rather a moment too old than too young
        answers = await self._leaders.ask(elsewhere, self._pauses)
        while answers:
            (name, index), told = answers.popitem()
            ages_ms = told.ages_ms
            topics[name].written_ms[index] = {offset: now_ms - age for offset, age in ages_ms.items() if age >= 0}
            if self._pauses.due:
                await self._pauses.take()

    async def _times(self, topic: str, index: int, offsets: set[int]) -> dict[int, int]:
        """Of a partition with a replica here, as long as it has one."""
        written_ms: dict[int, int] = {}
        now_ms = self._clock.wall_ms()
        replica = self._here(topic, index)
        for offset in offsets:
            age = UNKNOWN if replica is None else age_ms(replica, offset, now_ms)
            if age >= 0:
                written_ms[offset] = now_ms - age
            if self._pauses.due:
                await self._pauses.take()
                replica = self._here(topic, index)
        return written_ms


def _pair(group: str, topic: str, committed: ByPartition, seen: Seen, number: int) -> Pair | None:
    """None: it has committed nothing there that exists."""
    ends, silent = seen.ends, seen.silent
    records, unknown, known = 0, 0, False
    behind: dict[int, int] = {}
    for index, value in committed.items():
        offset = value.offset
        if offset < 0:  # a client may commit what is no offset: it stands nowhere
            continue
        end_offset = ends.get(index)
        if end_offset is not None:
            known = True
            if end_offset > offset:
                records += end_offset - offset
                behind[index] = offset
        if index in silent:
            unknown += 1
    return Pair(records, unknown, number, group, topic, behind, known) if known or unknown else None


def _lag(pair: Pair, seen: Seen, now_ms: int) -> Lag:
    """With the age of what has waited longest."""
    written_ms: list[int] = []
    complete = True
    for index, offset in pair.behind.items():
        found = seen.written_ms.get(index, {}).get(offset)
        if found is not None:
            written_ms.append(found)
        elif index not in seen.silent:
            complete = False
    seconds = None
    if pair.known and complete and (written_ms or not pair.behind):
        seconds = (now_ms - min(written_ms, default=now_ms)) / 1000
    return Lag(pair.group, pair.topic, pair.records if pair.known else None, seconds, pair.unknown)
