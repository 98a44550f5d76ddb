"""One member of a consumer group, by the protocol of KIP-848: heartbeats, the assignment, committed offsets.

The coordinator says in heartbeats what the member should have; the member says what it has. What it must give up it
keeps until its owner has finished with it: `GroupConsumer` drives that, here is only the talk with the coordinator.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from headrace.client.admin.admin import Admin, only
from headrace.client.admin.groups import BY_NAME_VERSION, SEVERAL_GROUPS_VERSION, Groups, TopicPartition
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed, UnsupportedApi, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, NO_TOPIC_ID, Cluster
from headrace.client.net.connection import Connection
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

T = TypeVar("T")

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
"""Epochs with a meaning of their own."""
EXPELLED = frozenset({Err.FENCED_MEMBER_EPOCH, Err.UNKNOWN_MEMBER_ID})
"""The group goes on without this member: what it had may belong to another one already."""
COORDINATOR_MOVED = frozenset({Err.NOT_COORDINATOR, Err.COORDINATOR_NOT_AVAILABLE, Err.BROKER_NOT_AVAILABLE})
GONE = frozenset({Err.UNKNOWN_TOPIC_OR_PARTITION, Err.UNKNOWN_TOPIC_ID})
HEARTBEAT_S_BEFORE_TOLD = 1.0
LEAVE_LIMIT_S = 5.0

Heartbeat = m.ConsumerGroupHeartbeatRequest


class GroupMember:
    """`start`, then `wanted` changes by itself; say `owns(...)` after every change of what is really held."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topics: Iterable[str],
        *,
        on_change: Callable[[], None],
        instance_id: str | None = None,
        rack_id: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = 300_000,
    ) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.topics = sorted(set(topics))
        self.member_id = str(uuid.uuid4())
        """Chosen here, so that a lost answer to the first heartbeat leaves no second member behind."""
        self.instance_id = instance_id
        self.epoch = JOINING
        self.wanted: frozenset[TopicPartition] = frozenset()
        self.topic_ids: dict[str, bytes] = {}
        """Of topics that were ever wanted, by name."""
        self.replaced: set[str] = set()
        """Topics that were deleted and made again: what is held of them is of the old one. Cleared by the owner."""
        self.expulsions = 0
        """How often the group has gone on without this member; nothing it held since may be committed."""
        self.failure: ClientError | None = None
        """Why there will be no more heartbeats."""
        self._rack_id = rack_id
        self._assignor = assignor
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._alive_s = 0.0
        self._owned: frozenset[TopicPartition] = frozenset()
        self._said: frozenset[TopicPartition] | None = None
        self._ids: dict[bytes, str] = {}
        self._groups = Groups(Admin(cluster=cluster))
        self._coordinator: int | None = None
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- membership

    def start(self) -> None:
        """Join, and stay in the group until `leave`."""
        assert self._task is None
        self.is_alive()
        self._task = asyncio.create_task(self._run(), name=f"heartbeats of {self.group_id}")

    def is_alive(self) -> None:
        """Said by the owner at every poll: one that has hung must not keep its partitions by mere heartbeats."""
        self._alive_s = asyncio.get_running_loop().time()
        if self.epoch == LEAVING:
            self.epoch = JOINING
            self._wake.set()

    def owns(self, partitions: Iterable[TopicPartition]) -> None:
        """What is held from now on; the coordinator is told at once, since others may wait for the rest."""
        self._owned = frozenset(partitions)
        if self._owned != self._said:
            self._wake.set()

    async def leave(self) -> None:
        """Give everything up. A group that cannot be reached notices by itself, after its session timeout."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.epoch > JOINING and self.failure is None:
            await self._say_goodbye(LEAVING if self.instance_id is None else LEAVING_FOR_A_WHILE)

    async def _say_goodbye(self, epoch: int) -> None:
        self.epoch = epoch
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._ask(self._beat)
        except (ClientError, TimeoutError):
            return

    async def _run(self) -> None:
        pause_s = BACKOFF_S_MIN
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - self._alive_s > self._rebalance_timeout_ms / 1000:
                await self._say_goodbye(LEAVING)
                self._be_expelled()
                while self.epoch == LEAVING:
                    await self._wake.wait()
                    self._wake.clear()
            try:
                wait_s = await self._ask(self._beat)
                pause_s = BACKOFF_S_MIN
            except ClientError as error:
                # After a failure everything is said again: nobody knows what the coordinator has heard.
                self._said = None
                if not self._survives(error):
                    self.failure = error
                    self._on_change()
                    return
                wait_s, pause_s = pause_s, min(pause_s * 2, BACKOFF_S_MAX)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _survives(self, error: ClientError) -> bool:
        if isinstance(error, RequestFailed) and error.error in EXPELLED:
            self.epoch = JOINING
            self._be_expelled()
            return True
        return is_transient(error)

    def _be_expelled(self) -> None:
        self.wanted = self._owned = frozenset()
        self._said = None
        self.expulsions += 1
        self._on_change()

    async def _beat(self, connection: Connection) -> float:
        """One heartbeat; returns when the next one is due."""
        request = self._heartbeat()
        said = self._owned
        answer: m.ConsumerGroupHeartbeatResponse = await connection.request(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, request, timeout_s=self.cluster.request_timeout_s
        )
        check(answer.error_code, f"member of group {self.group_id!r}", answer.error_message)
        if self.epoch < JOINING:
            return 0.0
        self.epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self._said = said
        if answer.assignment is not None:
            await self._assign(answer.assignment)
        return answer.heartbeat_interval_ms / 1000 or HEARTBEAT_S_BEFORE_TOLD

    def _heartbeat(self) -> Heartbeat:
        request = Heartbeat(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance_id
        )
        if self.epoch < JOINING:
            return request
        if self.epoch == JOINING or self._said is None:
            request.rack_id = self._rack_id
            request.rebalance_timeout_ms = self._rebalance_timeout_ms
            request.subscribed_topic_names = self.topics
            request.server_assignor = self._assignor
        if self._owned != self._said or self.epoch == JOINING:
            owned: dict[bytes, list[int]] = {}
            for topic, index in sorted(self._owned):
                owned.setdefault(self.topic_ids[topic], []).append(index)
            request.topic_partitions = [Heartbeat.TopicPartitions(topic_id=i, partitions=p) for i, p in owned.items()]
        return request

    async def _assign(self, assignment: m.ConsumerGroupHeartbeatResponse.Assignment) -> None:
        rows = assignment.topic_partitions
        if any(row.topic_id not in self._ids for row in rows):
            await self.cluster.refresh(self.topics)
            self._ids = {topic.topic_id: topic.name for topic in self.cluster.topics.values()}
        # A topic that is not known here yet is taken when it is: the next full heartbeat names it again.
        known = {self._ids[row.topic_id]: row for row in rows if row.topic_id in self._ids}
        if len(known) < len(rows):
            self._said = None
        replaced = {name for name, row in known.items() if self.topic_ids.get(name, row.topic_id) != row.topic_id}
        self.topic_ids.update((name, row.topic_id) for name, row in known.items())
        self.replaced |= replaced
        wanted = frozenset((name, index) for name, row in known.items() for index in row.partitions)
        if wanted != self.wanted or replaced:
            self.wanted = wanted
            self._on_change()

    # -- offsets

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, bytes],
    ) -> None:
        """Commit as this member. Raises RequestFailed when the group has gone on without it.

        By id where the broker can, so that nothing is committed to a topic that has taken another's name. What is to be
        committed of a topic that is gone is passed over.
        """
        kind = m.OffsetCommitRequest
        by_name = not all(topic_ids.get(topic) for topic, _ in offsets)
        topics: dict[str, list[Any]] = {}
        for (topic, index), offset in sorted(offsets.items()):
            row = kind.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_leader_epoch=epochs.get((topic, index), -1)
            )
            topics.setdefault(topic, []).append(row)

        async def ask(connection: Connection) -> None:
            request = kind(
                group_id=self.group_id,
                generation_id_or_member_epoch=self.epoch,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                topics=[
                    kind.OffsetCommitRequestTopic(name=name, topic_id=topic_ids.get(name, NO_TOPIC_ID), partitions=rows)
                    for name, rows in topics.items()
                ],
            )
            answer: m.OffsetCommitResponse = await connection.request(
                ApiKey.OFFSET_COMMIT,
                request,
                version_max=BY_NAME_VERSION if by_name else None,
                timeout_s=self.cluster.request_timeout_s,
            )
            names = {topic_id: name for name, topic_id in topic_ids.items()}
            for topic in answer.topics:
                name = topic.name or names.get(topic.topic_id, "")
                for part in topic.partitions:
                    if part.error_code in GONE and await self._is_gone(name, topic_ids.get(name)):
                        continue
                    check(part.error_code, f"commit of group {self.group_id!r} in {name}-{part.partition_index}")

        await self._patiently(ask)

    async def _is_gone(self, topic: str, topic_id: bytes | None) -> bool:
        """Whether the topic is deleted, or another has its name by now."""
        await self.cluster.refresh([topic])
        found = self.cluster.topics.get(topic)
        return found is None or topic_id not in (None, found.topic_id)

    async def committed(self, partitions: Iterable[TopicPartition], *, stable: bool) -> dict[TopicPartition, int]:
        """Committed offsets of those partitions that have one. With `stable`, waits for open transactions' commits."""
        kind = m.OffsetFetchRequest
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            topics.setdefault(topic, []).append(index)
        rows = [kind.OffsetFetchRequestTopics(name=name, partition_indexes=found) for name, found in topics.items()]

        async def ask(connection: Connection) -> dict[TopicPartition, int]:
            if connection.version_of(ApiKey.OFFSET_FETCH) < SEVERAL_GROUPS_VERSION:
                raise UnsupportedApi(f"the broker at {connection.peer} is too old for this consumer's protocol")
            group = kind.OffsetFetchRequestGroup(
                group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch, topics=rows
            )
            answer: m.OffsetFetchResponse = await connection.request(
                ApiKey.OFFSET_FETCH,
                kind(groups=[group], require_stable=stable),
                version_max=BY_NAME_VERSION,
                timeout_s=self.cluster.request_timeout_s,
            )
            got = only(answer.groups, "OffsetFetch")
            check(got.error_code, f"offsets of group {self.group_id!r}")
            found = {}
            for topic in got.topics:
                for part in topic.partitions:
                    check(part.error_code, f"offset of group {self.group_id!r} in {topic.name}-{part.partition_index}")
                    if part.committed_offset >= 0:
                        found[topic.name, part.partition_index] = part.committed_offset
            return found

        return await self._patiently(ask)

    # -- the way to the coordinator

    async def _patiently(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask again while a broker is away, the coordinator moves, or the member's epoch is being renewed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.cluster.retry_timeout_s
        pause_s = BACKOFF_S_MIN
        while True:
            try:
                return await self._ask(ask)
            except ClientError as error:
                stale = isinstance(error, RequestFailed) and error.error is Err.STALE_MEMBER_EPOCH
                if stale:
                    self._wake.set()
                late = loop.time() + pause_s > deadline or self.failure is not None
                if late or not (stale or is_transient(error)):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)

    async def _ask(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Once, at the coordinator; after a failure the next one looks where it is now."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._groups.coordinator(self.group_id)
            return await ask(await self.cluster.broker_connection(self._coordinator))
        except ClientError as error:
            if not isinstance(error, RequestFailed) or error.error in COORDINATOR_MOVED:
                self._coordinator = None
            raise


def is_transient(error: ClientError) -> bool:
    """Whether time may cure it: a broker that is away comes back, or another one takes its place."""
    if isinstance(error, RequestFailed):
        return error.error.retriable or error.error in COORDINATOR_MOVED
    return not isinstance(error, UnsupportedApi | SecurityFailed)
