"""`headrace bench`: produce as fast as it goes, read it all back, then records at a steady rate from end to end.

The steady rate is an open loop: record i is meant for begin + i / rate, whatever became of those before it, and its
time counts from there. A sender that waited for answers would not send while the cluster is stuck, and would call that
fast (coordinated omission).
"""

import asyncio
import gc
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.api import Consumer, Producer
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.produce.deliveries import Delivery
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.tools.loadtest.histogram import Histogram
from headrace.tools.ranges import await_partitions, describe

PHASES = ("produce", "consume", "latency")
SIZE_BYTES_MIN = 8
"""The time at which it was meant to be sent."""
VALUES = 64
"""Different contents, so that compression has something to do but not everything."""
SAMPLE = 100
"""While producing flat out, every so many records' acknowledgement is timed."""
SPIN_S = 0.001
"""Timers of the event loop may be late by so much: the rest is waited for turn by turn."""
DRAIN_S = 30.0


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    phases: tuple[str, ...] = PHASES
    duration_s: float = 10.0
    """Of producing, and of the steady rate."""
    warmup_s: float = 1.0
    records_max: int | None = None
    rate: float = 1_000.0
    size_bytes: int = 100
    partitions: int = 1
    replication_factor: int = -1
    acks: str = "all"
    codec: str = "none"
    linger_ms: int = 0
    keys: int = 0
    """How many different keys; 0: records have none."""
    topic: str | None = None
    """An existing one, which stays. Else one is made, and deleted at the end."""
    keep: bool = False


class Flow(msgspec.Struct):
    """How fast one way was."""

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0


