"""Producers and consumers on three brokers: leaders killed under them, and records from the nearest replica."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import headrace
from headrace.testing.cluster import TestCluster
from tests.client.support import QUICK

LIMIT_S = 120.0
SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with TestCluster(3, settings=SETTINGS, racks=["a", "b", "c"]) as running:
        yield running


async def create(admin: headrace.Admin, topic: str, partitions: int) -> int:
    """A topic that all brokers have, also one that has just come back; returns the first partition's leader."""
    await admin.create_topic(topic, partitions, 3)
    while True:
        try:
            rows = (await admin.describe_topic(topic)).partitions
            if all(len(row.isr) == 3 for row in rows.values()):
                return rows[0].leader
        except headrace.RequestFailed:
            pass
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("group_protocol", ["consumer", "classic"])
def test_leaders_killed_under_both_ends_lose_and_double_nothing(cluster: TestCluster, group_protocol: str) -> None:
    topic = f"kept-{group_protocol}"
    count = 2_000

    async def work() -> None:
        async with headrace.Admin(cluster.bootstrap) as admin:
            leader = await create(admin, topic, 3)
        got: Counter[int] = Counter()
        options = QUICK | {"group": topic, "group_protocol": group_protocol}

        async def read() -> None:
            async with headrace.Consumer(topic, bootstrap=cluster.bootstrap, **options) as consumer:
                async for batch in consumer.batches():
                    got.update(int(record.value) for record in batch)
                    if len(got) == count:
                        return

        async with asyncio.timeout(LIMIT_S), headrace.Producer(cluster.bootstrap, batch_bytes=2_000) as producer:
            reading = asyncio.ensure_future(read())
            for number in range(count):
                await producer.send_soon(topic, b"%d" % number, key=b"%d" % (number % 17))
                if number == count // 3:
                    await producer.flush()
                    await asyncio.to_thread(cluster[leader].kill)
                elif number % 50 == 0:
                    await asyncio.sleep(0.01)
            await producer.flush()
            await reading
        # The group may have handed a partition over before a commit: what it read twice is at the same offset.
        assert set(got) == set(range(count))
        async with headrace.Consumer(topic, bootstrap=cluster.bootstrap, **QUICK) as consumer:
            kept: list[headrace.Record] = []
            while len(kept) < count:
                kept += await consumer.poll(1)
            assert sorted(int(record.value) for record in kept) == list(range(count))
            by_key: dict[bytes, list[int]] = {}
            for record in kept:
                by_key.setdefault(record.key, []).append(int(record.value))
            assert all(numbers == sorted(numbers) for numbers in by_key.values())

    try:
        asyncio.run(work())
    finally:
        for node in cluster.nodes.values():
            if not node.is_running:
                node.start()


def test_a_frozen_leader_holds_up_neither_end_until_requests_time_out(cluster: TestCluster) -> None:
    """It keeps its connections and says nothing: its cluster knows sooner than a time-out of 30 s, or 60, that it is
    gone."""
    count = 600

    async def work() -> None:
        async with headrace.Admin(cluster.bootstrap) as admin:
            leader = await create(admin, "frozen", 1)
        got: list[headrace.Record] = []

        async def read(consumer: headrace.Consumer) -> None:
            async for record in consumer:
                got.append(record)
                if len(got) == count:
                    return

        reader = headrace.Consumer("frozen", bootstrap=cluster.bootstrap, group="frozen", auto_offset_reset="earliest")
        async with asyncio.timeout(30.0), headrace.Producer(cluster.bootstrap) as producer, reader:
            reading = asyncio.ensure_future(read(reader))
            for number in range(count):
                await producer.send_soon("frozen", b"%d" % number)
                if number == count // 2:
                    await producer.flush()
                    await asyncio.to_thread(cluster[leader].freeze)
                await asyncio.sleep(0)
            await producer.flush()
            await reading
        assert [int(record.value) for record in got] == list(range(count))
        assert [record.offset for record in got] == list(range(count)), "nothing is there twice"

    try:
        asyncio.run(work())
    finally:
        for node in cluster.nodes.values():
            node.thaw()


def test_records_come_from_the_replica_in_the_same_rack(cluster: TestCluster) -> None:
    async def work() -> None:
        async with asyncio.timeout(LIMIT_S), headrace.Admin(cluster.bootstrap) as admin:
            leader = await create(admin, "near", 1)
            async with headrace.Producer(cluster.bootstrap) as producer:
                await producer.send_batch("near", [b"%d" % n for n in range(100)])
            racks = {broker.rack: broker.node_id for broker in (await admin.describe_cluster()).brokers}
            rack, near = next((rack, node) for rack, node in racks.items() if node != leader)
            assert rack is not None
            async with headrace.Consumer("near", bootstrap=cluster.bootstrap, rack=rack, **QUICK) as consumer:
                found: list[headrace.Record] = []
                while len(found) < 100:
                    found += await consumer.poll(1)
                assert [int(record.value) for record in found] == list(range(100))
                core = consumer._core
                assert core is not None and core.fetcher.places["near", 0].replica == near

    asyncio.run(work())
