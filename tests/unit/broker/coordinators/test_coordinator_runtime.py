"""The coordinator on a whole broker in a simulated world: what it writes, what survives, what it says while it
cannot."""

import asyncio
import errno
import tracemalloc
from collections import Counter
from itertools import count
from typing import Any

import pytest

from headrace.broker.coordinators import coordinator as coordinator_runtime
from headrace.broker.coordinators.coordinator import partition_for
from headrace.broker.coordinators.host import ANSWERS_AT_ONCE, State
from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.groups import Groups
from headrace.client.errors import RequestFailed
from headrace.coordinator import records
from headrace.coordinator.offsets import Offsets
from headrace.errors import Err
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.disk import CrashMode
from headrace.testing.simulator.network import CALM
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import BOOTSTRAP, PORT, Machine, commit, committed, connect, in_world, with_topic

# ---- where a group lives


def test_long_names_of_groups_are_not_kept() -> None:
    """Thousands of requests with names of 32 kB must not cost as much memory for good."""
    remembered = [coordinator_runtime._partition_for.cache_info, records._key_prefix.cache_info]
    before = [info().currsize for info in remembered]
    for number in range(3):
        name = f"{number:0300}"
        partition_for(name, 50)
        records.offset_commit(name, "t", 0, None)
    assert [info().currsize for info in remembered] == before


def test_names_of_groups_that_came_and_went_take_little_memory() -> None:
    """Whether they are deleted is not looked at: the oldest make room."""
    names = [f"group-{number:040}" for number in range(6_000)]
    tracemalloc.start()
    try:
        for name in names:
            partition_for(name, 50)
            records.offset_commit(name, f"topic-of-{name}", 0, None)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1_000_000


@pytest.mark.parametrize(
    ("group", "count", "partition"),
    [
        ("", 50, 0),
        ("abc", 50, 96354 % 50),
        ("my-group", 50, 12),
        ("polygenelubricants", 50, 0),  # its hash is the smallest integer, which has no absolute value
        ("grüße", 7, 4),
        ("🦜", 50, 30),
        ("abc" * 100, 50, 8),
    ],
)
def test_the_partition_of_a_group_is_kafkas(group: str, count: int, partition: int) -> None:
    assert partition_for(group, count) == partition


def test_the_offsets_topic_is_made_on_first_use_in_its_own_shape() -> None:
    async def main(world: World) -> None:
        machine = Machine(world)
        await machine.start()
        async with Admin(BOOTSTRAP) as admin:
            assert await Groups(admin).list_groups() == []
            assert OFFSETS_TOPIC not in machine.broker.image.topic_ids
            # Asking for its metadata with auto-creation must not make an ordinary topic of it.
            connection = await connect()
            asked = m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)], allow_auto_topic_creation=True
            )
            await connection.request(ApiKey.METADATA, asked)
            assert await Groups(admin).coordinator("g") == 1
        partitions = machine.broker.replicas.by_name[OFFSETS_TOPIC]
        assert len(partitions) == 4
        config = partitions[0].log.config
        assert config.compact and not config.delete and config.segment_bytes == 104857600

    in_world(main)


@pytest.mark.parametrize(
    ("key_type", "error"),
    [(0, Err.NONE), (1, Err.NONE), (2, Err.INVALID_REQUEST), (9, Err.INVALID_REQUEST)],
)
@pytest.mark.parametrize("version", [1, 3, 4, 6])
def test_find_coordinator(key_type: int, error: Err, version: int) -> None:
    async def main(world: World) -> None:
        await Machine(world).start()
        connection = await connect()
        kind = m.FindCoordinatorRequest
        if version < 4:
            answer = await connection.request(
                ApiKey.FIND_COORDINATOR, kind(key="g", key_type=key_type), version_max=version
            )
            found = [answer]
        else:
            answer = await connection.request(
                ApiKey.FIND_COORDINATOR, kind(coordinator_keys=["g", "h"], key_type=key_type), version_max=version
            )
            found = answer.coordinators
            assert [row.key for row in found] == ["g", "h"]
        for row in found:
            assert row.error_code == error
            assert not error or row.error_message == error.text
            assert (row.node_id, row.port) == ((1, PORT) if not error else (-1, -1))

    in_world(main)


