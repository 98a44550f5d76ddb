"""Python clients beside one another, from Python code, on one broker: `python -m bench.python_clients`.

Headrace's row API (asyncio), its batches and its tables, confluent-kafka, aiokafka and kafka-python: records of 100
bytes and 1 KB out and back in, and the time of one awaited send. All at acks=all into one partition; each figure is the
best of interleaved turns, since what else the machine does only ever slows a turn down.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
import confluent_kafka as confluent
import kafka

import headrace
from headrace.testing.broker import TestBroker

SENDS = 300
WARM = 50


def columns_of(value: bytes, count: int) -> Any:
    import pyarrow as pa

    return pa.table({"value": pa.array([value] * count, pa.binary())})


async def headrace_out(boot: str, topic: str, value: bytes, count: int) -> float:
    async with headrace.Producer(boot, linger_ms=5) as producer:
        await producer.send(topic, value)
        begin = time.perf_counter()
        for _ in range(count):
            await producer.send_soon(topic, value, partition=0)
        await producer.flush()
        return time.perf_counter() - begin


async def headrace_table_out(boot: str, topic: str, value: bytes, count: int) -> float:
    async with headrace.Producer(boot) as producer:
        table = columns_of(value, count)
        await producer.send_table(topic, table.slice(0, 1), partition=0)
        begin = time.perf_counter()
        await producer.send_table(topic, table, partition=0)
        return time.perf_counter() - begin


async def aiokafka_out(boot: str, topic: str, value: bytes, count: int) -> float:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=boot, acks="all", enable_idempotence=True, linger_ms=5, max_batch_size=256 << 10
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, value)
        begin = time.perf_counter()
        for _ in range(count):
            await producer.send(topic, value, partition=0)
        await producer.flush()
        return time.perf_counter() - begin
    finally:
        await producer.stop()


async def confluent_out(boot: str, topic: str, value: bytes, count: int) -> float:
    producer = confluent.Producer(
        {"bootstrap.servers": boot, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    )
    producer.produce(topic, value, partition=0)
    producer.flush()
    begin = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return time.perf_counter() - begin


async def kafka_python_out(boot: str, topic: str, value: bytes, count: int) -> float:
    producer = kafka.KafkaProducer(bootstrap_servers=boot, acks="all", linger_ms=5, batch_size=256 << 10)
    try:
        producer.send(topic, value, partition=0).get(30)
        begin = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value, partition=0)
        producer.flush()
        return time.perf_counter() - begin
    finally:
        producer.close()


def headrace_reader(boot: str, topic: str) -> headrace.Consumer:
    return headrace.Consumer(topic, bootstrap=boot, auto_offset_reset="earliest")


async def headrace_rows(boot: str, topic: str, count: int) -> float:
    async with headrace_reader(boot, topic) as consumer:
        begin, got = time.perf_counter(), 0
        async for _ in consumer:
            got += 1
            if got == count:
                break
        return time.perf_counter() - begin


async def headrace_batches(boot: str, topic: str, count: int) -> float:
    async with headrace_reader(boot, topic) as consumer:
        begin, got = time.perf_counter(), 0
        async for batch in consumer.batches():
            got += len(batch)
            if got >= count:
                break
        return time.perf_counter() - begin


async def headrace_tables(boot: str, topic: str, count: int) -> float:
    async with headrace.Consumer(
        topic, bootstrap=boot, auto_offset_reset="earliest", partition_fetch_bytes=8 << 20
    ) as consumer:
        begin, got = time.perf_counter(), 0
        async for table in consumer.tables(["key", "value", "offset", "timestamp"]):
            got += table.num_rows
            if got >= count:
                break
        return time.perf_counter() - begin


async def aiokafka_rows(boot: str, topic: str, count: int) -> float:
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=boot, auto_offset_reset="earliest")
    await consumer.start()
    try:
        begin, got = time.perf_counter(), 0
        async for _ in consumer:
            got += 1
            if got == count:
                break
        return time.perf_counter() - begin
    finally:
        await consumer.stop()


async def aiokafka_batches(boot: str, topic: str, count: int) -> float:
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=boot, auto_offset_reset="earliest")
    await consumer.start()
    try:
        begin, got = time.perf_counter(), 0
        while got < count:
            found = await consumer.getmany(timeout_ms=1000)
            got += sum(map(len, found.values()))
        return time.perf_counter() - begin
    finally:
        await consumer.stop()


async def confluent_batches(boot: str, topic: str, count: int) -> float:
    consumer = confluent.Consumer(
        {"bootstrap.servers": boot, "group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    try:
        begin, got = time.perf_counter(), 0
        while got < count:
            got += sum(message.value() is not None for message in consumer.consume(10_000, 1))
        return time.perf_counter() - begin
    finally:
        consumer.close()


async def kafka_python_rows(boot: str, topic: str, count: int) -> float:
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=boot, auto_offset_reset="earliest")
    try:
        begin = time.perf_counter()
        for got, _ in enumerate(consumer, 1):
            if got == count:
                break
        return time.perf_counter() - begin
    finally:
        consumer.close()


async def headrace_send(boot: str, topic: str) -> list[float]:
    async with headrace.Producer(boot) as producer:
        return await timed(lambda: producer.send(topic, b"x" * 100))


async def aiokafka_send(boot: str, topic: str) -> list[float]:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=boot, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        return await timed(lambda: producer.send_and_wait(topic, b"x" * 100))
    finally:
        await producer.stop()


async def confluent_send(boot: str, topic: str) -> list[float]:
    """Its fastest way: no lingering, and a flush that waits for the one."""
    producer = confluent.Producer({"bootstrap.servers": boot, "enable.idempotence": True, "linger.ms": 0})

    async def send() -> None:
        producer.produce(topic, b"x" * 100)
        producer.flush()

    return await timed(send)


async def timed(send: Callable[[], Coroutine[Any, Any, Any]]) -> list[float]:
    found = []
    for number in range(SENDS + WARM):
        begin = time.perf_counter()
        await send()
        if number >= WARM:
            found.append(time.perf_counter() - begin)
    return found


OUT = {
    "headrace send_soon": (headrace_out, 1.0),
    "headrace send_table": (headrace_table_out, 2.0),
    "confluent-kafka produce": (confluent_out, 1.0),
    "aiokafka send": (aiokafka_out, 0.5),
    "kafka-python send": (kafka_python_out, 0.1),
}
IN = {
    "headrace async for": headrace_rows,
    "headrace batches": headrace_batches,
    "headrace tables": headrace_tables,
    "confluent-kafka consume": confluent_batches,
    "aiokafka async for": aiokafka_rows,
    "aiokafka getmany": aiokafka_batches,
    "kafka-python for": kafka_python_rows,
}
SEND = {
    "headrace send": headrace_send,
    "confluent-kafka produce+flush": confluent_send,
    "aiokafka send_and_wait": aiokafka_send,
}


def measure(count: int, turns: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with TestBroker() as broker:
        boot = broker.bootstrap
        for size in (100, 1024):
            value, records = os.urandom(size), count if size == 100 else count // 4
            asyncio.run(_create(boot, f"in-{size}"))
            asyncio.run(headrace_out(boot, f"in-{size}", value, records))
            for turn in range(turns):
                for name, (out, share) in OUT.items():
                    topic, some = f"out-{size}-{turn}-{name.replace(' ', '-')}", int(records * share)
                    asyncio.run(_create(boot, topic))
                    _keep(found, f"{size} B out", name, some / asyncio.run(out(boot, topic, value, some)))
                    asyncio.run(_delete(boot, topic))
                for name, read in IN.items():
                    _keep(found, f"{size} B in", name, records / asyncio.run(read(boot, f"in-{size}", records)))
        for turn in range(turns):
            for name, send in SEND.items():
                asyncio.run(_create(boot, f"one-{turn}-{name.split()[0]}"))
                times = sorted(asyncio.run(send(boot, f"one-{turn}-{name.split()[0]}")))
                _keep(found, "one send, median ms", name, -times[len(times) // 2] * 1000)
    found["one send, median ms"] = {name: -value for name, value in found["one send, median ms"].items()}
    return found


def _keep(found: dict[str, dict[str, float]], what: str, name: str, value: float) -> None:
    """The best turn of each."""
    row = found.setdefault(what, {})
    row[name] = max(row.get(name, float("-inf")), value)


async def _create(boot: str, topic: str) -> None:
    async with headrace.Admin(boot) as admin:
        await admin.create_topic(topic, 1, 1)


async def _delete(boot: str, topic: str) -> None:
    async with headrace.Admin(boot) as admin:
        await admin.delete_topic(topic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300_000, help="records of 100 bytes; of 1 KB a quarter")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.count, options.turns)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for what, rows in found.items():
        print(what)
        for name, figure in rows.items():
            print(f"  {name:32} {figure:12,.2f}" if "ms" in what else f"  {name:32} {figure:12,.0f} records/s")


if __name__ == "__main__":
    main()
