"""A replica that lacks records which it once had: emptied folders, damaged segments, cut tails. Another one leads, if
there is one."""

import asyncio
import errno
import logging
from typing import Literal

import pytest

from headrace.broker.cluster import lifecycle
from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.storage.file_names import file_name
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import Node, World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import BOOTSTRAP, BROKER, Result, clients, seeds_within, verdict
from tests.simulation.records import BATCH, CHECKPOINTED_S, end, state, write

NAMED_S = 0.5
"""Longer than a new log takes to be named in one."""


async def until_state(bootstrap: str, leaders: set[int], isr: set[int]) -> None:
    async with asyncio.timeout(60):
        while True:
            leader, found = await state(bootstrap)
            if leader in leaders and found == isr:
                return
            await asyncio.sleep(0.1)


async def with_three_records(world: World) -> Node:
    """A broker of its own, with the only replica of a topic."""
    node = world.node(BROKER)
    await node.start(broker())
    async with Admin(BOOTSTRAP) as admin:
        await admin.create_topic("t", 1, 1)
    assert await write(BOOTSTRAP, 3) == [0, 1, 2]
    return node


CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", ".headrace_vouched")


def empty(disk: MemoryDisk, how: str) -> None:
    """Take away the records, or with "all" whatever tells of them, too."""
    folder = f"{DATA}/t-0"
    if how == "all":
        for name in CHECKPOINTS:
            disk.remove(f"{DATA}/{name}")
    if how != "files":
        disk.remove_tree(folder)
        return
    for name in disk.list(folder):
        disk.remove(f"{folder}/{name}")


@pytest.mark.parametrize("how", ["folder", "files"])
@pytest.mark.parametrize("clean", [True, False])
def test_the_only_replica_without_its_records_is_offline_until_they_are_back(how: str, clean: bool) -> None:
    """Apache Kafka leads an empty log, and nobody notices but readers."""

    async def main(world: World) -> None:
        node = await with_three_records(world)
        await asyncio.sleep(CHECKPOINTED_S)
        await end(node, clean)
        folder = f"{DATA}/t-0"
        saved = {name: node.disk.read_bytes(f"{folder}/{name}") for name in node.disk.list(folder)}
        empty(node.disk, how)
        for topic in ("u1", "u2"):  # the second start knows it still
            await node.start()
            with pytest.raises(ClientError):
                async with Cluster(BOOTSTRAP, retry_timeout_s=2.0) as cluster:
                    await raw.produce(cluster, "t", 0, BATCH)
            async with Admin(BOOTSTRAP) as admin:
                await admin.create_topic(topic, 1, 1)
            assert await write(BOOTSTRAP, 1, topic) == [0], "others are served"
            await asyncio.sleep(CHECKPOINTED_S)
            await node.stop()
        node.disk.make_dirs(folder)
        for name, data in saved.items():
            node.disk.replace_bytes(f"{folder}/{name}", data)
        await node.start()
        assert await write(BOOTSTRAP, 1) == [3]

    with World(1) as world:
        world.run(main(world))


@pytest.mark.parametrize("clean", [True, False])
def test_the_only_replica_begins_anew_and_says_so_when_nothing_is_left_of_it(
    clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache Kafka begins it anew, too, and says nothing."""

    async def main(world: World) -> None:
        node = await with_three_records(world)
        await end(node, clean)
        empty(node.disk, "all")
        await node.start()
        assert await write(BOOTSTRAP, 1) == [0]

    with caplog.at_level(logging.CRITICAL), World(1) as world:
        world.run(main(world))
    said = [record.message for record in caplog.records]
    assert said == ["t-0: committed records are lost here, and no other replica has them"]


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("operation", ["make_dirs", "append"])
def test_a_new_topic_whose_folder_was_never_made_is_not_missed(
    operation: Literal["make_dirs", "append"], lives: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The crash came between the metadata and the folder, in the first life of the broker or in a later one."""

    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker())
        for _ in range(lives - 1):
            node.kill()
            await node.start()
        node.disk.fail(operation, errno.ENOSPC, path=f"{DATA}/t-0*", times=None)
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t", 1, 1)
        node.crash()
        node.disk.faults.clear()
        assert not node.disk.exists(f"{DATA}/t-0") or not node.disk.list(f"{DATA}/t-0")
        await node.start()
        assert await write(BOOTSTRAP, 1) == [0]

    with caplog.at_level(logging.CRITICAL), World(1) as world:
        world.run(main(world))
    assert not caplog.records


