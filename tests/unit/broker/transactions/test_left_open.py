"""Markers that a power cut takes before they are on a disk: their transactions do not stay open, and none is mixed up
with the next."""

import pytest

from headrace.broker.transactions.left_open import FIRST_LOOK_S, NEXT_LOOK_S
from headrace.coordinator.transactions.transaction import State
from headrace.errors import Err
from headrace.metadata.names import TRANSACTIONS_TOPIC
from headrace.storage.log import Log
from headrace.testing.simulator.pages import CrashMode
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import Machine, in_world, with_topic
from tests.unit.broker.transactions.world import ID, TOPIC, Client, read
from tests.waiting import until

SETTINGS = {"durability": "replicated", "log.retention.ms": "-1"}
"""The clients' records are of long ago."""
BOTH = pytest.mark.parametrize("classic", [True, False], ids=["classic", "version 2"])


def log(machine: Machine, topic: str = TOPIC) -> Log:
    return machine.broker.replicas.by_name[topic][0].log


def is_open(machine: Machine) -> bool:
    return log(machine).producers.first_undecided_offset is not None


async def power_cut(machine: Machine) -> None:
    machine.node.crash(CrashMode.LOSE)
    await machine.start()


async def lose_marker(machine: Machine, client: Client, committed: bool) -> None:
    """A transaction's records are on the disk, and its end is on the coordinator's only."""
    assert await client.write(b"first") is Err.NONE
    machine.broker.replicas.by_name[TOPIC][0].flush()
    await until(lambda: log(machine).durable_end == log(machine).end_offset, "its records are on the disk")
    assert await client.end(committed) is Err.NONE

    def is_complete() -> bool:
        found = machine.broker.transactions.host(ID).shard.describe(ID)
        return found is not None and found.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    await until(is_complete, "all markers are written")
    state = log(machine, TRANSACTIONS_TOPIC)
    assert state.durable_end == state.end_offset and log(machine).durable_end < log(machine).end_offset
    await power_cut(machine)
    assert is_open(machine), "the marker is lost"


@BOTH
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
def test_a_transaction_whose_end_was_lost_is_ended_again(classic: bool, committed: bool) -> None:
    """Committed where that is certain: classic transactions of a producer cannot be told apart by their epoch."""

    async def main(world: World) -> None:
        machine = await with_topic(world, **SETTINGS)
        await lose_marker(machine, await Client.begin(classic=classic), committed)
        await until(lambda: not is_open(machine), "it is ended", 2 * FIRST_LOOK_S)
        assert await read() == ([b"first"] if committed and not classic else [], False)

    in_world(main)


@BOTH
def test_an_aborted_transaction_whose_end_was_lost_is_not_committed_with_the_next(classic: bool) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=classic)
        await lose_marker(machine, client, committed=False)
        client = await Client.begin(classic=classic)  # a new epoch, before anybody looks at what is open
        assert is_open(machine)
        assert await client.write(b"second") is Err.NONE
        assert await client.end(True) is Err.NONE
        await until(lambda: not is_open(machine), "all have ended")
        assert await read() == ([b"second"], False)

    in_world(main)


@BOTH
def test_a_transaction_that_goes_on_is_left_alone(classic: bool) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=classic, timeout_ms=600_000)
        assert await client.write(b"first") is Err.NONE
        machine.broker.replicas.by_name[TOPIC][0].flush()
        await until(lambda: log(machine).durable_end == log(machine).end_offset, "its records are on the disk")
        await power_cut(machine)
        begun = world.loop.time()
        await until(lambda: world.loop.time() > begun + FIRST_LOOK_S + NEXT_LOOK_S, "it was looked at")
        assert is_open(machine)
        await client.reconnect()
        assert await client.write(b"second") is Err.NONE
        assert await client.end(True) is Err.NONE
        await until(lambda: not is_open(machine), "it has ended")
        assert await read() == ([b"first", b"second"], False)

    in_world(main)
