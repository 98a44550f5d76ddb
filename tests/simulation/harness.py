"""What scenarios share: a broker on a node, clients around it, and the verdict on their history."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from headrace.client.admin.admin import Admin
from headrace.testing.simulator.brokers import broker
from headrace.testing.simulator.checkers import Anomaly, check
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload, summary
from headrace.testing.simulator.world import Node, World

BROKER = "b1"
BOOTSTRAP = f"{BROKER}:9092"


def seeds_within(box_s: float, seeds: range, at_least: int) -> Iterator[int]:
    """Seeds until the time is up. However slow or busy the machine is, so many are run that the test proves
    something."""
    deadline = time.monotonic() + box_s
    for done, seed in enumerate(seeds):
        if done >= at_least and time.monotonic() > deadline:
            return
        yield seed


@dataclass
class Result:
    anomalies: list[Anomaly]
    did: dict[str, int]
    events: list[str] = field(default_factory=list)
    finished_s: float = 0.0
    disk: dict[str, bytes] = field(default_factory=dict)

    def assert_good(self, seed: int) -> None:
        shown = "\n".join(map(str, self.anomalies[:5]))
        assert not self.anomalies, f"seed {seed}, {self.events}: {shown}"


def check_seeds(
    run: Callable[[int], Result], seeds: range, box_s: float, *, at_least: int, acknowledged_min: int = 100
) -> None:
    """Histories until the time is up, all of them good, and in all more than so many records acknowledged."""
    acknowledged = 0
    for seed in seeds_within(box_s, seeds, at_least):
        result = run(seed)
        result.assert_good(seed)
        acknowledged += result.did["acknowledged"]
    assert acknowledged > acknowledged_min


async def started(
    world: World, options: Options, topic_configs: dict[str, str], settings: dict[str, str]
) -> tuple[Node, Workload]:
    """A running broker with the workload's topic."""
    node = world.node(BROKER)
    await node.start(broker(settings))
    async with Admin(BOOTSTRAP) as admin:
        await admin.create_topic(options.topic, options.partitions, 1, topic_configs)
    return node, Workload(BOOTSTRAP, world.dice("workload"), SimClock(world.loop), options)


@asynccontextmanager
async def clients(workload: Workload, producers: int) -> AsyncIterator[None]:
    """Producers, and a consumer for each partition, at work in the background."""
    tasks = [asyncio.create_task(workload.produce(f"p{n}")) for n in range(producers)]
    tasks += [asyncio.create_task(workload.consume(f"c{n}", n)) for n in range(workload.options.partitions)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        assert task.cancelled(), f"a client failed: {task.exception()!r}"


async def verdict(workload: Workload, events: list[str]) -> Result:
    """Read everything back and check the whole history."""
    workload.history.final = await workload.read_all()
    anomalies = check(workload.history, idempotent=workload.options.idempotent)
    return Result(anomalies, dict(summary(workload.history)), events)


def small_segments(dice: Random) -> dict[str, str]:
    """So that rolls, index entries and directory changes happen all the time."""
    return {
        "internal.segment.bytes": str(dice.choice([1_000, 10_000, 1 << 30])),
        "index.interval.bytes": str(dice.choice([0, 100, 4096])),
    }
