"""Which offsets of a topic are meant: by offset, by time, by partition."""

import asyncio
import difflib
from collections.abc import Mapping
from typing import NamedTuple

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Topic
from headrace.errors import Err


class Start(NamedTuple):
    """One way to say where a range begins or ends; exactly one field is set."""

    word: str | None = None
    """earliest or latest."""
    offset: int | None = None
    before_end: int | None = None
    time_ms: int | None = None


CREATED_S = 30.0
FROM_EARLIEST, TO_LATEST = Start(word="earliest"), Start(word="latest")


class PartitionRange(NamedTuple):
    """Offsets of one partition, start_offset <= offset < end_offset."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def offsets(self) -> int:
        """How many there are at most: compaction and transactions leave gaps."""
        return max(0, self.end_offset - self.start_offset)


def first_offset(start: Start, low: int, high: int, by_time: int | None) -> int:
    """Where to begin in a partition that has the offsets from `low` up to `high`; `by_time` is the first offset at
    `start.time_ms` or later, if there is one."""
    if start.word is not None:
        wanted = low if start.word == "earliest" else high
    elif start.offset is not None:
        wanted = start.offset
    elif start.before_end is not None:
        wanted = high - start.before_end
    else:
        wanted = high if by_time is None or by_time < 0 else by_time
    return max(low, min(wanted, high))


async def describe(admin: Admin, topic: str) -> Topic:
    """A topic's partitions. One that is not there is told with the name that is nearest to it."""
    try:
        return await admin.describe_topic(topic)
    except RequestFailed as error:
        if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        names = [found.name for found in await admin.list_topics(include_internal=True)]
        raise ClientError(no_topic(topic, names)) from None


async def create_and_await(admin: Admin, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic and wait until brokers tell of it: Apache's learn of it a moment after the controller."""
    await admin.create_topic(topic, partitions, configs=configs)
    await await_partitions(admin, topic, partitions)


async def await_partitions(admin: Admin, topic: str, partitions: int) -> None:
    """Wait until brokers tell of so many partitions, each with a leader."""
    deadline = asyncio.get_running_loop().time() + CREATED_S
    while True:
        try:
            found = (await admin.describe_topic(topic)).partitions
            if len(found) >= partitions and all(one.leader >= 0 for one in found.values()):
                return
        except RequestFailed as error:
            if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        if asyncio.get_running_loop().time() > deadline:
            raise ClientError(f"topic {topic!r} was created, but brokers do not tell of it after {CREATED_S:g} s")
        await asyncio.sleep(0.05)


def no_topic(topic: str, names: list[str]) -> str:
    near = difflib.get_close_matches(topic, names, 1)
    return f"there is no topic {topic!r}" + (
        f": did you mean {near[0]!r}?" if near else "; `headrace topic list` has all"
    )


async def ranges_of(
    admin: Admin,
    topic: str,
    start: Start = FROM_EARLIEST,
    end: Start = TO_LATEST,
    chosen: frozenset[int] | None = None,
    *,
    committed: bool = True,
) -> list[PartitionRange]:
    """The range of each partition, by its number; those that hold nothing too. Raises ClientError."""
    there = (await describe(admin, topic)).partitions
    absent = sorted((chosen or frozenset()) - there.keys())
    if absent:
        raise ClientError(f"topic {topic!r} has no partition {absent[0]}: it has {len(there)}, from 0 on")
    wanted = sorted(at for at in there if chosen is None or at in chosen)
    lows = await admin.list_offsets(topic, dict.fromkeys(wanted, EARLIEST))
    highs = await admin.list_offsets(topic, dict.fromkeys(wanted, LATEST), read_committed=committed)
    first_times, last_times = await _times(admin, topic, wanted, start), await _times(admin, topic, wanted, end)
    found = []
    for at in wanted:
        low, high = lows[at].offset, highs[at].offset
        begin = first_offset(start, low, high, first_times.get(at))
        found.append(PartitionRange(topic, at, begin, max(begin, first_offset(end, low, high, last_times.get(at)))))
    return found


async def _times(admin: Admin, topic: str, wanted: list[int], start: Start) -> Mapping[int, int]:
    if start.time_ms is None:
        return {}
    rows = await admin.list_offsets(topic, dict.fromkeys(wanted, start.time_ms))
    return {at: row.offset for at, row in rows.items()}
