"""A coordinator of one broker: which shards it serves, how requests find them, and the clockwork around them.

`ShardHost` runs one shard; `Loader` fills it. This file follows the metadata: a shard is loaded when the broker comes
to lead its partition of the coordinator's topic, and dropped when it no longer does. What is kept in shards is told by
those who derive from it: groups (`runtime.py`), transactions (`transactions.py`).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import unpack
from typing import Any, Generic, TypeVar

from headrace.broker.coordinators.host import Asker, Shard, ShardHost, State
from headrace.broker.coordinators.loading import Loader
from headrace.broker.coordinators.timers import Timers
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.coordinator.outcome import Outcome
from headrace.coordinator.records import REMEMBERED_LENGTH_MAX
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Image

logger = logging.getLogger("headrace.coordinator")

DELIVERY_SECONDS = 0.005
"""Answers are given for so long before others get their turn."""
RELOAD_DELAY_MS = 100
"""A shard that had to be dropped waits so long: what broke it may break it again at once."""
FAILED_RELOAD_MS, FAILED_RELOAD_MS_MAX = 1_000, 60_000
"""One that could not be loaded is tried again after a second, then after twice as long each time."""

S = TypeVar("S", bound=Shard)
H = TypeVar("H", bound="ShardHost[Any]")


class Coordinator(ABC, Generic[S, H]):
    """All shards of one kind that this broker serves."""

    topic: str
    """Whose partitions the shards are kept in."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        replicas: Replicas,
        wheel: TimerWheel,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._random = runtime.random
        self.loop = runtime.loop
        self.wheel = wheel
        self.wall_ms = runtime.clock.wall_ms
        self.perf_counter = runtime.perf_counter
        self.run_in_thread = runtime.run_in_thread
        self.spawn = tasks.spawn
        self.timers = Timers(runtime.schedule, runtime.perf_counter)
        self.loader = Loader(self)
        self.hosts: dict[int, H] = {}
        self._partition_count = 0
        self._ready: deque[tuple[Asker, Any]] = deque()
        self._closed = False

    # ---- what is kept in shards

    commit_timeout_ms: int
    """How long an answer waits for its records to be committed."""
    compression: int

    @property
    @abstractmethod
    def configured_partitions(self) -> int:
        """How many partitions the topic will have when it is created."""

    @abstractmethod
    def new_shard(self, partition: Partition) -> S: ...

    @abstractmethod
    def new_host(self, partition: Partition) -> H: ...

    @abstractmethod
    def catch_up(self, shard: S, partition: Partition) -> Outcome:
        """A shard has been loaded, while the cluster and its options may have changed."""

    def advanced(self, host: H) -> None:
        """More of what a shard has decided is committed."""

    @property
    def image(self) -> Image:
        return self._metadata.image

    # ---- finding a shard

    def partition_of(self, key: str) -> int:
        """The partition of the topic that keeps a group, or whatever else has this name; the topic must exist."""
        return partition_for(key, self._partition_count or self._count(self.image))

    def _count(self, image: Image) -> int:
        topic = image.topic_named(self.topic)
        return self.configured_partitions if topic is None else len(topic.partitions)

    def host(self, key: str) -> H:
        """The active host of a shard; raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        host = self.hosts.get(partition_for(key, self._partition_count or self._count(self.image)))
        if host is None:
            raise KafkaError(Err.NOT_COORDINATOR)
        if host.state is not State.ACTIVE:
            host.available()
        return host

    def active(self) -> Iterator[H]:
        for host in self.hosts.values():
            if host.state is State.ACTIVE:
                yield host

    # ---- following the metadata

    def refresh(self) -> None:
        """Serve the shards of the partitions led here, and no others."""
        if self._closed:
            return
        partitions = self._replicas.by_name.get(self.topic, {})
        before, self._partition_count = self._partition_count, self._count(self.image) if partitions else 0
        # Then keys have moved, too: who waits, or was served by a host, looks again.
        has_moved = before not in (0, self._partition_count)
        for index, host in list(self.hosts.items()):
            if has_moved or partitions.get(index) is not host.partition or not _is_led(host.partition):
                del self.hosts[index]
                host.close(Err.NOT_COORDINATOR)
        for index, partition in partitions.items():
            if index not in self.hosts and _is_led(partition):
                self._load(index, partition)

    def refresh_soon(self) -> None:
        """From within a change that is not complete yet."""
        self.loop.call_soon(self.refresh)

    def _load(self, index: int, partition: Partition) -> None:
        host = self.hosts[index] = self.new_host(partition)
        self.loader.add(host)

    def reload(self, host: H) -> None:
        """`host` is closed, since its shard can no longer be trusted: a new one takes its place after a moment."""
        index = host.partition.index
        if self.hosts.get(index) is host and not self._closed:
            self.hosts[index] = self.new_host(host.partition)
            self.loop.call_later(RELOAD_DELAY_MS / 1000, self._reload_now, self.hosts[index])

    def load_again(self, host: H) -> None:
        """`host` could not be loaded. What was in the way, a disk's error or want of memory, may pass."""
        host.reload_ms = min(2 * host.reload_ms or FAILED_RELOAD_MS, FAILED_RELOAD_MS_MAX)
        self.loop.call_later(host.reload_ms / 1000, self._load_failed, host)

    def _load_failed(self, host: H) -> None:
        index, partition = host.partition.index, host.partition
        if self.hosts.get(index) is host and not self._closed and _is_led(partition):
            self._load(index, partition)
            self.hosts[index].reload_ms = host.reload_ms

    def _reload_now(self, host: H) -> None:
        if self.hosts.get(host.partition.index) is host and host.state is State.LOADING and _is_led(host.partition):
            self.loader.add(host)

    # ---- answering

    def deliver(self, answers: Iterable[tuple[Asker, Any]]) -> None:
        """Give answers at the end of this turn of the loop, outside of any decision; many take several turns."""
        if not self._ready:
            self.loop.call_soon(self._deliver)
        self._ready.extend(answers)

    def _deliver(self) -> None:
        ready = self._ready
        stop = self.perf_counter() + DELIVERY_SECONDS
        try:
            while ready and self.perf_counter() < stop:
                asker, response = ready.popleft()
                asker.answer(response)
        finally:
            if ready:
                self.loop.call_soon(self._deliver)

    # ---- by the clock

    async def expire(self) -> None:
        """Forget what has not been used for long."""
        for host in list(self.active()):
            # A shard looks at some of what it has at a time; others are served in between.
            more = True
            while more and host.state is State.ACTIVE:
                more = host.decide(host.shard.expire)
                await asyncio.sleep(0)

    def close(self) -> None:
        """The broker stops: nobody waits any more for what others have to do first."""
        self._closed = True
        for host in self.active():
            host.drain(Err.NOT_COORDINATOR)
        self.timers.close()


def partition_for(group_id: str, count: int) -> int:
    """The absolute value of Java's String.hashCode, modulo the number of partitions."""
    if len(group_id) > REMEMBERED_LENGTH_MAX:
        return _partition_for.__wrapped__(group_id, count)
    return _partition_for(group_id, count)


@lru_cache(maxsize=1024)  # names of groups that are gone are among them: no more than a few hundred kilobytes
def _partition_for(group_id: str, count: int) -> int:
    value = 0
    # Java counts UTF-16 units: two for a character beyond the basic plane.
    utf_16 = group_id.encode("utf-16-be", "surrogatepass")
    for unit in unpack(f">{len(utf_16) // 2}H", utf_16):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = (0x100000000 - value) & 0x7FFFFFFF  # the smallest integer has no absolute value: 0 stands for it
    return value % count


def _is_led(partition: Partition) -> bool:
    return partition.leader is not None and not partition.failed
