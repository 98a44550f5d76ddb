"""Bits rot in segments that nobody reads. A scrub finds them, and every replica is whole again by itself."""

import asyncio
from random import Random

import msgspec
import pytest

from headrace.broker.maintenance import comparison
from headrace.broker.maintenance.scrubber import FILE_NAME, Progress
from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.protocol.private_fields.scrub import ScrubQuestion, ScrubStatus
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record, iter_records
from headrace.storage import scrub
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.world import Node, World
from tests.simulation.cluster import SimCluster, create
from tests.simulation.harness import BOOTSTRAP, BROKER

RECORDS = 60
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300", "retention.ms": "-1"}


def value(number: int) -> bytes:
    return b"%d " % number + bytes([number % 256]) * 200


async def write(bootstrap: str, first: int, count: int) -> dict[int, bytes]:
    """What was acknowledged, by offset. An unanswered one may be there twice: nobody is idempotent here."""
    acknowledged = {}
    async with Cluster(bootstrap, retry_timeout_s=30.0) as cluster:
        for number in range(first, first + count):
            batch = build_batch([Record(0, 1000 + number, None, value(number))])
            acknowledged[(await raw.produce(cluster, "t", 0, batch)).base_offset] = value(number)
    return acknowledged


async def read(bootstrap: str, start: int, end: int) -> dict[int, bytes]:
    """Values without a look at checksums, as most consumers read."""
    found: dict[int, bytes] = {}
    async with Cluster(bootstrap, retry_timeout_s=30.0) as cluster:
        offset = start
        while offset < end:
            got = await raw.fetch(cluster, "t", 0, offset)
            for _, header in iter_headers(memoryview(got.records)):
                offset = max(offset, header.end_offset)
            for position, header in iter_headers(memoryview(got.records)):
                for record in iter_records(bytes(got.records[position : position + header.size])):
                    found[record.offset] = bytes(record.value or b"")
    return found


async def scrubbed(bootstrap: str, nodes: list[int]) -> dict[int, ScrubStatus]:
    """Have all brokers check everything, and wait until they have, and have repaired what others have."""
    async with Admin(bootstrap) as admin:
        before = {}
        for node in nodes:
            status = await admin.scrub(node, ScrubQuestion(start=True))
            assert status is not None
            before[node] = status
        async with asyncio.timeout(300):
            while True:
                now = {node: await admin.scrub(node, ScrubQuestion()) for node in nodes}
                if all(
                    status is not None
                    and status.passes > before[node].passes
                    and not status.is_running
                    and not status.missing_here_only
                    for node, status in now.items()
                ):
                    return {node: status for node, status in now.items() if status is not None}
                await asyncio.sleep(0.1)


def rot(world: World, name: str, dice: Random, *, active: bool = False) -> tuple[str, int]:
    """Spoil a closed segment of a node, or the active one: a bit, some bytes, its end, or all of it."""
    disk, folder = world.node(name).disk, f"{DATA}/t-0"
    logs = sorted(entry for entry in disk.list(folder) if entry.endswith(".log"))
    path = f"{folder}/{logs[-1] if active else dice.choice(logs[:-1])}"
    position = dice.randrange(disk.size(path))
    match dice.choice(("flip", "flip", "zero", "garbage", "cut", "remove")):
        case "flip":
            disk.flip(path, position, dice.randrange(8))
        case "zero":
            disk.open(path).write_at(bytes(min(64, disk.size(path) - position)), position)
        case "garbage":
            disk.open(path).write_at(dice.randbytes(min(300, disk.size(path) - position)), position)
        case "cut":
            disk.open(path).truncate(position)
        case "remove":
            disk.remove(path)
    return path, position


@pytest.mark.parametrize("seed", [*range(7), 144])
def test_rotten_segments_of_any_replica_are_whole_again(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, 3, SMALL)
        await write(cluster.bootstrap, 0, RECORDS)
        await cluster.calm("t")
        dice = world.dice("rot")
        spoilt = dice.sample(cluster.names, 2)
        for name in spoilt:
            for _ in range(dice.randrange(1, 3)):
                rot(world, name, dice)
        writing = asyncio.create_task(write(cluster.bootstrap, RECORDS, 20))
        await scrubbed(cluster.bootstrap, [1, 2, 3])
        acknowledged = await writing
        found = await read(cluster.bootstrap, 0, max(acknowledged) + 1)
        assert {offset: found[offset] for offset in range(RECORDS)} == {n: value(n) for n in range(RECORDS)}
        assert {offset: found[offset] for offset in acknowledged} == acknowledged
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)
        name = spoilt[0]
        await cluster.node(name).stop()
        await cluster.restart(name)
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)
        for status in (await scrubbed(cluster.bootstrap, [1, 2, 3])).values():
            assert not status.missing

    with World(seed) as world:
        world.run(main(world))


