"""A controller that most brokers are silent to gives way to another; where there is none, it decides by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from headrace.protocol import messages as m
from headrace.testing.simulator.loop import SimLoop
from tests.simulation.zookeeper_nodes import Member
from tests.unit.quorum.zookeeper.world import new_model


def run(nodes: int, life: Callable[[list[Member]], Awaitable[None]]) -> None:
    loop = SimLoop(Random(1))
    model = new_model(1, loop)

    async def whole() -> None:
        members = [Member(model, node_id) for node_id in range(1, nodes + 1)]
        await asyncio.gather(*(member.quorum.start() for member in members))
        try:
            await life(members)
        finally:
            for member in members:
                await member.quorum.close()

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(whole())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def active(members: list[Member]) -> Member:
    async with asyncio.timeout(60):
        while True:
            for member in members:
                if member.quorum.is_active:
                    return member
            await asyncio.sleep(0.01)


async def register(leader: Member, *node_ids: int) -> None:
    await leader.quorum.append([(m.RegisterControllerRecord(controller_id=one), 0) for one in node_ids])


def test_nobody_gives_way_where_there_is_no_other_controller() -> None:
    async def life(members: list[Member]) -> None:
        leader = await active(members)
        assert not leader.quorum.give_way()
        await register(leader, 1)
        assert not leader.quorum.give_way() and leader.quorum.is_active

    run(1, life)


def test_a_controller_that_nobody_relieved_does_not_give_way_again() -> None:
    async def life(members: list[Member]) -> None:
        leader = await active(members)
        await register(leader, 1, 2)  # the second is dead
        assert leader.quorum.give_way() and not leader.quorum.is_active
        assert await active(members) is leader
        assert not leader.quorum.give_way() and leader.quorum.is_active

    run(1, life)


def test_a_controller_that_another_relieved_may_give_way_again() -> None:
    async def life(members: list[Member]) -> None:
        first = await active(members)
        await register(first, 1, 2)
        for _ in range(3):
            leader = await active(members)
            assert leader.quorum.give_way()
            assert await active(members) is not leader
            await asyncio.sleep(10)  # until the one that gave way may run again

    run(2, life)
