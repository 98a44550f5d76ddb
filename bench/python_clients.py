"""Python clients beside one another, from Python code, on one broker: `python -m bench.python_clients`.

Headrace's row API (asyncio), its batches and its tables, confluent-kafka (plain and asyncio), aiokafka and
kafka-python: records of 100 bytes and 1 KB out and back in, and the time of one awaited send. All at acks=all into one
partition; each figure is the best of interleaved turns, since what else the machine does only ever slows a turn down.
The processor's time is that of the client's process, all threads, and says what is left when the broker, the socket and
the disk are taken away. `--write` makes docs/bench/python-clients.md of it.
"""

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka as confluent
import kafka
from confluent_kafka import aio as confluent_aio

import headrace
from bench import python_ceilings as ceilings
from headrace.testing.broker import TestBroker

SENDS = 300
WARM = 50
PAGE = Path(__file__).parents[1] / "docs" / "bench" / "python-clients.md"


class Cost(NamedTuple):
    """What a turn took."""

    wall_s: float
    cpu_s: float


class Clock:
    """Wall time and the time of this process's threads since it was made."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = _cpu_s(), time.perf_counter()

    def stop(self) -> Cost:
        return Cost(time.perf_counter() - self._wall_s, _cpu_s() - self._cpu_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def columns_of(value: bytes, count: int) -> Any:
    import pyarrow as pa

    return pa.table({"value": pa.array([value] * count, pa.binary())})


async def headrace_out(boot: str, topic: str, value: bytes, count: int) -> Cost:
    async with headrace.Producer(boot, linger_ms=5) as producer:
        await producer.send(topic, value)
        clock = Clock()
        for _ in range(count):
            await producer.send_soon(topic, value, partition=0)
        await producer.flush()
        return clock.stop()


async def headrace_table_out(boot: str, topic: str, value: bytes, count: int) -> Cost:
    async with headrace.Producer(boot) as producer:
        table = columns_of(value, count)
        await producer.send_table(topic, table.slice(0, 1), partition=0)
        clock = Clock()
        await producer.send_table(topic, table, partition=0)
        return clock.stop()


async def aiokafka_out(boot: str, topic: str, value: bytes, count: int) -> Cost:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=boot, acks="all", enable_idempotence=True, linger_ms=5, max_batch_size=256 << 10
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, value)
        clock = Clock()
        for _ in range(count):
            await producer.send(topic, value, partition=0)
        await producer.flush()
        return clock.stop()
    finally:
        await producer.stop()


async def confluent_out(boot: str, topic: str, value: bytes, count: int) -> Cost:
    producer = confluent.Producer(
        {"bootstrap.servers": boot, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    )
    producer.produce(topic, value, partition=0)
    producer.flush()
    clock = Clock()
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
    return clock.stop()


async def confluent_asyncio_out(boot: str, topic: str, value: bytes, count: int) -> Cost:
    producer = confluent_aio.AIOProducer({"bootstrap.servers": boot, "enable.idempotence": True})
    try:
        clock = Clock()
        waiting = [await producer.produce(topic, value, partition=0) for _ in range(count)]
        await producer.flush()
        await asyncio.gather(*waiting)
        return clock.stop()
    finally:
        await producer.close()


async def kafka_python_out(boot: str, topic: str, value: bytes, count: int) -> Cost:
    producer = kafka.KafkaProducer(bootstrap_servers=boot, acks="all", linger_ms=5, batch_size=256 << 10)
    try:
        producer.send(topic, value, partition=0).get(30)
        clock = Clock()
        for _ in range(count):
            producer.send(topic, value, partition=0)
        producer.flush()
        return clock.stop()
    finally:
        producer.close()


def headrace_reader(boot: str, topic: str) -> headrace.Consumer:
    return headrace.Consumer(topic, bootstrap=boot, auto_offset_reset="earliest")


async def headrace_rows(boot: str, topic: str, count: int) -> Cost:
    async with headrace_reader(boot, topic) as consumer:
        clock, got = Clock(), 0
        async for _ in consumer:
            got += 1
            if got == count:
                break
        return clock.stop()


async def headrace_batches(boot: str, topic: str, count: int) -> Cost:
    async with headrace_reader(boot, topic) as consumer:
        clock, got = Clock(), 0
        async for batch in consumer.batches():
            got += len(batch)
            if got >= count:
                break
        return clock.stop()


async def headrace_tables(boot: str, topic: str, count: int) -> Cost:
    async with headrace.Consumer(
        topic, bootstrap=boot, auto_offset_reset="earliest", partition_fetch_bytes=8 << 20
    ) as consumer:
        clock, got = Clock(), 0
        async for table in consumer.tables(["key", "value", "offset", "timestamp"]):
            got += table.num_rows
            if got >= count:
                break
        return clock.stop()


async def aiokafka_rows(boot: str, topic: str, count: int) -> Cost:
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=boot, auto_offset_reset="earliest")
    await consumer.start()
    try:
        clock, got = Clock(), 0
        async for _ in consumer:
            got += 1
            if got == count:
                break
        return clock.stop()
    finally:
        await consumer.stop()


async def aiokafka_batches(boot: str, topic: str, count: int) -> Cost:
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=boot, auto_offset_reset="earliest")
    await consumer.start()
    try:
        clock, got = Clock(), 0
        while got < count:
            found = await consumer.getmany(timeout_ms=1000)
            got += sum(map(len, found.values()))
        return clock.stop()
    finally:
        await consumer.stop()


async def confluent_batches(boot: str, topic: str, count: int) -> Cost:
    consumer = confluent.Consumer(
        {"bootstrap.servers": boot, "group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    try:
        clock, got = Clock(), 0
        while got < count:
            got += sum(message.value() is not None for message in consumer.consume(min(10_000, count - got), 1))
        return clock.stop()
    finally:
        consumer.close()


async def confluent_asyncio_batches(boot: str, topic: str, count: int) -> Cost:
    consumer = confluent_aio.AIOConsumer(
        {"bootstrap.servers": boot, "group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    await consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    try:
        clock, got = Clock(), 0
        while got < count:
            got += sum(message.value() is not None for message in await consumer.consume(min(10_000, count - got), 1))
        return clock.stop()
    finally:
        await consumer.close()


async def kafka_python_rows(boot: str, topic: str, count: int) -> Cost:
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=boot, auto_offset_reset="earliest")
    try:
        clock = Clock()
        for got, _ in enumerate(consumer, 1):
            if got == count:
                break
        return clock.stop()
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


async def confluent_asyncio_send(boot: str, topic: str) -> list[float]:
    producer = confluent_aio.AIOProducer(
        {"bootstrap.servers": boot, "enable.idempotence": True, "linger.ms": 0},
        batch_size=1,
        buffer_timeout=0.001,
    )

    async def send() -> None:
        await (await producer.produce(topic, b"x" * 100))

    try:
        return await timed(send, 20, 5)  # it looks for answers every 100 ms
    finally:
        await producer.close()


async def timed(send: Callable[[], Coroutine[Any, Any, Any]], sends: int = SENDS, warm: int = WARM) -> list[float]:
    found = []
    for number in range(sends + warm):
        begin = time.perf_counter()
        await send()
        if number >= warm:
            found.append(time.perf_counter() - begin)
    return found


OUT = {
    "headrace send_soon": (headrace_out, 1.0),
    "headrace send_table": (headrace_table_out, 2.0),
    "confluent-kafka produce": (confluent_out, 1.0),
    "confluent-kafka asyncio produce": (confluent_asyncio_out, 0.2),
    "aiokafka send": (aiokafka_out, 0.5),
    "kafka-python send": (kafka_python_out, 0.1),
}
IN = {
    "headrace async for": headrace_rows,
    "headrace batches": headrace_batches,
    "headrace tables": headrace_tables,
    "confluent-kafka consume": confluent_batches,
    "confluent-kafka asyncio consume": confluent_asyncio_batches,
    "aiokafka async for": aiokafka_rows,
    "aiokafka getmany": aiokafka_batches,
    "kafka-python for": kafka_python_rows,
}
SEND = {
    "headrace send": headrace_send,
    "confluent-kafka produce+flush": confluent_send,
    "confluent-kafka asyncio produce": confluent_asyncio_send,
    "aiokafka send_and_wait": aiokafka_send,
}
GOALS = [
    ("100 B out", "headrace send_soon", "aiokafka send", 2.0),
    ("1 KB out", "headrace send_soon", "aiokafka send", 2.0),
    ("100 B in", "headrace async for", "aiokafka async for", 2.0),
    ("1 KB in", "headrace async for", "aiokafka async for", 2.0),
    ("100 B in", "headrace batches", "confluent-kafka consume", 1.0),
    ("1 KB in", "headrace batches", "confluent-kafka consume", 1.0),
    ("100 B out", "headrace send_table", "confluent-kafka produce", 5.0),
    ("1 KB out", "headrace send_table", "confluent-kafka produce", 5.0),
    ("100 B in", "headrace tables", "confluent-kafka consume", 5.0),
    ("1 KB in", "headrace tables", "confluent-kafka consume", 5.0),
]
SEND_GOALS = [("confluent-kafka produce+flush", 1.2), ("aiokafka send_and_wait", 1.0)]
LATENCY = "one send, median ms"
CEILING = "a client that does next to nothing"
ABOVE = {
    "100 B out": ("headrace send_table", "confluent-kafka produce"),
    "1 KB out": ("headrace send_table", "confluent-kafka produce"),
    "100 B in": ("headrace tables", "confluent-kafka consume"),
    "1 KB in": ("headrace tables", "confluent-kafka consume"),
}
"""Which rows are compared with what the broker gives."""


Figures = dict[str, dict[str, tuple[float, float]]]
"""What was done -> by whom -> records per second and microseconds of processor time for each; or milliseconds and 0.
Of the ceilings it is the broker's time."""


