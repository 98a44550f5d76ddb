"""One commit releases many: whatever the answer to one leads to, the others are answered, too."""

import asyncio
from typing import Any

import pytest

from headrace.broker.coordinators.group_host import GroupHost as ShardHost
from headrace.errors import Err
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import commit, connect, in_world, with_topic


class Closing:
    """Whose answer lets something happen that ends the shard: a decision on the same connection that cannot be
    written."""

    def __init__(self, host: ShardHost) -> None:
        self.host = host

    def answer(self, response: Any) -> None:
        self.host.close(Err.COORDINATOR_NOT_AVAILABLE)

    def refusal(self, error: Err) -> Any:
        return error


def test_batches_that_one_sync_commits_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> list[Err]:
        machine = await with_topic(world)
        first, second = await connect(), await connect()
        assert await commit(first, "g", 1) is Err.NONE
        host = machine.broker.groups.host("g")
        syncer = machine.broker.syncer
        with monkeypatch.context() as held:
            held.setattr(syncer, "dirty", lambda partition: None)
            answers = [
                asyncio.ensure_future(commit(connection, "g", offset))
                for connection, offset in ((first, 2), (second, 3))
            ]
            while host.partition.log.end_offset < 3:
                await asyncio.sleep(0.01)
            assert len(host._in_flight) == 2
        assert host.when_committed("later", Closing(host)) is None, "behind the last batch"
        started = world.loop.time()
        syncer.dirty(host.partition)
        found = await asyncio.gather(*answers)
        assert world.loop.time() - started < 1, "nobody had to wait for a timeout"
        return found

    assert in_world(main) == [Err.NONE, Err.NONE]