# ---- what is promised, stays


def test_an_acknowledged_commit_survives_a_power_cut_whatever_durability_says() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, durability="replicated")
        connection = await connect()
        for offset in range(20):
            assert await commit(connection, "g", offset) is Err.NONE
        machine.node.crash(CrashMode.LOSE)
        await machine.start()
        assert await committed("g") == {0: 19}

    in_world(main)


def test_commits_of_one_turn_share_a_batch() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connections = [await connect() for _ in range(30)]
        world.network.set_conditions(CALM)  # all arrive at once
        log = machine.broker.groups.host("g").partition.log
        before = log.active.size, log.end_offset
        done = await asyncio.gather(*(commit(c, "g", n, partition=n % 3) for n, c in enumerate(connections)))
        assert set(done) == {Err.NONE}
        assert log.end_offset - before[1] == 30
        batches = len(log.active.tail_positions)
        assert batches < 30, "each had a batch, and a sync, of its own"

    with World(3, timer_jitter_s=0, work_s=(0.005, 0.005)) as world:
        world.run(main(world))


def test_a_failed_append_drops_what_was_decided_on_it() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE
        first = machine.broker.groups.host("g")
        machine.disk.fail("append", errno.ENOSPC, path=f"*{OFFSETS_TOPIC}*")
        assert await commit(connection, "g", 2) is Err.NOT_COORDINATOR
        assert first.state is State.CLOSED
        await asyncio.sleep(1)
        assert await committed("g") == {0: 1}, "the refused commit must not be seen"
        assert await commit(connection, "g", 3) is Err.NONE
        assert await committed("g") == {0: 3}

    in_world(main)


def test_a_write_of_someone_else_to_the_partition_is_noticed() -> None:
    """Kafka's tools may write to internal topics: the shard has not seen that, and must be loaded again."""

    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE
        host = machine.broker.groups.host("g")
        log = host.partition.log
        batch = bytearray(log.read(0, 1 << 20, log.end_offset).read())  # type: ignore[union-attr]
        host.partition.append_own(batch, 1, 0)
        assert await commit(connection, "g", 2) is not Err.NONE
        await asyncio.sleep(1)
        assert await commit(connection, "g", 3) is Err.NONE

    in_world(main)


def test_a_mistake_in_a_decision_costs_one_answer_and_a_reload() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE
        machine.broker.groups.host("g").shard.offsets = None  # type: ignore[assignment]
        assert await commit(connection, "g", 2) is Err.UNKNOWN_SERVER_ERROR
        await asyncio.sleep(1)
        assert await commit(connection, "g", 3) is Err.NONE
        assert await committed("g") == {0: 3}

    in_world(main)


def test_a_mistake_of_ours_after_a_commit_leaves_nobody_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE

        def advance(self: object, high_watermark: int) -> None:
            raise RuntimeError("planted")

        with monkeypatch.context() as planted:
            planted.setattr(Offsets, "advance", advance)
            assert await commit(connection, "g", 2) is Err.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(1)
        assert await committed("g") == {0: 2}, "it was written, and found when the shard was loaded again"

    in_world(main)


