"""What people do to znodes by hand, and what an ensemble that was emptied or restored does: no node ends, none takes it
for a change of metadata, and all goes on when it is as it was."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from headrace.errors import KafkaError
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.quorum.zookeeper import paths, quorum, znodes
from headrace.quorum.zookeeper.operations import Delete, Set
from headrace.quorum.zookeeper.znodes import Head
from headrace.testing.simulator.loop import SimLoop
from tests.simulation.zookeeper_nodes import BROKERS, Member, registration
from tests.unit.quorum.zookeeper.world import new_model

TOPIC = "orders"
STATE = paths.state(TOPIC, 0)
A_WHILE_S = 15.0


def first_records() -> list[Record]:
    topic_id, kind = b"o" * 16, m.PartitionRecord
    partition = kind(topic_id=topic_id, partition_id=0, replicas=list(BROKERS), isr=list(BROKERS), leader=1,
                     leader_epoch=0, partition_epoch=0, directories=[bytes(16)] * 3)  # fmt: skip
    return [
        *map(registration, BROKERS), (m.TopicRecord(name=TOPIC, topic_id=topic_id), 0), (partition, 2),
        (m.ConfigRecord(resource_type=2, resource_name=TOPIC, name="retention.ms", value="1"), 0),
    ]  # fmt: skip


class Nodes:
    """Three of them, with one topic."""

    def __init__(self) -> None:
        self.loop = SimLoop(Random(1))
        self.model = new_model(1, self.loop)
        self.members = [Member(self.model, node_id) for node_id in BROKERS]

    def run(self, life: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                await asyncio.gather(*(member.quorum.start() for member in self.members))
                await (await self.controller()).quorum.append(first_records())
                await asyncio.sleep(1)
                await life()
            finally:
                for member in self.members:
                    await member.quorum.close()

        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(whole())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def controller(self) -> Member:
        async with asyncio.timeout(60):
            while True:
                for member in self.members:
                    if member.quorum.is_active:
                        return member
                await asyncio.sleep(0.05)

    def elect_again(self) -> None:
        self.model.multi(0, [Delete(paths.CONTROLLER)])

    def write(self, path: str, data: bytes) -> None:
        self.model.multi(0, [Set(path, data)])

    def remove(self, path: str) -> None:
        for child in self.model.children(path):
            self.remove(f"{path}/{child}")
        self.model.multi(0, [Delete(path)])

    def assert_know_the_topic(self) -> None:
        for member in self.members:
            assert member.failure is None, member.failure
            assert [topic.name for topic in member.quorum.image.topics.values()] == [TOPIC]


DAMAGE = {
    STATE: [
        b"?", b"[]", b"{}", b'{"leader":1,"leader_epoch":0,"isr":"123"}', b'{"leader":1,"leader_epoch":0,"isr":["1"]}',
        b'{"leader":1,"leader_epoch":0,"isr":[1],"headrace":[7]}', b'{"leader":null,"leader_epoch":0,"isr":[1]}',
    ],
    paths.topic(TOPIC): [
        b"", b'{"topic_id":"x"}', b'{"topic_id":7,"partitions":{}}',
        b'{"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":[]}',
        b'{"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":{"0":["a"]}}',
    ],
    paths.config(2, TOPIC): [b"?", b'{"config":[1]}'],
    paths.registration(1): [b"{}", b'{"epoch":[]}'],
    paths.METADATA: [b"{}", b'{"offset":"x","epoch":1,"timestamp":0}'],
    paths.CONTROLLER_EPOCH: [b"", b"many"],
    paths.LEVELS: [b'{"features":[]}', b'{"features":{"a":1}}'],
    paths.PRODUCER_IDS: [b"7", b'{"block_end":null}'],
}  # fmt: skip


@pytest.mark.parametrize(("path", "data"), [(path, data) for path, all_of in DAMAGE.items() for data in all_of])
def test_nodes_wait_for_a_damaged_znode_to_be_mended(path: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes()

    async def life() -> None:
        whole = nodes.model.nodes[path].data
        nodes.write(path, data)
        nodes.elect_again()
        await asyncio.sleep(A_WHILE_S)
        nodes.assert_know_the_topic()
        assert not any(member.quorum.is_active for member in nodes.members)
        assert path in caplog.text
        nodes.write(path, whole)
        await (await nodes.controller()).quorum.append([registration(1)])
        nodes.assert_know_the_topic()

    nodes.run(life)


@pytest.mark.parametrize(
    "data", [b"?", b'{"brokerid":"x"}', b'{"brokerid":1,"headrace":[1]}', b'{"version":1,"brokerid":2}']
)
def test_a_controllers_znode_that_was_overwritten_is_made_anew(data: bytes) -> None:
    nodes = Nodes()

    async def life() -> None:
        nodes.write(paths.CONTROLLER, data)
        await asyncio.sleep(A_WHILE_S)
        controller = await nodes.controller()
        assert {member.quorum.leader_id for member in nodes.members} == {controller.quorum.node_id}
        nodes.assert_know_the_topic()

    nodes.run(life)


@pytest.mark.parametrize("path", [paths.METADATA, paths.CONTROLLER_EPOCH, paths.TOPICS, "/config/topics", "/headrace"])
def test_what_is_removed_is_not_taken_for_a_change(path: str, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes()

    async def life() -> None:
        nodes.remove(path)
        nodes.elect_again()
        await asyncio.sleep(A_WHILE_S)
        nodes.assert_know_the_topic()
        assert not any(member.quorum.is_active for member in nodes.members)
        assert f"{path} is missing in ZooKeeper" in caplog.text or path == "/headrace"

    nodes.run(life)


def test_the_metadata_of_a_new_cluster_is_not_taken_for_ones_own() -> None:
    """As where ZooKeeper has lost what it had, and a node with an empty folder has begun a cluster there."""
    nodes = Nodes()

    async def life() -> None:
        for path in ("/brokers", "/headrace", "/config", "/controller", "/controller_epoch"):
            nodes.remove(path)
        for path, znode in new_model().nodes.items():
            nodes.model.ensure(path, znode.data)
        nodes.model.nodes[paths.METADATA] = nodes.model.nodes[paths.METADATA]._replace(
            stat=nodes.model.nodes[paths.METADATA].stat._replace(created=nodes.model.zxid)
        )
        await asyncio.sleep(A_WHILE_S)
        nodes.assert_know_the_topic()
        assert not any(member.quorum.is_active for member in nodes.members)

    nodes.run(life)


def test_an_older_copy_is_not_taken_for_a_change() -> None:
    nodes = Nodes()

    async def life() -> None:
        nodes.model.multi(0, [Set(paths.METADATA, znodes.encode_head(Head(0, 0, 0)))] * 3)
        await asyncio.sleep(1)
        stored = nodes.model.nodes[paths.METADATA]
        nodes.model.nodes[paths.METADATA] = stored._replace(stat=stored.stat._replace(version=0))
        nodes.elect_again()
        await asyncio.sleep(A_WHILE_S)
        nodes.assert_know_the_topic()
        assert not any(member.quorum.is_active for member in nodes.members)
        nodes.model.nodes[paths.METADATA] = stored
        await nodes.controller()

    nodes.run(life)


def test_a_topic_that_outgrows_its_znode_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "MULTI_BYTES_MAX", 4_000)
    nodes = Nodes()

    def grown(first: int, end: int) -> list[Record]:
        kind = m.PartitionRecord
        return [
            (kind(topic_id=b"o" * 16, partition_id=n, replicas=[1], isr=[1], leader=1, leader_epoch=0,
                  partition_epoch=0, directories=[bytes(16)]), 2)
            for n in range(first, end)
        ]  # fmt: skip

    async def life() -> None:
        controller = (await nodes.controller()).quorum
        await controller.append(grown(1, 200))
        with pytest.raises(KafkaError, match=f"{paths.topic(TOPIC)} would be larger than ZooKeeper takes"):
            controller.append(grown(200, 600))
        await controller.append(grown(200, 220))
        await asyncio.sleep(1)
        assert controller.is_active
        assert {len(member.quorum.image.topics[b"o" * 16].partitions) for member in nodes.members} == {220}

    nodes.run(life)


def test_epochs_of_controllers_do_not_go_back() -> None:
    nodes = Nodes()

    async def life() -> None:
        for _ in range(3):
            nodes.elect_again()
            await asyncio.sleep(1)
            await (await nodes.controller()).quorum.append([registration(1)])
        epoch = (await nodes.controller()).quorum.leader_epoch
        nodes.write(paths.CONTROLLER_EPOCH, b"0")
        nodes.elect_again()
        await asyncio.sleep(1)
        assert (await nodes.controller()).quorum.leader_epoch > epoch

    nodes.run(life)
