"""The same few verbs over three real client libraries, so that one test says what each of them must manage.
Consuming is by assignment, from the beginning of partition 0: no groups are involved."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, TypeVar

import aiokafka
import aiokafka.admin
import confluent_kafka as confluent
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.codec
from kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec

T = TypeVar("T")
Headers = tuple[tuple[str, bytes | None], ...]
WAIT_S = 30
LARGEST_BYTES = 12 << 20


class Sent(NamedTuple):
    """One record as it is given to a producer and as it must come back from a consumer."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 1_700_000_000_000


class Client(Protocol):
    def codecs(self) -> Sequence[str]: ...
    def produce(self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]: ...
    def consume(self, bootstrap: str, topic: str, count: int) -> list[Sent]: ...
    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None: ...
    def bounds(self, bootstrap: str, topic: str) -> tuple[int, int]: ...
    def create(self, bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None: ...
    def delete(self, bootstrap: str, topic: str) -> None: ...
    def topics(self, bootstrap: str) -> set[str]: ...
    def partitions(self, bootstrap: str, topic: str) -> int: ...
    def grow(self, bootstrap: str, topic: str, partitions: int) -> None: ...
    def config(self, bootstrap: str, topic: str, name: str) -> str: ...
    def set_config(self, bootstrap: str, topic: str, name: str, value: str) -> None: ...
    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> None: ...


class Confluent:
    """librdkafka, under confluent-kafka-python."""

    def codecs(self) -> Sequence[str]:
        return ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]:
        producer = confluent.Producer({
            "bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5,
            "message.max.bytes": LARGEST_BYTES, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10,
        })  # fmt: skip
        offsets: list[int] = []

        def delivered(error: confluent.KafkaError | None, message: confluent.Message) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for r in records:
            producer.produce(
                topic, r.value, r.key, 0, on_delivery=delivered, timestamp=r.timestamp_ms, headers=list(r.headers)
            )
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0, "records left undelivered"
        return offsets

    def _consumer(self, bootstrap: str) -> confluent.Consumer:
        return confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Sent]:
        consumer = self._consumer(bootstrap)
        consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
        got: list[Sent] = []
        while len(got) < count:
            messages = consumer.consume(count - len(got), WAIT_S)
            assert messages, f"{len(got)} of {count} records after {WAIT_S} s"
            for message in messages:
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                got.append(Sent(message.value(), message.key(), headers, message.timestamp()[1]))
        consumer.close()
        return got

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        consumer = self._consumer(bootstrap)
        (found,) = consumer.offsets_for_times([confluent.TopicPartition(topic, 0, timestamp_ms)], WAIT_S)
        consumer.close()
        return None if found.offset == confluent.OFFSET_END else found.offset

    def bounds(self, bootstrap: str, topic: str) -> tuple[int, int]:
        consumer = self._consumer(bootstrap)
        low, high = consumer.get_watermark_offsets(confluent.TopicPartition(topic, 0), WAIT_S)
        consumer.close()
        return low, high

    def _admin(self, bootstrap: str, use: Callable[[confluent_kafka.admin.AdminClient], dict[object, Future[T]]]) -> T:
        # The variable keeps the client alive until its one future is done: without it the call is cancelled.
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        (future,) = use(admin).values()
        return future.result(WAIT_S)

    def _metadata(self, bootstrap: str, topic: str | None = None) -> confluent_kafka.admin.ClusterMetadata:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        return admin.list_topics(topic, timeout=WAIT_S) if topic else admin.list_topics(timeout=WAIT_S)

    def create(self, bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
        new = confluent_kafka.admin.NewTopic(topic, partitions, 1, config=dotted(configs))
        self._admin(bootstrap, lambda admin: admin.create_topics([new]))

    def delete(self, bootstrap: str, topic: str) -> None:
        self._admin(bootstrap, lambda admin: admin.delete_topics([topic]))

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._metadata(bootstrap).topics)

    def partitions(self, bootstrap: str, topic: str) -> int:
        return len(self._metadata(bootstrap, topic).topics[topic].partitions)

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None:
        new = confluent_kafka.admin.NewPartitions(topic, partitions)
        self._admin(bootstrap, lambda admin: admin.create_partitions([new]))

    def config(self, bootstrap: str, topic: str, name: str) -> str:
        resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.RESOURCE_TOPIC, topic)
        return str(self._admin(bootstrap, lambda admin: admin.describe_configs([resource]))[name].value)

    def set_config(self, bootstrap: str, topic: str, name: str, value: str) -> None:
        operation = confluent_kafka.admin.AlterConfigOpType.SET
        entry = confluent_kafka.admin.ConfigEntry(name, value, incremental_operation=operation)
        kind = confluent_kafka.admin.RESOURCE_TOPIC
        resource = confluent_kafka.admin.ConfigResource(kind, topic, incremental_configs=[entry])
        self._admin(bootstrap, lambda admin: admin.incremental_alter_configs([resource]))

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> None:
        where = confluent.TopicPartition(topic, 0, before_offset)
        done = self._admin(bootstrap, lambda admin: admin.delete_records([where]))
        assert done.low_watermark == before_offset


