"""A member that commits the same partitions over and over is served by a shorter way, and cannot tell."""

import asyncio
import random
from collections import Counter
from itertools import product
from typing import Any

import pytest

from headrace.broker.coordinators.group_host import GroupHost as ShardHost
from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.handlers.groups.repeated_commits import OFFSET_COMMIT
from headrace.broker.replicas.deltas import DeltaQueue
from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError
from headrace.client.net.connection import Connection
from headrace.config.broker import HEADRACE_DEFAULTS
from headrace.errors import Err, KafkaError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import BOOTSTRAP, Machine, commit, committed, connect, in_world, with_topic

Q = m.OffsetCommitRequest
SESSION_MS = 6_000
STEPS = 220
SYMPTOMS = {
    Err.ILLEGAL_GENERATION, Err.UNKNOWN_MEMBER_ID, Err.UNKNOWN_TOPIC_OR_PARTITION, Err.COORDINATOR_NOT_AVAILABLE,
    Err.UNKNOWN_SERVER_ERROR, Err.REBALANCE_IN_PROGRESS,
}  # fmt: skip


def knows(connection: Any) -> bool:
    """Whether its commits are recognised."""
    return isinstance(connection.fast, FastPath) and connection.fast.knows(OFFSET_COMMIT) is not None


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How often the short way was taken, and how often it left a request to the long one."""
    counts: Counter[bool] = Counter()
    take = FastPath.take

    def counted(self: FastPath, connection: Any, api_key: int, *frame: Any) -> Any:
        answer = take(self, connection, api_key, *frame)
        if self.knows(OFFSET_COMMIT) is not None and api_key == OFFSET_COMMIT:
            counts[answer is not None] += 1
        return answer

    monkeypatch.setattr(FastPath, "take", counted)
    return counts


class Member:
    """Of the classic protocol, alone in its group; or one that manages itself; or of the new protocol."""

    def __init__(self, connection: Connection, group: str, version: int) -> None:
        self.connection = connection
        self.group = group
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.partitions = [0, 1]

    def request(self, topic_id: bytes, offset: int, epoch: int) -> m.OffsetCommitRequest:
        rows = [Q.OffsetCommitRequestPartition(index, offset + index, epoch, "") for index in self.partitions]
        topic = Q.OffsetCommitRequestTopic(partitions=rows)
        if self.version >= 10:
            topic.topic_id = topic_id
        else:
            topic.name = "t"
        return Q(
            group_id=self.group, generation_id_or_member_epoch=self.generation, member_id=self.member_id, topics=[topic]
        )

    async def join(self) -> Any:
        kind = m.JoinGroupRequest
        request = kind(
            group_id=self.group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000, member_id=self.member_id,
            protocol_type="consumer", protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=bytes(12))],
        )  # fmt: skip
        answer = await self.connection.request(ApiKey.JOIN_GROUP, request, version_max=5)
        self.member_id = answer.member_id or self.member_id
        if answer.error_code == Err.MEMBER_ID_REQUIRED:
            return await self.join()
        if answer.error_code == Err.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if not answer.error_code:
            self.generation = answer.generation_id
        return Err(answer.error_code).name

    async def sync(self) -> str:
        kind = m.SyncGroupRequest
        request = kind(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            assignments=[kind.SyncGroupRequestAssignment(member_id=self.member_id, assignment=bytes(8))],
        )  # fmt: skip
        return Err((await self.connection.request(ApiKey.SYNC_GROUP, request, version_max=3)).error_code).name

    async def heartbeat(self) -> str:
        """Of the new protocol: joins, or stays."""
        joining = not self.member_id
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id or f"{self.group:_<22}", member_epoch=max(self.generation, 0)
        )
        if joining or not self.generation:
            request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 60_000, ["t"], []
        answer = await self.connection.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        if not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.member_epoch
        else:
            self.generation = 0
        return Err(answer.error_code).name


class History:
    """What happens is decided by the seed alone."""

    def __init__(self, machine: Machine, seed: int, story: list[str]) -> None:
        self.machine = machine
        self.dice = random.Random(seed)
        self.story = story
        self.topic_id = bytes(16)
        self.members: list[Member] = []
        self.offset = 0

    def tell(self, what: object) -> None:
        self.story.append(f"{what}")

    async def play(self) -> None:
        admin = Admin(BOOTSTRAP)
        async with admin:
            await self._look(admin)
            for number in range(4):
                group = ("simple", "classic", "classic-2", "new")[number]
                version = 10 if number == 3 else self.dice.choice((6, 7, 8, 9, 10))
                self.members.append(Member(await connect(), group, version))
            await self.members[1].join()
            await self.members[2].join()
            for step in range(STEPS):
                kind = self.dice.random()
                member = self.dice.choice(self.members)
                if kind < 0.8:
                    await self._commit(member)
                elif kind < 0.9:
                    self.tell(f"{step} {await self._membership(member)}")
                else:
                    await self._change(admin)
            await asyncio.sleep(1)
            for group in ("simple", "classic", "classic-2", "new"):
                self.tell(await committed(group))
                shard = self.machine.broker.groups.host(group).shard
                self.tell((shard.state.written_end, shard.offsets.by_group.get(group)))
        self.tell(sum(self.machine.broker.metrics.requests[ApiKey.OFFSET_COMMIT].counts))
        for member in self.members:
            member.connection.close()

    async def _look(self, admin: Admin) -> None:
        self.topic_id = (await admin.describe_topic("t")).topic_id

    async def _commit(self, member: Member) -> None:
        """Several in flight on one connection, now and then as none should be."""
        waiting = []
        for _ in range(self.dice.choice((1, 1, 1, 2, 5))):
            self.offset += self.dice.randrange(3)
            request = member.request(self.topic_id, self.offset, self.dice.choice((-1, 0, 3)))
            odd = self.dice.random()
            if odd < 0.03:
                request.generation_id_or_member_epoch += 1
            elif odd < 0.06:
                request.member_id = "nobody"
            elif odd < 0.08:
                request.topics[0].partitions[-1].committed_metadata = "said"
            elif odd < 0.10:
                request.topics[0].partitions[-1].partition_index = 77
            waiting.append(await member.connection.post(ApiKey.OFFSET_COMMIT, request, version_max=member.version))
        for answer in await asyncio.gather(*waiting):
            self.tell([(p.partition_index, Err(p.error_code).name) for t in answer.topics for p in t.partitions])

    async def _membership(self, member: Member) -> str:
        if member.group == "simple":
            member.partitions = self.dice.choice(([0, 1], [1], [0, 1, 2]))
            return "other partitions"
        if member.group == "new":
            return await member.heartbeat()
        if self.dice.random() < 0.3:
            return str(await member.join())  # and commits in the middle of the round
        return f"{await member.join()} {await member.sync()}"

    async def _change(self, admin: Admin) -> None:  # noqa: C901 - one case for each kind
        kind = self.dice.randrange(9)
        self.tell(f"change {kind}")
        broker = self.machine.broker
        if kind == 0:
            await admin.delete_topic("t")
            if self.dice.random() < 0.5:
                await self._commit(self.members[0])
            await admin.create_topic("t", 3)
            if self.dice.random() < 0.8:
                await self._look(admin)
        elif kind == 1:
            count = len((await admin.describe_topic("t")).partitions)
            await admin.create_partitions("t", count + 1)
        elif kind == 2:
            await asyncio.sleep(self.dice.choice((0.1, 2, 2 * SESSION_MS / 1000)))
        elif kind == 3:
            size = self.dice.choice(("150", "1048588"))
            await admin.alter_configs(Resource.TOPIC, OFFSETS_TOPIC, set={"max.message.bytes": size})
        elif kind == 4:
            member = self.dice.choice(self.members)
            shard = (await self._host(member.group)).shard
            offsets, shard.offsets = shard.offsets, None  # type: ignore[assignment]
            await self._commit(member)
            shard.offsets = offsets  # if it was never looked for
            await asyncio.sleep(1)
        elif kind == 5:
            syncer = broker.syncer
            sync, syncer.dirty = syncer.dirty, lambda partition: None  # type: ignore[method-assign]
            await self._commit(self.dice.choice(self.members))
            syncer.dirty = sync  # type: ignore[method-assign]
            for host in broker.groups.hosts.values():
                sync(host.partition)
        elif kind == 6:
            host = await self._host(self.dice.choice(self.members).group)
            host.close(Err.NOT_COORDINATOR)
            broker.groups.reload(host)
            await self._commit(self.dice.choice(self.members))
            await asyncio.sleep(1)
        elif kind == 7:
            groups = Groups(admin)
            try:
                await groups.delete(self.dice.choice(self.members).group)
            except ClientError as error:
                self.tell(type(error).__name__)

    async def _host(self, group: str) -> ShardHost:
        """Once its shard is loaded: it may just be read again, which takes a moment."""
        for _ in range(100):
            try:
                return self.machine.broker.groups.host(group)
            except KafkaError:
                await asyncio.sleep(0.1)
        return self.machine.broker.groups.host(group)


def story_of(seed: int) -> list[str]:
    async def main(world: World) -> list[str]:
        machine = await with_topic(world, **{"offsets.commit.timeout.ms": "500"})
        story: list[str] = []
        await History(machine, seed, story).play()
        return story

    return in_world(main, seed)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_history_recognised_and_read(seed: int, taken: Counter[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    recognised = story_of(seed)
    assert taken[True] > STEPS / 4 and taken[False]
    monkeypatch.setitem(HEADRACE_DEFAULTS, "fast.path", "off")
    before = taken.copy()
    without = story_of(seed)
    assert taken == before
    for step, (one, other) in enumerate(zip(recognised, without)):
        assert one == other, f"step {step}"
    assert len(recognised) == len(without)
    assert sum(symptom.name in line for line in without for symptom in SYMPTOMS) > 5


def test_a_commit_by_the_short_way_keeps_its_member_alive(taken: Counter[bool]) -> None:
    async def main(world: World) -> None:
        await with_topic(world)
        async with Admin(BOOTSTRAP) as admin:
            topic_id = (await admin.describe_topic("t")).topic_id
        member = Member(await connect(), "g", 9)
        assert await member.join() == "NONE" and await member.sync() == "NONE"
        for number in range(40):
            await asyncio.sleep(SESSION_MS / 1000 / 2)
            answer = await member.connection.request(
                ApiKey.OFFSET_COMMIT, member.request(topic_id, number, 0), version_max=9
            )
            assert not any(p.error_code for p in answer.topics[0].partitions)

    in_world(main)
    assert taken[True] > 30


def test_what_the_short_way_wrote_is_there_after_a_power_cut(taken: Counter[bool]) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        for offset in range(10):
            assert await commit(connection, "g", offset) is Err.NONE
        counted = machine.broker.metrics.requests[ApiKey.OFFSET_COMMIT]
        assert sum(counted.counts) == 10
        machine.node.crash()
        await machine.start()
        await asyncio.sleep(1)
        assert await committed("g") == {0: 9}

    in_world(main)
    assert taken[True] == 8


def test_nobody_waits_longer_than_the_timeout_by_the_short_way(taken: Counter[bool]) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, **{"offsets.commit.timeout.ms": "2000"})
        connection = await connect()
        for offset in range(3):
            assert await commit(connection, "g", offset) is Err.NONE
        syncer = machine.broker.syncer
        sync, syncer.dirty = syncer.dirty, lambda partition: None  # type: ignore[method-assign]
        assert await commit(connection, "g", 3) is Err.COORDINATOR_NOT_AVAILABLE
        syncer.dirty = sync  # type: ignore[method-assign]
        assert await commit(connection, "g", 4) is Err.NONE

    in_world(main)
    assert taken[True] == 3


def test_a_client_that_leaves_while_it_waits_harms_nobody(taken: Counter[bool]) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        first, second = await connect(), await connect()
        for offset in range(3):
            assert await commit(first, "g", offset) is Err.NONE
        syncer = machine.broker.syncer
        sync, syncer.dirty = syncer.dirty, lambda partition: None  # type: ignore[method-assign]
        rows = [Q.OffsetCommitRequestPartition(0, 7, -1, "")]
        request = Q(group_id="g", topics=[Q.OffsetCommitRequestTopic(name="t", partitions=rows)])
        await first.send(ApiKey.OFFSET_COMMIT, request, version_max=9)
        await asyncio.sleep(0.1)
        first.close()
        await asyncio.sleep(0.1)
        syncer.dirty = sync  # type: ignore[method-assign]
        assert await commit(second, "g", 8, partition=1) is Err.NONE
        assert await committed("g") == {0: 7, 1: 8}

    in_world(main)
    assert taken[True] == 2


def test_a_group_that_moves_to_another_shard_takes_its_commits_along(
    taken: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many new partitions of the offsets topic take a while: what is learnt meanwhile must not outlast it."""

    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        groups = machine.broker.groups
        before = groups.host("g").partition.index
        go_on = DeltaQueue._go_on
        monkeypatch.setattr(DeltaQueue, "_go_on", lambda self: world.loop.call_later(1, go_on, self))
        async with Admin(BOOTSTRAP) as admin:
            growing = asyncio.create_task(admin.create_partitions(OFFSETS_TOPIC, 30))
            while not growing.done():
                assert await commit(connection, "g", 5) is Err.NONE
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
        assert groups.partition_of("g") != before
        assert await commit(connection, "g", 7) is Err.NONE
        assert await committed("g") == {0: 7}

    in_world(main)
    assert taken[True]


@pytest.mark.parametrize(("groups", "partitions"), [(["g", "gg"], [0]), (["g", "h"], [0]), (["g"], [0, 1])])
def test_a_connection_whose_commits_differ_learns_nothing(groups: list[str], partitions: list[int]) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        for offset in range(3):
            for group, partition in product(groups, partitions):
                assert await commit(connection, group, offset, partition=partition) is Err.NONE
        assert not any(map(knows, machine.broker.connections))

    in_world(main)


def test_learning_from_a_coordinator_that_is_elsewhere_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        connection = await connect()
        await commit(connection, "g", 1)
        hosts: dict[int, ShardHost] = machine.broker.groups.hosts
        machine.broker.groups.hosts = {}
        assert await commit(connection, "g", 2) is Err.NOT_COORDINATOR
        machine.broker.groups.hosts = hosts
        assert not any(map(knows, machine.broker.connections))
        assert await commit(connection, "g", 3) is Err.NONE
        assert any(map(knows, machine.broker.connections))

    in_world(main)


def test_versions_are_those_that_the_shape_knows() -> None:
    assert API[ApiKey.OFFSET_COMMIT].latest_stable == 10, "look at what is new before it is taken by the short way"
