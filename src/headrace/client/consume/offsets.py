"""A group's committed offsets and the way to its coordinator, for members of the group and for whoever only commits."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from headrace.client.admin.admin import only
from headrace.client.admin.groups import BY_NAME_VERSION, SEVERAL_GROUPS_VERSION, TopicPartition
from headrace.client.consume.places import Start
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed, UnsupportedApi, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, NO_TOPIC_ID, Cluster
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import GROUP, Coordinators
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

T = TypeVar("T")

COORDINATOR_MOVED = frozenset({Err.NOT_COORDINATOR, Err.COORDINATOR_NOT_AVAILABLE, Err.BROKER_NOT_AVAILABLE})
GONE = frozenset({Err.UNKNOWN_TOPIC_OR_PARTITION, Err.UNKNOWN_TOPIC_ID})
EXPELLED = frozenset({Err.FENCED_MEMBER_EPOCH, Err.UNKNOWN_MEMBER_ID, Err.ILLEGAL_GENERATION})
"""The group goes on without this member: what it had may belong to another one already."""
WAIT = frozenset({Err.STALE_MEMBER_EPOCH, Err.REBALANCE_IN_PROGRESS})
"""The member's epoch is being renewed: what is asked again with the next one succeeds."""


class Identity(NamedTuple):
    """As whom offsets are committed. By default as nobody: the group then has no members."""

    member_id: str = ""
    epoch: int = -1
    """The member epoch, or the generation in the classic protocol."""
    instance_id: str | None = None
    names_epoch: bool = False
    """Whether fetches of offsets are made as a member, too (KIP-848)."""


class GroupOffsets:
    """One group's coordinator, wherever it is."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        identity: Callable[[], Identity] = Identity,
        on_stale: Callable[[], None] = lambda: None,
    ) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.failure: ClientError | None = None
        """Why it is useless to ask again."""
        self._identity = identity
        self._on_stale = on_stale
        self._coordinators = Coordinators(cluster, GROUP, "group")
        self._coordinator: int | None = None

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, bytes],
        metadata: str = "",
        *,
        check_member: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit as this member. Raises RequestFailed when the group has gone on without it.

        `check_member` is called before every attempt, and raises once the member may no longer commit these offsets: it
        may have joined again meanwhile, and the coordinator would believe its new epoch.

        By id where the broker can, so that nothing is committed to a topic that has taken another's name. What is to be
        committed of a topic that is gone is passed over.
        """
        kind = m.OffsetCommitRequest
        by_name = not all(topic_ids.get(topic) for topic, _ in offsets)
        topics: dict[str, list[Any]] = {}
        for (topic, index), offset in sorted(offsets.items()):
            row = kind.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epochs.get((topic, index), -1),
                committed_metadata=metadata,
            )
            topics.setdefault(topic, []).append(row)

        async def ask(connection: Connection) -> None:
            check_member()
            me = self._identity()
            request = kind(
                group_id=self.group_id,
                generation_id_or_member_epoch=me.epoch,
                member_id=me.member_id,
                group_instance_id=me.instance_id,
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

        await self.patiently(ask)

    async def _is_gone(self, topic: str, topic_id: bytes | None) -> bool:
        """Whether the topic is deleted, or another has its name by now."""
        await self.cluster.refresh([topic])
        found = self.cluster.topics.get(topic)
        return found is None or topic_id not in (None, found.topic_id)

    async def committed(self, partitions: Iterable[TopicPartition], *, stable: bool) -> dict[TopicPartition, int]:
        """Committed offsets of those partitions that have one. With `stable`, waits for open transactions' commits."""
        return {at: start.offset for at, start in (await self.starts(partitions, stable=stable)).items()}

    async def starts(self, partitions: Iterable[TopicPartition], *, stable: bool) -> dict[TopicPartition, Start]:
        """As `committed`, with the leader epochs that were committed."""
        kind = m.OffsetFetchRequest
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            topics.setdefault(topic, []).append(index)
        rows = [kind.OffsetFetchRequestTopics(name=name, partition_indexes=found) for name, found in topics.items()]

        async def ask(connection: Connection) -> dict[TopicPartition, Start]:
            if connection.version_of(ApiKey.OFFSET_FETCH) < SEVERAL_GROUPS_VERSION:
                raise UnsupportedApi(f"the broker at {connection.peer} is too old for this consumer's protocol")
            group = kind.OffsetFetchRequestGroup(group_id=self.group_id, topics=rows)
            me = self._identity()
            # Who has not joined, or has left, asks as anybody may: the coordinator does not know such a member.
            if me.names_epoch and me.epoch > 0:
                group.member_id, group.member_epoch = me.member_id, me.epoch
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
                        found[topic.name, part.partition_index] = Start(
                            part.committed_offset, part.committed_leader_epoch
                        )
            return found

        return await self.patiently(ask)

    # -- the way to the coordinator

    async def patiently(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask again while a broker is away, the coordinator moves, or the member's epoch is being renewed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.cluster.retry_timeout_s
        pause_s = BACKOFF_S_MIN
        while True:
            try:
                return await self.ask(ask)
            except ClientError as error:
                waits = isinstance(error, RequestFailed) and error.error in WAIT
                if waits:
                    self._on_stale()
                late = loop.time() + pause_s > deadline or self.failure is not None
                if late or not (waits or is_transient(error)):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)

    async def ask(self, ask: Callable[[Connection], Awaitable[T]], cluster: Cluster | None = None) -> T:
        """Once, at the coordinator, by another cluster's connections if told; after a failure the next one looks where
        it is now."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._coordinators.find(self.group_id)
            return await ask(await (cluster or self.cluster).broker_connection(self._coordinator))
        except ClientError as error:
            if not isinstance(error, RequestFailed) or error.error in COORDINATOR_MOVED:
                self._coordinator = None
            raise


def is_transient(error: ClientError) -> bool:
    """Whether time may cure it: a broker that is away comes back, or another one takes its place."""
    if isinstance(error, RequestFailed):
        return error.error.retriable or error.error in COORDINATOR_MOVED
    return not isinstance(error, UnsupportedApi | SecurityFailed)
