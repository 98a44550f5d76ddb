"""`headrace mirror`: topics of one cluster to another, record by record, in their partitions and order.

Where the mirror is, is known to the target alone, as the offsets of a group that no member ever joins: of each
partition, the next offset of the *source*. They are committed in the transaction that holds the records. So after a
kill -9, or a change of leaders that ends a transaction:

1. The producer comes back under the same transactional id, and what was open is aborted.
2. The group's offsets say what is in the target, exactly.
3. Reading goes on from there.

A second mirror with the same name fences the first, which ends.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.admin.groups import Groups
from headrace.client.api import Consumer, Producer
from headrace.client.api.types import GroupMetadata, Record
from headrace.client.consume.offsets import is_transient
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Topic
from headrace.client.produce.deliveries import Delivery
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.errors import Err
from headrace.tools.mirror.groups import GroupsAlong
from headrace.tools.mirror.offsets import Run, Translation, runs_of
from headrace.tools.mirror.topics import MirrorStopped, TopicsAlike
from headrace.tools.ranges import await_partitions

CYCLE_RECORDS, CYCLE_BYTES = 10_000, 8 << 20
"""What one transaction holds at most."""
CYCLE_S = 0.2
"""And for how long it collects."""
POLL_S = 0.1
BACKOFF_S, BACKOFF_S_MAX = 0.5, 10.0
KEEP_S = 3600.0
"""How often the offsets of all partitions are committed again: of one at rest, brokers forget them after
offsets.retention.minutes, a week by default, and it would be copied a second time."""
FENCED = frozenset({Err.PRODUCER_FENCED, Err.INVALID_PRODUCER_EPOCH})

Place = tuple[str, int]


class MirrorRequest(msgspec.Struct, frozen=True, kw_only=True):
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    prefix: str = ""
    """Before the names of topics in the target."""
    name: str = ""
    """Tells apart mirrors from the same source to the same target."""
    groups: str | None = None
    """A pattern: whose committed offsets are translated."""
    until_end: bool = False
    start: str | None = None
    """Where to begin what this mirror has never copied; None: at the earliest, and only into empty partitions."""
    transactional: bool = True
    configs: bool = True
    committed: bool = True
    codec: str = "none"
    refresh_s: float = 10.0


class MirrorStatus(msgspec.Struct):
    """How far it is; looked at while it works."""

    records: int = 0
    bytes: int = 0
    lag: int = 0
    partitions: dict[str, int] = {}
    """Records that each partition lacks."""
    groups: dict[str, int] = {}
    notes: list[str] = []
    restarts: int = 0
    missing: int = 0
    """Offsets that the source had deleted before they could be copied."""


class Mirror:
    """One run. `on_status` is told after each cycle."""

    def __init__(
        self,
        request: MirrorRequest,
        source: str,
        target: str,
        source_security: Security = PLAINTEXT,
        target_security: Security = PLAINTEXT,
        on_status: Callable[[MirrorStatus], None] = lambda status: None,
    ) -> None:
        self.request = request
        self.status = MirrorStatus()
        self._source = source
        self._target = target
        self._source_security = source_security
        self._target_security = target_security
        self._on_status = on_status
        self._has_begun = False
        """Settings that cannot work are told at once; what fails once it has worked may pass."""
        self._topic_ids: dict[str, bytes] = {}

    async def run(self) -> MirrorStatus:
        """Copy, to the end or until cancelled. What time may cure is begun anew from what the target says."""
        backoff_s = BACKOFF_S
        while True:
            before = self.status.records
            try:
                await self._session()
                return self.status
            except ClientError as error:
                if isinstance(error, RequestFailed) and error.error in FENCED:
                    raise MirrorStopped(
                        "another mirror with the same name has taken over, or this one stood still for longer than a"
                        f" transaction may be open: {error}. Two mirrors between the same clusters need a --name each"
                    ) from None
                is_gone = isinstance(error, RequestFailed) and error.error is Err.OFFSET_OUT_OF_RANGE
                if not self._has_begun or isinstance(error, MirrorStopped) or not (is_gone or is_transient(error)):
                    raise
                if self.status.records > before:
                    backoff_s = BACKOFF_S
                self.status.restarts += 1
                self._note(f"begun anew from what the target holds: {error}")
                await asyncio.sleep(backoff_s)
                backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)

    async def _session(self) -> None:
        request = self.request
        async with (
            Admin(self._source, security=self._source_security) as source,
            Admin(self._target, security=self._target_security) as target,
        ):
            name = await self._identity(source, target)
            alike = TopicsAlike(
                source, target, list(request.topics), request.pattern, request.prefix, configs=request.configs,
                tell=self._note,
            )  # fmt: skip
            topics = await alike.look()
            options: dict[str, Any] = {"transactional_id": name} if request.transactional else {}
            async with (
                Producer(
                    self._target,
                    security=self._target_security,
                    compression=request.codec,
                    linger_ms=5,
                    request_bytes=64 << 20,
                    **options,
                ) as producer,
                Consumer(
                    bootstrap=self._source,
                    security=self._source_security,
                    auto_commit=False,
                    # What the source no longer has ends the session: the next one counts it and says so, `_resumed`.
                    auto_offset_reset="none",
                    isolation_level="read_committed" if request.committed else "read_uncommitted",
                ) as consumer,
            ):
                session = _Session(self, name, source, target, producer, consumer)
                if request.groups is not None:
                    await session.load_translations()
                await session.read(topics)
                self._has_begun = True
                await session.copy(alike)

    async def _identity(self, source: Admin, target: Admin) -> str:
        here = (await source.describe_cluster()).cluster_id
        there = (await target.describe_cluster()).cluster_id
        if here == there and not self.request.prefix:
            raise MirrorStopped(
                f"source and target are the same cluster ({here}): a topic cannot be copied to itself; give --prefix"
            )
        parts = ["headrace-mirror", here or "unknown", *([self.request.name] if self.request.name else [])]
        return ".".join(parts)

    def _note(self, text: str) -> None:
        self.status.notes.append(text)
        del self.status.notes[:-100]
        self._on_status(self.status)


class _Session:
    """From one connection of everything to its end."""

    def __init__(
        self, mirror: Mirror, name: str, source: Admin, target: Admin, producer: Producer, consumer: Consumer
    ) -> None:
        self._mirror = mirror
        self._request = mirror.request
        self._status = mirror.status
        self._name = name
        self._source = source
        self._target = target
        self._groups = Groups(target)
        self._producer = producer
        self._consumer = consumer
        self._positions: dict[Place, int] = {}
        """Of each partition of the source, what the target has committed."""
        self._translations: dict[Place, Translation] = {}
        self._along = (
            None
            if mirror.request.groups is None
            else GroupsAlong(source, target, mirror.request.groups, mirror.request.prefix, mirror._note)
        )

    # -- where to read

    async def read(self, topics: dict[str, Topic]) -> None:
        """Take partitions into the consumer that are not there yet, from where the target says."""
        for name, topic in topics.items():
            if self._mirror._topic_ids.setdefault(name, topic.topic_id) != topic.topic_id:
                raise MirrorStopped(
                    f"{name} was deleted at the source and made again: its offsets say nothing of what was copied."
                    " Delete the target's topic, or give the mirror another --name"
                )
        fresh = [
            (name, index)
            for name, topic in topics.items()
            for index in topic.partitions
            if (name, index) not in self._positions
        ]
        if not fresh:
            return
        stored = await self._groups.committed(self._name, stable=self._request.transactional)
        lows = await self._source.offsets_of(fresh, EARLIEST)
        ends = await self._source.offsets_of(fresh, LATEST)
        written = await self._target.offsets_of([self._in_target(at) for at in fresh], LATEST)
        begun = set()
        for at in fresh:
            if at not in lows or at not in ends:
                raise RequestFailed(f"{at[0]}-{at[1]} at the source", Err.LEADER_NOT_AVAILABLE)
            if self._in_target(at) not in written:
                raise RequestFailed(f"{at[0]}-{at[1]} at the target", Err.LEADER_NOT_AVAILABLE)
            found = stored.get(self._in_target(at))
            if found is not None and found.offset >= 0:
                self._positions[at] = self._resumed(at, found.offset, lows[at], ends[at])
            else:
                self._positions[at] = self._first(at, written[self._in_target(at)], lows[at], ends[at])
                begun.add(at)
            self._translations.setdefault(at, Translation())
        # Before anything is copied: of records without an offset, nobody could tell later whose they are.
        await self._keep({at: self._positions[at] for at in begun})
        await self._consumer.assign(self._positions)

    def _in_target(self, at: Place) -> Place:
        return self._request.prefix + at[0], at[1]

    def _first(self, at: Place, written: int, low: int, end: int) -> int:
        """Of a partition that the target has no offset of: never begun, or begun so long ago that it is forgotten."""
        if written and self._request.start is None:
            raise MirrorStopped(
                f"{at[0]}-{at[1]} has records in the target, and no offset says which of the source's they are: they"
                " are not this mirror's, or it stood still for longer than offsets.retention.minutes. Say where to"
                " begin with --from earliest, which may double records, or --from latest, which may leave some out; or"
                " delete the target's topic"
            )
        return end if self._request.start == "latest" else low

    def _resumed(self, at: Place, stored: int, low: int, end: int) -> int:
        """Where reading goes on: where it was, or at the source's start if that has moved past it."""
        if stored > end:
            raise MirrorStopped(
                f"{at[0]}-{at[1]} was copied up to offset {stored}, and the source ends at {end}: it is another topic"
                " now. Delete the target's topic, or give the mirror another --name"
            )
        if stored < low:
            self._status.missing += low - stored
            self._mirror._note(f"{at[0]}-{at[1]}: the source has deleted {low - stored} offsets that were not copied")
            return low
        return stored

    # -- copying

    async def copy(self, alike: TopicsAlike) -> None:
        # Ends that were there when we came: what comes later does not keep --until-end from ending.
        goal = await self._ends()
        looked = kept = time.monotonic()
        while True:
            records = await self._collect()
            if records:
                await self._write(records)
            if time.monotonic() - kept > KEEP_S:
                kept = time.monotonic()
                await self._keep(self._positions)
            if time.monotonic() - looked > self._request.refresh_s:
                looked = time.monotonic()
                await self.read(await alike.look())
                await self._move_groups()
            await self._tell_lag()
            if self._request.until_end and all(self._consumer.position(at) >= end for at, end in goal.items()):
                await self._move_groups()
                self._mirror._on_status(self._status)
                return

    async def _ends(self) -> dict[Place, int]:
        """What a reader can reach: with read_committed, transactions that are open hold it back."""
        by_topic: dict[str, list[int]] = {}
        for topic, index in self._positions:
            by_topic.setdefault(topic, []).append(index)
        found: dict[Place, int] = {}
        for topic, indexes in by_topic.items():
            rows = await self._source.list_offsets(
                topic, dict.fromkeys(indexes, LATEST), read_committed=self._request.committed
            )
            found.update({(topic, index): row.offset for index, row in rows.items()})
        return found

    async def _collect(self) -> list[Record]:
        records: list[Record] = []
        size = 0
        deadline = time.monotonic() + CYCLE_S
        if not self._positions:
            await asyncio.sleep(CYCLE_S)
            return records
        while len(records) < CYCLE_RECORDS and size < CYCLE_BYTES:
            got = await self._consumer.poll(POLL_S if not records else 0.01, CYCLE_RECORDS)
            records += got
            size += sum([len(one.value or b"") + len(one.key or b"") for one in got])
            if time.monotonic() > deadline or not got:
                break
        return records

    async def _write(self, records: list[Record]) -> None:
        """One cycle: records, where they went, and how far that is, all or none."""
        for one in records:
            if one.offset < self._positions[one.topic, one.partition]:
                # The consumer has begun anew: what it read from is gone, and copying this would double or mix records.
                raise MirrorStopped(
                    f"{one.topic}-{one.partition} was copied up to offset {self._positions[one.topic, one.partition]},"
                    f" and the source goes on at {one.offset}: the topic was made again, or its log was cut. Delete the"
                    " target's topic, or give the mirror another --name"
                )
        offsets = {(one.topic, one.partition): one.offset + 1 for one in records}
        stored = {self._in_target(at): offset for at, offset in offsets.items()}
        if self._request.transactional:
            async with self._producer.transaction() as transaction:
                runs = await self._send(records)
                await transaction.commit_offsets(GroupMetadata(self._name), stored)
        else:
            runs = await self._send(records)
            await self._producer.flush()
            await self._groups.commit(self._name, stored)
        self._positions.update(offsets)
        for at, found in runs.items():
            for run in found:
                self._translations[at].add(run)
        self._status.records += len(records)
        self._status.bytes += sum([len(one.value or b"") + len(one.key or b"") for one in records])

    async def _keep(self, positions: Mapping[Place, int]) -> None:
        """Commit offsets alone: in a transaction too, so that a mirror that was taken over from sets none back."""
        stored = {self._in_target(at): offset for at, offset in positions.items()}
        if not stored:
            return
        if self._request.transactional:
            async with self._producer.transaction() as transaction:
                await transaction.commit_offsets(GroupMetadata(self._name), stored)
        else:
            await self._groups.commit(self._name, stored)

    async def _send(self, records: list[Record]) -> dict[Place, list[Run]]:
        sent: list[tuple[Record, Delivery]] = []
        prefix, send_soon = self._request.prefix, self._producer.send_soon
        for one in records:
            delivery = await send_soon(
                prefix + one.topic,
                one.value,
                key=one.key,
                headers=one.headers,
                timestamp=one.timestamp,
                partition=one.partition,
            )
            sent.append((one, delivery))
        pairs: dict[Place, list[tuple[int, int]]] = {}
        for one, delivery in sent:
            where = await delivery
            if where.offset >= 0:  # else the broker had it already, and says no more where
                pairs.setdefault((one.topic, one.partition), []).append((one.offset, where.offset))
        found = {at: runs_of(both) for at, both in pairs.items()}
        if self._along is not None:
            for (topic, index), runs in found.items():
                await send_soon(self._runs_topic, msgspec.json.encode(runs), key=msgspec.json.encode([topic, index]))
        return found

    # -- groups

    @property
    def _runs_topic(self) -> str:
        return f"{self._name}.offsets"

    async def load_translations(self) -> None:
        """What earlier runs have written down: of each cycle, in the same transaction, which offset became which."""
        try:
            await self._target.describe_topic(self._runs_topic)
        except RequestFailed as error:
            if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await self._target.create_topic(self._runs_topic, 1)
            await await_partitions(self._target, self._runs_topic, 1)
            return
        rows = await self._target.list_offsets(self._runs_topic, {0: LATEST}, read_committed=True)
        end = rows[0].offset
        at = (self._runs_topic, 0)
        async with Consumer(
            bootstrap=self._mirror._target,
            security=self._mirror._target_security,
            auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as reader:
            await reader.assign([at])
            await reader.seek_to_beginning()
            while reader.position(at) < end:
                for record in await reader.poll(1.0, 5_000):
                    topic, index = msgspec.json.decode(record.key)
                    known = self._translations.setdefault((topic, index), Translation())
                    for run in msgspec.json.decode(record.value, type=list[Run]):
                        known.add(run)

    async def _move_groups(self) -> None:
        if self._along is not None:
            await self._along.move({at: self._translations[at] for at in self._positions})
            self._status.groups = dict(self._along.moved)

    async def _tell_lag(self) -> None:
        ends = await self._ends()
        lags = {f"{topic}-{index}": max(0, ends[topic, index] - self._consumer.position((topic, index)))
                for topic, index in self._positions}  # fmt: skip
        self._status.partitions = lags
        self._status.lag = sum(lags.values())
        self._mirror._on_status(self._status)
