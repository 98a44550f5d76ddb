"""`headrace.Consumer`: records from topics, from asyncio."""

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from headrace.client.api.options import (
    CONSUMER_NAMES,
    CONSUMER_UNUSED,
    ConsumerOptions,
    ConsumerSettings,
    OptionRefused,
    read_settings,
)
from headrace.client.api.serializers import Decode, SerializationFailed, decoder_of
from headrace.client.api.types import Batch, Record, TopicPartition
from headrace.client.consume.consumer import ConsumedRecord, GroupConsumer
from headrace.client.errors import ClientError

POLL_S = 1.0


class Consumer:
    """Reads records of topics of Headrace or any other Kafka.

        async with headrace.Consumer("orders", bootstrap="127.0.0.1:9092", group="billing") as consumer:
            async for record in consumer:
                ...

    Members of a group share the partitions of its topics; each record that was handed out and passed (the next one was
    asked for) is committed now and then, so that another member goes on behind it. Options are keywords
    (`ConsumerSettings` has all of them) or, in `config`, the names of Kafka's own clients. Nothing connects before
    `start` or `async with`.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        given = {**options, "bootstrap": bootstrap}
        self.settings = read_settings(ConsumerSettings, CONSUMER_NAMES, CONSUMER_UNUSED, config, given)
        self.topics = topics
        self._decode_key: Decode | None = decoder_of(self.settings.key_deserializer, "key_deserializer")
        self._decode_value: Decode | None = decoder_of(self.settings.value_deserializer, "value_deserializer")
        if not self.settings.group or not topics:
            raise OptionRefused("give the consumer topics to read and the name of a group")
        self._core: GroupConsumer | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Connect and join the group. `async with` does it. Raises ClientError when no broker answers."""
        if self._is_closed:
            raise ClientError("the consumer is closed: make a new one")
        if self._core is not None:
            return
        settings = self.settings
        assert settings.group is not None
        core = GroupConsumer(
            settings.bootstrap,
            group=settings.group,
            topics=self.topics,
            client_id=settings.client_id,
            security=settings.security,
            auto_offset_reset=settings.auto_offset_reset,
            auto_commit_ms=settings.auto_commit_interval_ms if settings.auto_commit else None,
            read_committed=settings.isolation_level == "read_committed",
            max_poll_interval_ms=settings.max_poll_interval_ms,
            instance_id=settings.instance_id,
        )
        await core.__aenter__()
        self._core = core

    async def close(self) -> None:
        """Commit (unless auto_commit is off), leave the group and disconnect."""
        core, self._core, self._is_closed = self._core, None, True
        if core is not None:
            await core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core, self._core, self._is_closed = self._core, None, True
        if core is not None:
            await core.close(commit=kind is None)

    async def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[Record]:
        """The next records, or none when none came in time. What the last call gave counts as passed."""
        found = await self._running().poll(timeout_s, max_records or self.settings.max_poll_records)
        return [self._record(one) for one in found]

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Every record from here on, waiting for more at the end."""
        while True:
            for record in await self.poll():
                yield record

    async def batches(self, max_records: int | None = None) -> AsyncIterator[Batch]:
        """Every record from here on, in batches of one partition each: less work for each record."""
        while True:
            by_partition: dict[tuple[str, int], list[Record]] = {}
            for record in await self.poll(max_records=max_records):
                by_partition.setdefault((record.topic, record.partition), []).append(record)
            for (topic, partition), records in by_partition.items():
                yield Batch(topic, partition, records)

    async def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit what was handed out, or the given offsets. On the broker's disk when this returns."""
        await self._running().commit(offsets)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this consumer reads now."""
        return frozenset(TopicPartition(*at) for at in self._running().assignment)

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that is handed out."""
        return self._running().position(*partition)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on from any offset, back or forth."""
        self._running().seek(*partition, offset)

    def _record(self, found: ConsumedRecord) -> Record:
        key, value = found.key, found.value
        try:
            if self._decode_key is not None and key is not None:
                key = self._decode_key(found.topic, key)
            if self._decode_value is not None and value is not None:
                value = self._decode_value(found.topic, value)
        except Exception as error:
            raise SerializationFailed(
                f"the record at {found.topic}-{found.partition} offset {found.offset} cannot be deserialized: {error}"
            ) from error
        return Record(found.topic, found.partition, found.offset, found.timestamp, key, value, found.headers)

    def _running(self) -> GroupConsumer:
        if self._is_closed:
            raise ClientError("the consumer is closed: make a new one")
        if self._core is None:
            raise ClientError(
                "the consumer is not started: use `async with Consumer(...) as consumer`, or await start()"
            )
        return self._core
