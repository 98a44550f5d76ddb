"""Dead letters, read and sent back to where they failed.

How far they were sent back is committed in a group of its own, so that the next replay goes on behind it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.admin.groups import Groups
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.api.types import Record
from headrace.client.errors import ClientError
from headrace.listeners.core.headers import Failure, failure_of, replay_headers

POLL_S = 0.2


class Letter(NamedTuple):
    """A dead letter and what its headers say."""

    record: Record
    failure: Failure


class Replayed(NamedTuple):
    """A dead letter, and where it was sent, or would be."""

    letter: Letter
    topic: str


def replay_group(topic: str) -> str:
    """The group in which replays of a topic commit how far they are."""
    return f"headrace-dlq-replay.{topic}"


class DeadLetters:
    """The dead letters of one topic: `async with DeadLetters.of(topic, bootstrap=...) as letters`."""

    def __init__(self, topic: str, admin: Admin, options: Mapping[str, Any]) -> None:
        self.topic = topic
        self._admin = admin
        self._options = dict(options)

    @classmethod
    @asynccontextmanager
    async def of(cls, topic: str, **options: Any) -> AsyncIterator["DeadLetters"]:
        """Connect. `options` are those of every client: bootstrap, security."""
        async with Admin(**options) as admin:
            yield cls(topic, admin, options)

    async def read(self, *, all_: bool = True, only: tuple[int, int] | None = None) -> AsyncIterator[Letter]:
        """Those that are there now, by partition. `all_` False: without those that were sent back already. `only`: the
        one at a partition and offset."""
        low, high = await self._range(all_=all_)
        if only is not None:
            partition, offset = only
            if not low.get((self.topic, partition), 0) <= offset < high.get((self.topic, partition), 0):
                raise ClientError(f"there is no record at {self.topic}-{partition} offset {offset}")
            low, high = {(self.topic, partition): offset}, {(self.topic, partition): offset + 1}
        wanted = [at for at, end in high.items() if low[at] < end]
        if not wanted:
            return
        async with Consumer(**self._options, auto_commit=False, auto_offset_reset="earliest") as consumer:
            await consumer.assign(wanted)
            for at in wanted:
                consumer.seek(at, low[at])
            while any(consumer.position(at) < high[at] for at in wanted):
                for record in await consumer.poll(POLL_S):
                    if record.offset < high[record.topic, record.partition]:
                        yield Letter(record, failure_of(record.headers))

    async def _range(self, *, all_: bool) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        found = await self._admin.describe_topic(self.topic)
        partitions = [(self.topic, index) for index in found.partitions]
        low = await self._admin.offsets_of(partitions, EARLIEST)
        high = await self._admin.offsets_of(partitions, LATEST)
        if not all_:
            done = await Groups(self._admin).committed(replay_group(self.topic))
            low = {at: max(begin, done[at].offset if at in done else 0) for at, begin in low.items()}
        return low, high

    async def replay(
        self, *, to: str | None = None, only: tuple[int, int] | None = None, dry_run: bool = False
    ) -> AsyncIterator[Replayed]:
        """Send back what has not been sent back yet, each to the topic it came from or all to `to`.

        With `only`, the one at a partition and offset is sent back, whether it was before or not.

        A letter counts as sent back when it is acknowledged; a crash in between sends it twice.
        """
        async with Producer(**self._options) as producer:
            async for letter in self.read(all_=only is not None, only=only):
                topic = to or self._destination(letter)
                if not dry_run:
                    await self._send(producer, letter, topic)
                    if only is None:
                        at = (self.topic, letter.record.partition)
                        await Groups(self._admin).commit(replay_group(self.topic), {at: letter.record.offset + 1})
                yield Replayed(letter, topic)

    def _destination(self, letter: Letter) -> str:
        record, origin = letter.record, letter.failure.origin
        if origin is None:
            raise ClientError(
                f"the record at {record.topic}-{record.partition} offset {record.offset} does not say where it came "
                "from: give the topic to send it to with --to"
            )
        return origin.topic

    async def _send(self, producer: Producer, letter: Letter, topic: str) -> None:
        record, origin = letter.record, letter.failure.origin
        partition = None
        # By its key, as at first; without a key, to the partition it came from if that is there.
        if (
            record.key is None
            and origin is not None
            and topic == origin.topic
            and origin.partition < await producer.partitions(topic)
        ):
            partition = origin.partition
        await producer.send(
            topic, record.value, key=record.key, headers=replay_headers(record.headers), partition=partition
        )
