"""Segments of one replica are removed, cut or exchanged while its node is down: whole again from others, or said where
there are none."""

import asyncio
import logging

import pytest

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.records.layout import iter_headers
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.loop import SimClock
from headrace.testing.simulator.workload import Options, Workload
from headrace.testing.simulator.world import World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import BOOTSTRAP, BROKER, Result, clients, seeds_within, verdict
from tests.simulation.records import CHECKPOINTED_S, end, state, write

SEGMENT = {"internal.segment.bytes": "1000"}
RECORDS = 14
"""Three to a segment: four are closed."""
KINDS = ("first", "second", "last closed", "end", "cut", "cut end", "exchanged")


def segments(disk: MemoryDisk, folder: str = f"{DATA}/t-0") -> list[str]:
    return [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".log")]


def damage(disk: MemoryDisk, kind: str, folder: str = f"{DATA}/t-0") -> None:
    paths = segments(disk, folder)
    if len(paths) < 4:
        return
    match kind:
        case "first":
            disk.remove(paths[0])
        case "second":
            disk.remove(paths[1])
        case "last closed":
            disk.remove(paths[-2])
        case "end":
            disk.remove(paths[-2])
            disk.remove(paths[-1])
        case "cut" | "cut end":
            path = paths[1] if kind == "cut" else paths[-1]
            position = [position for position, _ in iter_headers(disk.read_bytes(path))][-1]
            disk.open(path).truncate(position)
        case "exchanged":
            disk.rename(paths[1], f"{DATA}/aside")
            disk.rename(paths[2], paths[1])
            disk.rename(f"{DATA}/aside", paths[2])


async def read_all(bootstrap: str) -> list[int]:
    """Offsets as a consumer finds them, in order, from the start to the end or to the first error."""
    found: list[int] = []
    async with Cluster(bootstrap, retry_timeout_s=3.0) as cluster:
        offset = 0
        while True:
            try:
                answer = await raw.fetch(cluster, "t", 0, offset)
            except ClientError:
                return found
            batches = [header for _, header in iter_headers(answer.records)]
            if not batches:
                return found
            for header in batches:
                if header.base_offset >= offset:
                    found.append(header.base_offset)
                    offset = header.end_offset


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_without_some_of_its_segments_is_whole_again_by_itself(kind: str, clean: bool) -> None:
    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, 3, SEGMENT)
        assert await write(cluster.bootstrap, RECORDS) == list(range(RECORDS))
        await asyncio.sleep(CHECKPOINTED_S)
        leader, _ = await state(cluster.bootstrap)
        struck = cluster.node(f"n{leader}")
        await end(struck, clean)
        assert len(segments(struck.disk)) == 5
        damage(struck.disk, kind)
        await cluster.restart(struck.name)
        await cluster.calm("t")
        assert await write(cluster.bootstrap, 1) == [RECORDS]
        await asyncio.sleep(1)
        cluster.assert_replicas_equal("t", 1)
        assert sorted(cluster.logs("t", 0)[struck.name]) == list(range(RECORDS + 1))

    with World(1) as world:
        world.run(main(world))


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_counted_on_does_not_lead_without_what_others_have(kind: str) -> None:
    """All were in sync and all go down; the one that leads according to the metadata comes back without some of its
    records."""

    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, 3, SEGMENT)
        assert await write(cluster.bootstrap, RECORDS) == list(range(RECORDS))
        await asyncio.sleep(CHECKPOINTED_S)
        leader, _ = await state(cluster.bootstrap)
        for name in cluster.names:
            cluster.node(name).kill()
        first = f"n{leader}"
        damage(cluster.node(first).disk, kind)
        await asyncio.gather(*map(cluster.restart, cluster.names))
        assert await write(cluster.bootstrap, 1) == [RECORDS]
        await cluster.calm("t")
        await asyncio.sleep(1)
        cluster.assert_replicas_equal("t", 1)
        assert sorted(cluster.logs("t", 0)[first]) == list(range(RECORDS + 1))

    with World(2) as world:
        world.run(main(world))


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_alone_it_serves_the_rest_and_gives_no_offset_twice(
    kind: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker())
        await create(BOOTSTRAP, "t", 1, 1, SEGMENT)
        assert await write(BOOTSTRAP, RECORDS) == list(range(RECORDS))
        await asyncio.sleep(CHECKPOINTED_S)
        await end(node, clean)
        damage(node.disk, kind)
        for again in range(2):
            await node.start()
            assert await write(BOOTSTRAP, 1) == [RECORDS + again]
            found = await read_all(BOOTSTRAP)
            assert found == list(range(len(found))) and len(found) < RECORDS, "a reader was led over what is missing"
            await asyncio.sleep(CHECKPOINTED_S)
            await end(node, clean)

    with caplog.at_level(logging.WARNING), World(1) as world:
        world.run(main(world))
    said = [record.message for record in caplog.records if "backup" in record.message]
    assert said and all("t-0" in line for line in said)


