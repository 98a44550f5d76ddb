"""What a producer's core is given, and what waits for one broker."""

import asyncio
from collections import deque

import msgspec

from headrace.client.produce.deliveries import OpenBatch
from headrace.client.produce.partition_queue import PartitionQueue


class OutgoingBatch(msgspec.Struct):
    """One batch for one partition, whole and writable; producer, sequence and CRC are filled in when it is queued."""

    topic: str
    partition: int
    view: memoryview
    count: int
    source: OpenBatch | None = None
    """Who is told what becomes of it. Without one, its failure is the producer's."""


class Sender:
    """What waits for one broker, and how many requests it has not answered yet."""

    __slots__ = ("in_flight", "node_id", "ready", "wake")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.ready: deque[PartitionQueue] = deque()
        self.in_flight = 0
        self.wake = asyncio.Event()
