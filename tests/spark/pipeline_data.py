"""Topics of a pipeline: made, filled and read back."""

import asyncio
import json
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.client.admin.admin import Admin
from headrace.testing.broker import TestBroker


def create(broker: TestBroker, *topics: str) -> None:
    async def work() -> None:
        async with Admin(broker.bootstrap) as admin:
            for topic in topics:
                await admin.create_topic(topic, 3, 1)

    asyncio.run(work())


def send(broker: TestBroker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n, value in enumerate(values):
        producer.produce(topic, value, key=f"k{n}")
    assert producer.flush(30) == 0


def read_all(broker: TestBroker, topic: str) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"test-{topic}",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
    found, ended = [], set[int]()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            found.append(message)
    consumer.close()
    return found


def orders(first: int, count: int, minute: int) -> list[bytes]:
    return [
        json.dumps(
            {"id": n, "country": "CH" if n % 2 else "DE", "amount": n % 10, "at": f"2024-01-01T00:{minute:02}:00Z"}
        ).encode()
        for n in range(first, first + count)
    ]
