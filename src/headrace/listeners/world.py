"""The outside world of an app that runs: consumers and producers of a cluster, and this machine's clock."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.client.admin.admin import Admin
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.errors import RequestFailed
from headrace.errors import Err
from headrace.listeners.idempotence import Store, TopicStore
from headrace.listeners.ports import Callbacks, ConsumerPort, ProducerPort

TRANSACTION_TIMEOUT_MS = 10_000
"""A listener's transactions are short. One that a crash leaves open holds up readers for at most this long."""


class Cluster:
    """Kafka, as `options` say, which are those of every client, such as `bootstrap` and `security`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def consumer(
        self, topics: Sequence[str], group: str, callbacks: Callbacks, options: Mapping[str, Any]
    ) -> ConsumerPort:
        """A member of the group, not started. Without a committed offset it begins with the oldest record."""
        given: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            **self._options,
            **options,
            **callbacks._asdict(),
            "group": group,
            "auto_commit": False,
        }
        return Consumer(*topics, **given)

    def producer(self, transactional_id: str | None) -> ProducerPort:
        """A producer, not started."""
        more: dict[str, Any] = {}
        if transactional_id is not None:
            more = {"transactional_id": transactional_id, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
        return Producer(**self._options, **more)

    def store(self, given: Store) -> Store:
        """Where ids are remembered: as given, in this cluster."""
        if isinstance(given, TopicStore):
            given.connect_with(self._options)
        return given

    async def make_topics(self, like: Mapping[str, str]) -> None:
        """Create what is missing, each with the partitions of another topic."""
        if not like:
            return
        async with Admin(**self._options) as admin:
            there = {topic.name for topic in await admin.list_topics()}
            for name, model in like.items():
                if name not in there:
                    await _make(admin, name, model)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_at(when, callback).cancel


async def _make(admin: Admin, name: str, model: str) -> None:
    found = await admin.describe_topic(model)
    try:
        await admin.create_topic(name, partitions=len(found.partitions))
    except RequestFailed as error:
        if error.error is not Err.TOPIC_ALREADY_EXISTS:  # another member was faster
            raise
