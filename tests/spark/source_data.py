"""Records put into topics batch by batch, and what a read of them must give."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.net.cluster import Cluster
from headrace.client.raw import produce
from headrace.records.batch import Record, build_batch
from tests.spark.topics import make_topic

T0 = 1_700_000_000_000


def make(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """A topic that keeps records of any age."""
    make_topic(bootstrap, topic, partitions, {"retention.ms": "-1"})


def put(bootstrap: str, topic: str, batches: Mapping[int, Iterable[list[Record]]], **options: Any) -> None:
    """partition -> batches of records, each written as one batch."""

    async def write() -> None:
        async with Cluster(bootstrap) as cluster:
            for partition, lists in batches.items():
                for records in lists:
                    await produce(cluster, topic, partition, build_batch(records, **options))

    asyncio.run(write())


def put_numbers(bootstrap: str, topic: str, partition: int, numbers: Iterable[int], per_batch: int = 100) -> None:
    """Values are the numbers, as text; one millisecond apart."""
    records = [Record(0, T0 + number, None, b"%d" % number) for number in numbers]
    put(bootstrap, topic, {partition: [records[at : at + per_batch] for at in range(0, len(records), per_batch)]})


def admin(bootstrap: str, work: Any) -> Any:
    """`work(admin)`, awaited."""

    async def run() -> Any:
        async with Admin(bootstrap) as client:
            return await work(client)

    return asyncio.run(run())


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    async def ask(client: Admin) -> dict[tuple[str, int], int]:
        return {one: found.offset for one, found in (await Groups(client).committed(group)).items()}

    found: dict[tuple[str, int], int] = admin(bootstrap, ask)
    return found


def groups(bootstrap: str) -> set[str]:
    async def ask(client: Admin) -> set[str]:
        return {group.group_id for group in await Groups(client).list_groups()}

    found: set[str] = admin(bootstrap, ask)
    return found
