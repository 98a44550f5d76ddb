"""`headrace.Consumer`: records from topics, from asyncio."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.api.arguments import (
    Partition,
    check_loop,
    check_offset,
    check_partitions,
    offsets_to_commit,
    one_partition,
    positive_count,
    topic_names,
)
from headrace.client.api.options import (
    ASSIGNORS,
    CONSUMER_NAMES,
    CONSUMER_UNUSED,
    GROUP_PROTOCOLS,
    ISOLATION_LEVELS,
    ConsumerOptions,
    ConsumerSettings,
    OptionRefused,
)
from headrace.client.api.serializers import Decode, SerializationFailed, decoder_of
from headrace.client.api.types import Batch, GroupMetadata, PartitionLag, Record, TopicPartition
from headrace.client.consume.classic_member import ClassicMember
from headrace.client.consume.consumer import ConsumerCore, Listeners
from headrace.client.consume.fetcher import FetchOptions
from headrace.client.consume.member import ConsumerMember
from headrace.client.consume.membership import Membership, Subscription, compile_pattern
from headrace.client.consume.offsets import GroupOffsets, Identity
from headrace.client.consume.places import Handed
from headrace.client.consume.resets import read_reset
from headrace.client.errors import ClientError, NotReady
from headrace.client.net.cluster import Cluster
from headrace.client.options import choose, read_settings
from headrace.client.registry.errors import RegistryUnreachable
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

log = logging.getLogger(__name__)

POLL_S = 1.0


class Consumer:
    """Reads records of topics of Headrace or any other Kafka.

        async with headrace.Consumer("orders", bootstrap="127.0.0.1:9092", group="billing") as consumer:
            async for record in consumer:
                ...

    Members of a group share the partitions of its topics; each record that was handed out and passed (the next one was
    asked for) is committed now and then, so that another member goes on behind it. Without a group a consumer reads all
    partitions of its topics, or those it is given by `assign`. Options are keywords (`ConsumerSettings` has all of
    them) or, in `config`, the names of Kafka's own clients. Nothing connects before `start` or `async with`.

    One task at a time may read. Heartbeats go on by themselves; `max_poll_interval_ms` may pass between two reads.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        given = {**options, "bootstrap": bootstrap}
        self.settings = read_settings(ConsumerSettings, CONSUMER_NAMES, CONSUMER_UNUSED, config, given)
        self.topics: list[str] = topic_names(topics)
        settings = self.settings
        self._decode_key: Decode | None = decoder_of(settings.key_deserializer, "key_deserializer")
        self._decode_value: Decode | None = decoder_of(settings.value_deserializer, "value_deserializer")
        self._read_committed = choose("isolation_level", settings.isolation_level, ISOLATION_LEVELS) == "read_committed"
        self._protocol = choose("group_protocol", settings.group_protocol, GROUP_PROTOCOLS)
        self._reset = read_reset(settings.auto_offset_reset)
        if settings.pattern is not None:
            compile_pattern(settings.pattern)
            if self.topics:
                raise OptionRefused("give the consumer topics or a pattern, not both")
        for name, fix in (("group", "name a group, or leave it out to read without one"),
                          ("instance_id", "give each member a name of its own, or leave it out")):  # fmt: skip
            if getattr(settings, name) == "":
                raise OptionRefused(f"option {name} is empty: {fix}")
        for name in settings.assignors or ("",):
            choose("assignors", name, ASSIGNORS)
        for name in ("on_assigned", "on_revoked", "on_lost"):
            told = getattr(settings, name)
            if told is not None and not callable(told):
                raise OptionRefused(f"option {name} is {told!r}: give a function of a set of partitions")
        self._cluster: Cluster | None = None
        self._line: Cluster | None = None
        self._core: ConsumerCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._is_reading = False

    # -- life

    async def start(self) -> None:
        """Connect and join the group. `async with` does it. Raises ClientError when no broker answers."""
        if self._is_closed:
            raise ClientError("the consumer is closed: make a new one")
        if self._core is not None:
            return
        settings = self.settings
        cluster = settings.new_cluster()
        line = cluster.beside()
        try:
            await cluster.refresh(self.topics)
            self._cluster, self._line, self._loop = cluster, line, asyncio.get_running_loop()
            await self._begin(cluster, line)
        except BaseException:
            self._core = self._cluster = self._line = None
            cluster.close()
            line.close()
            raise

    async def _begin(self, cluster: Cluster, line: Cluster) -> None:
        settings = self.settings
        options = FetchOptions(
            reset=self._reset,
            read_committed=self._read_committed,
            bytes_max=settings.fetch_bytes,
            partition_bytes_max=settings.partition_fetch_bytes,
            min_bytes=settings.fetch_min_bytes,
            max_wait_ms=settings.fetch_max_wait_ms,
            rack=settings.rack,
            replica_age_s=settings.metadata_max_age_ms / 1000,
            check_crcs=settings.check_crcs,
        )
        has_subscription = bool(self.topics) or settings.pattern is not None
        offsets = None
        if settings.group is not None:
            offsets = GroupOffsets(line, settings.group, identity=self._identity)
        core = ConsumerCore(
            cluster,
            options,
            offsets=offsets,
            auto_commit_s=settings.auto_commit_interval_ms / 1000 if settings.auto_commit and offsets else None,
            listeners=Listeners(settings.on_assigned, settings.on_revoked, settings.on_lost),
            metadata_max_age_s=settings.metadata_max_age_ms / 1000,
        )
        self._core = core
        if settings.group is not None and has_subscription:
            for topic in self.topics:
                if topic not in cluster.topics:
                    log.warning("topic %r does not exist: group %r waits for it", topic, settings.group)
            core.join(await self._membership(cluster, line, settings.group, core))
        elif has_subscription:
            core.read_topics(self.topics, settings.pattern)

    async def _membership(self, cluster: Cluster, line: Cluster, group: str, core: ConsumerCore) -> Membership:
        settings = self.settings
        subscription = Subscription(
            cluster,
            line,
            group,
            core.note_news,
            self.topics,
            settings.pattern,
            settings.instance_id,
            settings.rack,
            settings.max_poll_interval_ms,
            settings.session_timeout_ms,
            settings.heartbeat_interval_ms,
            settings.metadata_max_age_ms / 1000,
        )
        protocol = self._protocol
        if protocol == "auto":
            protocol = "consumer" if await serves_consumer_protocol(cluster, group) else "classic"
        if protocol == "consumer":
            return ConsumerMember(subscription, remote_assignor=settings.remote_assignor)
        return ClassicMember(subscription, settings.assignors)

    def _identity(self) -> Identity:
        membership = self._core.membership if self._core is not None else None
        return Identity() if membership is None else membership.identity

    async def close(self) -> None:
        """Commit what was handed out (unless auto_commit is off), leave the group and disconnect."""
        await self._close(passed=True)

    async def _close(self, *, passed: bool) -> None:
        core, cluster, line = self._core, self._cluster, self._line
        self._is_closed = True
        if core is None or cluster is None or line is None:
            return
        check_loop(self._loop, "consumer")
        try:
            await core.close(passed=passed)
        finally:
            self._core = self._cluster = self._line = None
            line.close()
            cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._close(passed=True)
            return
        try:
            # The record that was being worked on has not come to its end: it is read again.
            await self._close(passed=False)
        except ClientError:
            return

    # -- reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Every record from here on, waiting for more at the end."""
        core = self._running()
        limit = self.settings.max_poll_records
        while True:
            handed = await self._next(core, limit, None)
            assert handed is not None
            records = handed.records
            for index, record in enumerate(records):
                if index and (core.has_news or core.handed is not handed):
                    core.let_go(handed, index)
                    break
                handed.current = record
                yield record

    async def batches(self, max_records: int | None = None) -> AsyncIterator[Batch]:
        """Every record from here on, in batches of one partition each: less work for each record."""
        core = self._running()
        limit = positive_count(max_records, 1 << 30)
        while True:
            handed = await self._next(core, limit, None)
            assert handed is not None
            yield Batch(handed.place.topic, handed.place.partition, handed.records)

    async def tables(self, columns: Sequence[str] | None = None) -> AsyncIterator[Any]:
        """Every record from here on, as `pyarrow.Table`s of one partition each; deserializers are not used.

        `columns` are of key, value, topic, partition, offset, timestamp, timestampType and headers. Needs the extra
        `columnar`. polars, pandas and DuckDB take such tables as they are.
        """
        from headrace.client.api.tables import read_tables

        core = self._running()
        if self._is_reading:
            raise ClientError("two tasks read from one consumer at once: give each a consumer of its own")
        async for table in read_tables(core, columns):
            yield table

    async def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[Record]:
        """The next records, of another partition each time; none when none came in time.

        What the last call gave counts as passed.
        """
        core = self._running()
        limit = positive_count(max_records, self.settings.max_poll_records)
        if not isinstance(timeout_s, int | float) or timeout_s < 0:
            raise ClientError(f"timeout_s is {timeout_s!r}: give seconds, 0 for what is here already")
        handed = await self._next(core, limit, timeout_s)
        return [] if handed is None else handed.records

    async def _next(self, core: ConsumerCore, limit: int, timeout_s: float | None) -> Handed | None:
        check_loop(self._loop, "consumer")
        if self._is_reading:
            raise ClientError("two tasks read from one consumer at once: give each a consumer of its own")
        self._is_reading = True
        try:
            while True:
                handed = await core.next(limit, timeout_s)
                if handed is None:
                    return None
                if self._decode_key is not None or self._decode_value is not None:
                    unready = self._deserialize(core, handed)
                    if unready is not None:
                        await _learn(*unready)
                        continue
                if self.settings.telemetry is not None:
                    self.settings.telemetry.received(handed.records, self.settings.group, self.settings.client_id)
                return handed
        except ClientError:
            if self._core is None:
                raise ClientError("the consumer was closed while it was read from") from None
            raise
        finally:
            self._is_reading = False

    def _deserialize(self, core: ConsumerCore, handed: Handed) -> tuple[Record, NotReady] | None:
        """In place; one that cannot be read is raised when it is the next, and `seek` goes around it. The first record
        and what it waits for, if a deserializer has to ask somebody: nothing is handed out meanwhile."""
        decode_key, decode_value = self._decode_key, self._decode_value
        records, found = handed.records, []
        for index, raw in enumerate(records):
            key, value = raw.key, raw.value
            try:
                if decode_key is not None and key is not None:
                    key = decode_key(raw.topic, key)
                if decode_value is not None and value is not None:
                    value = decode_value(raw.topic, value)
            except Exception as error:
                core.give_back(index)
                if index:
                    break
                core.handed = None
                if isinstance(error, NotReady):
                    return raw, error
                raise RecordUnreadable(raw, error) from error
            found.append(Record(raw.topic, raw.partition, raw.offset, raw.timestamp, key, value, raw.headers))
        handed.records = found
        return None

    # -- committing

    async def commit(self, offsets: Mapping[Partition, int] | Record | Batch | None = None) -> None:
        """Commit what was handed out, the current record or batch included. On the broker's disk when this returns.

        Or up to a record or batch, or the given offsets: of each partition the next one to be read.
        """
        await self._running().commit(offsets_to_commit(offsets))

    def commit_soon(self, offsets: Mapping[Partition, int] | Record | Batch | None = None) -> "asyncio.Task[None]":
        """As `commit`, without waiting and in the order of calls. Its failure is raised by the next read, too."""
        return self._running().commit_soon(offsets_to_commit(offsets))

    async def committed(self, *partitions: Partition) -> dict[TopicPartition, int]:
        """The group's committed offsets of these partitions, or of the assigned ones; of those that have one."""
        core = self._running()
        if core._offsets is None:
            raise ClientError("there are no committed offsets: give the consumer a group")
        found = await core._offsets.committed(self._these(partitions), stable=self._read_committed)
        return {TopicPartition(*at): offset for at, offset in found.items()}

    def group_metadata(self) -> GroupMetadata:
        """As whom a transaction commits offsets of this consumer. Raises RequestFailed (ILLEGAL_GENERATION) when the
        group has gone on without it: what it has handed out may be another member's by now."""
        if self.settings.group is None:
            raise ClientError("there is nowhere to commit to: give the consumer a group")
        if self._core is not None:
            self._core.check_member()
        me = self._identity()
        return GroupMetadata(self.settings.group, me.member_id, me.epoch, me.instance_id)

    def handed_out(self) -> dict[TopicPartition, int]:
        """Of each partition the offset behind what was handed out: what `commit` commits."""
        core = self._running()
        return {TopicPartition(*at): core.handed_position(place) for at, place in core.fetcher.places.items()}

    def leader_epochs(self, offsets: Mapping[Partition, int]) -> dict[TopicPartition, int]:
        """The leader epochs of the records before these offsets, of those that this consumer has read: committed with
        them, so that whoever goes on there notices a log that was cut (KIP-320)."""
        found = (
            self._core.epochs_of({(topic, index): offset for (topic, index), offset in offsets.items()})
            if self._core
            else {}
        )
        return {TopicPartition(*at): epoch for at, epoch in found.items()}

    # -- partitions

    async def assign(self, partitions: Iterable[Partition] | Mapping[Partition, int]) -> None:
        """Read just these partitions, chosen by hand, and new ones from the given offsets where there are any.

        A consumer that has topics of its own cannot.
        """
        if self.topics or self.settings.pattern is not None:
            raise ClientError("this consumer has topics or a pattern: make one without them to assign by hand")
        core = self._running()
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise ClientError(f"{partitions!r} are no partitions: give a list of (topic, partition)")
        if not isinstance(partitions, Mapping):
            partitions = [*partitions]
        else:
            for offset in partitions.values():
                check_offset(offset)
        check_partitions(partitions)
        await core.assign(partitions)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this consumer reads now."""
        return frozenset(TopicPartition(*at) for at in self._running().fetcher.places)

    @property
    def member_id(self) -> str:
        """The id by which the group knows this consumer; empty without one."""
        return self._identity().member_id

    @property
    def expulsions(self) -> int:
        """How often the group has gone on without this member, so that others may have read the same again."""
        membership = self._running().membership
        return 0 if membership is None else membership.expulsions

    def position(self, partition: Partition) -> int:
        """The offset of the next record that is handed out."""
        core = self._running()
        return core.handed_position(core.place(one_partition(partition)))

    def seek(self, partition: Partition, offset: int) -> None:
        """Go on from any offset, back or forth."""
        check_offset(offset)
        self._running().seek(one_partition(partition), offset)

    async def seek_to_time(self, when: int | datetime, *partitions: Partition) -> dict[TopicPartition, int]:
        """Go on from the first record at or after a time (milliseconds since 1970, or a datetime); at the end, if there
        is none. Of these partitions, or of all."""
        if (
            isinstance(when, bool)
            or not isinstance(when, int | float | datetime)
            or (not isinstance(when, datetime) and when < 0)
        ):
            raise ClientError(f"the time is {when!r}: give milliseconds since 1970, or a datetime")
        millis = round(when.timestamp() * 1000) if isinstance(when, datetime) else int(when)
        return await self._seek_all(millis, partitions)

    async def seek_to_beginning(self, *partitions: Partition) -> dict[TopicPartition, int]:
        """Go on from the first record there is, of these partitions or of all."""
        return await self._seek_all(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: Partition) -> dict[TopicPartition, int]:
        """Go on with what is written from now on, of these partitions or of all."""
        return await self._seek_all(LATEST, partitions)

    async def seek_to_committed(self, *partitions: Partition) -> dict[TopicPartition, int]:
        """Go back to what the group has committed, or to where `auto_offset_reset` says: as after a transaction that
        was aborted. Of these partitions, or of all."""
        core = self._running()
        wanted = self._these(partitions)
        found = await core._starts(frozenset((topic, index) for topic, index in wanted))
        for at, (offset, leader_epoch) in found.items():
            core.seek(at, offset, leader_epoch)
        return {TopicPartition(*at): start.offset for at, start in found.items()}

    async def _seek_all(self, timestamp: int, partitions: tuple[Partition, ...]) -> dict[TopicPartition, int]:
        core = self._running()
        found: dict[TopicPartition, int] = {}
        for at, offset in (await self._list(timestamp, partitions)).items():
            if at in core.fetcher.places:
                core.seek(at, offset)
                found[at] = offset
        return found

    async def _list(self, timestamp: int, partitions: tuple[Partition, ...]) -> dict[TopicPartition, int]:
        """The first offset at or after a time; the end, where no record is that young."""
        admin = Admin(cluster=self._clustered())
        wanted = [TopicPartition(*at) for at in self._these(partitions)]
        rows = await admin.offsets_at(dict.fromkeys(wanted, timestamp), read_committed=self._read_committed)
        late = [at for at, row in rows.items() if row.offset < 0]
        rows |= await admin.offsets_at(dict.fromkeys(late, LATEST), read_committed=self._read_committed)
        return {TopicPartition(*at): row.offset for at, row in rows.items()}

    def pause(self, *partitions: Partition) -> None:
        """Hand out nothing of these partitions, or of all, until `resume`; the group keeps them."""
        core = self._running()
        for at in self._these(partitions):
            core.fetcher.pause(core.place(at))
        core.note_news()

    def resume(self, *partitions: Partition) -> None:
        """Go on with these partitions, or with all."""
        core = self._running()
        # All are looked up first: one that is not assigned must not leave others paused.
        for place in [core.place(at) for at in self._these(partitions)]:
            core.fetcher.resume(place)
        core.fetcher.launch()
        core.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is handed out at the moment."""
        places = self._running().fetcher.places
        return frozenset(TopicPartition(*at) for at, place in places.items() if place.is_paused)

    async def lag(self) -> dict[TopicPartition, PartitionLag]:
        """How far this consumer is behind the end of each of its partitions, in records and in seconds."""
        core = self._running()
        admin = Admin(cluster=self._clustered())
        positions = {at: core.handed_position(place) for at, place in core.fetcher.places.items()}
        ends = await admin.ends_and_ages(positions)
        now_ms = time.time_ns() // 1_000_000
        found: dict[TopicPartition, PartitionLag] = {}
        for at, (end, age_ms) in ends.items():
            records = max(0, end - positions[at])
            if records == 0:
                seconds: float | None = 0.0
            elif age_ms is not None:
                seconds = age_ms / 1000 if age_ms >= 0 else None
            else:
                seconds = await self._age_s(at, positions[at], now_ms)
            found[TopicPartition(*at)] = PartitionLag(records, seconds)
        return found

    async def _age_s(self, at: Partition, offset: int, now_ms: int) -> float | None:
        """Of the record at an offset, for brokers that do not tell: it is read once more."""
        from headrace.client.raw import fetch
        from headrace.records.reader import iter_records

        try:
            got = await fetch(self._clustered(), *at, offset, max_wait_ms=0)
        except ClientError:
            return None
        first = next((one for one in iter_records(got.records) if one.offset >= offset), None)
        return None if first is None else max(0.0, (now_ms - first.timestamp) / 1000)

    # -- inside

    def _these(self, partitions: tuple[Partition, ...]) -> list[Partition]:
        check_partitions(partitions)
        return list(partitions) or list(self._running().fetcher.places)

    def _clustered(self) -> Cluster:
        """Connections on which no fetch waits for records."""
        self._running()
        assert self._line is not None
        return self._line

    def _running(self) -> ConsumerCore:
        if self._core is None:
            if self._is_closed:
                raise ClientError("the consumer is closed: make a new one")
            raise ClientError(
                "the consumer is not started: use `async with Consumer(...) as consumer`, or await start()"
            )
        return self._core


