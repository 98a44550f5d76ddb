"""Producers at their last epoch, which version 2 reaches after 32,766 transactions, at a coordinator that has just
begun and has no producer ids yet: it asks for some by itself, since no other producer need come."""

import asyncio

import pytest

from headrace.coordinator.transactions import shard, transaction
from headrace.errors import Err
from headrace.replication import producers
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import Machine, in_world, with_topic
from tests.unit.broker.transactions.world import TIMEOUT_MS, Client, read

EPOCH_MAX = 3
NO_RETENTION = {"log.retention.ms": "-1"}
AGAIN = {Err.COORDINATOR_LOAD_IN_PROGRESS, Err.NOT_COORDINATOR, Err.CONCURRENT_TRANSACTIONS}


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shard, transaction, producers):
        monkeypatch.setattr(module, "PRODUCER_EPOCH_MAX", EPOCH_MAX)


async def at_its_last_epoch(world: World) -> tuple[Machine, Client]:
    """In a transaction, and its broker has started again since it began."""
    machine = await with_topic(world, **NO_RETENTION)
    client = await Client.begin(classic=False)
    while client.who[1] < EPOCH_MAX - 1:
        assert await client.write(b"before") is Err.NONE
        assert await client.end(False) is Err.NONE
    assert await client.write(b"last") is Err.NONE
    await machine.node.stop()
    await machine.start()
    await client.reconnect()
    return machine, client


def test_it_commits_and_goes_on_with_another_id() -> None:
    async def main(world: World) -> None:
        _, client = await at_its_last_epoch(world)
        before = client.who[0]
        deadline = world.loop.time() + 10
        while (error := await client.end(True)) in AGAIN:
            assert world.loop.time() < deadline, f"{error.name} for ever"
            await asyncio.sleep(0.1)
        assert error is Err.NONE
        assert client.who[0] != before and client.who[1] == 0
        assert await client.write(b"next") is Err.NONE
        assert await client.end(True) is Err.NONE
        assert await read() == ([b"last", b"next"], False)

    in_world(main)


def test_its_transaction_is_aborted_when_its_time_is_up() -> None:
    async def main(world: World) -> None:
        await at_its_last_epoch(world)
        deadline = world.loop.time() + TIMEOUT_MS / 1000 + 5
        while (await read())[1]:
            assert world.loop.time() < deadline, "readers wait for ever"
            await asyncio.sleep(0.5)
        assert await read() == ([], False)

    in_world(main)
