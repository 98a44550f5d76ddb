"""A move that dies at any step, and is begun again, ends as one that does not; until folders are marked the old quorum
is as it was."""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TypeVar

import pytest

from headrace.metadata.delta import Delta
from headrace.metadata.image import EMPTY, Image
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.quorum import QuorumError
from headrace.quorum.folder import Identity, Layout, write_properties
from headrace.quorum.migration import kraft_folders, moving, znodes_target
from headrace.quorum.migration.nodes import KRAFT_MODE, ZOOKEEPER_MODE, Node, Position, locked, read_folders, write_note
from headrace.quorum.opening import open_quorum
from headrace.quorum.options import KraftOptions
from headrace.quorum.snapshots import Voter
from headrace.quorum.zookeeper import paths
from headrace.quorum.zookeeper.client import Disconnected, Session
from headrace.quorum.zookeeper.operations import Operation, Set
from headrace.storage.checkpoints import MetaProperties
from headrace.storage.files import make_durable_dirs
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut
from headrace.testing.simulator.zookeeper import ModelSession, ZooKeeperModel
from tests.unit.quorum.node import Clock, inline

T = TypeVar("T")

CLUSTER = "Rst3xp1OQ3a8mdyPDPUwWw"
TOPIC = bytes(range(16))
NODES = [
    Node(Layout(n, (f"/n{n}", f"/more{n}"), f"/n{n}", (("CONTROLLER", "127.0.0.1", 19_000 + n),))) for n in (1, 2, 3)
]
VOTERS = [1, 2]
POSITION = Position(5, 100)


def records() -> list[Record]:
    config = m.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1000")
    partition = m.PartitionRecord(
        topic_id=TOPIC, partition_id=0, replicas=[1, 2], isr=[2], leader=2, leader_epoch=4, partition_epoch=9,
        directories=[bytes([1]) * 16, bytes([2]) * 16],
    )  # fmt: skip
    entity = [
        m.ClientQuotaRecord.EntityData(entity_type="user", entity_name=None),
        m.ClientQuotaRecord.EntityData(entity_type="client-id", entity_name="a/b,c"),
    ]
    scram = m.UserScramCredentialRecord(
        name="al/ice", mechanism=2, salt=b"\0salt", stored_key=b"stored", server_key=b"server", iterations=8192
    )
    acl = m.AccessControlEntryRecord(
        id=bytes(range(1, 17)), resource_type=2, resource_name="orders", pattern_type=4, principal="User:alice",
        host="*", operation=3, permission_type=2,
    )  # fmt: skip
    token = m.DelegationTokenRecord(
        owner="User:alice", requester="User:bob", renewers=["User:carol"], issue_timestamp=1, max_timestamp=9,
        expiration_timestamp=5, token_id="token",
    )  # fmt: skip
    return [
        (m.FeatureLevelRecord(name="metadata.version", feature_level=30), 0),
        (m.ClientQuotaRecord(entity=entity, key="producer_byte_rate", value=1.5, remove=False), 0),
        (scram, 0),
        (acl, 0),
        (token, 0),
        (m.ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="1"), 0),
        (m.ConfigRecord(resource_type=4, resource_name="2", name="log.retention.ms", value="2"), 0),
        (m.ConfigRecord(resource_type=32, resource_name="a/group", name="consumer.session.timeout.ms", value="3"), 0),
        (m.ConfigRecord(resource_type=16, resource_name="metrics", name="interval.ms", value="4"), 0),
        (m.TopicRecord(name="orders", topic_id=TOPIC), 0),
        (partition, 2),
        (config, 0),
        (m.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=3000), 0),
    ]


IMAGE: Image = Delta(EMPTY).replay_all(records()).apply(POSITION.offset, POSITION.epoch, 17)


def folders_of(mode: int) -> MemoryDisk:
    disk = MemoryDisk()
    for node in NODES:
        for at, path in enumerate(node.layout.log_dirs):
            make_durable_dirs(disk, path)
            write_properties(disk, path, MetaProperties(CLUSTER, node.id, bytes([16 * at + node.id]) * 16, mode))
    return disk


def in_kraft() -> MemoryDisk:
    disk = folders_of(KRAFT_MODE)
    voters = [Voter(n.id, bytes([n.id]) * 16, n.layout.controller_endpoints) for n in NODES if n.id in VOTERS]
    for node in NODES[:2]:
        kraft_folders.write_voter(disk, node, IMAGE, POSITION, voters, 17)
    disk.sync_all()
    return disk


