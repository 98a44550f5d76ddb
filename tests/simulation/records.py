"""Records of one partition: written, counted, and judged after a crash."""

from headrace.client import raw
from headrace.client.net.cluster import Cluster
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.world import Node

BATCH = build_batch([Record(0, 1000, None, b"v" * 200)])


CHECKPOINTED_S = 10.0
"""Longer than high watermarks take to reach their checkpoint."""


async def write(bootstrap: str, count: int, topic: str = "t") -> list[int]:
    async with Cluster(bootstrap, retry_timeout_s=20.0) as cluster:
        return [(await raw.produce(cluster, topic, 0, BATCH)).base_offset for _ in range(count)]


async def state(bootstrap: str) -> tuple[int, set[int]]:
    """Leader and ISR."""
    async with Cluster(bootstrap, retry_timeout_s=20.0) as cluster:
        found = (await cluster.topic("t")).partitions[0]
    return found.leader, set(found.isr)


async def end(node: Node, clean: bool) -> None:
    await node.stop() if clean else node.kill()
