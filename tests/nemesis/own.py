"""Headrace's own clients under the same faults: producers, members of groups in both protocols, a reader, and an app
whose listener writes a result for each record exactly once."""

import asyncio
import time
from functools import partial
from typing import Any

import headrace
from tests.nemesis.workload import BURST, FLUSH_S, PAUSE_S, Actor, ConfluentMember, Follower, Place, Writer

RESULTS = "results"
RESULT_PARTITIONS = 2
GROUP_SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "auto_commit": False,
    "session_timeout_ms": 10_000,
    "max_poll_interval_ms": 12_000,
    "fetch_max_wait_ms": 100,
}
AGAIN_S = 0.2


class OwnWriter(Writer):
    """`settings` decide whether it is idempotent; by default it is."""

    def work(self) -> None:
        self.idempotent = self.settings.get("idempotence", True)
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        async with headrace.Producer(self.bootstrap, **self.settings) as producer:
            for number, (topic, partition), value in self.numbers():
                began = time.monotonic()
                delivery = await producer.send_soon(topic, value, partition=partition)
                delivery.add_done_callback(partial(self._delivered, number, began))
                if number % BURST == BURST - 1:
                    await asyncio.sleep(PAUSE_S)
            async with asyncio.timeout(FLUSH_S):
                await producer.flush()

    def _delivered(self, number: int, began: float, done: headrace.Delivery) -> None:
        error = done.exception()
        if error is not None:
            self.book.failed.append((number, repr(error)))
            return
        got = done.result()
        self.book.acknowledged((got.topic, got.partition), got.offset, number, time.monotonic() - began)


class OwnFollower(Follower):
    """One consumer from beginning to end: unlike others it is never replaced, since it must not hang."""

    def _follow(self, following: dict[Place, int]) -> None:
        asyncio.run(self._read(following))

    async def _read(self, following: dict[Place, int]) -> None:
        options: dict[str, Any] = {"auto_offset_reset": "none", "fetch_max_wait_ms": 100}
        async with headrace.Consumer(bootstrap=self.bootstrap, **options) as consumer:
            await consumer.assign(following)
            while not self.stopping.is_set():
                try:
                    records = await consumer.poll(0.2)
                except headrace.ClientError as error:
                    self.anomalies.append(f"own reader: {error!r}")
                    await asyncio.sleep(AGAIN_S)
                    continue
                for record in records:
                    place = (record.topic, record.partition)
                    if record.offset != following[place]:
                        self.anomalies.append(f"own reader: {place} gave {record.offset} after {following[place] - 1}")
                    following[place] = record.offset + 1
                    self.seen.setdefault((*place, record.offset), record.value)


class OwnMember(ConfluentMember):
    """By KIP-848; commits what it was given, and is never replaced."""

    protocol: dict[str, Any] = {"group_protocol": "consumer"}

    def work(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        options = GROUP_SETTINGS | self.protocol
        async with headrace.Consumer(*self.topics, bootstrap=self.bootstrap, group=self.group, **options) as consumer:
            while not self.stopping.is_set():
                try:
                    records = await consumer.poll(0.2)
                    for record in records:
                        self.readings.saw((record.topic, record.partition), record.offset)
                    if records:
                        last = records[-1]
                        await consumer.commit()
                        self.readings.committed((last.topic, last.partition), last.offset + 1)
                except headrace.ClientError as error:
                    self.readings.errors.append(repr(error))
                    await asyncio.sleep(AGAIN_S)


class OwnClassicMember(OwnMember):
    """By the classic protocol with cooperative rebalances."""

    protocol = {"group_protocol": "classic", "assignors": ["cooperative-sticky"]}


class OwnApp(Actor):
    """Each record's place as a record of `results`, in one transaction with the offsets."""

    def __init__(self, name: str, bootstrap: str, topics: dict[str, int]) -> None:
        super().__init__(name)
        self.bootstrap, self.topics = bootstrap, topics
        self.restarts = 0

    def work(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        app = headrace.App("own", bootstrap=self.bootstrap, restart=headrace.Restart(delay_s=0.2, delay_s_max=2))

        @app.listener(
            *self.topics, exactly_once=True, send_to=RESULTS, transactional_id=self.name, commit_interval_s=0.2
        )
        async def copy(record: headrace.Record) -> str:
            return f"{record.topic} {record.partition} {record.offset}"

        async with app:
            while not self.stopping.is_set():
                await asyncio.sleep(0.1)


async def results(bootstrap: str, wanted: int, limit_s: float) -> list[str]:
    """What readers with read_committed see of the results, once there are as many as wanted and nothing more comes."""
    found: list[str] = []
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    deadline = time.monotonic() + limit_s
    async with headrace.Consumer(RESULTS, bootstrap=bootstrap, **options) as consumer:
        while time.monotonic() < deadline:
            records = await consumer.poll(1.0)
            found += [record.value.decode() for record in records]
            if not records and len(found) >= wanted:
                lags = await consumer.lag()
                if len(lags) == RESULT_PARTITIONS and not any(lag.records for lag in lags.values()):
                    break
    return found
