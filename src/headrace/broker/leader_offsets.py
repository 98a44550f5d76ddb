"""Asks the leaders of partitions that have no replica here where these end, and how old what follows an offset is.

Each leader is asked one request after the other and all leaders at once. One that is gone or stands still costs no more
than its time limit, and what it leads is left out of the answer, as is what has no leader or has just got another: who
asks in rounds hears of it in the next one.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.slices import Slices
from headrace.client.errors import ClientError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.lag_tag import OFFSETS_MAX, tagged, values_in

if TYPE_CHECKING:
    from headrace.broker.server import Broker

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


async def ask_leaders(broker: "Broker", wanted: Wanted, slices: Slices) -> Answers:
    """What the leaders of these partitions say, as far as they say it in time."""
    by_leader: dict[int, list[Question]] = {}
    for name, partitions in wanted.items():
        topic = broker.image.topic_named(name)
        if topic is None:
            continue
        for index, offsets in partitions.items():
            known = topic.partitions.get(index)
            if known is not None and known.leader >= 0:
                question = Question(name, index, known.leader_epoch, list(offsets))
                by_leader.setdefault(known.leader, []).append(question)
            if slices.over:
                await slices.turn()
    answers: Answers = {}
    await asyncio.gather(*(_ask(broker, leader, asked, answers, slices) for leader, asked in by_leader.items()))
    return answers


async def _ask(broker: "Broker", leader_id: int, questions: list[Question], answers: Answers, slices: Slices) -> None:
    address = broker.replicas.fetchers.address(leader_id)
    if address is None or leader_id == broker.node_id:  # what is led here and cannot be asked here has failed
        return
    clock = broker.runtime.clock
    deadline_ms = clock.monotonic_ms() + PATIENCE_MS
    try:
        for chunk in chunks(questions):
            left_s = (deadline_ms - clock.monotonic_ms()) / 1000
            if left_s <= 0:
                logger.info("broker %d is slow to say where its partitions end: the rest is left open", leader_id)
                return
            request = _request(chunk)
            answer = await broker.peers.request(address, ApiKey.LIST_OFFSETS, request, timeout_s=left_s, lane=LANE)
            _take(answer, chunk, answers)
            await slices.turn()  # to make a request and read its answer takes about as long as a slice
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