async def _learn(record: Record, wait: NotReady) -> None:
    """Ask for what a record's deserializer needs. A registry that is away says nothing about the record."""
    try:
        await asyncio.to_thread(wait.learn)
    except RegistryUnreachable:
        raise
    except Exception as error:
        raise RecordUnreadable(record, error) from error


class RecordUnreadable(SerializationFailed):
    """A record that the deserializers refuse. `record` has its bytes; `seek` behind its offset goes on without it."""

    def __init__(self, record: Record, error: Exception) -> None:
        super().__init__(record, error)
        self.record = record

    def __str__(self) -> str:
        record, error = self.args
        return (
            f"the record at {record.topic}-{record.partition} offset {record.offset} cannot be deserialized: {error}; "
            f"seek(({record.topic!r}, {record.partition}), {record.offset + 1}) goes on behind it"
        )


async def serves_consumer_protocol(cluster: Cluster, group: str) -> bool:
    """Whether groups may speak KIP-848's protocol. Brokers list its requests also where an option or the level of
    `group.version` has it off, as in a cluster of Kafka 3 that was upgraded: then they refuse them all."""
    connection = await cluster.any_connection()
    if ApiKey.CONSUMER_GROUP_DESCRIBE not in connection.versions:
        return False
    request = m.ConsumerGroupDescribeRequest(group_ids=[group])
    answer: m.ConsumerGroupDescribeResponse = await connection.request(ApiKey.CONSUMER_GROUP_DESCRIBE, request)
    return all(found.error_code != Err.UNSUPPORTED_VERSION for found in answer.groups)
