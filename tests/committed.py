"""What a topic holds for a read_committed reader, read back whole by nothing but Fetch."""

from headrace.client import Cluster
from headrace.client.consume.records import Record, visible_batches
from headrace.client.raw import fetch
from headrace.records.batch import iter_headers


async def committed_records(bootstrap: str, topic: str, *, to_the_end: bool = True) -> dict[int, list[Record]]:
    """Every committed record, by partition. `to_the_end`: waits until no transaction is open any more; else what can
    be read now."""
    async with Cluster(bootstrap) as cluster:
        found = await cluster.topic(topic)
        return {index: await _partition(cluster, topic, index, to_the_end) for index in found.partitions}


async def _partition(cluster: Cluster, topic: str, index: int, to_the_end: bool) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        got = await fetch(cluster, topic, index, offset, read_committed=True, max_wait_ms=20, max_bytes=8 << 20)
        for _, records in visible_batches(got.records, topic, index, offset, got.aborted):
            found += records
        ends = [header.end_offset for _, header in iter_headers(got.records)]
        offset = max([offset, *ends])
        if offset >= got.last_stable_offset and (got.last_stable_offset >= got.high_watermark or not to_the_end):
            return found
