"""What each client library must manage with transactions, in Python: the same steps as in the programs of `foreign`.

A client writes to partitions 0 and 1 of a topic. `WRITTEN` is what of it counts; all else was aborted or fenced. Its
group reads another topic, named TOPIC-in.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka as confluent
import kafka
import kafka.errors
import kafka.structs
import pytest

WRITTEN = sorted([*(f"committed-{at}" for at in range(3)), "heir", "with-offsets"] * 2)
"""In both partitions."""
COMMITTED_OFFSET = 3
ABORTED_OFFSET = 5
LIMIT_S = 60.0


class Confluent:
    """librdkafka, under confluent-kafka-python: the classic protocol."""

    def transactions(self, bootstrap: str, topic: str, group: str) -> None:
        producer = self._producer(bootstrap, topic)
        self._send(producer, topic, *(f"committed-{at}" for at in range(3)))
        producer.commit_transaction(LIMIT_S)
        self._send(producer, topic, "aborted")
        producer.flush(LIMIT_S)
        producer.abort_transaction(LIMIT_S)

        reader = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        for end, offset, value in (
            (producer.commit_transaction, COMMITTED_OFFSET, "with-offsets"),
            (producer.abort_transaction, ABORTED_OFFSET, "aborted"),
        ):
            self._send(producer, topic, value)
            at = [confluent.TopicPartition(f"{topic}-in", 0, offset)]
            producer.send_offsets_to_transaction(at, reader.consumer_group_metadata(), LIMIT_S)
            end(LIMIT_S)
        reader.close()

        self._send(producer, topic, "zombie")
        producer.flush(LIMIT_S)
        heir = self._producer(bootstrap, topic)
        self._send(heir, topic, "heir")
        with pytest.raises(confluent.KafkaException) as why:
            producer.commit_transaction(LIMIT_S)
        assert why.value.args[0].code() == confluent.KafkaError._FENCED and why.value.args[0].fatal()
        heir.commit_transaction(LIMIT_S)

    @staticmethod
    def _producer(bootstrap: str, topic: str) -> confluent.Producer:
        producer = confluent.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-id", "log_level": 2}
        )
        producer.init_transactions(LIMIT_S)
        return producer

    @staticmethod
    def _send(producer: confluent.Producer, topic: str, *values: str) -> None:
        producer.begin_transaction()
        for value in values:
            for partition in range(2):
                producer.produce(topic, value, partition=partition)

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[str]:
        reader = confluent.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
        )
        reader.assign([confluent.TopicPartition(topic, partition, 0) for partition in range(2)])
        found: list[str] = []
        while len(found) < count:
            found += [message.value().decode() for message in reader.consume(count, 1.0) if message.error() is None]
        reader.close()
        return found


class Aiokafka:
    """Pure Python on asyncio: the classic protocol."""

    def transactions(self, bootstrap: str, topic: str, group: str) -> None:
        asyncio.run(asyncio.wait_for(self._transactions(bootstrap, topic, group), 2 * LIMIT_S))

    async def _transactions(self, bootstrap: str, topic: str, group: str) -> None:
        producer = await self._producer(bootstrap, topic)
        await self._send(producer, topic, *(f"committed-{at}" for at in range(3)))
        await producer.commit_transaction()
        await self._send(producer, topic, "aborted")
        await producer.abort_transaction()

        zero = aiokafka.TopicPartition(f"{topic}-in", 0)
        for end, offset, value in (
            (producer.commit_transaction, COMMITTED_OFFSET, "with-offsets"),
            (producer.abort_transaction, ABORTED_OFFSET, "aborted"),
        ):
            await self._send(producer, topic, value)
            await producer.send_offsets_to_transaction({zero: offset}, group)
            await end()

        await self._send(producer, topic, "zombie")
        heir = await self._producer(bootstrap, topic)
        await self._send(heir, topic, "heir")
        with pytest.raises(aiokafka.errors.ProducerFenced):
            await producer.commit_transaction()
        await heir.commit_transaction()
        await heir.stop()
        await producer.stop()

    @staticmethod
    async def _producer(bootstrap: str, topic: str) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-id")
        await producer.start()
        return producer

    @staticmethod
    async def _send(producer: aiokafka.AIOKafkaProducer, topic: str, *values: str) -> None:
        await producer.begin_transaction()
        for value in values:
            for partition in range(2):
                await producer.send_and_wait(topic, value.encode(), partition=partition)

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[str]:
        async def read() -> list[str]:
            reader = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
            await reader.start()
            try:
                places = [aiokafka.TopicPartition(topic, partition) for partition in range(2)]
                reader.assign(places)
                await reader.seek_to_beginning(*places)
                return [(await reader.getone()).value.decode() for _ in range(count)]
            finally:
                await reader.stop()

        return asyncio.run(asyncio.wait_for(read(), LIMIT_S))


class KafkaPython:
    """kafka-python 3."""

    def transactions(self, bootstrap: str, topic: str, group: str) -> None:
        producer = self._producer(bootstrap, topic)
        self._send(producer, topic, *(f"committed-{at}" for at in range(3)))
        producer.commit_transaction()
        self._send(producer, topic, "aborted")
        producer.abort_transaction()

        zero = kafka.TopicPartition(f"{topic}-in", 0)
        for end, offset, value in (
            (producer.commit_transaction, COMMITTED_OFFSET, "with-offsets"),
            (producer.abort_transaction, ABORTED_OFFSET, "aborted"),
        ):
            self._send(producer, topic, value)
            producer.send_offsets_to_transaction({zero: kafka.structs.OffsetAndMetadata(offset, "", -1)}, group)
            end()

        self._send(producer, topic, "zombie")
        heir = self._producer(bootstrap, topic)
        self._send(heir, topic, "heir")
        with pytest.raises(kafka.errors.ProducerFencedError):
            producer.commit_transaction()
        heir.commit_transaction()
        heir.close()
        producer.close()

    @staticmethod
    def _producer(bootstrap: str, topic: str) -> kafka.KafkaProducer:
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-id")
        producer.init_transactions()
        return producer

    @staticmethod
    def _send(producer: kafka.KafkaProducer, topic: str, *values: str) -> None:
        producer.begin_transaction()
        for value in values:
            for partition in range(2):
                producer.send(topic, value.encode(), partition=partition)
        producer.flush(LIMIT_S)

    def read_committed(self, bootstrap: str, topic: str, count: int) -> list[str]:
        reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
        places = [kafka.TopicPartition(topic, partition) for partition in range(2)]
        reader.assign(places)
        reader.seek_to_beginning(*places)
        found: list[str] = []
        while len(found) < count:
            for records in reader.poll(1000).values():
                found += [record.value.decode() for record in records]
        reader.close()
        return found


CLIENTS: dict[str, Callable[[], Any]] = {
    "confluent-kafka": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}
