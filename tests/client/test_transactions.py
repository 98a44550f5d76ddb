"""Transactions of the public producer: all or nothing, offsets included, and what spoils one."""

import asyncio

import pytest

import headrace
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, read, read_all, run


def test_consume_transform_produce_is_exactly_once_through_aborts(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Admin(broker.bootstrap) as admin:
            await admin.create_topic(f"{topic}-out", 2, 1)
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_batch(topic, [b"%d" % n for n in range(50)])
        fails = {1, 4}
        turns = 0
        options = QUICK | {"auto_commit": False, "isolation_level": "read_committed"}
        async with (
            headrace.Producer(broker.bootstrap, transactional_id=f"id-{topic}") as producer,
            headrace.Consumer(topic, bootstrap=broker.bootstrap, group=topic, **options) as consumer,
        ):
            while consumer.handed_out().get(headrace.TopicPartition(topic, 0), 0) < 50:
                records = await consumer.poll(1, max_records=7)
                if not records:
                    continue
                turns += 1
                try:
                    async with producer.transaction() as transaction:
                        for record in records:
                            await producer.send_soon(f"{topic}-out", record.value, key=record.value)
                        await transaction.commit_offsets(consumer)
                        if turns in fails:
                            raise ValueError("in mid-work")
                except ValueError:
                    await consumer.seek_to_committed()
            assert await consumer.committed() == {(topic, 0): 50}
        found = await read_all(broker, f"{topic}-out", isolation_level="read_committed")
        assert sorted(int(record.value) for record in found) == list(range(50)) and turns == 10
        dirty = await read_all(broker, f"{topic}-out")
        assert len(dirty) >= len(found)

    run(broker, work)


def test_a_failed_record_spoils_the_transaction(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap, transactional_id=f"id-{topic}") as producer:
            with pytest.raises(headrace.RequestFailed, match=r"max\.message\.bytes"):
                async with producer.transaction():
                    await producer.send(topic, b"fine")
                    await producer.send_soon(topic, b"x" * 20_000)
            async with producer.transaction():
                await producer.send(topic, b"next")
            with pytest.raises(headrace.ClientError, match=r"outside of `async with producer\.transaction"):
                await producer.send(topic, b"outside")
        assert [one.value for one in await read_all(broker, topic, isolation_level="read_committed")] == [b"next"]

    run(broker, work, configs={"max.message.bytes": "10000"})


def test_a_second_producer_fences_the_first(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap, transactional_id=f"id-{topic}") as first:
            async with first.transaction():
                await first.send(topic, b"1")
            async with headrace.Producer(broker.bootstrap, transactional_id=f"id-{topic}") as second:
                async with second.transaction():
                    await second.send(topic, b"2")
                with pytest.raises(headrace.RequestFailed):
                    async with first.transaction():
                        await first.send(topic, b"3")
        assert [one.value for one in await read_all(broker, topic, isolation_level="read_committed")] == [b"1", b"2"]

    run(broker, work)


def test_a_consumer_that_commits_by_itself_is_refused(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with (
            headrace.Producer(broker.bootstrap, transactional_id=f"id-{topic}") as producer,
            headrace.Consumer(topic, bootstrap=broker.bootstrap, group=topic, **QUICK) as consumer,
        ):
            with pytest.raises(headrace.ClientError, match="auto_commit=False"):
                async with producer.transaction() as transaction:
                    await transaction.commit_offsets(consumer)

    run(broker, work)


def test_an_open_transaction_is_not_seen_until_it_commits(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        options = QUICK | {"isolation_level": "read_committed"}
        async with (
            headrace.Producer(broker.bootstrap, transactional_id=f"id-{topic}") as producer,
            headrace.Consumer(topic, bootstrap=broker.bootstrap, **options) as consumer,
        ):
            async with producer.transaction():
                await producer.send(topic, b"soon")
                await asyncio.sleep(0.1)
                assert await consumer.poll(0.1) == []
            assert [record.value for record in await read(consumer, 1)] == [b"soon"]

    run(broker, work)