def test_the_last_in_sync_replica_does_not_lead_when_nothing_is_left_of_it() -> None:
    """The other one has fallen behind, so that nobody may lead until the records are back: copies of nothing would be
    worse."""

    async def main(world: World) -> None:
        cluster = SimCluster(world, settings={"min.insync.replicas": "1"})
        await cluster.start()
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("t", assignments={0: [1, 2]})
        assert await write(cluster.bootstrap, 3) == [0, 1, 2]
        cluster.node("n2").kill()
        assert await write(cluster.bootstrap, 3) == [3, 4, 5]
        disk, folder = cluster.node("n1").disk, f"{DATA}/t-0"
        await cluster.node("n1").stop()
        saved = {name: disk.read_bytes(f"{folder}/{name}") for name in disk.list(folder)}
        empty(disk, "all")
        await cluster.restart("n2")
        for _ in range(2):  # the second start knows it still
            await cluster.restart("n1")
            await asyncio.sleep(CHECKPOINTED_S)
            async with Cluster(cluster.bootstrap, retry_timeout_s=5.0) as client:
                assert (await client.topic("t")).partitions[0].leader == -1
            await cluster.node("n1").stop()
        disk.make_dirs(folder)
        for name, data in saved.items():
            disk.replace_bytes(f"{folder}/{name}", data)
        await cluster.restart("n1")
        assert await write(cluster.bootstrap, 1) == [6]
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)

    with World(1) as world:
        world.run(main(world))


@pytest.mark.parametrize("clean", [True, False])
def test_a_replica_that_cannot_be_opened_is_led_by_nobody_until_it_can(clean: bool) -> None:
    """Only its files cannot be read; the directory, which is all that a controller knows of, is there."""

    async def main(world: World) -> None:
        node = await with_three_records(world)
        await end(node, clean)
        node.disk.fail("open", errno.EIO, path=f"{DATA}/t-0/*.log", times=None)
        await node.start()
        await asyncio.sleep(1)
        assert (await state(BOOTSTRAP))[0] == -1
        await node.stop()
        node.disk.faults.clear()
        await node.start()
        assert await write(BOOTSTRAP, 1) == [3]

    with World(1) as world:
        world.run(main(world))


def test_a_topic_that_was_deleted_before_a_crash_is_not_missed() -> None:
    """Its checkpoints outlive it for a moment; so it is with one of the same name that comes later."""

    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker())
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t", 1, 1)
            assert await write(BOOTSTRAP, 3) == [0, 1, 2]
            await asyncio.sleep(CHECKPOINTED_S)
            await admin.delete_topic("t")
        node.kill()
        await node.start()
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t", 1, 1)
        assert await write(BOOTSTRAP, 1) == [0]

    with World(1) as world:
        world.run(main(world))


@pytest.mark.parametrize(
    ("how", "seconds"),
    [("folder", NAMED_S), ("folder", CHECKPOINTED_S), ("files", CHECKPOINTED_S), ("all", CHECKPOINTED_S)],
)
def test_another_replica_leads_when_the_first_that_comes_back_was_emptied(how: str, seconds: float) -> None:
    """All were in sync, all stop: the one that comes first would be elected."""

    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, 3, {})
        assert await write(cluster.bootstrap, 5) == [0, 1, 2, 3, 4]
        leader, _ = await state(cluster.bootstrap)
        await asyncio.sleep(seconds)
        for name in cluster.names:
            cluster.node(name).kill()
        first = f"n{leader}"
        empty(cluster.node(first).disk, how)
        await asyncio.gather(*map(cluster.restart, cluster.names))
        assert await write(cluster.bootstrap, 1) == [5]
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)
        assert len(cluster.logs("t", 0)[first]) == 6

    for seed in (1, 2):
        with World(seed) as world:
            world.run(main(world))


async def struck_and_emptied(world: World) -> Result:
    """A node is killed and its folders are emptied under load, while another one is killed, frozen or cut off, too."""
    dice = world.dice("scenario")
    cluster = SimCluster(world)
    await cluster.start()
    options = Options(partitions=2, pause_s_max=0.05)
    await create(cluster.bootstrap, options.topic, options.partitions, 3, {})
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    async with clients(workload, 3):
        for _ in range(dice.randint(1, 3)):
            await asyncio.sleep(dice.choice((0.5, 3.0, CHECKPOINTED_S)))
            await cluster.calm(options.topic)
            name = dice.choice(cluster.names)
            cluster.events.append(f"{world.loop.time():.2f} empty {name}")
            others = [other for other in cluster.names if other != name]
            strike = asyncio.create_task(cluster.strike(dice, ("kill", "freeze", "isolate", "power cut"), others))
            await asyncio.sleep(dice.random())
            node = cluster.node(name)
            node.kill()
            for partition in range(options.partitions):
                node.disk.remove_tree(f"{DATA}/{options.topic}-{partition}")
            await cluster.restart(name)
            await strike
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    return result


def test_one_emptied_replica_at_a_time_loses_nothing_whatever_else_strikes() -> None:
    for seed in seeds_within(5.0, range(1000), at_least=4):
        with World(seed) as world:
            world.run(struck_and_emptied(world)).assert_good(seed)