class AioKafka:
    """aiokafka, an asyncio client with a protocol implementation of its own."""

    def codecs(self) -> Sequence[str]:
        return ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=5,
                enable_idempotence=True, max_request_size=LARGEST_BYTES, retry_backoff_ms=10,
            )  # fmt: skip
            async with producer:
                sends = [
                    await producer.send(topic, r.value, r.key, 0, timestamp_ms=r.timestamp_ms, headers=list(r.headers))
                    for r in records
                ]
                return [done.offset for done in await asyncio.gather(*sends)]

        return asyncio.run(run())

    def _consumer(self, bootstrap: str, topic: str, use: Callable[..., Awaitable[T]]) -> T:
        async def run() -> T:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
            partition = aiokafka.TopicPartition(topic, 0)
            async with consumer:
                consumer.assign([partition])
                return await use(consumer, partition)

        return asyncio.run(run())

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Sent]:
        async def use(consumer: aiokafka.AIOKafkaConsumer, partition: aiokafka.TopicPartition) -> list[Sent]:
            await consumer.seek_to_beginning(partition)
            got: list[Sent] = []
            while len(got) < count:
                got += [sent(r) for r in (await consumer.getmany(timeout_ms=WAIT_S * 1000))[partition]]
            return got

        return self._consumer(bootstrap, topic, use)

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        async def use(consumer: aiokafka.AIOKafkaConsumer, partition: aiokafka.TopicPartition) -> int | None:
            found = (await consumer.offsets_for_times({partition: timestamp_ms}))[partition]
            return None if found is None else found.offset

        return self._consumer(bootstrap, topic, use)

    def bounds(self, bootstrap: str, topic: str) -> tuple[int, int]:
        async def use(consumer: aiokafka.AIOKafkaConsumer, partition: aiokafka.TopicPartition) -> tuple[int, int]:
            begin = await consumer.beginning_offsets([partition])
            end = await consumer.end_offsets([partition])
            return begin[partition], end[partition]

        return self._consumer(bootstrap, topic, use)

    def _admin(self, bootstrap: str, use: Callable[[aiokafka.admin.AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def run() -> T:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                return await use(admin)
            finally:
                await admin.close()

        return asyncio.run(run())

    def create(self, bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
        new = aiokafka.admin.NewTopic(topic, partitions, 1, topic_configs=dotted(configs))
        answer = self._admin(bootstrap, lambda admin: admin.create_topics([new]))
        assert [error for _, error, *_ in answer.topic_errors] == [0], answer

    def delete(self, bootstrap: str, topic: str) -> None:
        answer = self._admin(bootstrap, lambda admin: admin.delete_topics([topic]))
        assert answer.topic_error_codes == [(topic, 0)], answer

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._admin(bootstrap, lambda admin: admin.list_topics()))

    def partitions(self, bootstrap: str, topic: str) -> int:
        (described,) = self._admin(bootstrap, lambda admin: admin.describe_topics([topic]))
        return len(described["partitions"])

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None:
        new = {topic: aiokafka.admin.NewPartitions(partitions)}
        answer = self._admin(bootstrap, lambda admin: admin.create_partitions(new))
        assert [error for _, error, *_ in answer.topic_errors] == [0], answer

    def config(self, bootstrap: str, topic: str, name: str) -> str:
        resource = aiokafka.admin.config_resource.ConfigResource("topic", topic)
        (answer,) = self._admin(bootstrap, lambda admin: admin.describe_configs([resource]))
        ((_, _, _, _, entries),) = answer.resources
        return str(next(entry[1] for entry in entries if entry[0] == name))

    def set_config(self, bootstrap: str, topic: str, name: str, value: str) -> None:
        resource = aiokafka.admin.config_resource.ConfigResource("topic", topic, configs={name: value})
        (answer,) = self._admin(bootstrap, lambda admin: admin.alter_configs([resource]))
        assert answer.resources[0][0] == 0, answer

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> None:
        where = {aiokafka.TopicPartition(topic, 0): aiokafka.admin.records_to_delete.RecordsToDelete(before_offset)}
        answer = self._admin(bootstrap, lambda admin: admin.delete_records(where))
        assert list(answer.values()) == [before_offset], answer


class KafkaPython:
    """kafka-python, pure Python."""

    def codecs(self) -> Sequence[str]:
        return ("none", *(c for c in ("gzip", "snappy", "lz4", "zstd") if getattr(kafka.codec, f"has_{c}")()))

    def produce(self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=5,
            enable_idempotence=True, max_request_size=LARGEST_BYTES, retry_backoff_ms=10,
        )  # fmt: skip
        try:
            sends = [
                producer.send(topic, r.value, r.key, list(r.headers), 0, r.timestamp_ms) for r in records
            ]  # fmt: skip
            return [done.get(WAIT_S).offset for done in sends]
        finally:
            producer.close()

    def _consumer(self, bootstrap: str, topic: str) -> tuple[kafka.KafkaConsumer, kafka.TopicPartition]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        return consumer, partition

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Sent]:
        consumer, partition = self._consumer(bootstrap, topic)
        consumer.seek_to_beginning(partition)
        got: list[Sent] = []
        while len(got) < count:
            records = consumer.poll(WAIT_S * 1000)
            assert records, f"{len(got)} of {count} records after {WAIT_S} s"
            got += [sent(r) for r in records[partition]]
        consumer.close()
        return got

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
        consumer, partition = self._consumer(bootstrap, topic)
        found = consumer.offsets_for_times({partition: timestamp_ms})[partition]
        consumer.close()
        return None if found is None else found.offset

    def bounds(self, bootstrap: str, topic: str) -> tuple[int, int]:
        consumer, partition = self._consumer(bootstrap, topic)
        begin, end = consumer.beginning_offsets([partition]), consumer.end_offsets([partition])
        consumer.close()
        return begin[partition], end[partition]

    def _admin(self, bootstrap: str) -> kafka.KafkaAdminClient:
        return kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
        with self._admin(bootstrap) as admin:
            admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dotted(configs))])

    def delete(self, bootstrap: str, topic: str) -> None:
        with self._admin(bootstrap) as admin:
            admin.delete_topics([topic])

    def topics(self, bootstrap: str) -> set[str]:
        with self._admin(bootstrap) as admin:
            return set(admin.list_topics())

    def partitions(self, bootstrap: str, topic: str) -> int:
        with self._admin(bootstrap) as admin:
            (described,) = admin.describe_topics([topic])
            return len(described["partitions"])

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None:
        with self._admin(bootstrap) as admin:
            admin.create_partitions({topic: NewPartitions(partitions)})

    def config(self, bootstrap: str, topic: str, name: str) -> str:
        with self._admin(bootstrap) as admin:
            described = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
            return str(described["topic"][topic][name]["value"])

    def set_config(self, bootstrap: str, topic: str, name: str, value: str) -> None:
        with self._admin(bootstrap) as admin:
            admin.alter_configs([ConfigResource("TOPIC", topic, {name: value})])

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> None:
        partition = kafka.TopicPartition(topic, 0)
        with self._admin(bootstrap) as admin:
            admin.delete_records({partition: before_offset})
            found = admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})
        assert found[partition].offset == before_offset, found


def sent(record: object) -> Sent:
    """What aiokafka and kafka-python hand out, both as a consumer record with these attributes."""
    r = record
    return Sent(r.value, r.key, tuple(r.headers), r.timestamp)  # type: ignore[attr-defined]


def dotted(configs: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}


CLIENTS: dict[str, Client] = {"confluent": Confluent(), "aiokafka": AioKafka(), "kafka-python": KafkaPython()}