class World:
    """ZooKeeper, and who talks to it: for so many multis."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.model = ZooKeeperModel(self.loop, Random(1), delay_s=0.0)
        self.left = 1 << 30

    def run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        session = Mortal(self)

        async def alone() -> T:
            return await work(session)

        return self.loop.run_until_complete(alone())


class Mortal(ModelSession):
    def __init__(self, world: World) -> None:
        super().__init__(world.model)
        self._world = world

    def multi(self, operations: Sequence[Operation]) -> "Future[None]":
        self._world.left -= 1
        if self._world.left < 0:
            self.cut()
        return super().multi(operations)


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.loop.close()


def to_zookeeper(disk: MemoryDisk, world: World, *, replace: bool = False) -> None:
    async def work(session: Session) -> None:
        with locked(disk, NODES):
            planned = await moving.plan_to_zookeeper(disk, NODES, session, replace=replace)
            for path in paths.PERSISTENT:
                world.model.ensure(path)
            await moving.to_zookeeper(disk, planned, session, lambda line: None)

    world.run(work)


def to_kraft(disk: MemoryDisk, world: World, *, replace: bool = False) -> None:
    async def work(session: Session) -> None:
        with locked(disk, NODES):
            planned = await moving.plan_to_kraft(disk, NODES, VOTERS, session, replace=replace)
            moving.to_kraft(disk, {node.id: node for node in NODES}, planned, 17, lambda line: None)

    world.run(work)


def modes(disk: MemoryDisk) -> set[int]:
    found = read_folders(disk, NODES)
    return {known.version for folders in found.values() for known in folders.properties.values()}


def stored(world: World) -> tuple[Image, Position]:
    return world.run(znodes_target.read)


@contextmanager
def power(disk: MemoryDisk, world: World, operations: int, multis: int) -> Iterator[None]:
    """Whatever runs inside dies after so many writes."""
    disk.cut_after(operations)
    world.left = multis
    try:
        yield
    finally:
        disk.cut_after(None)
        world.left = 1 << 30


def assert_moved_to_zookeeper(disk: MemoryDisk, world: World) -> None:
    image, position = stored(world)
    assert image.same_content(IMAGE)
    assert position == POSITION
    assert modes(disk) == {ZOOKEEPER_MODE}


def test_to_zookeeper_killed_at_any_step() -> None:
    for step in count():
        disk, world = in_kraft(), World()
        before = disk.tree()
        try:
            # Writes to ZooKeeper come first, those to folders after them.
            with power(disk, world, max(0, step - 12), step if step < 12 else 1 << 30):
                to_zookeeper(disk, world)
            break
        except Disconnected:
            assert disk.tree() == before, "the old quorum was touched"
        except PowerCut:
            disk.crash(Random(step))
        if modes(disk) != {ZOOKEEPER_MODE}:
            to_zookeeper(disk, world)
        assert_moved_to_zookeeper(disk, world)
        world.loop.close()
    assert_moved_to_zookeeper(disk, world)
    assert step > 12


def in_zookeeper(world: World) -> MemoryDisk:
    """A cluster that has only ever been there."""
    disk = in_kraft()
    to_zookeeper(disk, world)
    for node in NODES:
        kraft_folders.remove_metadata(disk, node)
    disk.sync_all()
    return disk


def test_to_kraft_killed_at_any_step() -> None:
    for step in count():
        world = World()
        disk = in_zookeeper(world)
        nodes = dict(world.model.nodes)
        done = False
        try:
            with power(disk, world, step, 1 << 30):
                to_kraft(disk, world)
            done = True
        except PowerCut:
            disk.crash(Random(step))
        if not done and modes(disk) != {KRAFT_MODE}:
            to_kraft(disk, world)
        assert world.model.nodes == nodes, "the old quorum was touched"
        assert modes(disk) == {KRAFT_MODE}
        for node in NODES[:2]:
            assert_kraft_starts(disk, node)
        assert not disk.exists(kraft_folders.metadata_folder(NODES[2]))
        world.loop.close()
        if done:
            assert step > 20
            return


def assert_kraft_starts(disk: MemoryDisk, node: Node) -> None:
    found = read_folders(disk, [node])[node.id]
    ids = {path: known.directory_id or b"" for path, known in found.properties.items()}
    quorum = open_quorum(
        disk, Identity(CLUSTER, node.id, ids), node.layout, KraftOptions(), Clock(), inline, None, Random(1).randrange
    )
    assert quorum.image.same_content(IMAGE)
    assert quorum.image.offset == POSITION.offset
    assert quorum.saved_epoch == POSITION.epoch
    quorum.log.abandon()


# --- what the old and the new quorum did in between -------------------------------------------------------------------


def change(world: World) -> None:
    """As a controller that was elected there does."""
    for path, data in ((paths.CONTROLLER_EPOCH, b"6"), (paths.METADATA, world.model.nodes[paths.METADATA].data)):
        world.model.multi(0, [Set(path, data)])


def newer() -> MemoryDisk:
    """The KRaft cluster after it was started once more."""
    disk = folders_of(KRAFT_MODE)
    voters = [Voter(n.id, bytes([n.id]) * 16, n.layout.controller_endpoints) for n in NODES if n.id in VOTERS]
    for node in NODES[:2]:
        kraft_folders.write_voter(disk, node, IMAGE, Position(6, 120), voters, 17)
    return disk


def test_a_copy_that_nobody_used_is_made_again_when_the_old_quorum_went_on(world: World) -> None:
    to_zookeeper(in_kraft(), world)
    disk = newer()
    to_zookeeper(disk, world)
    assert stored(world)[1] == Position(6, 120)


def test_what_the_cluster_left_there_long_ago_is_replaced_only_if_told(world: World) -> None:
    to_zookeeper(in_kraft(), world)
    change(world)
    disk = newer()
    with pytest.raises(QuorumError, match="--replace"):
        to_zookeeper(disk, world)
    to_zookeeper(disk, world, replace=True)
    assert stored(world)[1] == Position(6, 120)


def test_two_quorums_that_both_went_on_are_not_made_one(world: World) -> None:
    to_zookeeper(in_kraft(), world)
    change(world)
    disk = newer()
    write_properties(disk, "/n3", MetaProperties(CLUSTER, 3, bytes([3]) * 16, ZOOKEEPER_MODE))
    with pytest.raises(QuorumError, match="both quorums have gone on"):
        to_zookeeper(disk, world, replace=True)


def test_kraft_that_went_on_after_half_a_move_is_not_overwritten(world: World) -> None:
    disk = in_zookeeper(world)
    to_kraft(disk, world)
    write_properties(disk, "/n3", MetaProperties(CLUSTER, 3, bytes([3]) * 16, ZOOKEEPER_MODE))
    change(world)
    voters = [Voter(1, bytes([1]) * 16, NODES[0].layout.controller_endpoints)]
    kraft_folders.write_voter(disk, NODES[0], IMAGE, Position(9, 130), voters, 17)
    with pytest.raises(QuorumError, match="both quorums have gone on"):
        to_kraft(disk, world)


def test_a_node_without_the_others_cannot_say_what_was_committed(world: World) -> None:
    disk = in_kraft()

    async def work(session: Session) -> None:
        await moving.plan_to_zookeeper(disk, NODES[:1], session, replace=False)

    with pytest.raises(QuorumError, match=r"1 of the 2 controllers are here.*folders of 2"):
        world.run(work)


def test_leftovers_of_kraft_are_replaced_only_if_told(world: World) -> None:
    disk = in_kraft()
    to_zookeeper(disk, world)
    with pytest.raises(QuorumError, match=r"is left from before.*--replace"):
        to_kraft(disk, world)
    to_kraft(disk, world, replace=True)
    assert_kraft_starts(disk, NODES[0])


def test_a_running_node_is_refused() -> None:
    disk = in_kraft()
    disk.lock("/more2/.lock")
    with pytest.raises(QuorumError, match="node 2 is running: /more2 is in use"), locked(disk, NODES):
        pass


def test_a_note_tells_a_node_that_was_written_from_one_with_leftovers(world: World) -> None:
    disk = in_kraft()
    to_zookeeper(disk, world)
    for node in NODES:
        write_note(disk, node, Position(1, 1))
    to_kraft(disk, world)
    assert_kraft_starts(disk, NODES[1])
