"""Records to the topic of one case: one to find out whether it takes any, many to measure, a stream for losses."""

import asyncio
import time
from statistics import quantiles
from typing import NamedTuple

from headrace.client.api.producer import Producer
from headrace.client.errors import ClientError
from headrace.client.produce.deliveries import Delivery
from headrace.proof.cases import Case
from headrace.proof.ledger import Ledger

LATENCY_S = 0.25
THROUGHPUT_S = 0.35
DELIVERY_MS = 5_000
"""Longer than an election takes on a busy machine: what is not delivered then is refused."""
BUFFER_BYTES = 1 << 20
"""Little, so that records wait in the broker rather than here when its speed is measured."""
STREAM_PAUSE_S = 0.01
"""Between two records of a stream."""


class Measured(NamedTuple):
    latency_ms: float
    slowest_ms: float
    records_per_s: float


class Writer:
    def __init__(self, bootstrap: str, case: Case) -> None:
        self.case = case
        self.ledger = Ledger()
        self._producer = Producer(
            bootstrap,
            acks=case.acks if case.acks == "all" else int(case.acks),
            delivery_timeout_ms=DELIVERY_MS,
            request_timeout_ms=DELIVERY_MS,
            max_block_ms=DELIVERY_MS,
            buffer_bytes=BUFFER_BYTES,
        )

    async def start(self) -> None:
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close(flush=False)

    async def probe(self) -> bool:
        """Whether a record is acknowledged in time."""
        try:
            await self._send()
        except ClientError:
            return False
        return True

    async def measure(self) -> Measured | None:
        """One record at a time, then as many as it takes; None if it is refused meanwhile."""
        try:
            times_s: list[float] = []
            end = time.perf_counter() + LATENCY_S
            while (begun := time.perf_counter()) < end or len(times_s) < 2:
                await self._send()
                times_s.append(time.perf_counter() - begun)
            cuts = quantiles(times_s, n=100, method="inclusive")
            return Measured(cuts[49] * 1000, cuts[98] * 1000, await self._throughput())
        except ClientError:
            return None

    async def _throughput(self) -> float:
        begun = time.perf_counter()
        sent: list[tuple[int, Delivery]] = []
        while time.perf_counter() - begun < THROUGHPUT_S:
            number, value = self.ledger.next_value()
            sent.append((number, await self._producer.send_soon(self.case.topic, value, partition=0)))
        for number, delivery in sent:
            await delivery
            self.ledger.acknowledge(number)
        return len(sent) / (time.perf_counter() - begun)

    async def _send(self) -> None:
        number, value = self.ledger.next_value()
        await self._producer.send(self.case.topic, value, partition=0)
        self.ledger.acknowledge(number)

    async def go_on(self, ended: asyncio.Event) -> None:
        """A stream of records until told, whatever becomes of each; returns when that is known of all."""
        open_deliveries: list[tuple[int, Delivery]] = []
        while not ended.is_set():
            number, value = self.ledger.next_value()
            try:
                delivery = await self._producer.send_soon(self.case.topic, value, partition=0)
                open_deliveries.append((number, delivery))
            except ClientError:
                continue
            finally:
                await asyncio.sleep(STREAM_PAUSE_S)
        for number, delivery in open_deliveries:
            try:
                await delivery
                self.ledger.acknowledge(number)
            except ClientError:
                continue
