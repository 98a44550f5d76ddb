"""Sends the shop's events as they happen, by an idempotent producer with acks=all.

What is due is sent, then awaited: while no broker answers the feed stands still, and catches up afterwards. So every
event is in the log once, and everything in the ledger is acknowledged whenever `run` is between two rounds.
"""

import asyncio
import time
from collections import Counter

from headrace.client.net.cluster import Cluster
from headrace.client.produce.partitioner import partition_for_key
from headrace.client.produce.producer import OutgoingBatch, ProducerCore
from headrace.demo.events import KINDS, TICK_MS, Event, Shop
from headrace.demo.ledger import Ledger
from headrace.records.batch import BatchBuilder
from headrace.records.compression import Codec

TICKS_AT_ONCE_MAX = 20
"""How much of what it has missed a feed that stood still sends in one batch: by no more than this is one partition ever
ahead of another, whatever fails, since nothing is sent before all of it is acknowledged."""
CATCH_UP = 3
"""How many times faster than time itself a feed catches up. Whoever asks for the ends of partitions while a leader is
being elected gets them some moments apart: by as much as is sent in between, one seems to be ahead of another."""


def pause_s(ticks: int, took_s: float) -> float:
    """How long to wait after a batch of so many ticks, which itself took a while."""
    return max(0.0, ticks * TICK_MS / 1000 / CATCH_UP - took_s)


class Feed:
    """`run` until `stop`; then `ticks` says how much of the shop's day was sent."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, shop: Shop) -> None:
        self.topic = topic
        self.partitions = partitions
        self.shop = shop
        self.ledger = Ledger(partitions)
        self.ticks = 0
        self.acknowledged = 0
        self.kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.slowest_s = 0.0
        """The longest wait for an acknowledgement."""
        self.slowest_lately_s = 0.0
        """The same, since somebody looked and set it back."""
        self.sent_s = [0.0] * partitions
        """When the latest acknowledged batch of each partition was sent."""
        self.waiting_since_s: float | None = None
        self._bootstrap = bootstrap
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def last_ms(self) -> int:
        return self.shop.start_ms + self.ticks * TICK_MS

    async def run(self) -> None:
        async with Cluster(self._bootstrap, client_id="shop-feed") as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count(self.topic)
            while not self._stopping.is_set():
                due = (int(time.time() * 1000) - self.shop.start_ms) // TICK_MS - self.ticks
                if due > 0:
                    ticks, began_s = min(due, TICKS_AT_ONCE_MAX), time.monotonic()
                    await self._send(producer, self._make(ticks))
                    await self._pause(pause_s(ticks, time.monotonic() - began_s))
                else:
                    await self._pause(TICK_MS / 1000)

    async def _pause(self, seconds: float) -> None:
        """So long, or until it is told to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def close_windows(self, event_time_ms: int) -> None:
        """One more event, of a later time, in each partition's turn: the pipeline learns that time has gone on."""
        async with Cluster(self._bootstrap, client_id="shop-feed") as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count(self.topic)
            await self._send(producer, [self.shop.closing(event_time_ms)])

    def _make(self, ticks: int) -> list[Event]:
        events: list[Event] = []
        for _ in range(ticks):
            events += self.shop.events_of(self.ticks)
            self.ticks += 1
        return events

    async def _send(self, producer: ProducerCore, events: list[Event]) -> None:
        builders: dict[int, BatchBuilder] = {}
        for event in events:
            partition = partition_for_key(event.key, self.partitions)
            if partition not in builders:
                builders[partition] = BatchBuilder(compression=Codec.ZSTD)
            builders[partition].append(event.timestamp_ms, event.key, event.value)
            self.ledger.sent(partition, event.key, event.value)
        batches = [
            OutgoingBatch(self.topic, partition, memoryview(bytearray(builder.build())), builder.count)
            for partition, builder in builders.items()
        ]
        self.waiting_since_s = began_s = time.monotonic()
        await producer.send(batches)
        await producer.flush()
        self.waiting_since_s = None
        took_s = time.monotonic() - began_s
        self.slowest_s = max(self.slowest_s, took_s)
        self.slowest_lately_s = max(self.slowest_lately_s, took_s)
        for partition in builders:
            self.sent_s[partition] = began_s
        self.acknowledged += len(events)
        self.kinds.update(event.kind for event in events)