def measure(count: int, turns: int, folder: Path) -> Figures:
    found: Figures = {}
    with TestBroker(data=folder) as broker:
        boot = broker.bootstrap
        for size, name_of_size in ((100, "100 B"), (1024, "1 KB")):
            value, records = os.urandom(size), count if size == 100 else count // 4
            asyncio.run(_create(boot, f"in-{size}"))
            asyncio.run(headrace_out(boot, f"in-{size}", value, records))
            for turn in range(turns):
                for name, (out, share) in OUT.items():
                    topic, some = f"out-{size}-{turn}-{name.replace(' ', '-')}", int(records * share)
                    asyncio.run(_create(boot, topic))
                    _keep(found, f"{name_of_size} out", name, some, asyncio.run(out(boot, topic, value, some)))
                    asyncio.run(_delete(boot, topic))
                for name, read in IN.items():
                    cost = asyncio.run(read(boot, f"in-{size}", records))
                    _keep(found, f"{name_of_size} in", name, records, cost)
                asyncio.run(_create(boot, f"out-{size}-{turn}"))
                ready = ceilings.out(boot, f"out-{size}-{turn}", value, 2 * records, broker.pid)
                asyncio.run(_delete(boot, f"out-{size}-{turn}"))
                _keep_best(found, CEILING, f"{name_of_size} out", *ready)
                _keep_best(
                    found, CEILING, f"{name_of_size} in", *ceilings.back_in(boot, f"in-{size}", records, broker.pid)
                )
        for turn in range(turns):
            for number, (name, send) in enumerate(SEND.items()):
                asyncio.run(_create(boot, f"one-{turn}-{number}"))
                times = sorted(asyncio.run(send(boot, f"one-{turn}-{number}")))
                row = found.setdefault(LATENCY, {})
                median_ms = times[len(times) // 2] * 1000
                row[name] = (min(median_ms, row.get(name, (median_ms, 0))[0]), 0.0)
            asyncio.run(_create(boot, f"one-{turn}"))
            median_ms = ceilings.one(boot, f"one-{turn}", b"x" * 100, SENDS, WARM)
            row[CEILING] = (min(median_ms, row.get(CEILING, (median_ms, 0))[0]), 0.0)
    return found


def _keep(found: Figures, what: str, name: str, records: int, cost: Cost) -> None:
    _keep_best(found, what, name, records / cost.wall_s, cost.cpu_s / records * 1e6)


def _keep_best(found: Figures, what: str, name: str, rate: float, cpu_us: float) -> None:
    """Of all turns."""
    row = found.setdefault(what, {})
    before = row.get(name, (0.0, cpu_us))
    row[name] = max(rate, before[0]), min(cpu_us, before[1])


def page(found: Figures) -> str:
    """What `--write` writes."""
    lines = ["# Python clients beside one another", "", *page_head(), ""]
    lines += ["| Headrace | against | | ratio | in CPU | goal | |", "|---|---|---|---:|---:|---:|---|"]
    for what, ours, theirs, goal in GOALS:
        (rate, cpu), (other, other_cpu) = found[what][ours], found[what][theirs]
        ratio = rate / other
        is_met = "yes" if ratio >= goal else "**no**"
        by_cpu = f"{other_cpu / cpu:.1f}x"
        lines.append(f"| {ours} | {theirs} | {what} | {ratio:.1f}x | {by_cpu} | ≥ {goal:g}x | {is_met} |")
    for theirs, goal in SEND_GOALS:
        ratio = found[LATENCY]["headrace send"][0] / found[LATENCY][theirs][0]
        is_met = "yes" if ratio <= goal else "**no**"
        lines.append(f"| headrace send | {theirs} | time of one | {ratio:.2f}x | | ≤ {goal:g}x | {is_met} |")
    lines += ["", *ceiling_lines(found)]
    for what, rows in found.items():
        if what == CEILING:
            continue
        if what == LATENCY:
            lines += ["", "| one awaited send | median |", "|---|---:|"]
            lines += [f"| {name} | {ms:.3f} ms |" for name, (ms, _) in rows.items()]
        else:
            lines += ["", f"| {what} | records/s | CPU of the client |", "|---|---:|---:|"]
            lines += [f"| {name} | {rate:,.0f} | {cpu:.2f} us |" for name, (rate, cpu) in rows.items()]
    return "\n".join([*lines, ""])


def ceiling_lines(found: Figures) -> list[str]:
    """How much of what is possible the columnar calls take."""
    lines = [
        "What is possible: a client that does next to nothing writes batches that were made before into a blocking",
        "socket, or throws away what it has fetched. It is as fast as the broker, the kernel and the cores let any",
        "client be. Where that is less than 5x confluent-kafka, no client reaches 5x here.",
        "",
        "| | such a client | of it, Headrace | against confluent-kafka | CPU of the broker |",
        "|---|---:|---:|---:|---:|",
    ]
    for what, (rate, broker_us) in found[CEILING].items():
        ours, theirs = (found[what][name][0] for name in ABOVE[what])
        lines.append(f"| {what} | {rate:,.0f} | {ours / rate:.0%} | {rate / theirs:.1f}x | {broker_us:.2f} us |")
    return lines


def page_head() -> list[str]:
    versions = (
        f"confluent-kafka {confluent.__version__}, aiokafka {aiokafka.__version__}, kafka-python {kafka.__version__}"
    )
    return [
        f"Written by `python -m bench.python_clients --write` on {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores,",
        f"{versions}. One broker of Headrace with its data in memory",
        "(tmpfs), all clients in turn, one partition, acks=all, the best turn of each. `in CPU` compares the processor",
        "time that a record costs the client's process, all threads: more than 1 says that Headrace needs less.",
    ]


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
    parser.add_argument("--folder", type=Path, help="where the broker keeps its data [in memory, where there is room]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(PAGE.parents[2])}")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    above = options.folder or (memory if os.access(memory, os.W_OK) else None)
    with tempfile.TemporaryDirectory(dir=above, prefix="headrace-bench-") as folder:
        found = measure(options.count, options.turns, Path(folder))
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(page(found))
    if options.write:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