def test_a_larger_limit_of_the_offsets_topic_counts_at_once() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()

        async def commit_many() -> set[int]:
            kind = m.OffsetCommitRequest
            rows = [kind.OffsetCommitRequestPartition(partition_index=index) for index in range(3)]
            request = kind(group_id="g", topics=[kind.OffsetCommitRequestTopic(name="t", partitions=rows)])
            answer = await connection.request(ApiKey.OFFSET_COMMIT, request, version_max=5)
            return {row.error_code for row in answer.topics[0].partitions}

        async with Admin(BOOTSTRAP) as admin:
            for size, expected in (
                ("150", Err.UNKNOWN_SERVER_ERROR),
                ("1500", Err.NONE),
                ("150", Err.UNKNOWN_SERVER_ERROR),
            ):
                await admin.alter_configs(Resource.TOPIC, OFFSETS_TOPIC, set={"max.message.bytes": size})
                assert await commit_many() == {expected}
                host = machine.broker.groups.host("g")
                assert host.shard.state.config.batch_bytes_max == int(size)

    in_world(main)


def test_nobody_waits_longer_than_the_timeout_for_what_is_not_committed() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, **{"offsets.commit.timeout.ms": "2000"})
        first, second = await connect(), await connect()
        assert await commit(first, "g", 1) is Err.NONE
        syncer = machine.broker.syncer
        sync, syncer.dirty = syncer.dirty, lambda partition: None  # type: ignore[method-assign]
        assert await commit(first, "g", 2) is Err.COORDINATOR_NOT_AVAILABLE
        # Both rest on the same batch, whose own time is up.
        heartbeat = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="nobody")
        for connection in (first, second):
            started = asyncio.get_running_loop().time()
            assert (await connection.request(ApiKey.HEARTBEAT, heartbeat)).error_code == Err.COORDINATOR_NOT_AVAILABLE
            assert 1.9 < asyncio.get_running_loop().time() - started < 2.5
        syncer.dirty = sync  # type: ignore[method-assign]
        assert await commit(second, "g", 3) is Err.NONE
        assert await committed("g") == {0: 3}

    in_world(main)


def test_many_answers_are_given_in_order_over_several_turns() -> None:
    class Asker:
        def __init__(self, number: int) -> None:
            self.number = number

        def answer(self, response: object) -> None:
            given.append((self.number, turn))
            if self.number == 20:
                groups.deliver([(Asker(99), None)])

        def refusal(self, error: Err) -> None: ...

    given: list[tuple[int, int]] = []
    turn = 0
    groups: Any = None

    async def main(world: World) -> None:
        nonlocal groups, turn
        groups = (await with_topic(world)).broker.groups
        seconds = count(step=0.001)
        groups.perf_counter = lambda: next(seconds)
        groups.deliver([(Asker(number), None) for number in range(30)])
        assert not given, "never from within a decision"
        for _ in range(20):
            await asyncio.sleep(0)
            turn += 1

    in_world(main)
    assert [number for number, _ in given] == [*range(30), 99]
    by_turn = Counter(turn for _, turn in given)
    assert len(by_turn) > 5 and max(by_turn.values()) < 10


def test_a_large_group_is_answered_over_several_turns() -> None:
    """Thousands who joined are told at once that their round is complete: others are served in between."""
    given: list[int] = []
    turn = 0

    class Asker:
        def answer(self, response: object) -> None:
            given.append(turn)

        def refusal(self, error: Err) -> None: ...

    async def main(world: World) -> None:
        nonlocal turn
        groups = (await with_topic(world)).broker.groups
        connection = await connect()
        host = groups.host("g")
        written = asyncio.create_task(commit(connection, "g", 1))
        while host.when_committed("now", Asker()) is not None:
            await asyncio.sleep(0)
        for _ in range(ANSWERS_AT_ONCE):
            host.when_committed(None, Asker())
        seconds = count(step=0.001)
        groups.perf_counter = lambda: next(seconds)
        while len(given) < ANSWERS_AT_ONCE + 1:
            await asyncio.sleep(0)
            turn += 1
        assert await written is Err.NONE

    in_world(main)
    assert max(Counter(given).values()) < ANSWERS_AT_ONCE / 5


