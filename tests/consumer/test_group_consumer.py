"""The client's consumer against Headrace and Apache Kafka: sharing, handing over, crashing, resetting, restarting."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.groups import Groups, TopicPartition
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.consume.records import Record
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.raw import produce
from headrace.errors import Err
from headrace.records.batch import BatchBuilder
from headrace.testing.broker import TestBroker

LIMIT_S = 30.0
_numbers = itertools.count()


class Topic:
    """A topic of its own, filled with records that say where they are."""

    def __init__(self, admin: Admin, name: str, partitions: int) -> None:
        self.admin, self.name, self.partitions = admin, name, partitions
        self.ends = [0] * partitions

    async def fill(self, records: int) -> None:
        for number in range(records):
            index = number % self.partitions
            builder = BatchBuilder()
            builder.append(1_000 + number, b"key", b"%d-%d" % (index, self.ends[index]))
            await produce(self.admin.cluster, self.name, index, builder.build())
            self.ends[index] += 1

    @property
    def all(self) -> set[tuple[int, int]]:
        return {(index, offset) for index, end in enumerate(self.ends) for offset in range(end)}


def run(broker: TestBroker, work: Callable[[Topic], Awaitable[None]], partitions: int = 4) -> None:
    async def with_topic() -> None:
        async with asyncio.timeout(LIMIT_S), Admin(broker.bootstrap) as admin:
            topic = Topic(admin, f"topic-{next(_numbers)}", partitions)
            await admin.create_topic(topic.name, partitions, 1)
            await work(topic)

    asyncio.run(with_topic())


QUICKLY: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "fetch_max_wait_ms": 50,
    "heartbeat_interval_ms": 100,
    "session_timeout_ms": 6_000,
}


@pytest.fixture(params=["consumer", "classic"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def member(broker: TestBroker, topic: Topic, **options: Any) -> Consumer:
    group = options.pop("group", f"group-{topic.name}")
    return Consumer(topic.name, bootstrap=broker.bootstrap, group=group, **QUICKLY | options)


def places(records: list[Record]) -> list[tuple[int, int]]:
    for record in records:
        assert record.value == b"%d-%d" % (record.partition, record.offset)
    return [(record.partition, record.offset) for record in records]


async def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += places(await consumer.poll(0.2))
    return found


async def settle(*consumers: Consumer, shares: list[int]) -> list[tuple[int, int]]:
    """Poll until the members have so many partitions each; returns what was read meanwhile."""
    found: list[tuple[int, int]] = []
    while sorted(len(one.assignment()) for one in consumers) != shares:
        for one in consumers:
            found += places(await one.poll(0.05))
    return found


async def crash(consumer: Consumer) -> None:
    """End without a commit, and without a word to the group."""
    core = consumer._core
    assert core is not None and core.membership is not None and core.membership._task is not None
    core.membership._task.cancel()
    await asyncio.gather(core.membership._task, return_exceptions=True)
    await core.fetcher.close()
    for cluster in (consumer._cluster, consumer._line):
        assert cluster is not None
        cluster.close()


def test_one_member_reads_everything_in_order_and_commits_at_the_end(broker: TestBroker) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(40)
        async with member(broker, topic) as consumer:
            found = await read(consumer, 40)
            assert set(found) == topic.all and len(found) == 40
            for index in range(topic.partitions):
                offsets = [offset for partition, offset in found if partition == index]
                assert offsets == sorted(offsets)
        committed = await Groups(topic.admin).committed(f"group-{topic.name}")
        assert {index: row.offset for (_, index), row in committed.items()} == dict(enumerate(topic.ends))

    run(broker, work)


def test_members_share_and_hand_over_without_reading_twice(broker: TestBroker, protocol: str) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(20)
        async with member(broker, topic, group_protocol=protocol) as first:
            found = await read(first, 20)
            async with member(broker, topic, group_protocol=protocol) as second:
                found += await settle(first, second, shares=[2, 2])
                assert not first.assignment() & second.assignment()
                await topic.fill(20)
                while len(found) < 40:
                    found += places(await first.poll(0.05)) + places(await second.poll(0.05))
            found += await settle(first, shares=[4])
            await topic.fill(20)
            found += await read(first, 20)
        assert Counter(found) == Counter(topic.all)

    run(broker, work)


def test_groups_of_their_own_each_read_everything(broker: TestBroker, protocol: str) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(30)
        for group in ("search", "audit"):
            async with member(broker, topic, group=f"{group}-{topic.name}", group_protocol=protocol) as consumer:
                assert set(await read(consumer, 30)) == topic.all

    run(broker, work)


def test_what_a_crashed_member_had_not_committed_comes_again(broker: TestBroker, protocol: str) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(20)
        crashed = member(broker, topic, auto_commit=False, group_protocol=protocol)
        await crashed.__aenter__()
        half = await read(crashed, 20)
        await crashed.commit({(topic.name, 0): 3})
        # Gone without a word: the group notices by its session timeout.
        await crash(crashed)
        async with member(broker, topic, group_protocol=protocol) as heir:
            again = await read(heir, 17)
        assert set(half) - set(again) == {(0, 0), (0, 1), (0, 2)}

    run(broker, work)


def test_a_member_that_does_not_poll_loses_its_partitions_and_may_come_back(broker: TestBroker, protocol: str) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(8)
        lost: list[int] = []

        async def on_lost(partitions: frozenset[tuple[str, int]]) -> None:
            lost.append(len(partitions))

        options: dict[str, Any] = {"group_protocol": protocol, "on_lost": on_lost}
        async with member(broker, topic, max_poll_interval_ms=1_000, **options) as hung:
            await read(hung, 8)
            async with member(broker, topic, group_protocol=protocol) as other:
                assert len(await read(other, 8)) == 8
                await settle(hung, other, shares=[2, 2])
        assert lost == [4]

    run(broker, work)


async def refused(work: Awaitable[None]) -> None:
    with pytest.raises(RequestFailed) as caught:
        await work
    assert caught.value.error is Err.ILLEGAL_GENERATION


def test_one_that_has_hung_commits_nothing_until_it_reads_on(broker: TestBroker, protocol: str) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(4)
        options: dict[str, Any] = {"group_protocol": protocol, "auto_commit": False}
        async with (
            member(broker, topic, max_poll_interval_ms=1_000, **options) as hung,
            Producer(broker.bootstrap, transactional_id=topic.name) as producer,
        ):
            await read(hung, 4)
            # On a slow machine the group may have gone on without it before: it joined again, and may commit.
            before = hung.expulsions
            while hung.expulsions == before:
                await asyncio.sleep(0.05)
            await refused(hung.commit())
            await refused(hung.commit({(topic.name, 0): 1}))
            with pytest.raises(RequestFailed, match="gone on without this member"):
                async with producer.transaction() as transaction:
                    with pytest.raises(RequestFailed, match="gone on without this member"):
                        await transaction.commit_offsets(hung)
            assert len(await read(hung, 4)) == 4  # nothing was committed
            await hung.commit()
            assert hung.group_metadata().generation > 0

    run(broker, work)


def test_one_that_has_joined_again_does_not_commit_what_it_had_before(broker: TestBroker, protocol: str) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(4)
        options: dict[str, Any] = {"group_protocol": protocol, "auto_commit": False}
        at_loss: list[Any] = []

        async def on_lost(partitions: frozenset[tuple[str, int]]) -> None:
            at_loss.extend(await asyncio.gather(one.commit({(topic.name, 0): 1}), return_exceptions=True))

        async with member(broker, topic, on_lost=on_lost, **options) as one:
            await read(one, 4)
            assert one._core is not None
            group: Any = one._core.membership
            # As when a heartbeat is answered after a pause: the member joins again without being polled.
            assert group._survives(RequestFailed("heartbeat", Err.ILLEGAL_GENERATION))
            group._wake.set()
            while not group.wanted:
                await asyncio.sleep(0.02)
            assert group.identity.epoch > 0
            await refused(one.commit())
            late = one.commit_soon({(topic.name, 0): 1})
            with pytest.raises(RequestFailed, match="gone on without this member"):
                one.group_metadata()
            await refused(late)
            with pytest.raises(RequestFailed, match="gone on without this member"):
                await one.poll(0.1)  # tells of the commit that nobody has to await
            assert len(await read(one, 4)) == 4
            assert [error.error for error in at_loss] == [Err.ILLEGAL_GENERATION]
            await one.commit()
            assert len(await one.committed()) == 4

    run(broker, work)


def test_seek_goes_back_and_forth(broker: TestBroker) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(10)
        async with member(broker, topic) as consumer:
            await read(consumer, 10)
            consumer.seek((topic.name, 0), 4)
            assert await read(consumer, 6) == [(0, offset) for offset in range(4, 10)]
            consumer.seek((topic.name, 0), 9)
            assert await read(consumer, 1) == [(0, 9)] and consumer.position((topic.name, 0)) == 10
            assert (await consumer.lag()) == {(topic.name, 0): (0, 0.0)}
            with pytest.raises(ClientError, match=r"topic-.*-3 is not assigned"):
                consumer.seek((topic.name, 3), 0)

    run(broker, work, partitions=1)


def test_latest_begins_at_the_end_and_none_refuses(broker: TestBroker) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(5)
        async with member(broker, topic, auto_offset_reset="latest") as consumer:
            await settle(consumer, shares=[1])
            await topic.fill(1)
            assert await read(consumer, 1) == [(0, 5)]
        async with member(broker, topic, group="nowhere", auto_offset_reset="none") as lost:
            with pytest.raises(RequestFailed, match="no offset is committed") as refused:
                await read(lost, 1)
            assert refused.value.error is Err.OFFSET_OUT_OF_RANGE

    run(broker, work, partitions=1)


def test_max_records_is_kept_and_nothing_is_skipped(broker: TestBroker) -> None:
    async def work(topic: Topic) -> None:
        builder = BatchBuilder()
        for offset in range(100):
            builder.append(1, None, b"0-%d" % offset)
        await produce(topic.admin.cluster, topic.name, 0, builder.build())
        async with member(broker, topic) as consumer:
            found: list[tuple[int, int]] = []
            while len(found) < 100:
                records = await consumer.poll(0.2, max_records=7)
                assert len(records) <= 7
                found += places(records)
        assert found == [(0, offset) for offset in range(100)]

    run(broker, work, partitions=1)


def test_a_deleted_start_is_skipped_by_the_reset(broker: TestBroker) -> None:
    async def work(topic: Topic) -> None:
        await topic.fill(10)
        async with member(broker, topic) as consumer:
            await read(consumer, 10)
            await topic.admin.delete_records(topic.name, {0: 7})
            consumer.seek((topic.name, 0), 2)
            assert (await read(consumer, 3))[-3:] == [(0, 7), (0, 8), (0, 9)]

    run(broker, work, partitions=1)


@pytest.mark.parametrize("pause_s", [0.0, 1.0], ids=["at once", "later"])
def test_a_topic_made_again_is_read_from_its_start(broker: TestBroker, pause_s: float) -> None:
    """It has the name and the partitions of the one that was deleted, and other records at the same offsets."""

    async def work(topic: Topic) -> None:
        await topic.fill(10)
        lost: list[Any] = []

        async def on_lost(partitions: frozenset[TopicPartition]) -> None:
            lost.extend(partitions)

        # A session that runs out on a slow machine would be another loss.
        patience = {"consumer.session.timeout.ms": "30000"}
        await topic.admin.alter_configs(Resource.GROUP, f"group-{topic.name}", set=patience)
        async with member(broker, topic, auto_commit_interval_ms=300, on_lost=on_lost, on_revoked=on_lost) as consumer:
            await read(consumer, 10)
            await topic.admin.delete_topic(topic.name)
            await asyncio.sleep(pause_s)
            await topic.admin.create_topic(topic.name, 1, 1)
            topic.admin.cluster.topics.clear()
            topic.ends = [0]
            await topic.fill(20)
            assert await read(consumer, 20) == [(0, offset) for offset in range(20)]
            assert lost == [(topic.name, 0)]

    run(broker, work, partitions=1)


def test_a_deleted_topic_takes_nothing_from_the_others(broker: TestBroker) -> None:
    async def work(topic: Topic) -> None:
        doomed = Topic(topic.admin, f"{topic.name}-doomed", 1)
        await topic.admin.create_topic(doomed.name, 1, 1)
        await doomed.fill(5)
        await topic.fill(5)
        options = QUICKLY | {"auto_commit_interval_ms": 300}
        async with Consumer(
            topic.name, doomed.name, bootstrap=broker.bootstrap, group=topic.name, **options
        ) as consumer:
            await read(consumer, 10)
            await topic.admin.delete_topic(doomed.name)
            await topic.fill(5)
            assert await read(consumer, 5) == [(0, offset) for offset in range(5, 10)]
            while consumer.assignment() != {(topic.name, 0)}:
                await consumer.poll(0.1)
            await topic.fill(5)
            await read(consumer, 5)
        assert (await Groups(topic.admin).committed(topic.name))[topic.name, 0].offset == 15

    run(broker, work, partitions=1)


def test_a_killed_and_restarted_broker_is_only_a_pause() -> None:
    async def work(broker: TestBroker) -> None:
        async with asyncio.timeout(LIMIT_S):
            async with Admin(broker.bootstrap) as admin:
                topic = Topic(admin, "through-a-kill", 4)
                await admin.create_topic(topic.name, 4, 1)
                await topic.fill(20)
            async with member(broker, topic) as consumer:
                found = await read(consumer, 20)
                broker.kill()
                assert await consumer.poll(0.3) == []
                await asyncio.to_thread(broker.start)
                async with Admin(broker.bootstrap) as topic.admin:
                    await topic.fill(20)
                    found += await read(consumer, 20)
                await consumer.commit()
                assert consumer.expulsions == 0
            assert Counter(found) == Counter(topic.all)

    with TestBroker(settings={"offsets.topic.num.partitions": "1"}) as broker:
        asyncio.run(work(broker))


def test_bad_options_are_refused_before_anything_is_sent() -> None:
    cases: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("write earliest, latest, none, or by_duration", ["t"], {"auto_offset_reset": "first"}),
        ("option group is empty", ["t"], {"group": ""}),
        ("topics or a pattern, not both", ["t"], {"pattern": "t.*"}),
        ("no regular expression", [], {"pattern": "("}),
        ("topic \\['t'\\] is no name", [["t"]], {}),
        ("did you mean 'auto_offset_reset'", ["t"], {"auto_ofset_reset": "earliest"}),
        ("option max_poll_records is 0", ["t"], {"max_poll_records": 0}),
    ]
    for words, topics, options in cases:
        with pytest.raises(ClientError, match=words):
            Consumer(*topics, **options)