@pytest.mark.parametrize("seed", [9000, 9001])
def test_replicas_that_are_all_damaged_make_each_other_whole(seed: int) -> None:
    """Each in another place. Two hand over; the last one leads with what it has, or nobody would."""

    async def main(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, 3, SMALL)
        await write(cluster.bootstrap, 0, RECORDS)
        await cluster.calm("t")
        dice = world.dice("rot")
        for at, name in enumerate(cluster.names):
            disk, folder = world.node(name).disk, f"{DATA}/t-0"
            path = f"{folder}/{sorted(entry for entry in disk.list(folder) if entry.endswith('.log'))[at]}"
            disk.flip(path, dice.randrange(disk.size(path)), dice.randrange(8))
        await scrubbed(cluster.bootstrap, [1, 2, 3])
        assert await read(cluster.bootstrap, 0, RECORDS) == {n: value(n) for n in range(RECORDS)}
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)

    with World(seed) as world:
        world.run(main(world))


@pytest.mark.parametrize("active", [False, True])
def test_alone_only_the_damaged_batch_is_an_error(active: bool) -> None:
    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker())
        await create(BOOTSTRAP, "t", 1, 1, SMALL)
        await write(BOOTSTRAP, 0, RECORDS)
        await node.stop()
        disk, folder = node.disk, f"{DATA}/t-0"
        logs = sorted(entry for entry in disk.list(folder) if entry.endswith(".log"))
        path = f"{folder}/{logs[-1] if active else logs[2]}"
        position, header = list(iter_headers(disk.read_bytes(path)))[1]
        disk.flip(path, position + 100)
        lost = header.base_offset
        await node.start()
        status = (await scrubbed(BOOTSTRAP, [1]))[1]
        assert (status.damaged, status.mended) == (1, 0)
        async with asyncio.timeout(60):  # until what is left of the segment is in place
            while True:
                try:
                    found = await read(BOOTSTRAP, 0, lost) | await read(BOOTSTRAP, lost + 1, RECORDS)
                    break
                except ClientError:
                    await asyncio.sleep(0.1)
        assert found == {number: value(number) for number in range(RECORDS) if number != lost}
        with pytest.raises(ClientError) as refused:
            async with Cluster(BOOTSTRAP, retry_timeout_s=1.0) as client:
                await raw.fetch(client, "t", 0, lost)
        assert getattr(refused.value, "error", Err.KAFKA_STORAGE_ERROR) is Err.KAFKA_STORAGE_ERROR
        await write(BOOTSTRAP, RECORDS, 3)
        await node.stop()
        await node.start()
        assert await read(BOOTSTRAP, lost + 1, RECORDS + 3) == {n: value(n) for n in range(lost + 1, RECORDS + 3)}

    with World(1) as world:
        world.run(main(world))


def test_a_pass_comes_again_when_it_is_due_and_says_when_it_ended() -> None:
    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker({"log.initial.task.delay.ms": "1000", "log.scrub.interval.ms": "600000"}))
        await create(BOOTSTRAP, "t", 1, 1, SMALL)
        await write(BOOTSTRAP, 0, RECORDS)
        await asyncio.sleep(130)
        async with Admin(BOOTSTRAP) as admin:
            status = await admin.scrub(1, ScrubQuestion())
            assert status is not None and status.passes == 1 and status.last_pass_ms > 0
            (log_dir,) = await admin.describe_log_dirs(1, {"t": [0]})
            (replica,) = log_dir.replicas
            assert (
                replica.checked_ms is not None and 0 < replica.checked_ms <= status.last_pass_ms and replica.holes == 0
            )
        await node.stop()
        await node.start()
        await asyncio.sleep(130)
        async with Admin(BOOTSTRAP) as admin:
            again = await admin.scrub(1, ScrubQuestion())
            assert again is not None and again.passes == 0 and again.last_pass_ms == status.last_pass_ms
            await asyncio.sleep(600)
            again = await admin.scrub(1, ScrubQuestion())
            assert again is not None and again.passes == 1 and again.last_pass_ms > status.last_pass_ms

    with World(1) as world:
        world.run(main(world))