def test_an_interval_that_changes_while_the_broker_runs_counts_for_groups_that_are_there() -> None:
    option = "group.consumer.assignment.interval.ms"

    async def main(world: World) -> None:
        machine = await with_topic(world)
        host = machine.broker.groups.host("g")
        assert host.shard.state.config.consumer_assignment_interval_ms == 1_000
        async with Admin(BOOTSTRAP) as admin:
            await admin.alter_configs(Resource.BROKER, "", set={option: "7000"})
            with pytest.raises(RequestFailed, match=r"above group\.consumer\.max\.assignment\.interval\.ms"):
                await admin.alter_configs(Resource.BROKER, "", set={option: "16000"})
        await asyncio.sleep(0.5)
        assert machine.broker.groups.host("g") is host
        assert host.shard.state.config.consumer_assignment_interval_ms == 7_000

    in_world(main)


def test_a_commit_too_large_for_a_batch_changes_nothing() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t2", 1)
        machine.broker.replicas.by_name[OFFSETS_TOPIC][partition_for("g", 4)].log.config = _small(machine)
        connection = await connect()
        assert await commit(connection, "g", 1) is Err.NONE
        assert await commit(connection, "g", 2, metadata="x" * 3000) is Err.UNKNOWN_SERVER_ERROR
        assert await committed("g") == {0: 1}

    in_world(main)


def test_a_group_with_more_offsets_than_fit_a_batch_can_be_deleted() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("wide", 100)
            machine.broker.replicas.by_name[OFFSETS_TOPIC][partition_for("g", 4)].log.config = _small(machine)
            groups = Groups(admin)
            for start in range(0, 100, 10):
                await groups.commit("g", {("wide", start + index): 1 for index in range(10)})
            assert len(await committed("g")) == 100
            await groups.delete("g")
            assert await committed("g") == {}
            machine.node.crash(CrashMode.LOSE)
            await machine.start()
            assert await committed("g") == {}

    in_world(main)


def _small(machine: Machine) -> Any:
    import msgspec

    config = machine.broker.replicas.by_name[OFFSETS_TOPIC][0].log.config
    return msgspec.structs.replace(config, max_message_bytes=2000)


def test_offsets_of_a_deleted_topic_go_with_it() -> None:
    async def main(world: World) -> None:
        await with_topic(world)
        connection = await connect()
        assert await commit(connection, "g", 7) is Err.NONE
        async with Admin(BOOTSTRAP) as admin:
            await admin.delete_topic("t")
            await asyncio.sleep(1)
            assert await committed("g") == {}
            await admin.create_topic("t", 3)
        assert await committed("g") == {}

    in_world(main)


def test_offsets_expire_by_the_clock() -> None:
    async def main(world: World) -> None:
        options = {"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "60000"}
        await with_topic(world, **options)
        connection = await connect()
        assert await commit(connection, "g", 7) is Err.NONE
        await asyncio.sleep(8 * 60)
        assert await committed("g") == {0: 7}
        await asyncio.sleep(4 * 60)
        assert await committed("g") == {}

    in_world(main)


def test_groups_and_offsets_by_the_client_api() -> None:
    async def main(world: World) -> None:
        await with_topic(world)
        async with Admin(BOOTSTRAP) as admin:
            groups = Groups(admin)
            await groups.commit("g", {("t", 0): 5, ("t", 2): 7})
            await groups.commit("h", {("t", 1): 1})
            assert [group.group_id for group in await groups.list_groups()] == ["g", "h"]
            assert (await groups.describe("g")).state == "Empty"
            with pytest.raises(RequestFailed, match="no group of this name"):
                await groups.describe("nobody")
            with pytest.raises(RequestFailed) as refused:
                await groups.commit("g", {("t", 9): 5})
            assert refused.value.error is Err.UNKNOWN_TOPIC_OR_PARTITION
            await groups.delete("g")
            assert await groups.committed("g") == {}
            with pytest.raises(RequestFailed):
                await groups.delete("g")

    in_world(main)
