"""The groups of the demo: workers that share one group as a queue, subscribers that have one each."""

import asyncio

from headrace.client.api.consumer import Consumer
from headrace.client.consume.records import Record
from headrace.client.errors import ClientError
from headrace.demo.ledger import Book

POLL_S = 0.5
COMMIT_MS = 1_000


class Worker:
    """One member of a group, at work until told to leave."""

    def __init__(self, name: str, group: "Group") -> None:
        self.name = name
        self.got = 0
        self.expulsions = 0
        self._group = group
        self._consumer: Consumer | None = None
        self._had: list[int] = []
        self._leaving = asyncio.Event()
        self._task = asyncio.create_task(self._work(), name=name)

    @property
    def partitions(self) -> list[int]:
        """What it reads, or read last before it left."""
        return sorted(index for _, index in self._consumer.assignment()) if self._consumer is not None else self._had

    @property
    def failure(self) -> BaseException | None:
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    async def _work(self) -> None:
        group = self._group
        consumer = Consumer(
            group.topic,
            bootstrap=group.bootstrap,
            group=group.name,
            client_id=self.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_MS,
        )
        async with consumer:
            self._consumer = consumer
            while not self._leaving.is_set():
                for record in await self._poll(consumer):
                    group.book.got(record.partition, record.offset, record.key, record.value)
                    self.got += 1
                self.expulsions = consumer.expulsions
            self._had, self._consumer = self.partitions, None

    async def _poll(self, consumer: Consumer) -> list[Record]:
        try:
            return await consumer.poll(POLL_S, max_records=2_000)
        except ClientError:
            # Longer away than the client waits by itself: what cannot be cured fails again at once.
            await asyncio.sleep(POLL_S)
            return await consumer.poll(POLL_S)

    async def leave(self) -> None:
        """Commit and go, so that the others go on exactly where this one ends."""
        self._leaving.set()
        await asyncio.gather(self._task, return_exceptions=True)

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Group:
    """Workers under one group id, and what they have got together."""

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.topic = topic
        self.book = Book(partitions)
        self.workers: list[Worker] = []
        self._expulsions_of_gone = 0
        self._hired = 0

    @property
    def expulsions(self) -> int:
        return self._expulsions_of_gone + sum(worker.expulsions for worker in self.workers)

    def hire(self) -> Worker:
        self._hired += 1
        worker = Worker(f"{self.name}-{self._hired}", self)
        self.workers.append(worker)
        return worker

    async def dismiss(self) -> Worker:
        """The longest serving one goes; the others take its partitions."""
        worker = self.workers.pop(0)
        await worker.leave()
        self._expulsions_of_gone += worker.expulsions
        return worker

    def check(self) -> None:
        """Raise what has ended a worker, if anything has."""
        for worker in self.workers:
            if worker.failure is not None:
                raise worker.failure

    def has_all(self, ends: list[int]) -> bool:
        return all(len(times) >= end and 0 not in times for times, end in zip(self.book.times, ends))

    async def leave(self) -> None:
        await asyncio.gather(*(worker.leave() for worker in self.workers))

    async def cancel(self) -> None:
        await asyncio.gather(*(worker.cancel() for worker in self.workers))
