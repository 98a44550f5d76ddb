"""Groups while the wall clock is set: sessions and rebalances last as long as they last, whatever time it is said to
be."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import Err
from tests.unit.broker.sim import Sim, Wire, run

HOUR_MS = 3_600_000
SESSION_MS = 10_000
JUMPS = pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])

Member = tuple[str, int]
"""Id and generation, or epoch."""


async def find(wire: Wire) -> None:
    answer = await wire.ask("FindCoordinator", 3, {"key": "g", "key_type": 0})
    assert answer.error_code == 0, answer


async def join_classic(wire: Wire) -> Member:
    fields: dict[str, Any] = {
        "group_id": "g", "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 60_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    joined = await wire.ask("JoinGroup", 3, fields)
    assert joined.error_code == 0, joined
    fields = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id, "assignments": []}
    assert (await wire.ask("SyncGroup", 2, fields)).error_code == 0
    return joined.member_id, joined.generation_id


async def beat_classic(wire: Wire, member: Member) -> Err:
    fields = {"group_id": "g", "generation_id": member[1], "member_id": member[0]}
    answer = await wire.ask("Heartbeat", 2, fields)
    return Err(answer.error_code)


async def join_consumer(wire: Wire, member_id: str = "m", topic: str = "t") -> Member:
    fields: dict[str, Any] = {
        "group_id": "g", "member_id": member_id, "member_epoch": 0, "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [topic], "topic_partitions": [],
    }  # fmt: skip
    joined = await wire.ask("ConsumerGroupHeartbeat", 1, fields)
    assert joined.error_code == 0, joined
    return joined.member_id, joined.member_epoch


async def beat_consumer(wire: Wire, member: Member) -> Err:
    answer = await wire.ask(
        "ConsumerGroupHeartbeat", 1, {"group_id": "g", "member_id": member[0], "member_epoch": member[1]}
    )
    return Err(answer.error_code)


Join = Callable[[Wire], Coroutine[Any, Any, Member]]
Beat = Callable[[Wire, Member], Coroutine[Any, Any, Err]]
PROTOCOLS = pytest.mark.parametrize(
    ("join", "beat"), [(join_classic, beat_classic), (join_consumer, beat_consumer)], ids=["classic", "consumer"]
)


def play(scenario: Callable[[Sim], Coroutine[Any, Any, None]]) -> None:
    run(
        scenario,
        group_initial_rebalance_delay_ms="0",
        group_consumer_session_timeout_ms=str(SESSION_MS),
        group_consumer_min_session_timeout_ms=str(SESSION_MS),
        offsets_topic_num_partitions="1",
    )


@JUMPS
@PROTOCOLS
def test_who_heartbeats_stays_a_member(join: Join, beat: Beat, jump_ms: int) -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create("t", 3)
        async with await sim.wire() as wire:
            await find(wire)
            member = await join(wire)
            for _ in range(4):
                await asyncio.sleep(1)
                sim.node.clock.skew_ms += jump_ms
                await asyncio.sleep(4)
                assert await beat(wire, member) is Err.NONE

    play(scenario)


@JUMPS
@PROTOCOLS
def test_who_is_silent_is_out_when_its_session_is_over(join: Join, beat: Beat, jump_ms: int) -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create("t", 3)
        async with await sim.wire() as wire:
            await find(wire)
            member = await join(wire)
            assert await beat(wire, member) is Err.NONE
            sim.node.clock.skew_ms += jump_ms
            await asyncio.sleep(SESSION_MS / 1000 + 1)
            assert await beat(wire, member) is Err.UNKNOWN_MEMBER_ID

    play(scenario)


@JUMPS
def test_a_member_that_comes_after_the_clock_was_set_is_assigned(jump_ms: int) -> None:
    """The server waits a second between two assignments, by the time that is written with the last one."""

    async def scenario(sim: Sim) -> None:
        await sim.create("t", 2)
        async with await sim.wire() as wire:
            await find(wire)
            await join_consumer(wire, "a")
            sim.node.clock.skew_ms += jump_ms
            second = await join_consumer(wire, "b")
            await asyncio.sleep(2)
            assert await beat_consumer(wire, second) is Err.NONE
            group = (await wire.ask("ConsumerGroupDescribe", 1, {"group_ids": ["g"]})).groups[0]
            wanted = {
                m.member_id: sum(len(t.partitions) for t in m.target_assignment.topic_partitions) for m in group.members
            }
            assert wanted == {"a": 1, "b": 1}, group

    play(scenario)
