"""The group coordinator of one broker: which shards it serves, how requests find them, and the clockwork around them.

`coordinator` decides; `ShardHost` runs one shard; `Loader` fills it. This file follows the metadata: a shard is loaded
when the broker comes to lead its partition of `__consumer_offsets`, and dropped when it no longer does.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator_host import Asker, ShardHost, State
from headrace.broker.coordinator_loading import Loader
from headrace.broker.coordinator_timers import Timers
from headrace.broker.partition import Partition
from headrace.coordinator.records import REMEMBERED_LENGTH_MAX
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.image import BROKER_CONFIG, Image
from headrace.metadata.names import OFFSETS_TOPIC

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.coordinator")

DELIVERY_SECONDS = 0.005
"""Answers are given for so long before others get their turn."""
RELOAD_DELAY_MS = 100
"""A shard that had to be dropped waits so long: what broke it may break it again at once."""
FAILED_RELOAD_MS, FAILED_RELOAD_MS_MAX = 1_000, 60_000
"""One that could not be loaded is tried again after a second, then after twice as long each time."""


class GroupCoordinator:
    """Every group this broker coordinates."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        runtime = broker.runtime
        self.loop = runtime.loop
        self.wheel = broker.wheel
        self.wall_ms = runtime.clock.wall_ms
        self.perf_counter = runtime.perf_counter
        self.run_in_thread = runtime.run_in_thread
        self.spawn = broker.spawn
        self.timers = Timers(runtime.loop, runtime.clock, runtime.perf_counter)
        self.commit_timeout_ms: int = broker.config["offsets.commit.timeout.ms"]
        self.compression: int = broker.config["offsets.topic.compression.codec"]
        self.shard_config = ShardConfig.from_broker(broker.config)
        self.loader = Loader(self)
        self.hosts: dict[int, ShardHost] = {}
        self._partition_count = 0
        self._ready: deque[tuple[Asker, Any]] = deque()
        self._closed = False

    @property
    def image(self) -> Image:
        return self._broker.image

    def new_id(self) -> str:
        """A random UUID as Java prints it."""
        return str(uuid.UUID(int=self._broker.runtime.random.getrandbits(128), version=4))

    # ---- finding a shard

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that keeps a group; the topic must exist."""
        return partition_for(group_id, self._partition_count or self._count(self.image))

    def _count(self, image: Image) -> int:
        topic = image.topic_named(OFFSETS_TOPIC)
        configured: int = self._broker.config["offsets.topic.num.partitions"]
        return configured if topic is None else len(topic.partitions)

    def host(self, group_id: str) -> ShardHost:
        """The active host of a group's shard; raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        host = self.hosts.get(partition_for(group_id, self._partition_count or self._count(self.image)))
        if host is None:
            raise KafkaError(Err.NOT_COORDINATOR)
        if host.state is not State.ACTIVE:
            host.available()
        return host

    def active(self) -> Iterator[ShardHost]:
        for host in self.hosts.values():
            if host.state is State.ACTIVE:
                yield host

    # ---- following the metadata

    def metadata_changed(self, delta: Delta, image: Image) -> None:
        """Called in commit order, after the replicas have followed."""
        if self._closed:
            return
        if any(kind == BROKER_CONFIG or name == OFFSETS_TOPIC for kind, name in delta.configs):
            for host in self.active():
                host.shard.state.config = self.config_of(host.partition)
        self.refresh()
        for host in list(self.active()):
            host.decide(partial(host.shard.on_metadata, image))

    def refresh(self) -> None:
        """Serve the shards of the partitions led here, and no others."""
        if self._closed:
            return
        partitions = self._broker.replicas.by_name.get(OFFSETS_TOPIC, {})
        before, self._partition_count = self._partition_count, self._count(self.image) if partitions else 0
        has_moved = before not in (0, self._partition_count)  # groups have: who waits, or was served by a host, looks again
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
        host = self.hosts[index] = ShardHost(self, partition)
        self.loader.add(host)

    def reload(self, host: ShardHost) -> None:
        """`host` is closed, since its shard can no longer be trusted: a new one takes its place after a moment."""
        index = host.partition.index
        if self.hosts.get(index) is host and not self._closed:
            self.hosts[index] = ShardHost(self, host.partition)
            self.loop.call_later(RELOAD_DELAY_MS / 1000, self._reload_now, self.hosts[index])

    def load_again(self, host: ShardHost) -> None:
        """`host` could not be loaded. What was in the way, a disk's error or want of memory, may pass."""
        host.reload_ms = min(2 * host.reload_ms or FAILED_RELOAD_MS, FAILED_RELOAD_MS_MAX)
        self.loop.call_later(host.reload_ms / 1000, self._load_failed, host)

    def _load_failed(self, host: ShardHost) -> None:
        index, partition = host.partition.index, host.partition
        if self.hosts.get(index) is host and not self._closed and _is_led(partition):
            self._load(index, partition)
            self.hosts[index].reload_ms = host.reload_ms

    def _reload_now(self, host: ShardHost) -> None:
        if self.hosts.get(host.partition.index) is host and host.state is State.LOADING and _is_led(host.partition):
            self.loader.add(host)

    def new_shard(self, partition: Partition) -> GroupShard:
        def note(text: str) -> None:
            logger.info("%s: %s", partition, text)

        shard = GroupShard(self.config_of(partition), note=note)
        shard.on_metadata(self.image, self.wall_ms())
        return shard

    def config_of(self, partition: Partition) -> ShardConfig:
        """What the shard of a partition goes by: some options change while the broker runs."""
        return ShardConfig.from_broker(self._broker.config, partition.log.config.max_message_bytes)

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
        """offsets.retention.minutes: forget offsets of groups that have been empty for so long."""
        for host in list(self.active()):
            # A shard looks at some of its offsets at a time; others are served in between.
            more = True
            while more and host.state is State.ACTIVE:
                more = host.decide(host.shard.expire)
                await asyncio.sleep(0)

    def close(self) -> None:
        """The broker stops: nobody waits for a rebalance any more."""
        self._closed = True
        for host in self.active():
            host.drain(Err.NOT_COORDINATOR)
        self.timers.close()


def partition_for(group_id: str, count: int) -> int:
    """The absolute value of Java's String.hashCode, modulo the number of partitions."""
    if len(group_id) > REMEMBERED_LENGTH_MAX:
        return _partition_for.__wrapped__(group_id, count)
    return _partition_for(group_id, count)


@lru_cache(maxsize=8192)
def _partition_for(group_id: str, count: int) -> int:
    value = 0
    # Java counts UTF-16 units: two for a character beyond the basic plane.
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = (0x100000000 - value) & 0x7FFFFFFF  # the smallest integer has no absolute value: 0 stands for it
    return value % count


def _is_led(partition: Partition) -> bool:
    return partition.leader is not None and not partition.failed
