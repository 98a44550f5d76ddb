"""The coordinator while it cannot answer: after a kill, loading, on a damaged log or a failed disk, at the stop."""

import asyncio
import errno
from itertools import pairwise

import pytest

from headrace.broker.coordinators.coordinator import partition_for
from headrace.broker.coordinators.host import State
from headrace.broker.coordinators.loading import SLICE_SECONDS, Load
from headrace.client.admin.admin import Admin
from headrace.errors import Err
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.builder import BatchBuilder
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import BOOTSTRAP, commit, committed, connect, in_world, with_topic


def test_after_a_kill_every_commit_is_there_and_never_an_older_one() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        for offset in range(300):
            assert await commit(connection, "g", offset) is Err.NONE
        machine.node.kill()
        await machine.start()
        # The first answer that is no refusal, although the new leader may not know yet that its tail is committed.
        assert await committed("g") == {0: 299}
        assert machine.broker.groups.loader.records >= 300

    in_world(main)


def test_loading_refuses_with_load_in_progress() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        host = machine.broker.groups.host("g")
        host.state = State.LOADING
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.COORDINATOR_LOAD_IN_PROGRESS
        answer = await connection.request(ApiKey.LIST_GROUPS, m.ListGroupsRequest())
        assert answer.error_code == Err.COORDINATOR_LOAD_IN_PROGRESS
        described = await connection.request(ApiKey.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=["g"]))
        assert described.groups[0].error_code == Err.COORDINATOR_LOAD_IN_PROGRESS
        deleted = await connection.request(ApiKey.DELETE_GROUPS, m.DeleteGroupsRequest(groups_names=["g"]))
        assert deleted.results[0].error_code == Err.COORDINATOR_LOAD_IN_PROGRESS
        host.state = State.ACTIVE

    in_world(main)


def test_a_load_gives_way_every_few_milliseconds() -> None:
    async def main(world: World) -> int:
        machine = await with_topic(world)
        connection = await connect()
        for offset in range(60):
            assert await commit(connection, "g", offset) is Err.NONE
        host = machine.broker.groups.host("g")
        ticks = iter(range(10**9))
        gave_way = 0

        class Counting(Load):
            async def _give_way(self) -> None:
                nonlocal gave_way
                gave_way += 1
                await super()._give_way()

        host.state = State.LOADING
        load = Counting(machine.broker.groups, host, machine.broker.groups.new_shard(host.partition))
        # Each look at the clock finds it a fifth of a slice later.
        load._perf_counter = lambda: next(ticks) * SLICE_SECONDS / 5
        records = await load.run()
        host.state = State.ACTIVE
        assert records == host.partition.log.end_offset
        return gave_way

    assert in_world(main) >= 8


def test_a_damaged_offsets_log_is_not_served_as_if_it_were_whole() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE
        host = machine.broker.groups.host("g")

        def unreadable(*_: object) -> None:
            raise OSError(errno.EIO, "planted")

        host.partition.log.read = unreadable  # type: ignore[method-assign, assignment]
        host._reload(Err.NOT_COORDINATOR)
        await asyncio.sleep(1)
        assert await commit(connection, "g", 2) is Err.NOT_COORDINATOR
        other = next(name for name in "abcdefgh" if partition_for(name, 4) != partition_for("g", 4))
        assert await commit(connection, other, 2) is Err.NONE, "other shards serve on"

    in_world(main)


def test_a_shard_that_could_not_be_loaded_is_tried_again() -> None:
    """Ever more seldom, until what was in the way is gone."""

    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE
        host = machine.broker.groups.host("g")
        log, tried = host.partition.log, []
        read = log.read

        def unreadable(*_: object) -> None:
            tried.append(world.loop.time())
            raise OSError(errno.EIO, "planted")

        log.read = unreadable  # type: ignore[method-assign, assignment]
        host._reload(Err.NOT_COORDINATOR)
        await asyncio.sleep(16)
        assert [round(later - earlier) for earlier, later in pairwise(tried)] == [1, 2, 4, 8]
        log.read = read  # type: ignore[method-assign]
        await asyncio.sleep(16)
        assert await committed("g") == {0: 1}
        assert await commit(connection, "g", 2) is Err.NONE

    in_world(main)


