"""How far groups are behind, in records and in seconds, as far as this broker has a replica of what they read.

Seconds come from the time index, in compacted topics from the header of one batch: no record is read for them. A round
looks at every committed offset of the shards served here, a little at a time; what it found is shown by the metrics until
the next round.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.partition import Partition
from headrace.protocol.lag_tag import UNKNOWN
from headrace.storage.segment import CorruptSegment, Segment

if TYPE_CHECKING:
    from headrace.broker.server import Broker

REFRESH_MS = 10_000
REST = 20
"""A round is followed by so many times its own length of rest: a million offsets must not cost a large share of a core."""
SLICE_SECONDS = 0.002
SHOWN_MAX = 1_000
"""Pairs of group and topic in the metrics: those with the largest lag. Names are the users', so there must be an end."""


_BASE_OFFSET = attrgetter("base_offset")


class Lag(NamedTuple):
    """One group in one topic: the sum over its partitions, and the age of the oldest record not consumed."""

    group: str
    topic: str
    records: int
    seconds: float


class Round(NamedTuple):
    """What one round has found."""

    shown: list[Lag]
    hidden: int
    """Pairs beyond the limit."""
    groups: int
    offsets: int


class LagWatch:
    """Keeps the latest round."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._perf_counter = broker.runtime.perf_counter
        self._slice_end = 0.0
        self._slices = 0
        self.latest = Round([], 0, 0, 0)

    def rest_ms(self) -> int:
        """How long to wait after the latest round."""
        return max(REFRESH_MS, int(REST * self._slices * SLICE_SECONDS * 1000))

    async def refresh(self) -> None:
        """One round, between other work."""
        broker = self._broker
        found: list[Lag] = []
        groups = offsets = 0
        self._slices = 0
        self._slice_end = self._perf_counter() + SLICE_SECONDS
        for host in list(broker.groups.active()):
            by_group = host.shard.offsets.by_group
            groups += len(host.shard.state.groups.live)
            offsets += host.shard.offsets.count
            for group in list(by_group):
                for topic, committed in list(by_group.get(group, {}).items()):
                    lag = await self._of_topic(group, topic, committed)
                    if lag is not None:
                        found.append(lag)
        shown = nlargest(SHOWN_MAX, found, key=lambda lag: lag.records)
        self.latest = Round(shown, len(found) - len(shown), groups, offsets)

    async def _of_topic(self, group: str, topic: str, committed: Mapping[int, Any]) -> Lag | None:
        partitions = self._broker.replicas.by_name.get(topic)
        if partitions is None:
            return None
        now_ms = self._broker.runtime.clock.wall_ms()
        records, seconds, known = 0, 0.0, False
        for index, value in list(committed.items()):
            partition = partitions.get(index)
            # A client may commit what is no offset: it stands nowhere. A follower knows the end of what can be read too.
            if partition is not None and partition.in_use and value.offset >= 0:
                known = True
                here, age_s = lag_of(partition, value.offset, now_ms)
                records += here
                seconds = max(seconds, age_s)
            if self._perf_counter() > self._slice_end:
                await asyncio.sleep(0)
                self._slices += 1
                self._slice_end = self._perf_counter() + SLICE_SECONDS
        return Lag(group, topic, records, seconds) if known else None


def lag_of(partition: Partition, committed_offset: int, now_ms: int) -> tuple[int, float]:
    """(records, seconds) between a committed offset and the end of what can be read."""
    records = max(0, partition.high_watermark - committed_offset)
    return records, max(0, age_ms(partition, committed_offset, now_ms)) / 1000


def age_ms(partition: Partition, offset: int, now_ms: int) -> int:
    """How long ago the first record at or after `offset` was written: 0 where there is none, UNKNOWN without times."""
    if offset >= partition.high_watermark:
        return 0
    timestamp = timestamp_near(partition, offset)
    return UNKNOWN if timestamp < 0 else max(0, now_ms - timestamp)


def timestamp_near(partition: Partition, offset: int) -> int:
    """About when the first record at or after `offset` was written; -1: unknown."""
    log = partition.log
    offset = max(offset, log.log_start_offset)
    segments = log.segments
    at = max(0, bisect_right(segments, offset, key=_BASE_OFFSET) - 1)
    try:
        if log.config.compact:
            return _of_next_batch(segments, at, offset)
        return _in_segment(segments[at], offset)
    except (CorruptSegment, OSError):
        return -1


def _of_next_batch(segments: list[Segment], at: int, offset: int) -> int:
    """Of a log with gaps, where the record before an offset and the one after it may be years apart: from its batch."""
    while at < len(segments):
        place = segments[at].find(offset)
        if place is not None:
            return segments[at].header_at(place.position).max_timestamp
        at += 1
    return -1


def _in_segment(segment: Segment, offset: int) -> int:
    """Between the entries of the time index around the offset."""
    index = segment.times
    relative = offset - segment.base_offset
    slot = bisect_left(index.offsets, relative)
    if slot < len(index):
        after = index.offsets[slot], index.timestamps[slot]
    else:
        latest = segment.max_timestamp  # reading it finds its offset too
        after = segment.max_timestamp_offset - segment.base_offset, latest
    if slot:
        before = index.offsets[slot - 1], index.timestamps[slot - 1]
    else:
        before = 0, segment.first_batch_timestamp()
    if after[0] <= before[0] or relative >= after[0] or before[1] < 0:
        return after[1]
    share = (relative - before[0]) / (after[0] - before[0])
    return int(before[1] + share * (after[1] - before[1]))