class BenchReport:
    """What was measured; a phase that was not run is None."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.produce: Flow | None = None
        self.produce_acks = Histogram()
        """From handing a record over to its acknowledgement, of some records, in ns."""
        self.consume: Flow | None = None
        self.steady: Flow | None = None
        self.steady_acks = Histogram()
        """From when a record was meant to be sent to its acknowledgement."""
        self.end_to_end = Histogram()
        """From when a record was meant to be sent to when the consumer had it."""
        self.late = 0
        """Records of the steady rate that left over 10 ms after they were meant to: this client is too slow for it,
        or its buffer was full."""
        self.lost = 0
        self.doubled = 0


class Bench:
    """One run. `on_progress` is told the phase and what part of it is over."""

    def __init__(self, request: BenchRequest, bootstrap: str, security: Security = PLAINTEXT) -> None:
        unknown = [name for name in request.phases if name not in PHASES]
        if unknown:
            raise ClientError(f"--only {unknown[0]}: write some of {', '.join(PHASES)}")
        if "consume" in request.phases and "produce" not in request.phases and request.topic is None:
            raise ClientError("consume needs something to read: add produce, or --topic with one that is there")
        self.request = request
        self._bootstrap = bootstrap
        self._security = security
        generator = random.Random(7)
        body = request.size_bytes - SIZE_BYTES_MIN
        # Half of it random digits: about what compresses to half, like most JSON.
        self._bodies = [generator.randbytes((body + 1) // 2).hex().encode()[:body] for _ in range(VALUES)]
        self._keys = [b"key-%d" % number for number in range(request.keys)]

    async def run(self, on_progress: Callable[[str, float], None] = lambda phase, part: None) -> BenchReport:
        async with Admin(self._bootstrap, security=self._security) as admin:
            topic = await self._make_topic(admin)
            report = BenchReport(topic)
            was_on = gc.isenabled()
            gc.disable()  # a collection of our own is no latency of the cluster's
            try:
                if "produce" in self.request.phases:
                    await self._produce(report, on_progress)
                if "consume" in self.request.phases:
                    await self._consume(admin, report, on_progress)
                if "latency" in self.request.phases:
                    await self._steady(report, on_progress)
            finally:
                if was_on:
                    gc.enable()
                if self.request.topic is None and not self.request.keep:
                    await _delete(admin, topic)
            return report

    async def _make_topic(self, admin: Admin) -> str:
        if self.request.topic is not None:
            await describe(admin, self.request.topic)
            return self.request.topic
        name = f"headrace-bench-{os.urandom(5).hex()}"
        await admin.create_topic(name, self.request.partitions, self.request.replication_factor)
        await await_partitions(admin, name, self.request.partitions)
        return name

    def _producer(self, **options: Any) -> Producer:
        return Producer(
            self._bootstrap,
            security=self._security,
            acks=self.request.acks,
            compression=self.request.codec,
            request_bytes=max(4 << 20, 2 * self.request.size_bytes),
            **options,
        )

    def _key(self, number: int) -> bytes | None:
        return self._keys[number % len(self._keys)] if self._keys else None

    # -- flat out

    async def _produce(self, report: BenchReport, on_progress: Callable[[str, float], None]) -> None:
        request, topic, acks = self.request, report.topic, report.produce_acks
        clock = time.perf_counter_ns
        flow = report.produce = Flow()
        async with self._producer(linger_ms=max(5, request.linger_ms)) as producer:
            await producer.send(topic, bytes(request.size_bytes))  # connections are no part of it
            begin = clock()
            end = begin + int(request.duration_s * 1e9)
            sent = 0
            now = begin
            while now < end and (request.records_max is None or sent < request.records_max):
                stamp = now.to_bytes(8, "big")
                for _ in range(min(SAMPLE, (request.records_max or sent + SAMPLE) - sent)):
                    delivery = await producer.send_soon(topic, stamp + self._bodies[sent % VALUES], key=self._key(sent))
                    sent += 1
                delivery.add_done_callback(_acknowledged(acks, now))
                now = clock()
                on_progress("produce", min(1.0, (now - begin) / (end - begin)))
            await producer.flush()
            flow.seconds = (clock() - begin) / 1e9
        flow.records, flow.bytes = sent, sent * request.size_bytes

    async def _consume(self, admin: Admin, report: BenchReport, on_progress: Callable[[str, float], None]) -> None:
        flow = report.consume = Flow()
        partitions = (await describe(admin, report.topic)).partitions
        places = [(report.topic, index) for index in partitions]
        ends, starts = await _offsets(admin, report.topic, LATEST), await _offsets(admin, report.topic, EARLIEST)
        total = sum(ends.values()) - sum(starts.values())
        left = {at for at in places if ends[at] > starts[at]}
        async with self._consumer() as consumer:
            await consumer.assign(places)
            for at in places:
                consumer.seek(at, starts[at])
            begin = time.perf_counter()
            stop_at = begin + 10 * self.request.duration_s
            while left and time.perf_counter() < stop_at:
                records = await consumer.poll(1.0, 5_000)
                flow.records += len(records)
                flow.bytes += sum([len(record.value or b"") for record in records])
                left = {at for at in left if consumer.position(at) < ends[at]}
                on_progress("consume", flow.records / max(1, total))
            flow.seconds = time.perf_counter() - begin

    def _consumer(self) -> Consumer:
        return Consumer(
            bootstrap=self._bootstrap, security=self._security, auto_commit=False, auto_offset_reset="earliest"
        )

    # -- at a steady rate

    async def _steady(self, report: BenchReport, on_progress: Callable[[str, float], None]) -> None:
        request, topic = self.request, report.topic
        warm = int(request.warmup_s * request.rate)
        count = warm + max(1, int(request.duration_s * request.rate))
        if request.records_max is not None:
            count = min(count, warm + request.records_max)
        async with self._reader(report) as seen, self._producer(linger_ms=request.linger_ms) as producer:
            await producer.partitions(topic)
            begin = time.perf_counter_ns() + 10_000_000
            # Read back, a record is known by the time that it was meant for: behind this one it counts.
            seen.count_from(begin + int(warm / request.rate * 1e9))
            sender = Sender(producer, topic, self._bodies, self._key, request.rate, begin, warm, report)
            await sender.send(count, lambda part: on_progress("latency", part))
            await producer.flush()
            await seen.wait_for(count, DRAIN_S)
            report.lost = max(0, count - len(seen.stamps))
            report.doubled = seen.doubled
        span_s = (count - warm) / request.rate
        report.steady = Flow(count - warm, (count - warm) * request.size_bytes, span_s)

    @asynccontextmanager
    async def _reader(self, report: BenchReport) -> AsyncIterator["Seen"]:
        """A consumer that is at the end of every partition before the first record comes."""
        seen = Seen(report.end_to_end)
        async with self._consumer() as consumer, Admin(self._bootstrap, security=self._security) as admin:
            places = [(report.topic, index) for index in (await describe(admin, report.topic)).partitions]
            ends = await _offsets(admin, report.topic, LATEST)
            await consumer.assign(places)
            for at in places:
                consumer.seek(at, ends[at])
            await consumer.poll(0.2)

            async def read() -> None:
                while True:
                    records = await consumer.poll(1.0, 5_000)
                    seen.take([record.value for record in records], time.perf_counter_ns())

            task = asyncio.create_task(read())
            try:
                yield seen
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Sender:
    """Sends records at the times they are meant for."""

    def __init__(
        self, producer: Producer, topic: str, bodies: list[bytes], key: Callable[[int], bytes | None], rate: float,
        begin: int, warm: int, report: BenchReport,
    ) -> None:  # fmt: skip
        self._producer = producer
        self._topic = topic
        self._bodies = bodies
        self._key = key
        self._step = 1e9 / rate
        self._begin = begin
        self._warm = warm
        self._report = report

    async def send(self, count: int, on_progress: Callable[[float], None]) -> None:
        clock, acks = time.perf_counter_ns, self._report.steady_acks
        for number in range(count):
            meant = self._begin + int(number * self._step)
            await _until(meant)
            if clock() - meant > 10_000_000 and number >= self._warm:
                self._report.late += 1
            value = meant.to_bytes(8, "big") + self._bodies[number % VALUES]
            delivery = await self._producer.send_soon(self._topic, value, key=self._key(number))
            if number >= self._warm:
                delivery.add_done_callback(_acknowledged(acks, meant))
            if number % 100 == 0:
                on_progress(number / count)


class Seen:
    """What came back, each once."""

    def __init__(self, histogram: Histogram) -> None:
        self.stamps: set[int] = set()
        self.doubled = 0
        self._histogram = histogram
        self._count_from = 0
        self._news = asyncio.Event()

    def count_from(self, stamp: int) -> None:
        self._count_from = stamp

    def take(self, values: list[Any], now: int) -> None:
        for value in values:
            stamp = int.from_bytes(value[:8], "big")
            if stamp in self.stamps:
                self.doubled += 1
                continue
            self.stamps.add(stamp)
            if stamp >= self._count_from:
                self._histogram.add(now - stamp)
        self._news.set()

    async def wait_for(self, count: int, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while len(self.stamps) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return


def _acknowledged(acks: Histogram, meant: int) -> Callable[[Delivery], None]:
    return lambda delivery: acks.add(time.perf_counter_ns() - meant)


async def _until(meant: int) -> None:
    left = meant - time.perf_counter_ns()
    if left > SPIN_S * 2e9:
        await asyncio.sleep(left / 1e9 - SPIN_S)
    while time.perf_counter_ns() < meant:
        await asyncio.sleep(0)


async def _offsets(admin: Admin, topic: str, which: int) -> dict[tuple[str, int], int]:
    wanted = dict.fromkeys((await describe(admin, topic)).partitions, which)
    return {(topic, index): row.offset for index, row in (await admin.list_offsets(topic, wanted)).items()}


async def _delete(admin: Admin, topic: str) -> None:
    try:
        await admin.delete_topic(topic)
    except RequestFailed:
        return  # somebody else has
