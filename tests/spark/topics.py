"""Topics for tests: made, and read back whole with nothing of Spark in between."""

import asyncio

from headrace.client import Admin, Cluster
from headrace.client.consume.records import Record, visible_batches
from headrace.client.raw import fetch
from headrace.records.batch import iter_headers


def make_topic(bootstrap: str, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    async def make() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic(name, partitions=partitions, configs=configs or {})

    asyncio.run(make())


def records_of(bootstrap: str, name: str) -> dict[int, list[Record]]:
    """Every record of every partition, committed or not."""

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
        for _, records in visible_batches(got.records, name, index, offset, ()):
            found += records
        offset = max([offset, *(header.end_offset for _, header in iter_headers(got.records))])
        if offset >= got.high_watermark:
            return found
