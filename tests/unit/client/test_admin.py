"""Administration of real brokers: the same calls, the same answers, from Apache Kafka and from Headrace."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from headrace.client.admin.admin import EARLIEST, LATEST, MAX_TIMESTAMP, Admin, ConfigSource, Resource
from headrace.client.errors import RequestFailed
from headrace.client.raw import fetch, produce
from headrace.errors import Err
from headrace.records.batch import Record, build_batch, iter_records
from tests.waiting import run

NUMBERS = itertools.count()


@pytest.fixture(params=[pytest.param("apache", marks=pytest.mark.reference), "headrace"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap)


@pytest.fixture
def topic() -> str:
    return f"admin-{next(NUMBERS)}"


async def refused(coroutine: Awaitable[object]) -> Err:
    with pytest.raises(RequestFailed) as caught:
        await coroutine
    return caught.value.error


async def settled(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Apache's brokers learn of a change a moment after it is acknowledged: ask until the answer is as wanted."""
    async with asyncio.timeout(10):
        while await ask() != wanted:
            await asyncio.sleep(0.02)


async def partition_count(admin: Admin, topic: str) -> int | Err:
    try:
        return len((await admin.describe_topic(topic)).partitions)
    except RequestFailed as error:
        return error.error


def test_a_topic_s_life(bootstrap: str, topic: str) -> None:
    async def play() -> None:
        async with Admin(bootstrap) as admin:
            made = await admin.create_topic(topic, 3, 1, {"retention.ms": "3600000"})
            assert (made.partitions, made.replication_factor) == (3, 1)
            await settled(lambda: partition_count(admin, topic), 3)
            assert await refused(admin.create_topic(topic, 1)) is Err.TOPIC_ALREADY_EXISTS
            found = await admin.describe_topic(topic)
            assert found.topic_id == made.topic_id
            assert list(found.partitions) == [0, 1, 2]
            assert all(
                (p.leader, p.replicas, p.isr, p.offline) == (1, (1,), (1,), ()) for p in found.partitions.values()
            )
            assert topic in [t.name for t in await admin.list_topics()]
            await admin.create_partitions(topic, 5)
            await settled(lambda: partition_count(admin, topic), 5)
            assert await refused(admin.create_partitions(topic, 2)) is Err.INVALID_PARTITIONS
            await admin.delete_topic(topic)
            assert await refused(admin.delete_topic(topic)) is Err.UNKNOWN_TOPIC_OR_PARTITION
            await settled(lambda: partition_count(admin, topic), Err.UNKNOWN_TOPIC_OR_PARTITION)

    run(play())


def test_what_cannot_be_created(bootstrap: str, topic: str) -> None:
    async def play() -> None:
        async with Admin(bootstrap) as admin:
            assert await refused(admin.create_topic("no spaces", 1)) is Err.INVALID_TOPIC_EXCEPTION
            assert await refused(admin.create_topic(topic, 1, 7)) is Err.INVALID_REPLICATION_FACTOR
            assert await refused(admin.create_topic(topic, 0)) is Err.INVALID_PARTITIONS
            assert await refused(admin.create_topic(topic, 1, 1, {"retention.mss": "1"})) is Err.INVALID_CONFIG
            await admin.create_topic(topic, 1, validate_only=True)
            assert await refused(admin.describe_topic(topic)) is Err.UNKNOWN_TOPIC_OR_PARTITION

    run(play())


