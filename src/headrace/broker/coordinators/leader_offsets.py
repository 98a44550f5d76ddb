"""Asks the leaders of partitions that have no replica here where these end, and how old what follows an offset is.

Each leader is asked one request after the other and all leaders at once. One that is gone or stands still costs no more
than its time limit, and what it leads is left out of the answer, as is what has no leader or has just got another: who
asks in rounds hears of it in the next one.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from headrace.broker.cluster.peers import Peers
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.net.pauses import Pauses
from headrace.client.errors import ClientError
from headrace.clock import Clock
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.private_fields.record_age import OFFSETS_MAX, tagged, values_in

logger = logging.getLogger("headrace.leader_offsets")

LANE = "offsets"
PATIENCE_MS = 3_000
"""For all that a leader is asked in one call, besides connecting to it."""
ENTRIES_MAX = 1_000
"""Partitions and offsets in one request: about as much as both sides can do in one slice."""
LATEST, CONSUMER, READ_UNCOMMITTED = -1, -1, 0

Wanted = Mapping[str, Mapping[int, Collection[int]]]
"""Topic -> partition -> the offsets whose age is wanted, or none."""


class Told(NamedTuple):
    """What a leader says of a partition."""

    end_offset: int
    """Of what can be read: the high watermark."""
    ages_ms: dict[int, int]
    """By offset. Brokers that know nothing of ages leave it empty."""


class Question(NamedTuple):
    topic: str
    partition: int
    leader_epoch: int
    offsets: list[int]


Answers = dict[tuple[str, int], Told]


class LeaderOffsets:
    """See the module."""

    def __init__(self, node_id: int, clock: Clock, metadata: MetadataCache, peers: Peers) -> None:
        self._node_id = node_id
        self._clock = clock
        self._metadata = metadata
        self._peers = peers

    async def ask(self, wanted: Wanted, pauses: Pauses) -> Answers:
        """What the leaders of these partitions say, as far as they say it in time."""
        by_leader: dict[int, list[Question]] = {}
        for name, partitions in wanted.items():
            topic = self._metadata.image.topic_named(name)
            if topic is None:
                continue
            for index, offsets in partitions.items():
                known = topic.partitions.get(index)
                if known is not None and known.leader >= 0:
                    question = Question(name, index, known.leader_epoch, list(offsets))
                    by_leader.setdefault(known.leader, []).append(question)
                if pauses.due:
                    await pauses.take()
        answers: Answers = {}
        await asyncio.gather(*(self._ask(leader, asked, answers, pauses) for leader, asked in by_leader.items()))
        return answers

    async def _ask(self, leader_id: int, questions: list[Question], answers: Answers, pauses: Pauses) -> None:
        address = self._metadata.address(leader_id)
        if address is None or leader_id == self._node_id:  # what is led here and cannot be asked here has failed
            return
        clock = self._clock
        deadline_ms = clock.monotonic_ms() + PATIENCE_MS
        try:
            for chunk in chunks(questions):
                left_s = (deadline_ms - clock.monotonic_ms()) / 1000
                if left_s <= 0:
                    logger.info("broker %d is slow to say where its partitions end: the rest is left open", leader_id)
                    return
                answer = await self._peers.request(
                    address, ApiKey.LIST_OFFSETS, _request(chunk), timeout_s=left_s, lane=LANE
                )
                _take(answer, chunk, answers)
                await pauses.take()  # to make a request and read its answer takes about as long as a slice
        except ClientError as error:
            logger.info("broker %d does not say where its partitions end: %s", leader_id, error)


def chunks(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """As many as go into one request each; a partition with more offsets than that is asked for several times."""
    chunk: list[Question] = []
    room = ENTRIES_MAX
    for question in questions:
        offsets = question.offsets
        start = 0
        while not start or start < len(offsets):
            if room < 2:  # a partition and one offset
                yield chunk
                chunk, room = [], ENTRIES_MAX
            some = offsets[start : start + min(room - 1, OFFSETS_MAX)]
            chunk.append(question._replace(offsets=some))
            room -= 1 + len(some)
            start += len(some) or 1
    if chunk:
        yield chunk


def _request(chunk: list[Question]) -> m.ListOffsetsRequest:
    kind = m.ListOffsetsRequest
    rows: dict[str, list[Any]] = {}
    for topic, index, leader_epoch, offsets in chunk:
        row = kind.ListOffsetsPartition(partition_index=index, current_leader_epoch=leader_epoch, timestamp=LATEST)
        if offsets:
            row.unknown_tags = tagged(*offsets)
        rows.setdefault(topic, []).append(row)
    return kind(
        replica_id=CONSUMER,
        isolation_level=READ_UNCOMMITTED,
        topics=[kind.ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in rows.items()],
        timeout_ms=PATIENCE_MS,
    )


def _take(answer: m.ListOffsetsResponse, chunk: list[Question], answers: Answers) -> None:
    asked = {(question.topic, question.partition): question.offsets for question in chunk}
    for topic in answer.topics:
        for row in topic.partitions:
            at = topic.name, row.partition_index
            offsets = asked.get(at)
            if row.error_code or offsets is None:
                continue
            before = answers.get(at)
            ages_ms = {} if before is None else before.ages_ms
            ages_ms.update(zip(offsets, values_in(row.unknown_tags)))
            answers[at] = Told(row.offset, ages_ms)
