"""What a listener sends: results, dead letters and retries, one by one or with the offsets in one transaction."""

import uuid
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from headrace.client.api.serializers import Json, encoder_of
from headrace.listeners.core.retry import ListenerRefused
from headrace.listeners.core.schedule import At
from headrace.listeners.handlers import Send, when_ready
from headrace.listeners.ports import ConsumerPort, ProducerPort, TransactionalPort, World
from headrace.listeners.spec import ListenerSpec


class Outbox:
    """The producer of one listener. It is connected when something is to be sent, or at once for exactly-once."""

    def __init__(self, spec: ListenerSpec, world: World) -> None:
        self._spec = spec
        self._world = world
        self._producer: ProducerPort | None = None
        self._json = Json()
        self._encode_value = encoder_of(spec.value_serializer, "value_serializer")
        self._partition_counts: dict[str, int] = {}

    async def start(self) -> None:
        """Fence whoever had this listener's transactional id before, and end what it left open."""
        if self._spec.exactly_once:
            await self._started()

    async def _started(self) -> ProducerPort:
        if self._producer is None:
            spec = self._spec
            # Each process has an id of its own: a group's fence, not this name, keeps two from one partition.
            name = spec.transactional_id or f"{spec.group}-{spec.name}-{uuid.uuid4()}"
            producer = self._world.producer(name if spec.exactly_once else None)
            await producer.start()
            self._producer = producer
        return self._producer

    async def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            await self._producer.close()

    async def check(self, sends: Sequence[Send]) -> None:
        """Refuse what can never be sent before anything of it is."""
        for send in sends:
            if send.topic in self._spec.all_topics:
                raise ListenerRefused(f"{self._spec.name} sends to {send.topic!r}, which it listens to itself")
            await self._value(send)

    async def send(self, sends: Sequence[Send]) -> None:
        """Send in this order; all of them are acknowledged when this returns."""
        producer = await self._started()
        for delivery in [await self._put(producer, send) for send in sends]:
            await delivery

    async def transact(self, consumer: ConsumerPort, offsets: Mapping[At, int], sends: Sequence[Send]) -> None:
        """Send and commit offsets, all of it or nothing."""
        producer = cast(TransactionalPort, await self._started())
        async with producer.transaction() as transaction:
            for delivery in [await self._put(producer, send) for send in sends]:
                await delivery
            await transaction.commit_offsets(consumer, offsets)

    async def _put(self, producer: ProducerPort, send: Send) -> Awaitable[Any]:
        partition = send.partition
        if partition is not None and partition >= await self._partitions(producer, send.topic):
            partition = None  # fewer than where the record comes from: by its key, then
        return await producer.send_soon(
            send.topic,
            await self._value(send),
            key=self._encode(send.key),
            headers=send.headers,
            timestamp=send.timestamp,
            partition=partition,
        )

    async def _partitions(self, producer: ProducerPort, topic: str) -> int:
        if topic not in self._partition_counts:
            self._partition_counts[topic] = await producer.partitions(topic)
        return self._partition_counts[topic]

    async def _value(self, send: Send) -> Any:
        """Dead letters and retries are bytes, and stay as they came."""
        encode = self._encode_value
        if encode is None or send.value is None or isinstance(send.value, bytes):
            return self._encode(send.value)
        return await when_ready(partial(encode, send.topic, send.value))

    def _encode(self, value: Any) -> Any:
        return value if value is None or isinstance(value, bytes | str) else self._json.serialize("", value)
