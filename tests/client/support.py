"""Topics of their own, and readers that want to see everything."""

import asyncio
import itertools
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import headrace
from headrace.testing.broker import TestBroker

LIMIT_S = 60.0
_numbers = itertools.count()

QUICK: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "fetch_max_wait_ms": 50,
    "heartbeat_interval_ms": 100,
    "session_timeout_ms": 6_000,
}


def run(
    broker: TestBroker,
    work: Callable[[str], Awaitable[None]],
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Run a test with a topic of its own; nothing may be left running behind it, and nothing be warned of."""

    async def with_topic() -> None:
        name = f"topic-{next(_numbers)}"
        async with asyncio.timeout(LIMIT_S):
            async with headrace.Admin(broker.bootstrap) as admin:
                await admin.create_topic(name, partitions, 1, configs)
            await work(name)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(with_topic(), debug=False)


async def read(consumer: headrace.Consumer, count: int) -> list[headrace.Record]:
    found: list[headrace.Record] = []
    while len(found) < count:
        found += await consumer.poll(0.5)
    return found


async def read_all(broker: TestBroker, topic: str, **options: Any) -> list[headrace.Record]:
    """Everything that a topic holds now, without a group."""
    async with headrace.Consumer(topic, bootstrap=broker.bootstrap, **QUICK | options) as consumer:
        found: list[headrace.Record] = []
        while True:
            if records := await consumer.poll(0.1):
                found += records
                continue
            lags = await consumer.lag()
            if lags and not any(lag.records for lag in lags.values()):
                return found
