"""A controller that dies, or whose disk is full, between two of the batches in which a broker's partitions change."""

import asyncio
import errno

import pytest

from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations
from headrace.client.net.cluster import Cluster
from headrace.quorum import kraft
from headrace.testing.simulator.world import World
from tests.simulation.cluster import Apart

OTHER, SUBJECT = 1, 2
PARTITIONS = 12
IN_TIME_S = 15
"""Far below the interval at which leaders are looked for by the clock."""

Leaders = dict[str, list[int]]
GONE: Leaders = {"one": [-1] * PARTITIONS, "two": [OTHER] * PARTITIONS}
BACK: Leaders = {"one": [SUBJECT] * PARTITIONS, "two": GONE["two"]}


class TwoBrokers(Apart):
    """The subject, another one, and three controllers on machines of their own."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 2, {})

    async def begin(self) -> str:
        """Partitions that only the subject has, and partitions that it leads. Returns which node is the active
        controller."""
        await self.start()
        async with Admin(self.bootstrap) as admin:
            await admin.create_topic("one", assignments={n: [SUBJECT] for n in range(PARTITIONS)})
            await admin.create_topic("two", assignments={n: [SUBJECT, OTHER] for n in range(PARTITIONS)})
            leader_id = (await Operations(admin).quorum()).leader_id
        return next(name for name in self.controllers if self.id_of(name) == leader_id)

    async def leaders(self) -> Leaders:
        async with Cluster(self.bootstrap, retry_timeout_s=20.0) as client:
            topics = [await client.topic(name) for name in ("one", "two")]
        return {topic.name: [p.leader for _, p in sorted(topic.partitions.items())] for topic in topics}

    async def until(self, expected: Leaders) -> None:
        seen: Leaders = {}
        for _ in range(IN_TIME_S):
            seen = await self.leaders()
            if seen == expected:
                return
            await asyncio.sleep(1)
        raise AssertionError(f"{seen} where {expected} should be")


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "full"])
@pytest.mark.parametrize("change", ["killed", "stopped", "started"])
def test_what_was_begun_is_finished(change: str, dies: bool, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kraft, "RECORDS_PER_BATCH_MAX", 5)

    async def main(world: World) -> None:
        cluster = TwoBrokers(world)
        controller, subject = cluster.node(await cluster.begin()), cluster.node("n2")
        if change == "started":
            await subject.stop()
            await cluster.until(GONE)
        full = controller.disk.fail(
            "append", errno.ENOSPC, path="*/__cluster_metadata-0/*.log", skip=batches, times=None
        )  # fmt: skip
        going: asyncio.Task[None] | None = None
        match change:
            case "killed":
                subject.kill()
            case "stopped":
                going = asyncio.create_task(subject.stop())
            case "started":
                going = asyncio.create_task(cluster.restart("n2"))
        await asyncio.sleep(0.5)
        assert full.hits, "all fitted"
        if dies:
            controller.kill()
        else:
            full.times = 0
        await cluster.until(BACK if change == "started" else GONE)
        if going is not None:
            await asyncio.wait_for(going, IN_TIME_S)

    with World(batches) as world:
        world.run(main(world))
