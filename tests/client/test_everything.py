"""A user's program that uses all of the clients. Type checkers see it as a user's does (`make lint` is strict), and
`assert_type` says which types it gets; public names explain themselves."""

import inspect
from collections.abc import Iterator
from typing import Any, assert_type

import headrace
import headrace.sync
from headrace.client.api.types import GroupMetadata
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, run


def test_every_call_has_the_type_that_it_says(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        at = headrace.TopicPartition(topic, 0)
        async with headrace.Producer(broker.bootstrap, transactional_id=f"all-{topic}") as producer:
            async with producer.transaction():
                delivery = assert_type(await producer.send_soon(topic, "a", headers={"h": None}), headrace.Delivery)
                places = assert_type(
                    await producer.send_batch(topic, ["b", "c"], keys=["k", None]), list[headrace.RecordMetadata]
                )
            assert assert_type(delivery.exception(), headrace.ClientError | None) is None
            assert assert_type(delivery.result(), headrace.RecordMetadata).offset == 0 and len(places) == 2
            assert assert_type(await producer.partitions(topic), int) == 1
        options: dict[str, Any] = {**QUICK, "group": topic, "auto_commit": False}
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, **options) as consumer:
            async for record in consumer:
                assert_type(record, headrace.Record)
                assert_type(record.header("h"), bytes | None)
                break
            async for batch in consumer.batches():
                assert_type(batch, headrace.Batch)
                assert_type(batch[0], headrace.Record)
                assert_type(batch[:1], list[headrace.Record])
                assert batch.topic_partition == at
                break
            await consumer.commit()
            await consumer.commit_soon({at: 1})
            assert_type(await consumer.committed(at), dict[headrace.TopicPartition, int])
            assert_type(await consumer.lag(), dict[headrace.TopicPartition, headrace.PartitionLag])
            assert_type(consumer.assignment(), frozenset[headrace.TopicPartition])
            assert_type(consumer.group_metadata(), GroupMetadata)
            assert_type(consumer.handed_out(), dict[headrace.TopicPartition, int])
            consumer.pause(at)
            assert assert_type(consumer.paused(), frozenset[headrace.TopicPartition]) == {at}
            consumer.resume()
            consumer.seek(at, 0)
            assert assert_type(consumer.position(at), int) == 0
            for seek in (consumer.seek_to_beginning, consumer.seek_to_end, consumer.seek_to_committed):
                assert set(assert_type(await seek(), dict[headrace.TopicPartition, int])) == {at}
            assert_type(await consumer.seek_to_time(0), dict[headrace.TopicPartition, int])
            assert_type(await consumer.poll(0), list[headrace.Record])
        async with headrace.Admin(broker.bootstrap) as admin:
            assert (await admin.describe_topic(topic)).name == topic

    run(broker, work)


def public() -> Iterator[tuple[str, Any]]:
    """All names of `headrace` and `headrace.sync`, with the members of their classes."""
    for module in (headrace, headrace.sync):
        for name in module.__all__ if module is headrace else ("Admin", "Consumer", "Producer", "SchemaRegistry"):
            one = getattr(module, name)
            yield f"{module.__name__}.{name}", one
            if inspect.isclass(one):
                yield from ((f"{module.__name__}.{name}.{member}", found) for member, found in vars(one).items())


def test_public_names_have_docstrings_and_types() -> None:
    protocols = {"serialize", "deserialize", "start", "refresh", "has", "add", "close", "kind"}
    for name, one in public():
        member = name.rpartition(".")[2]
        function = one.fget if isinstance(one, property) else one
        if member.startswith("_") or not (inspect.isfunction(function) or inspect.isclass(function)):
            continue
        assert function.__doc__ or member in protocols, f"{name} does not say what it does"
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            assert signature.return_annotation is not signature.empty, name
            for parameter in [*signature.parameters.values()][1:]:
                assert parameter.annotation is not parameter.empty, f"{name}: {parameter.name}"