async def struck(world: World) -> Result:
    """Nodes go down under load, one at a time, and come back without some of their segments, while others are struck,
    too."""
    dice = world.dice("scenario")
    cluster = SimCluster(world)
    await cluster.start()
    options = Options(partitions=2, pause_s_max=0.05)
    await create(cluster.bootstrap, options.topic, options.partitions, 3, {"internal.segment.bytes": "1500"})
    workload = Workload(cluster.bootstrap, world.dice("workload"), SimClock(world.loop), options)
    async with clients(workload, 3):
        for _ in range(dice.randint(1, 3)):
            await asyncio.sleep(dice.choice((0.5, 3.0, CHECKPOINTED_S)))
            await cluster.calm(options.topic)
            node = cluster.node(dice.choice(cluster.names))
            clean, kind = dice.random() < 0.5, dice.choice([kind for kind in KINDS if "end" not in kind])
            cluster.events.append(f"{world.loop.time():.2f} {kind} of {node.name}, {'stopped' if clean else 'killed'}")
            await end(node, clean)
            for partition in range(options.partitions):
                damage(node.disk, kind, f"{DATA}/{options.topic}-{partition}")
            others = [other for other in cluster.names if other != node.name]
            strike = asyncio.create_task(cluster.strike(dice, ("kill", "freeze", "isolate"), others))
            await cluster.restart(node.name)
            await strike
    await cluster.calm(options.topic)
    result = await verdict(workload, cluster.events)
    cluster.assert_replicas_equal(options.topic, options.partitions)
    return result


def test_one_damaged_replica_at_a_time_loses_nothing_whatever_else_strikes() -> None:
    for seed in seeds_within(4.0, range(1000), at_least=2):
        with World(seed) as world:
            world.run(struck(world)).assert_good(seed)


def test_groups_whose_offsets_are_missing_have_no_coordinator_until_they_are_back() -> None:
    """Without the offsets in it they would begin anew, or step over records: nobody is told anything but an error."""

    async def main(world: World) -> None:
        settings = {
            "offsets.topic.num.partitions": "1",
            "offsets.topic.segment.bytes": "1048576",
            "log.cleaner.enable": "false",
        }
        node = world.node(BROKER)
        await node.start(broker(settings))
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t", 1, 1)
            await Groups(admin).commit("g", {("t", 0): 1})
        path = f"{DATA}/__consumer_offsets-0/{0:020d}.log"
        await end(node, True)
        saved = node.disk.read_bytes(path)
        node.disk.open(path).truncate(0)
        await node.start()
        with pytest.raises(ClientError):
            async with Admin(BOOTSTRAP, retry_timeout_s=3.0) as admin:
                await Groups(admin).committed("g")
        await end(node, True)
        file = node.disk.open(path, create=True)
        file.truncate(0)
        file.append(saved)
        await node.start()
        async with Admin(BOOTSTRAP) as admin:
            assert (await Groups(admin).committed("g"))["t", 0].offset == 1

    with World(1) as world:
        world.run(main(world))
