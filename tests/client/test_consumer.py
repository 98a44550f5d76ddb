"""The public consumer beyond groups: by hand, by pattern, by time, paused, deserialized, and used wrongly."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.testing.broker import TestBroker
from tests.client.conftest import SETTINGS
from tests.client.support import QUICK, read, read_all, run
from tests.reference.either import KINDS, running_broker
from tests.waiting import until


def reader(broker: TestBroker, *topics: str, **options: Any) -> headrace.Consumer:
    return headrace.Consumer(*topics, bootstrap=broker.bootstrap, **QUICK | options)


async def fill(broker: TestBroker, topic: str, count: int, **options: Any) -> None:
    async with headrace.Producer(broker.bootstrap, partitioner="round_robin") as producer:
        await producer.send_batch(topic, [b"%d" % number for number in range(count)], **options)


def test_partitions_by_hand_and_their_commits(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic, 30)
        async with reader(broker, group=topic) as consumer:
            await consumer.assign([(topic, 1)])
            assert consumer.assignment() == {(topic, 1)} and consumer.member_id == ""
            assert [record.partition for record in await read(consumer, 10)] == [1] * 10
            await consumer.assign([(topic, 2)])
            record = (await read(consumer, 1))[0]
            await consumer.commit(record)
            assert await consumer.committed((topic, 1), (topic, 2)) == {(topic, 1): 10, (topic, 2): record.offset + 1}
            with pytest.raises(headrace.RequestFailed, match="3 partitions, 0 to 2"):
                await consumer.assign([(topic, 7)])
        async with reader(broker, topic) as consumer:
            with pytest.raises(headrace.ClientError, match="has topics or a pattern"):
                await consumer.assign([(topic, 1)])

    run(broker, work, partitions=3)


@pytest.mark.parametrize("group_protocol", ["consumer", "classic", "none"])
def test_a_pattern_finds_topics(broker: TestBroker, group_protocol: str) -> None:
    async def work(topic: str) -> None:
        async with headrace.Admin(broker.bootstrap) as admin:
            await admin.create_topic(f"{topic}-also", 1, 1)
        await fill(broker, topic, 5)
        await fill(broker, f"{topic}-also", 5)
        options: dict[str, Any] = {} if group_protocol == "none" else {"group": topic, "group_protocol": group_protocol}
        async with reader(broker, pattern=f"{topic}(-also)?", **options) as consumer:
            found = await read(consumer, 10)
            assert {record.topic for record in found} == {topic, f"{topic}-also"}

    run(broker, work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_is_classic_where_the_other_protocol_is_off(kind: str, tmp_path: Path) -> None:
    settings = SETTINGS | {"group.coordinator.rebalance.protocols": "classic"}
    with running_broker(kind, tmp_path, settings) as running:
        classic: Any = running

        async def work(topic: str) -> None:
            await fill(classic, topic, 5)
            async with reader(classic, topic, group=topic) as consumer:
                assert len(await read(consumer, 5)) == 5

        run(classic, work)


def test_seeking_by_time_to_the_ends_and_back(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        for number in range(5):
            await fill(broker, topic, 2, timestamp=1_000 * (number + 1))
        async with reader(broker, topic) as consumer:
            await read(consumer, 10)
            assert await consumer.seek_to_time(3_000) == {(topic, 0): 4}
            assert [record.timestamp for record in await read(consumer, 6)] == [3000, 3000, 4000, 4000, 5000, 5000]
            assert await consumer.seek_to_time(99_000) == {(topic, 0): 10}
            await consumer.seek_to_beginning()
            assert (await consumer.poll(5, max_records=1))[0].offset == 0
            assert (await consumer.lag())[headrace.TopicPartition(topic, 0)].records == 9
            await consumer.seek_to_end((topic, 0))
            assert consumer.position((topic, 0)) == 10 and await consumer.poll(0.1) == []
            for bad in (-1, "x", True):
                with pytest.raises(headrace.ClientError, match="offsets begin at 0"):
                    consumer.seek((topic, 0), bad)  # type: ignore[arg-type]

    run(broker, work)


def test_what_is_paused_waits_and_nothing_of_it_is_lost(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic, 20)
        async with reader(broker, topic) as consumer:
            first = await read(consumer, 1)
            consumer.pause((topic, 0))
            assert consumer.paused() == {(topic, 0)}
            rest: list[headrace.Record] = []
            while records := await consumer.poll(0.3):
                rest += records
            assert all(record.partition == 1 for record in rest)
            consumer.resume()
            found = first + rest
            while len(found) < 20:
                found += await consumer.poll(0.5)
            assert sorted((record.partition, record.offset) for record in found) == [
                (index, offset) for index in (0, 1) for offset in range(10)
            ]

    run(broker, work, partitions=2)


def test_batches_are_of_one_partition_and_in_order(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic, 300)
        async with reader(broker, topic, group=topic, auto_commit=False) as consumer:
            ends = [0, 0, 0]
            async for batch in consumer.batches(max_records=40):
                assert 1 <= len(batch) <= 40 and batch[0].offset == ends[batch.partition]
                assert [record.offset for record in batch] == list(range(batch[0].offset, batch.next_offset))
                ends[batch.partition] = batch.next_offset
                await consumer.commit(batch)
                if sum(ends) == 300:
                    break
            assert await consumer.committed() == {(topic, index): 100 for index in range(3)}

    run(broker, work, partitions=3)


def test_one_that_cannot_be_deserialized_is_told_and_can_be_passed(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_batch(topic, [b"1", b"{", b"3"])
        async with reader(broker, topic, value_deserializer="json") as consumer:
            assert [record.value for record in await read(consumer, 1)] == [1]
            for _ in range(2):
                with pytest.raises(headrace.RecordUnreadable, match=r"offset 1 cannot be deserialized.*seek") as failed:
                    await consumer.poll(5)
            assert failed.value.record.value == b"{"
            consumer.seek((topic, 0), failed.value.record.offset + 1)
            assert [record.value for record in await read(consumer, 1)] == [3]

    run(broker, work)


def test_no_policy_and_no_offset_is_an_error_and_a_duration_is_a_policy(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic, 3, timestamp=1_000)
        await fill(broker, topic, 3)
        async with reader(broker, topic, auto_offset_reset="none") as consumer:
            with pytest.raises(headrace.RequestFailed, match="no offset is committed"):
                await consumer.poll(5)
        found = await read_all(broker, topic, auto_offset_reset="by_duration:PT1H")
        assert [record.offset for record in found] == [3, 4, 5]

    run(broker, work)


def test_commits_without_waiting_are_made_in_order(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        await fill(broker, topic, 10)
        async with reader(broker, topic, group=topic, auto_commit=False) as consumer:
            async for record in consumer:
                consumer.commit_soon()
                if record.offset == 9:
                    break
        async with reader(broker, group=topic) as consumer:
            assert await consumer.committed((topic, 0)) == {(topic, 0): 10}

    run(broker, work)


def test_wrong_use_says_what_to_do(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        consumer = reader(broker, topic)
        with pytest.raises(headrace.ClientError, match="not started"):
            await consumer.poll()
        async with consumer:
            with pytest.raises(headrace.ClientError, match="give the consumer a group"):
                await consumer.commit()
            with pytest.raises(headrace.ClientError, match="not assigned"):
                consumer.position(("other", 0))
            with pytest.raises(headrace.ClientError, match="is no partition"):
                consumer.pause("other")  # type: ignore[arg-type]
            waiting = asyncio.ensure_future(consumer.poll(0.5))
            await asyncio.sleep(0)
            with pytest.raises(headrace.ClientError, match="two tasks read from one consumer"):
                await consumer.poll()
            await waiting
        with pytest.raises(headrace.ClientError, match="closed: make a new one"):
            await consumer.poll()
        async with reader(broker, "nowhere") as consumer:
            with pytest.raises(headrace.RequestFailed, match="there is no topic of this name"):
                await consumer.poll()
        async with reader(broker, topic, group=topic) as consumer:
            for bad in ({(topic, 0): -1}, {(topic, 0): "1"}, {"t": 1}, [1]):
                with pytest.raises(headrace.ClientError, match="cannot be committed"):
                    await consumer.commit(bad)  # type: ignore[arg-type]
            while not consumer.assignment():
                await consumer.poll(0.1)
            for unknown, words in (
                ((topic, 77), "the topic has 1 partition, number 0"),
                (("no", 0), "no topic of this"),
            ):
                with pytest.raises(headrace.RequestFailed, match=words):
                    await consumer.commit({unknown: 1})
            calls: list[tuple[Callable[[], Any], str]] = [
                (lambda: consumer.poll("1"), "timeout_s is '1': give seconds"),  # type: ignore[arg-type]
                (lambda: consumer.seek_to_time("now"), "the time is 'now': give milliseconds"),  # type: ignore[arg-type]
            ]
            for call, words in calls:
                with pytest.raises(headrace.ClientError, match=words):
                    await call()
            with pytest.raises(headrace.ClientError, match="is no partition: give"):
                consumer.seek(topic, 1)  # type: ignore[arg-type]
        async with reader(broker) as consumer:
            for given, words in (
                (topic, "are no partitions: give a list"),
                ([(topic, "0")], "is no partition: give"),
                ({(topic, 0): -5}, "offset -5 is none"),
                ([(topic, 5)], "the topic has 1 partition, number 0"),
            ):
                with pytest.raises(headrace.ClientError, match=words):
                    await consumer.assign(given)  # type: ignore[arg-type]
        async with headrace.Admin(broker.bootstrap) as admin:
            pass
        with pytest.raises(headrace.ClientError, match="the client is closed: make a new one"):
            await admin.list_topics()

    run(broker, work)


@pytest.mark.parametrize("by_hand", [False, True])
def test_without_a_group_a_topic_made_again_is_read_from_its_start(
    broker: TestBroker, by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(topic: str) -> None:
        lost: list[frozenset[headrace.TopicPartition]] = []
        async with (
            headrace.Admin(broker.bootstrap) as admin,
            headrace.Producer(broker.bootstrap) as producer,
            reader(broker, *([] if by_hand else [topic]), on_lost=lost.append) as consumer,
        ):
            if by_hand:
                await consumer.assign([(topic, 0)])
            await producer.send_batch(topic, [b"old"] * 5)
            assert len(await read(consumer, 5)) == 5
            await admin.delete_topic(topic)
            await admin.create_topic(topic, 1, 1)
            await producer.send_batch(topic, [b"new"] * 3)
            found = await read(consumer, 3)
            assert [(record.offset, record.value) for record in found] == [(0, b"new"), (1, b"new"), (2, b"new")]
            assert lost == [{(topic, 0)}], "what was handed out was of the old one"
            assert "was deleted and made again" in caplog.text

    run(broker, work)


def test_a_static_member_keeps_its_partitions_through_a_restart(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        told: list[str] = []
        options: dict[str, Any] = {"group": topic, "on_revoked": lambda _: told.append("revoked")}
        async with reader(broker, topic, **options) as other:
            had: list[frozenset[headrace.TopicPartition]] = []
            for _ in range(2):
                async with reader(broker, topic, group=topic, instance_id="one") as static:
                    while len(static.assignment()) != 1 or len(other.assignment()) != 1:
                        await static.poll(0.05)
                        await other.poll(0.05)
                    had.append(static.assignment())
                    if len(had) == 1:
                        told.clear()
            assert had[0] == had[1] and told == []

    run(broker, work, partitions=2)


def test_committed_offsets_are_told_before_joining_and_after_leaving(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        group = f"group-of-{topic}"
        async with headrace.Consumer(bootstrap=broker.bootstrap, group=group, **QUICK) as by_hand:
            await by_hand.assign([(topic, 0)])
            await by_hand.commit({(topic, 0): 7})
        options: dict[str, Any] = {**QUICK, "max_poll_interval_ms": 500, "auto_commit": False}
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, group=group, **options) as consumer:
            assert await consumer.committed((topic, 0)) == {(topic, 0): 7}
            while not consumer.assignment():
                await consumer.poll(0.1)
            await until(lambda: consumer._identity().epoch < 0, "a member that does not poll leaves")
            assert await consumer.committed((topic, 0)) == {(topic, 0): 7}

    run(broker, work)
