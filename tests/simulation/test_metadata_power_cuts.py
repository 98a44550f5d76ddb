"""Topics that come and go while the power is cut: what was promised about them holds after every restart."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from headrace.broker.runtime import StartupError
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, RequestFailed
from headrace.errors import Err
from headrace.testing.simulator.brokers import broker
from headrace.testing.simulator.disk import CrashMode, MemoryFile
from headrace.testing.simulator.world import NodeDied, World
from tests.simulation.harness import BOOTSTRAP, BROKER, seeds_within

TIME_BOX_S = 3.0


class Topics:
    """What a client knows about each topic it has touched: there, gone, or either."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.partitions: dict[str, set[int]] = {}
        """Topic -> possible numbers of partitions; 0 is none at all."""
        self.promises = 0
        self._next = 0

    async def churn(self) -> None:
        while True:
            try:
                async with Admin(BOOTSTRAP, connect_timeout_s=1.0, request_timeout_s=2.0, retry_timeout_s=1.0) as admin:
                    while True:
                        await self._step(admin)
            except ClientError:
                await asyncio.sleep(0.1)

    async def _step(self, admin: Admin) -> None:
        known = [name for name, counts in self.partitions.items() if len(counts) == 1 and 0 not in counts]
        choice = self.dice.random()
        if choice < 0.6 or not known:
            self._next += 1
            count = self.dice.randint(1, 3)
            await self._promise(f"topic-{self._next}", {0}, count, admin.create_topic, count, 1)
        elif choice < 0.8:
            name = self.dice.choice(known)
            await self._promise(name, self.partitions[name], 0, admin.delete_topic)
        else:
            name = self.dice.choice(known)
            (count,) = self.partitions[name]
            await self._promise(name, {count}, count + 1, admin.create_partitions, count + 1)
        await asyncio.sleep(self.dice.random() * 0.05)

    async def _promise(
        self, name: str, before: set[int], after: int, call: Callable[..., Awaitable[object]], *arguments: int
    ) -> None:
        self.partitions[name] = before | {after}
        try:
            await call(name, *arguments)
        except RequestFailed as error:
            # A retry of what had already happened when the first answer was lost.
            done = {Err.TOPIC_ALREADY_EXISTS, Err.UNKNOWN_TOPIC_OR_PARTITION, Err.INVALID_PARTITIONS}
            if error.error not in done:
                raise
        self.partitions[name] = {after}
        self.promises += 1

    async def check(self) -> None:
        async with Admin(BOOTSTRAP) as admin:
            found = {topic.name: len(topic.partitions) for topic in await admin.list_topics()}
        assert set(found) <= set(self.partitions), "a topic that nobody asked for"
        for name, allowed in self.partitions.items():
            assert found.get(name, 0) in allowed, f"{name} has {found.get(name, 0)} partitions, promised {allowed}"


def run(seed: int) -> int:
    """Returns how many promises were kept."""
    with World(seed) as world:
        return world.run(_scenario(world))


async def _scenario(world: World) -> int:
    dice = world.dice("scenario")
    node = world.node(BROKER)
    await node.start(broker())
    topics = Topics(world.dice("topics"))
    churning = [asyncio.create_task(topics.churn()) for _ in range(dice.randint(1, 8))]
    for _ in range(dice.randint(1, 4)):
        await asyncio.sleep(dice.random())
        if dice.random() < 0.5:
            node.cut_after(dice.randrange(50))
            await asyncio.wait([asyncio.ensure_future(node.died())], timeout=20)
            node.cut_after(None)
        if node.running:
            node.kill() if dice.random() < 0.2 else node.crash(dice.choice(list(CrashMode)))
        while not node.running:
            node.cut_after(dice.randrange(60) if dice.random() < 0.4 else None)
            try:
                await node.start()
            except NodeDied:
                continue
        node.cut_after(None)
    for task in churning:
        task.cancel()
    await asyncio.wait(churning)
    await topics.check()
    await node.stop()
    await node.start()
    await topics.check()
    return topics.promises


def check_seeds(seeds: range, time_box_s: float) -> None:
    kept = 0
    for seed in seeds_within(time_box_s, seeds, at_least=3):
        kept += run(seed)
    assert kept > 100


def test_promises_about_topics_survive() -> None:
    check_seeds(range(100), TIME_BOX_S)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_promises_about_topics_survive_thousands_of_histories() -> None:
    check_seeds(range(100, 5_000), 900.0)


def test_a_seed_that_once_failed() -> None:
    """It left a hole with whole batches behind it in the unsynced end of the metadata log; the broker would not
    start."""
    assert run(123) > 0


def test_metadata_acknowledged_before_it_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MemoryFile.sync

    def lie(file: MemoryFile) -> None:
        if "__cluster_metadata" not in file.path or not file.path.endswith(".log"):
            honest(file)

    monkeypatch.setattr(MemoryFile, "sync", lie)
    # Either a promise is found broken, or the broker finds its log damaged where it had called it durable.
    with pytest.raises((AssertionError, StartupError)):
        for seed in range(30):
            run(seed)