def test_topic_options(bootstrap: str, topic: str) -> None:
    async def play() -> None:
        async with Admin(bootstrap) as admin:

            async def changed() -> dict[str, str | None]:
                entries = await admin.describe_configs(Resource.TOPIC, topic)
                return {entry.name: entry.value for entry in entries if entry.source == ConfigSource.TOPIC}

            await admin.create_topic(topic, 1, 1, {"retention.ms": "3600000"})
            await settled(lambda: partition_count(admin, topic), 1)
            await admin.alter_configs(
                Resource.TOPIC, topic, set={"max.message.bytes": "2000000"}, unset=["retention.ms"]
            )
            await settled(changed, {"max.message.bytes": "2000000"})
            await admin.alter_configs(Resource.TOPIC, topic, append={"cleanup.policy": "compact"})
            await settled(changed, {"max.message.bytes": "2000000", "cleanup.policy": "delete,compact"})
            await admin.alter_configs(Resource.TOPIC, topic, subtract={"cleanup.policy": "delete"})
            await settled(changed, {"max.message.bytes": "2000000", "cleanup.policy": "compact"})
            bad = admin.alter_configs(Resource.TOPIC, topic, set={"retention.ms": "soon"})
            assert await refused(bad) is Err.INVALID_CONFIG
            await admin.alter_configs(Resource.TOPIC, topic, set={"segment.ms": "1000"}, validate_only=True)
            assert "segment.ms" not in await changed()
            (one,) = await admin.describe_configs(Resource.TOPIC, topic, ["segment.bytes"], documentation=True)
            assert one.name == "segment.bytes" and one.is_default and one.documentation
            (node,) = await admin.describe_configs(Resource.BROKER, "1", ["node.id"])
            assert node.value == "1" and node.is_read_only
            await admin.delete_topic(topic)

    run(play())


def test_records_and_offsets(bootstrap: str, topic: str) -> None:
    batch = build_batch([Record(0, 1_000 + number, b"k%d" % number, b"v") for number in range(100)])

    async def play() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic(topic, 2)
            await settled(lambda: partition_count(admin, topic), 2)
            cluster = admin.cluster
            placed = await asyncio.gather(*(produce(cluster, topic, 1, batch) for _ in range(10)))
            assert sorted(one.base_offset for one in placed) == list(range(0, 1000, 100))
            got = await fetch(cluster, topic, 1, 250, max_bytes=10 << 20)
            assert got.high_watermark == 1000
            records = list(iter_records(got.records))
            assert (records[0].offset, records[-1].offset, records[57].key) == (200, 999, b"k57")
            assert {p: row.offset for p, row in (await admin.list_offsets(topic)).items()} == {0: 0, 1: 1000}
            assert (await admin.list_offsets(topic, {1: 1_050}))[1].offset == 50
            assert (await admin.list_offsets(topic, {1: 9_999}))[1].offset == -1
            assert (await admin.list_offsets(topic, {1: MAX_TIMESTAMP}))[1].timestamp == 1_099
            assert await admin.delete_records(topic, {1: 300}) == {1: 300}
            assert (await admin.list_offsets(topic, {1: EARLIEST}))[1].offset == 300
            assert (await admin.list_offsets(topic, {1: LATEST}))[1].offset == 1000
            assert await refused(fetch(cluster, topic, 1, 10)) is Err.OFFSET_OUT_OF_RANGE
            assert await refused(admin.delete_records(topic, {1: 5_000})) is Err.OFFSET_OUT_OF_RANGE
            await admin.delete_topic(topic)

    run(play())


def test_the_cluster_and_its_folders(bootstrap: str, topic: str) -> None:
    async def play() -> None:
        async with Admin(bootstrap) as admin:
            cluster = await admin.describe_cluster()
            assert [broker.node_id for broker in cluster.brokers] == [1] and cluster.controller_id == 1
            assert cluster.brokers[0].address == bootstrap
            await admin.create_topic(topic, 1)
            batch = build_batch([Record(0, 1, None, b"v" * 100)])
            await settled(lambda: partition_count(admin, topic), 1)
            await produce(admin.cluster, topic, 0, batch)
            (folder,) = await admin.describe_log_dirs(1, {topic: [0]})
            assert [(r.topic, r.partition, r.size_bytes) for r in folder.replicas] == [(topic, 0, len(batch))]
            assert 0 < folder.usable_bytes < folder.total_bytes
            assert await refused(admin.describe_log_dirs(77)) is Err.BROKER_NOT_AVAILABLE
            await admin.delete_topic(topic)

    run(play())


def test_many_topics_at_once(bootstrap: str) -> None:
    names = [f"many-{number}" for number in range(50)]

    async def play() -> None:
        async with Admin(bootstrap) as admin:

            async def there() -> set[str]:
                return set(names) & {topic.name for topic in await admin.list_topics()}

            await asyncio.gather(*(admin.create_topic(name, 1) for name in names))
            await settled(there, set(names))
            await asyncio.gather(*(admin.delete_topic(name) for name in names))
            await settled(there, set())

    run(play())