def test_a_pass_goes_on_where_a_kill_found_it() -> None:
    def said(node: Node) -> Progress:
        path = f"{DATA}/{FILE_NAME}"
        return msgspec.json.decode(node.disk.read_bytes(path), type=Progress) if node.disk.exists(path) else Progress()

    async def main(world: World) -> None:
        node = world.node(BROKER)
        # So slow that each partition is a portion of its own.
        options = {"log.initial.task.delay.ms": "5000", "log.scrub.io.max.bytes.per.second": "1"}
        await node.start(broker(options))
        await create(BOOTSTRAP, "t", 5, 1, SMALL)
        await write(BOOTSTRAP, 0, RECORDS)
        while said(node).cursor is None:
            await asyncio.sleep(0.001)
        node.kill()
        before = said(node)
        assert before.cursor is not None and before.cursor < ("t", 4) and before.last_pass_ms < 0
        await node.start()
        while said(node).last_pass_ms < 0:
            await asyncio.sleep(1)
        after = said(node)
        assert after.started_ms == before.started_ms, "the same pass"
        for name, checked_ms in before.checked_ms.items():
            assert after.checked_ms[name] == checked_ms, "not checked again"
        assert set(after.checked_ms) == {f"t-{index}" for index in range(5)}

    with World(1) as world:
        world.run(main(world))


@pytest.mark.parametrize("active", [False, True])
def test_a_bit_that_flipped_while_the_broker_was_down_is_never_served(active: bool) -> None:
    """Nobody waits for a scrub: what was written in an earlier life is checked before it is first sent."""

    async def main(world: World) -> None:
        node = world.node(BROKER)
        await node.start(broker({"log.scrub.enable": "false"}))
        await create(BOOTSTRAP, "t", 1, 1, SMALL)
        await write(BOOTSTRAP, 0, RECORDS)
        await node.stop()
        disk, folder = node.disk, f"{DATA}/t-0"
        logs = sorted(entry for entry in disk.list(folder) if entry.endswith(".log"))
        path = f"{folder}/{logs[-1] if active else logs[2]}"
        position, header = list(iter_headers(disk.read_bytes(path)))[1]
        disk.flip(path, position + 100)
        await node.start()
        offset = 0
        async with Cluster(BOOTSTRAP, retry_timeout_s=5.0) as cluster:
            while offset < header.base_offset:
                got = await raw.fetch(cluster, "t", 0, offset, max_bytes=1000)
                for at, found in iter_headers(memoryview(got.records)):
                    for record in iter_records(bytes(got.records[at : at + found.size])):
                        assert record.value == value(record.offset)
                    offset = found.end_offset
            with pytest.raises(ClientError):
                await raw.fetch(cluster, "t", 0, offset)
        rest = await read(BOOTSTRAP, header.end_offset, RECORDS)
        assert rest == {number: value(number) for number in range(header.end_offset, RECORDS)}

    with World(1) as world:
        world.run(main(world))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("of_leader", [False, True])
def test_a_segment_that_is_whole_and_not_what_the_others_have_is_replaced(
    replicas: int, of_leader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three the majority is right, of two the leader."""
    monkeypatch.setattr(scrub, "CELL_OFFSETS", 8)
    monkeypatch.setattr(comparison, "CELL_OFFSETS", 8)

    async def main(world: World) -> None:
        cluster = SimCluster(world, replicas, settings={"min.insync.replicas": "1"})
        await cluster.start()
        await create(cluster.bootstrap, "t", 1, replicas, SMALL)
        await write(cluster.bootstrap, 0, RECORDS)
        await cluster.calm("t")
        async with Cluster(cluster.bootstrap) as client:
            leader = (await client.topic("t")).partitions[0].leader
        spoilt = f"n{leader if of_leader else leader % replicas + 1}"
        disk, folder = cluster.node(spoilt).disk, f"{DATA}/t-0"
        path = f"{folder}/{sorted(entry for entry in disk.list(folder) if entry.endswith('.log'))[2]}"
        data = disk.read_bytes(path)
        position, header = list(iter_headers(data))[1]
        record = next(iter(iter_records(data[position : position + header.size])))
        other = build_batch(
            [Record(record.offset, record.timestamp, None, b"x" * len(record.value or b""))],
            base_offset=header.base_offset, leader_epoch=header.leader_epoch,
        )  # fmt: skip
        assert len(other) == header.size
        file = disk.open(path)
        file.write_at(other, position)
        file.sync()
        await scrubbed(cluster.bootstrap, list(range(1, replicas + 1)))
        await asyncio.sleep(5)
        await cluster.calm("t")
        cluster.assert_replicas_equal("t", 1)
        found = await read(cluster.bootstrap, 0, RECORDS)
        if replicas == 3 or not of_leader:
            assert found == {number: value(number) for number in range(RECORDS)}
        else:
            assert found[header.base_offset] == b"x" * len(value(header.base_offset)), "the leader's word"

    with World(1) as world:
        world.run(main(world))
