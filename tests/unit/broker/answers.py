"""What answers say: the few things that tests of Produce and Fetch look at again and again."""

import asyncio
from typing import Any

from headrace.errors import Err
from tests.unit.broker.sim import Sim, Wire


def fetched(answer: Any) -> list[Any]:
    """The partitions of a Fetch's answer."""
    return [row for topic in answer.responses for row in topic.partitions]


def sizes(answer: Any) -> list[int]:
    return [len(row.records or b"") for row in fetched(answer)]


def errors(answer: Any) -> list[str]:
    return [Err(row.error_code).name for row in fetched(answer)]


T = "t"
"""The topic that most tests write to."""


def rows(answer: Any) -> list[Any]:
    """The partitions of a Produce's answer."""
    return [row for topic in answer.responses for row in topic.partition_responses]


def codes(answer: Any) -> list[str]:
    return [Err(row.error_code).name for row in rows(answer)]


def offsets(answer: Any) -> list[int]:
    return [row.base_offset for row in rows(answer)]


async def end_offset(sim: Sim, wire: Wire, index: int = 0) -> int:
    rows = [{"partition_index": index, "timestamp": -1}]
    while True:
        answer = await wire.ask("ListOffsets", 5, {"replica_id": -1, "topics": [{"name": T, "partitions": rows}]})
        found = answer.topics[0].partitions[0]
        if found.error_code != Err.OFFSET_NOT_AVAILABLE:  # which a leader that has just started answers
            return int(found.offset)
        await asyncio.sleep(0.01)
