"""The idempotent producer core against Apache Kafka and Headrace: columns in, the same records out, across a kill."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from headrace.client.admin.admin import Admin
from headrace.client.columnar.columns import RecordColumns
from headrace.client.columnar.encode import encode_rows, partitions_of
from headrace.client.net.cluster import Cluster
from headrace.client.produce.partition_queue import Written
from headrace.client.produce.producer import OutgoingBatch, ProducerCore
from headrace.records.compression import Codec
from headrace.testing.broker import TestBroker
from tests.reference import apache
from tests.reference.apache import ApacheKafka

ROWS = 3000
Broker = TestBroker | ApacheKafka
Row = tuple[bytes | None, bytes | None, Any, int]


@pytest.fixture(scope="module", params=["headrace", pytest.param("apache", marks=pytest.mark.reference)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if request.param == "headrace":
        with TestBroker(tmp_path_factory.mktemp("broker")) as started:
            yield started
        return
    try:
        apache.java()
        apache.libs()
    except apache.Unavailable as missing:
        pytest.skip(str(missing))
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


def columns(first: int, rows: int) -> RecordColumns:
    numbers = range(first, first + rows)
    headers = pa.array(
        [[{"key": "n", "value": b"%d" % n}] if n % 3 else None for n in numbers],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    keys = pa.array([b"key-%d" % n if n % 2 else None for n in numbers], pa.binary())
    values = pa.array([None if n % 11 == 0 else b"%d" % n for n in numbers], pa.binary())
    return RecordColumns.of(
        values, key=keys, headers=headers, timestamps=np.arange(1, rows + 1, dtype=np.int64) + 1_700_000_000_000
    )


def batches(topic: str, table: RecordColumns, partitions: int, codec: int) -> list[OutgoingBatch]:
    chosen = np.maximum(partitions_of(table.key, partitions), 0)
    return [
        OutgoingBatch(topic, partition, one.view, one.count)
        for partition in range(partitions)
        for one in encode_rows(table, np.flatnonzero(chosen == partition), codec=codec, batch_bytes_max=4000)
    ]


def consumed(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Row]]:
    """By librdkafka, which checks everything again."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found: dict[int, list[Row]] = {p: [] for p in range(partitions)}
    ended: set[int] = set()
    while len(ended) < partitions:
        for message in consumer.consume(1000, 0.2):
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            else:
                found[message.partition()].append(
                    (message.key(), message.value(), message.headers(), message.timestamp()[1])
                )
    consumer.close()
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_columns_arrive_as_clients_read_them(broker: Broker, codec: Codec) -> None:
    topic = f"columns-{codec.name.lower()}"
    table = columns(0, ROWS)

    async def play() -> dict[tuple[str, int], Written]:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topic(topic, 3, 1)
        async with Cluster(broker.bootstrap) as cluster, ProducerCore(cluster) as producer:
            assert await producer.partition_count(topic) == 3
            await producer.send(batches(topic, table, 3, codec))
            return await producer.flush()

    written = asyncio.run(play())
    assert sum(one.records for one in written.values()) == ROWS
    found = consumed(broker.bootstrap, topic, 3)
    rows = [row for records in found.values() for row in records]
    assert len(rows) == ROWS
    by_time = {time: (key, value, headers) for key, value, headers, time in rows}
    for n in range(ROWS):
        expected = (
            b"key-%d" % n if n % 2 else None,
            None if n % 11 == 0 else b"%d" % n,
            [("n", b"%d" % n)] if n % 3 else None,
        )
        assert by_time[1_700_000_000_001 + n] == expected
    # librdkafka's partitioner "murmur2_random" is Java's for keys; so must ours be.
    assert all(records[i][3] < records[i + 1][3] for records in found.values() for i in range(len(records) - 1))


@pytest.mark.parametrize("broker", ["headrace", pytest.param("apache", marks=pytest.mark.soak)], indirect=True)
def test_a_broker_that_is_killed_meanwhile_gets_each_record_once(broker: Broker) -> None:
    """Its process is killed and started again while batches are under way."""
    topic = "killed"

    under_way = threading.Event()

    def strike() -> None:
        assert under_way.wait(60)
        broker.kill9() if isinstance(broker, ApacheKafka) else broker.kill()
        broker.start()

    async def play() -> Any:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topic(topic, 2, 1)
        async with Cluster(broker.bootstrap, retry_timeout_s=200) as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count(topic)
            struck = asyncio.create_task(asyncio.to_thread(strike))
            sent = 0
            while not struck.done():
                # Enough to be under way all the time, and not so much that building them is the work.
                if sent < 300:
                    await producer.send(batches(topic, columns(sent * 100, 100), 2, Codec.NONE))
                    sent += 1
                    if sent == 20:
                        under_way.set()
                await asyncio.sleep(0.01)
            await struck
            await producer.flush()
            return sent

    sent = asyncio.run(asyncio.wait_for(play(), 250))
    values = [
        row[1] for records in consumed(broker.bootstrap, topic, 2).values() for row in records if row[1] is not None
    ]
    numbers = sorted(map(int, values))
    expected = [n for n in range(sent * 100) if n % 11]
    assert numbers == expected
