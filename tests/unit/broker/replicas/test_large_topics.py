"""Topics of thousands of partitions: made in portions, so that the loop goes on, and complete when the client is
told."""

import asyncio
from typing import Any

import pytest

from headrace.broker.controller.active import ActiveController
from headrace.broker.replicas.deltas import PORTION_CHANGES, DeltaQueue
from headrace.client.admin.admin import Admin
from headrace.client.errors import RequestFailed
from headrace.errors import Err
from headrace.metadata.topic_portions import PORTION_CHANGES as MADE_AT_ONCE
from headrace.storage.manager import LogManager
from headrace.testing.simulator.brokers import PORT, broker
from headrace.testing.simulator.world import World

PARTITIONS = 2 * PORTION_CHANGES + 20
LARGE = MADE_AT_ONCE + 100


def test_a_large_topic_is_made_in_portions_and_whole_when_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    portions: list[int] = []
    create, go_on = LogManager.create, DeltaQueue._go_on

    def counting(self: LogManager, *words: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        return create(self, *words, **more)

    def counted(self: DeltaQueue) -> None:
        before = made
        go_on(self)
        if made != before:
            portions.append(made - before)

    monkeypatch.setattr(LogManager, "create", counting)
    monkeypatch.setattr(DeltaQueue, "_go_on", counted)

    async def main(world: World) -> None:
        await world.node("b1").start(broker())
        async with Admin(f"b1:{PORT}") as admin:
            await admin.create_topic("large", PARTITIONS, 1)
            assert sum(portions) == PARTITIONS and len(portions) >= 3
            found = await admin.list_offsets("large", dict.fromkeys(range(PARTITIONS), -1))
            assert {row.offset for row in found.values()} == {0}
            await admin.delete_topic("large")
            await admin.create_topic("large", 1, 1)
            assert (await admin.list_offsets("large", {0: -1}))[0].offset == 0

    with World(7) as world:
        world.run(main(world))


def test_of_two_large_topics_of_one_name_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are decided in threads, on the same metadata; what the second one rests on is no longer so."""
    decided: list[str] = []
    decide_ahead = ActiveController.decide_ahead

    async def noted(self: ActiveController, decision: Any) -> Any:
        decided.append("in a thread")
        return await decide_ahead(self, decision)

    monkeypatch.setattr(ActiveController, "decide_ahead", noted)

    async def main(world: World) -> None:
        await world.node("b1").start(broker())
        async with Admin(f"b1:{PORT}") as admin:
            results = await asyncio.gather(
                *(admin.create_topic("large", LARGE + more, 1) for more in (0, 1)), return_exceptions=True
            )
            (refused,) = [one for one in results if isinstance(one, BaseException)]
            assert isinstance(refused, RequestFailed) and refused.error is Err.TOPIC_ALREADY_EXISTS
            count = len((await admin.describe_topic("large")).partitions)
            assert count == LARGE + [isinstance(one, BaseException) for one in results].index(False)
            await admin.create_partitions("large", 2 * LARGE)
            assert len((await admin.describe_topic("large")).partitions) == 2 * LARGE
        assert len(decided) == 3

    with World(7) as world:
        world.run(main(world))
