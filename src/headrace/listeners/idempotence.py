"""Idempotent processing: a record that was handled before is left out, by an id that is remembered in a store.

An id is remembered after its record was handled. A crash in between handles the record again: only a store that takes
part in the handler's own transaction could rule that out.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from headrace.client.admin.admin import Admin
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.api.types import Record
from headrace.client.errors import RequestFailed
from headrace.errors import Err
from headrace.listeners.core.retry import ListenerRefused, Undecodable

IDS_MAX = 1_000_000
KEPT_S = 7 * 86_400.0
POLL_S = 0.2
DELETE_EVERY = 10_000


class Store(Protocol):
    """Where ids of handled records are remembered."""

    async def start(self) -> None: ...
    async def refresh(self) -> None:
        """Partitions have come from another member: know what it has remembered."""

    async def has(self, identity: str) -> bool: ...
    async def add(self, identity: str) -> None: ...
    async def close(self) -> None: ...


class MemoryStore:
    """The last ids, gone with the process: for duplicates that come soon after each other."""

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._ids_max = ids_max

    async def start(self) -> None: ...
    async def refresh(self) -> None: ...
    async def close(self) -> None: ...

    async def has(self, identity: str) -> bool:
        return identity in self._ids

    async def add(self, identity: str) -> None:
        self._ids[identity] = None
        self._ids.move_to_end(identity)
        if len(self._ids) > self._ids_max:
            self._ids.popitem(last=False)


class SqliteStore:
    """Ids in a file, kept for a time. Processes on one machine may share it."""

    def __init__(self, path: str | Path, *, kept_s: float = KEPT_S) -> None:
        self._path = path
        self._kept_s = kept_s
        self._database: sqlite3.Connection | None = None
        self._lock = asyncio.Lock()
        self._added = 0

    async def start(self) -> None:
        if self._database is None:
            self._database = await asyncio.to_thread(self._open)

    def _open(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self._path, timeout=30, check_same_thread=False, isolation_level=None)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY, time REAL) WITHOUT ROWID")
            database.execute("CREATE INDEX IF NOT EXISTS handled_time ON handled (time)")
            database.execute("DELETE FROM handled WHERE time < ?", (time.time() - self._kept_s,))
        except sqlite3.Error as error:
            raise ListenerRefused(f"the store {self._path} cannot be opened: {error}") from error
        return database

    async def refresh(self) -> None: ...

    async def has(self, identity: str) -> bool:
        rows = await self._execute("SELECT 1 FROM handled WHERE id = ?", (identity,))
        return bool(rows)

    async def add(self, identity: str) -> None:
        await self._execute("INSERT OR REPLACE INTO handled VALUES (?, ?)", (identity, time.time()))
        self._added += 1
        if self._added % DELETE_EVERY == 0:
            await self._execute("DELETE FROM handled WHERE time < ?", (time.time() - self._kept_s,))

    async def _execute(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        database = self._database
        assert database is not None, "the store is not started"
        async with self._lock:
            return await asyncio.to_thread(lambda: database.execute(statement, values).fetchall())

    async def close(self) -> None:
        async with self._lock:
            database, self._database = self._database, None
        if database is not None:
            await asyncio.to_thread(database.close)


class TopicStore:
    """Ids in a compacted topic, which is made if it is missing: every member of a group reads what the others wrote.

    The newest `ids_max` are kept in memory. An id is acknowledged by the broker when it counts as remembered.
    """

    def __init__(self, topic: str, *, kept_s: float = KEPT_S, ids_max: int = IDS_MAX) -> None:
        self.topic = topic
        self._kept_s = kept_s
        self._known = MemoryStore(ids_max)
        self._options: dict[str, Any] = {}
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._reading = asyncio.Lock()

    def connect_with(self, options: Mapping[str, Any]) -> None:
        """The options of the app's clients: its cluster is where the topic is."""
        self._options = dict(options)

    async def start(self) -> None:
        if self._consumer is not None:
            return
        async with Admin(**self._options) as admin:
            configs = {"cleanup.policy": "compact,delete", "retention.ms": str(int(self._kept_s * 1000))}
            try:
                await admin.create_topic(self.topic, partitions=1, configs=configs)
            except RequestFailed as error:
                if error.error is not Err.TOPIC_ALREADY_EXISTS:
                    raise
        self._producer = Producer(**self._options)
        await self._producer.start()
        consumer = Consumer(self.topic, **self._options, auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        self._consumer = consumer
        await self.refresh()

    async def refresh(self) -> None:
        """Read up to what is the end now."""
        consumer = self._consumer
        assert consumer is not None, "the store is not started"
        async with self._reading:
            while not (lag := await consumer.lag()) or any(one.records for one in lag.values()):
                for record in await consumer.poll(POLL_S):
                    if record.key is not None:
                        await self._known.add(record.key.decode())

    async def has(self, identity: str) -> bool:
        return await self._known.has(identity)

    async def add(self, identity: str) -> None:
        assert self._producer is not None, "the store is not started"
        await self._producer.send(self.topic, b"", key=identity)
        await self._known.add(identity)

    async def close(self) -> None:
        consumer, producer, self._consumer, self._producer = self._consumer, self._producer, None, None
        for one in (consumer, producer):
            if one is not None:
                await one.close()


class Idempotence:
    """What `@app.idempotent` was told: where ids are remembered, and what the id of a record is."""

    def __init__(self, store: Store, identity: str | Callable[[Any], Any] | None) -> None:
        self.store = store
        self._identity = identity
        self._at_work: dict[str, _Claim] = {}

    def remembering_in(self, store: Store) -> "Idempotence":
        """The same with another store."""
        return Idempotence(store, self._identity)

    def identity_of(self, record: Record, value: Any) -> str:
        """The content of a header, what a function makes of the value, or the record's place in its topic."""
        if self._identity is None:
            return f"{record.topic}-{record.partition}@{record.offset}"
        if callable(self._identity):
            found = self._identity(value)
        else:
            content = record.header(self._identity)
            found = None if content is None else content.decode(errors="backslashreplace")
        if found is None or found == "":
            what = "id" if callable(self._identity) else f"header {self._identity!r}"
            raise Undecodable(f"{record.topic}-{record.partition} offset {record.offset} has no {what} to know it by")
        return str(found)

    @contextlib.asynccontextmanager
    async def once(self, identity: str) -> AsyncIterator[bool]:
        """Whether a record is new. If so, its id is remembered unless what is done within fails. The same id twice at
        once, of different keys, is done one after the other."""
        claim = self._at_work.setdefault(identity, _Claim())
        claim.count += 1
        try:
            async with claim.lock:
                is_new = not await self.store.has(identity)
                yield is_new
                if is_new:
                    await self.store.add(identity)
        finally:
            claim.count -= 1
            if claim.count == 0:
                del self._at_work[identity]


class _Claim:
    """An id that is being worked on, and by how many."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
