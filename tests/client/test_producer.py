"""The public producer: where records go, how they come back, what fails and with which words."""

import asyncio
import itertools
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

import headrace
from headrace.client.produce.partitioner import partition_for_key
from headrace.errors import Err
from headrace.testing.broker import TestBroker
from tests.client.support import read_all, run


def test_a_record_comes_back_as_it_was_sent(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        async with headrace.Producer(broker.bootstrap) as producer:
            headers: dict[str, Any] = {"trace": b"\x00\x01", "kind": "test", "none": None}
            where = await producer.send(topic, "grüße", key=b"k", headers=headers, timestamp=when, partition=1)
            assert where == headrace.RecordMetadata(topic, 1, 0, int(when.timestamp() * 1000))
            await producer.send(topic, None, key="gone", timestamp=5, partition=0)
        tombstone, record = sorted(await read_all(broker, topic), key=lambda one: one.partition)
        assert (record.partition, record.offset, record.key, record.value) == (1, 0, b"k", "grüße".encode())
        assert record.timestamp == where.timestamp and record.header("kind") == b"test" and record.header("?") is None
        assert record.headers == (("trace", b"\x00\x01"), ("kind", b"test"), ("none", None))
        assert (tombstone.key, tombstone.value, tombstone.timestamp) == (b"gone", None, 5)

    run(broker, work, partitions=2)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_survive_every_codec_in_order(broker: TestBroker, codec: str) -> None:
    async def work(topic: str) -> None:
        values = [b"%d-" % number * 20 for number in range(500)]
        async with headrace.Producer(broker.bootstrap, compression=codec, batch_bytes=4_000) as producer:
            where = await producer.send_batch(topic, values, keys=[b"%d" % (n % 7) for n in range(500)])
        assert [one.offset for one in where] == list(range(500))
        found = await read_all(broker, topic)
        assert [record.value for record in found] == values
        assert [record.key for record in found] == [b"%d" % (n % 7) for n in range(500)]

    run(broker, work)


def test_same_key_same_partition(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        keys = [b"user-%d" % (number % 10) for number in range(100)]
        async with headrace.Producer(broker.bootstrap) as producer:
            where = await producer.send_batch(topic, [b""] * 100, keys=keys)
        assert all(one.partition == partition_for_key(key, 5) for one, key in zip(where, keys))
        assert len({one.partition for one in where}) > 1

    run(broker, work, partitions=5)


def test_round_robin_goes_from_partition_to_partition(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap, partitioner="round_robin") as producer:
            where = [await producer.send(topic, b"x") for _ in range(9)]
        assert [one.partition for one in where] == [0, 1, 2] * 3

    run(broker, work, partitions=3)


def test_without_a_key_records_stay_together_and_move_on(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            where = await producer.send_batch(topic, [b"x" * 1_000] * 500)
        runs = [one.partition for one in where]
        changes = sum(a != b for a, b in itertools.pairwise(runs))
        assert set(Counter(runs)) == {0, 1, 2} and changes < 60

    run(broker, work, partitions=3)


def test_a_partitioner_of_ones_own_decides(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        def last(topic: str, key: bytes | None, partitions: int) -> int:
            return partitions - 1

        async with headrace.Producer(broker.bootstrap, partitioner=last) as producer:
            assert (await producer.send(topic, b"", key=b"any")).partition == 2
        async with headrace.Producer(broker.bootstrap, partitioner=lambda *_: 7) as producer:
            with pytest.raises(headrace.RequestFailed, match="3 partitions, 0 to 2"):
                await producer.send(topic, b"")

    run(broker, work, partitions=3)


def test_deliveries_come_in_order_and_can_be_looked_at(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap, batch_bytes=500) as producer:
            told: list[int] = []
            deliveries = []
            for number in range(200):
                delivery = await producer.send_soon(topic, b"%d" % number)
                delivery.add_done_callback(lambda one: told.append(one.result().offset))
                deliveries.append(delivery)
            assert not deliveries[-1].done()
            with pytest.raises(headrace.ClientError, match="still open"):
                deliveries[-1].result()
            assert (await deliveries[150]).offset == 150
            await producer.flush()
            assert told == list(range(200)) and deliveries[7].result().offset == 7 and deliveries[7].exception() is None

    run(broker, work)


def test_a_full_buffer_makes_senders_wait_and_loses_nothing(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap, buffer_bytes=20_000, batch_bytes=2_000) as producer:
            for number in range(500):
                await producer.send_soon(topic, b"%d" % number + b"." * 500)
                assert producer._core is not None and producer._core._buffered_bytes < 25_000
        assert len(await read_all(broker, topic)) == 500

    run(broker, work)


def test_linger_waits_for_company(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap, linger_ms=50) as producer:
            sends = [asyncio.ensure_future(producer.send(topic, b"%d" % n)) for n in range(3)]
            await asyncio.sleep(0.005)
            sends.append(asyncio.ensure_future(producer.send(topic, b"late")))
            where = await asyncio.gather(*sends)
            assert [one.offset for one in where] == [0, 1, 2, 3]
            core = producer._core
            assert core is not None and core._queues[topic, 0].order == 1, "one batch for all four"

    run(broker, work)


def test_one_record_too_large_fails_alone(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            before = await producer.send_soon(topic, b"before")
            large = await producer.send_soon(topic, b"x" * 20_000)
            after = await producer.send_soon(topic, b"after")
            with pytest.raises(headrace.RequestFailed, match=r"raise its max\.message\.bytes") as failed:
                await large
            assert failed.value.error is Err.MESSAGE_TOO_LARGE
            assert (await before).offset == 0 and (await after).offset == 1
            assert (await producer.send(topic, b"and on")).offset == 2
        async with headrace.Producer(broker.bootstrap, request_bytes=1_000) as producer:
            with pytest.raises(headrace.RequestFailed, match="raise request_bytes"):
                await producer.send(topic, b"x" * 2_000)

    run(broker, work, configs={"max.message.bytes": "10000"})


def test_a_failure_that_nobody_looked_at_is_raised_by_flush_and_close(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_soon(topic, b"x" * 20_000)
            with pytest.raises(headrace.RequestFailed, match=r"max\.message\.bytes"):
                await producer.flush()
            await producer.flush()
        with pytest.raises(headrace.RequestFailed, match=r"max\.message\.bytes"):
            async with headrace.Producer(broker.bootstrap) as producer:
                await producer.send_soon(topic, b"x" * 20_000)

    run(broker, work, configs={"max.message.bytes": "10000"})


def test_wrong_types_say_what_to_do(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            cases: list[tuple[str, str, Any, dict[str, Any]]] = [
                ("the value is dict, not bytes or text.*value_serializer", topic, {"a": 1}, {}),
                ("the key is int", topic, b"", {"key": 5}),
                ("the timestamp is -1", topic, b"", {"timestamp": -1}),
                ("a header is 'a'", topic, b"", {"headers": "ab"}),
                ("the name of a header is 1", topic, b"", {"headers": [(1, b"")]}),
                ("the topic has 1 partition, number 0", topic, b"", {"partition": 3}),
                ("the topic is 7", 7, b"", {}),  # type: ignore[list-item]
                ("there is no topic of this name: create it", "nowhere", b"", {}),
                ("'a b' is not a topic name", "a b", b"", {}),
                ("a header is 'ab': give a dict", topic, b"", {"headers": ["ab"]}),
                ("the headers are 5: give a dict", topic, b"", {"headers": 5}),
                ("content of header 'a' is int, not bytes or text$", topic, b"", {"headers": {"a": 5}}),
                ("the partition is '0': give its number", topic, b"", {"partition": "0"}),
                ("the partition is True: give its number", topic, b"", {"partition": True}),
                ("the value is no text that UTF-8 can hold", topic, "\ud800", {}),
            ]
            for words, where, value, options in cases:
                with pytest.raises(headrace.ClientError, match=words):
                    await producer.send(where, value, **options)
            for values, keys, words in (
                ("abc", None, "the values are str: give a list"),
                (None, None, "the values are NoneType"),
                ([b"a", b"b"], [b"k"], "there are 2 values and 1 keys"),
                ([b"a"], "k", "the keys are str"),
            ):
                with pytest.raises(headrace.ClientError, match=words):
                    await producer.send_batch(topic, values, keys=keys)  # type: ignore[arg-type]
            assert (await producer.send(topic, b"fine")).offset == 0, "nothing of it was sent"

    run(broker, work)


def test_a_producer_that_is_not_open_says_so(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        producer = headrace.Producer(broker.bootstrap)
        with pytest.raises(headrace.ClientError, match="not started"):
            await producer.send(topic, b"")
        async with producer:
            with pytest.raises(headrace.ClientError, match="give the producer transactional_id"):
                producer.transaction()
        for use in (producer.send(topic, b""), producer.flush(), producer.start()):
            with pytest.raises(headrace.ClientError, match="closed: make a new one"):
                await use
        await producer.close()

    run(broker, work)


def test_no_broker_is_said_at_once() -> None:
    async def play() -> None:
        with pytest.raises(headrace.BrokerUnreachable, match=r"127\.0\.0\.1:1"):
            async with headrace.Producer("127.0.0.1:1"):
                pass
        with pytest.raises(headrace.BrokerUnreachable, match=r"127\.0\.0\.1:1"):
            async with headrace.Consumer("t", bootstrap="127.0.0.1:1"):
                pass

    asyncio.run(play())


def test_values_go_through_serializers_and_come_back(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        options: dict[str, Any] = {"key_serializer": "str", "value_serializer": "json"}
        async with headrace.Producer(broker.bootstrap, **options) as producer:
            await producer.send(topic, {"cents": 350, "what": ["coffee"]}, key="7")
            await producer.send(topic, None, key=None)
            with pytest.raises(headrace.SerializationFailed, match="cannot be serialized"):
                await producer.send(topic, object())
        decoders: dict[str, Any] = {"key_deserializer": "str", "value_deserializer": "json"}
        first, second = await read_all(broker, topic, **decoders)
        assert (first.key, first.value) == ("7", {"cents": 350, "what": ["coffee"]})
        assert (second.key, second.value) == (None, None)

    run(broker, work)


def test_partitions_that_are_added_later_are_used(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        options: dict[str, Any] = {"partitioner": "round_robin", "metadata_max_age_ms": 50}
        async with headrace.Producer(broker.bootstrap, **options) as producer:
            await producer.send(topic, b"")
            async with headrace.Admin(broker.bootstrap) as admin:
                await admin.create_partitions(topic, 3)
            while (await producer.send(topic, b"")).partition != 2:
                await asyncio.sleep(0.02)

    run(broker, work)


def test_a_record_that_is_awaited_alone_leaves_at_once_and_many_go_together(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send(topic, b"first")
            core = producer._core
            assert core is not None
            alone = asyncio.create_task(producer.send(topic, b"alone"))
            await asyncio.sleep(0)
            assert len(core._posted) == 1 and (await alone).offset == 1
            many = [asyncio.create_task(producer.send(topic, b"%d" % n)) for n in range(100)]
            requests = set()
            while not all(task.done() for task in many):
                requests |= core._posted
                await asyncio.sleep(0)
            assert len(requests) <= 3 and [(await task).offset for task in many] == list(range(2, 102))
            again = [asyncio.create_task(producer.send(topic, b"%d" % n)) for n in range(100)]
            await asyncio.sleep(0)
            assert not core._posted, "the last were many: these wait for each other"
            await asyncio.gather(*again)
        values = [record.value for record in await read_all(broker, topic)]
        assert values == [b"first", b"alone", *(b"%d" % n for n in [*range(100)] * 2)]

    run(broker, work)
