"""The document "Kafka as a distributed system": leaders and followers, offsets and their coordinator."""

import asyncio
from pathlib import Path

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.groups import Groups
from headrace.testing.broker import TestBroker
from tests.waiting import eventually

OFFSETS = "__consumer_offsets"
COMMITS = 300


def test_offsets_are_cached_and_their_topic_is_compacted_to_the_latest_commit(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "1", "log.cleaner.backoff.ms": "100"}
    with TestBroker(tmp_path, settings) as broker:
        logs = tmp_path.rglob(f"{OFFSETS}-0/*.log")
        folder = asyncio.run(_commit_many(broker.bootstrap)) or next(logs).parent

        def size() -> int:
            return sum(path.stat().st_size for path in folder.glob("*.log"))

        before = size()
        asyncio.run(_begin_a_segment(broker.bootstrap))
        eventually(lambda: size() < before / 2, f"{before} bytes of commits are compacted")
        assert asyncio.run(_committed(broker.bootstrap)) == COMMITS
    with TestBroker(tmp_path, settings) as broker:
        assert asyncio.run(_committed(broker.bootstrap)) == COMMITS, "the next coordinator reads them from the topic"


async def _commit_many(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", 1)
        for offset in range(COMMITS):
            await Groups(admin).commit("billing", {("orders", 0): offset})


async def _begin_a_segment(bootstrap: str) -> None:
    """Only closed segments are compacted."""
    async with Admin(bootstrap) as admin:
        entries = await admin.describe_configs(Resource.TOPIC, OFFSETS)
        assert {entry.name: entry.value for entry in entries}["cleanup.policy"] == "compact"
        options = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0"}
        await admin.alter_configs(Resource.TOPIC, OFFSETS, set=options)
        await asyncio.sleep(0.01)
        await Groups(admin).commit("billing", {("orders", 0): COMMITS})


async def _committed(bootstrap: str) -> int:
    async with Admin(bootstrap) as admin:
        found = await Groups(admin).committed("billing")
        return found["orders", 0].offset