@pytest.mark.parametrize("size", [2, 3])
def test_a_leader_that_finds_a_damaged_segment_lets_another_lead_and_copies_it_anew(size: int) -> None:
    """With two replicas, both of which must be in sync, it stays eligible, and yet is not elected before it is whole
    again."""

    async def main(world: World) -> None:
        cluster = SimCluster(world, size)
        nodes = set(range(1, size + 1))
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, size, {"segment.bytes": "1048576", "retention.ms": "-1"})
        big = build_batch([Record(0, 1000, None, b"v" * 300_000)])
        async with Cluster(cluster.bootstrap, retry_timeout_s=20.0) as client:
            for _ in range(8):
                await raw.produce(client, "t", 0, big)
            for name in cluster.names:  # what was just written is found without looking at the file
                await cluster.node(name).stop()
                await cluster.restart(name)
                await cluster.calm("t")
            leader, _ = await state(cluster.bootstrap)
            disk = cluster.node(f"n{leader}").disk
            first = f"{DATA}/t-0/{file_name(0, '.log')}"
            for position in range(len(big), len(big) + 17):
                disk.flip(first, position)  # the header of the second batch
            assert (await raw.fetch(client, "t", 0, 1)).records, "the client goes on with whoever leads"
            await until_state(cluster.bootstrap, nodes - {leader}, nodes)
            assert (await raw.produce(client, "t", 0, big)).base_offset == 8
        await cluster.calm("t")
        assert disk.exists(f"{first}.cut"), "the damaged segment is kept"
        cluster.assert_replicas_equal("t", 1)

    with World(3) as world:
        world.run(main(world))


@pytest.mark.parametrize(("harm", "vouched"), [("none", True), ("emptied", False), ("cut", False)])
def test_a_broker_says_that_nothing_was_lost_only_where_nothing_was(
    monkeypatch: pytest.MonkeyPatch, harm: str, vouched: bool
) -> None:
    """By the epoch that its clean stop has noted, the controller goes on counting on it (KIP-966)."""
    said: list[int] = []

    def seen(member: lifecycle.Member) -> object:
        said.append(member.previous_broker_epoch)
        return registration_request(member)

    registration_request = lifecycle.registration_request
    monkeypatch.setattr(lifecycle, "registration_request", seen)

    async def main(world: World) -> None:
        node = await with_three_records(world)
        await node.stop()
        if harm == "emptied":
            empty(node.disk, "folder")
        elif harm == "cut":
            path = f"{DATA}/t-0/{file_name(0, '.log')}"
            node.disk.replace_bytes(path, node.disk.read_bytes(path)[:-10])
        await node.start()
        assert said[0] == -1 and (said[-1] >= 0) == vouched, said

    with World(1) as world:
        world.run(main(world))


def test_a_replica_is_copied_anew_though_its_leader_begins_in_mid_batch() -> None:
    """DeleteRecords puts a log's start between records of one batch. Kafka copies that batch whole, too."""

    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, 3, {})
        batch = build_batch([Record(0, 1000, None, b"v") for _ in range(4)])
        async with Cluster(cluster.bootstrap, retry_timeout_s=20.0) as client:
            for _ in range(3):
                await raw.produce(client, "t", 0, batch)
        async with Admin(cluster.bootstrap) as admin:
            await admin.delete_records("t", {0: 6})
        await cluster.node("n3").stop()
        cluster.node("n3").disk.remove_tree(f"{DATA}/t-0")
        await cluster.calm("t")
        copies = cluster.logs("t", 0)
        assert list(copies["n3"]) == [4, 8]
        assert copies["n3"] == {offset: data for offset, data in copies["n1"].items() if offset >= 4}
        for name in ("n1", "n2"):
            await cluster.node(name).stop()
            async with Cluster(cluster.bootstrap, retry_timeout_s=20.0) as client:
                assert (await raw.fetch(client, "t", 0, 6)).log_start_offset == 6
            await cluster.calm("t")

    with World(1) as world:
        world.run(main(world))


def test_one_checkpoint_that_is_gone_does_not_make_another_forget_where_a_log_ended() -> None:
    async def main(world: World) -> None:
        node = await with_three_records(world)
        await asyncio.sleep(CHECKPOINTED_S)
        node.kill()
        node.disk.remove(f"{DATA}/recovery-point-offset-checkpoint")
        log = f"{DATA}/t-0/{file_name(0, '.log')}"
        size = node.disk.size(log)
        node.disk.remove(log)
        file = node.disk.open(log, create=True)
        file.append(bytes(size))
        file.close()
        await node.start()
        assert await write(BOOTSTRAP, 1) == [3], "no offset is given twice"
        async with Cluster(BOOTSTRAP, retry_timeout_s=2.0) as cluster:
            with pytest.raises(ClientError, match="KAFKA_STORAGE_ERROR"):
                await raw.fetch(cluster, "t", 0, 0)

    with World(1) as world:
        world.run(main(world))
