"""What callers give producers and consumers, and on which event loop they call: what makes no sense is refused in
words."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.api.options import OptionRefused
from headrace.client.api.types import Batch, Record
from headrace.client.errors import ClientError

Partition = tuple[str, int]


def check_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """A client that has started belongs to the event loop that it started on: used on another, by another thread or a
    later `asyncio.run`, it would wait for ever. Raises ClientError."""
    if loop is not None and asyncio.get_running_loop() is not loop:
        raise ClientError(
            f"the {what} was started on another event loop: make one for each loop, or use headrace.sync, whose "
            "clients any thread may call"
        )


def topic_names(topics: tuple[Any, ...]) -> list[str]:
    for topic in topics:
        if not isinstance(topic, str) or not topic:
            raise OptionRefused(f"topic {topic!r} is no name: give the names of topics one by one, as text")
    return sorted(set(topics))


def positive_count(given: int | None, default: int) -> int:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ClientError(f"max_records is {given!r}: give a number of 1 or more")
    return given


def check_partitions(given: Iterable[Any]) -> None:
    for at in given:
        if not isinstance(at, tuple) or len(at) != 2 or not isinstance(at[0], str) or type(at[1]) is not int:
            raise ClientError(f"{at!r} is no partition: give (topic, partition)")


def one_partition(partition: Partition) -> Partition:
    check_partitions((partition,))
    return partition


def check_offset(offset: Any) -> None:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ClientError(f"offset {offset!r} is none: offsets begin at 0; seek_to_end goes to the end")


def offsets_to_commit(given: Mapping[Partition, int] | Record | Batch | None) -> Mapping[Partition, int] | None:
    if isinstance(given, Record):
        return {(given.topic, given.partition): given.offset + 1}
    if isinstance(given, Batch):
        return {(given.topic, given.partition): given.next_offset}
    if given is not None and not isinstance(given, Mapping):
        raise ClientError(f"{given!r} cannot be committed: give a record, a batch, or {{(topic, partition): offset}}")
    return given
