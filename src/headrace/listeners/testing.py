"""An app's listeners without a broker, for tests: records are fed, delays pass at once, what was sent can be seen.

async with app.test() as test:
    test.send("orders", {"id": 7}, key="table 7")
    await test.settled()
    assert test.records("orders.dlq") == []
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from headrace.client.api.serializers import Json
from headrace.client.api.types import Record, TopicPartition
from headrace.client.produce.partitioner import KeyPartitioner
from headrace.listeners.core.schedule import At
from headrace.listeners.idempotence import MemoryStore, Store, TopicStore
from headrace.listeners.ports import Callbacks, World
from headrace.listeners.runner import ListenerFailed, Runner

LOOK_AGAIN_S = 0.001


class AppPort(Protocol):
    """What an app shows of itself to its test."""

    name: str
    world: World

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    @property
    def failure(self) -> ListenerFailed | None: ...
    @property
    def runners(self) -> list[Runner | None]: ...


class TestMode:
    """The world of a test: topics in memory, and a clock that jumps to whatever is waited for."""

    __test__ = False

    def __init__(self, app: AppPort, partitions: int) -> None:
        self._app = app
        self._partitions = partitions
        self._world = app.world
        self._topics: dict[str, list[list[Record]]] = {}
        self._committed: dict[tuple[str, str, int], int] = {}
        self._consumers: list[_Consumer] = []
        self._now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0
        self._keys = KeyPartitioner()
        self._json = Json()

    async def __aenter__(self) -> Self:
        self._world, self._app.world = self._app.world, self
        await self._app.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._app.stop()
        self._app.world = self._world

    # -- for tests

    def send(
        self, topic: str, value: Any, *, key: str | bytes | None = None, headers: Any = (), partition: int | None = None
    ) -> Record:
        """Put a record into a topic. What is neither bytes nor text becomes JSON."""
        logs = self.topic(topic)
        key_bytes = key.encode() if isinstance(key, str) else key
        if partition is None:
            partition = 0 if key_bytes is None else self._keys.partition(key_bytes, len(logs))
        rows = headers.items() if isinstance(headers, Mapping) else headers
        record = Record(
            topic,
            partition,
            len(logs[partition]),
            self.wall_ms(),
            key_bytes,
            self._bytes(value),
            tuple((name, self._bytes(content)) for name, content in rows or ()),
        )
        logs[partition].append(record)
        for consumer in self._consumers:
            consumer.news.set()
        return record

    async def settled(self) -> None:
        """Wait until every record is handled, put aside or waiting for an ack, and that is committed.

        Delays pass at once. Raises ListenerFailed if a listener has failed for good.
        """
        while True:
            if self._app.failure is not None:
                raise self._app.failure
            if not self._is_quiet():
                await asyncio.sleep(LOOK_AGAIN_S)
            elif self._timers:
                self._now, _, callback = heapq.heappop(self._timers)
                callback()
            else:
                return

    def _is_quiet(self) -> bool:
        return all(
            runner is not None
            and runner.is_at_rest
            and not runner.schedule.committable()
            and isinstance(runner.consumer, _Consumer)
            and runner.consumer.is_at_end
            for runner in self._app.runners
        )

    def records(self, topic: str) -> list[Record]:
        """All records of a topic, by partition and offset."""
        return [record for log in self.topic(topic) for record in log]

    def committed(self, topic: str, partition: int = 0, group: str | None = None) -> int | None:
        """What a group has committed of a partition: where it would go on. None if nothing."""
        return self._committed.get((group or self._app.name, topic, partition))

    # -- for listeners: the world

    def consumer(
        self, topics: Sequence[str], group: str, callbacks: Callbacks, options: Mapping[str, Any]
    ) -> "_Consumer":
        found = _Consumer(self, topics, group, callbacks)
        self._consumers.append(found)
        return found

    def producer(self, transactional_id: str | None) -> "_Producer":
        return _Producer(self)

    def store(self, given: Store) -> Store:
        """A topic needs a broker; in a test it is the memory of one run."""
        return MemoryStore() if isinstance(given, TopicStore) else given

    async def make_topics(self, like: Mapping[str, str]) -> None:
        for name in like:
            self.topic(name)

    def now(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._now * 1000)

    def call_at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        self._turn += 1
        timer = (when, self._turn, callback)
        heapq.heappush(self._timers, timer)

        def cancel() -> None:
            if timer in self._timers:
                self._timers.remove(timer)
                heapq.heapify(self._timers)

        return cancel

    def topic(self, name: str) -> list[list[Record]]:
        """The partitions of a topic, which is made when it is first named."""
        return self._topics.setdefault(name, [[] for _ in range(self._partitions)])

    def commit(self, group: str, offsets: Mapping[At, int]) -> None:
        """What a commit of a group leaves behind."""
        self._committed.update(((group, *at), offset) for at, offset in offsets.items())

    def _bytes(self, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else self._json.serialize("", value)


class _Consumer:
    def __init__(self, world: TestMode, topics: Sequence[str], group: str, callbacks: Callbacks) -> None:
        self._world = world
        self._group = group
        self._callbacks = callbacks
        self._paused: set[At] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._topics = topics
        self.news = asyncio.Event()

    async def start(self) -> None:
        for topic in self._topics:
            for index in range(len(self._world.topic(topic))):
                begin = self._world.committed(topic, index, self._group) or 0
                self._positions[TopicPartition(topic, index)] = begin
        await self._callbacks.on_assigned(frozenset(self._positions))

    @property
    def is_at_end(self) -> bool:
        return all(
            position == len(self._world.topic(at.topic)[at.partition])
            for at, position in self._positions.items()
            if at not in self._paused
        ) and bool(self._positions)

    async def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[Record]:
        found = self._take(max_records or 500)
        if not found:
            self.news.clear()
            try:
                async with asyncio.timeout(min(timeout_s, 0.01)):
                    await self.news.wait()
            except TimeoutError:
                pass
            found = self._take(max_records or 500)
        return found

    def _take(self, limit: int) -> list[Record]:
        found: list[Record] = []
        for at, position in self._positions.items():
            if at not in self._paused:
                rows = self._world.topic(at.topic)[at.partition][position : position + limit - len(found)]
                self._positions[at] += len(rows)
                found += rows
        return found

    async def commit(self, offsets: Mapping[At, int] | None = None) -> None:
        self._world.commit(self._group, offsets or {})

    def pause(self, *partitions: At) -> None:
        self._paused.update(partitions)

    def resume(self, *partitions: At) -> None:
        self._paused.difference_update(partitions)
        self.news.set()

    async def close(self) -> None:
        await self._callbacks.on_revoked(frozenset(self._positions))
        self._positions.clear()


class _Producer:
    """Of a transaction, all or nothing is visible; there is nobody here to read in between."""

    def __init__(self, world: TestMode) -> None:
        self._world = world

    async def start(self) -> None:
        return None

    async def send_soon(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Any = None,
        timestamp: Any = None,
        partition: int | None = None,
    ) -> "asyncio.Future[Record]":
        done = asyncio.get_running_loop().create_future()
        done.set_result(self._world.send(topic, value, key=key, headers=headers or (), partition=partition))
        return done

    async def partitions(self, topic: str) -> int:
        return len(self._world.topic(topic))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["_Transaction"]:
        yield _Transaction()

    async def close(self) -> None:
        return None


class _Transaction:
    async def commit_offsets(self, consumer: Any, offsets: Mapping[At, int] | None = None) -> None:
        await consumer.commit(offsets)