@pytest.mark.parametrize("named", [True, False], ids=["asked for by name", "among all"])
def test_a_topic_made_again_while_its_groups_were_not_loaded_begins_anew(named: bool) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 7) is Err.NONE
        host = machine.broker.groups.host("g")
        log, read = host.partition.log, host.partition.log.read

        def unreadable(*_: object) -> None:
            raise OSError(errno.EIO, "planted")

        log.read = unreadable  # type: ignore[method-assign, assignment]
        host._reload(Err.NOT_COORDINATOR)
        async with Admin(BOOTSTRAP) as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", 3)
        log.read = read  # type: ignore[method-assign]
        kind = m.OffsetFetchRequest
        topics = [kind.OffsetFetchRequestTopics(name="t", partition_indexes=[0])] if named else None
        request = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=topics)])

        async def answered() -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
            answer: m.OffsetFetchResponse = await connection.request(ApiKey.OFFSET_FETCH, request, version_max=9)
            return answer.groups[0]

        while (found := await answered()).error_code != Err.NONE:
            await asyncio.sleep(1)
        assert [part.committed_offset for topic in found.topics for part in topic.partitions] == [-1] * named
        assert await commit(connection, "g", 2) is Err.NONE
        assert (await answered()).topics[0].partitions[0].committed_offset == 2

    in_world(main)


def test_a_stop_does_not_wait_for_a_rebalance() -> None:
    async def main(world: World) -> float:
        machine = await with_topic(world, **{"group.initial.rebalance.delay.ms": "60000"})
        connection = await connect()
        kind = m.JoinGroupRequest
        join = kind(
            group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=600_000, protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        waiting = asyncio.create_task(connection.request(ApiKey.JOIN_GROUP, join, version_max=3))
        await asyncio.sleep(1)
        assert not waiting.done()
        before = world.loop.time()
        await machine.node.stop()
        assert (await waiting).error_code == Err.NOT_COORDINATOR
        return world.loop.time() - before

    assert in_world(main) < 5


def test_a_failed_disk_takes_its_groups_with_it() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, **{"log.dirs": "/data,/more"})
        connection = await connect()
        groups = machine.broker.groups
        # Not on /data, where the metadata log lies: the whole broker would stop.
        group = next(name for name in "abcdefgh" if groups.host(name).partition.log.path.startswith("/more"))
        machine.disk.fail("sync", errno.EIO, path="/more/*", times=None)
        assert await commit(connection, group, 1) is Err.NOT_COORDINATOR
        await asyncio.sleep(0.5)
        assert await commit(connection, group, 1) is Err.NOT_COORDINATOR

    for seed in range(3):
        in_world(main, seed)


def test_a_disk_that_fails_under_a_commit_leaves_nobody_without_an_answer() -> None:
    """Others are answered in the middle of the write that fails; what they ask next, on either disk, is not
    forgotten."""

    async def main(world: World) -> None:
        machine = await with_topic(world, **{"log.dirs": "/data,/more"})
        broker = machine.broker
        names = [f"g{number}" for number in range(20)]
        on = {
            folder: [g for g in names if broker.groups.host(g).partition.log.path.startswith(folder)]
            for folder in ("/data", "/more")
        }
        assert on["/data"] and on["/more"]
        index = next(p.index for p in broker.replicas.by_name["t"].values() if p.log.path.startswith("/more"))
        readers = []
        for group in (on["/more"][0], on["/data"][0]):
            connection = await connect()
            row = m.FetchRequest.FetchPartition(partition=index, partition_max_bytes=1000)
            query = m.FetchRequest(
                max_wait_ms=600_000, min_bytes=1, topics=[m.FetchRequest.FetchTopic(topic="t", partitions=[row])]
            )
            fetched = await connection.post(ApiKey.FETCH, query, version_max=11)
            readers.append((fetched, asyncio.create_task(commit(connection, group, 7))))
        await asyncio.sleep(0.5)
        machine.disk.fail("append", errno.EIO, path=f"/more/{OFFSETS_TOPIC}*")
        async with asyncio.timeout(2):
            assert await commit(await connect(), on["/more"][0], 1) is Err.NOT_COORDINATOR
            answers = [await done for fetched, done in readers if await fetched]
        assert answers == [Err.NOT_COORDINATOR, Err.NONE]
        assert await committed(on["/data"][0]) == {0: 7}

    in_world(main)


def test_a_mistake_of_ours_while_a_batch_is_written_leaves_nobody_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: World) -> None:
        await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE

        def build(self: object) -> bytes:
            raise MemoryError("planted")

        with monkeypatch.context() as planted:
            planted.setattr(BatchBuilder, "build", build)
            assert await commit(connection, "g", 2) is Err.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(1)
        assert await committed("g") == {0: 1}
        assert await commit(connection, "g", 3) is Err.NONE

    in_world(main)
