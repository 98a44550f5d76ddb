"""Topics for tests: made, and read back whole with nothing of Spark in between."""

import asyncio

from headrace.client import Admin, Cluster
from headrace.client.raw import fetch
from headrace.records.reader import Record, iter_records


def make_topic(bootstrap: str, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    async def make() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic(name, partitions=partitions, configs=configs or {})

    asyncio.run(make())


def records_of(bootstrap: str, name: str) -> dict[int, list[Record]]:
    """Every record of every partition."""

    async def read() -> dict[int, list[Record]]:
        async with Cluster(bootstrap) as cluster:
            topic = await cluster.topic(name)
            return {index: await _partition(cluster, name, index) for index in topic.partitions}

    return asyncio.run(read())


async def _partition(cluster: Cluster, name: str, index: int) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        got = await fetch(cluster, name, index, offset, max_wait_ms=0, max_bytes=8 << 20)
        fresh = [record for record in iter_records(got.records) if record.offset >= offset]
        found += fresh
        offset = fresh[-1].offset + 1 if fresh else offset
        if offset >= got.high_watermark:
            return found
