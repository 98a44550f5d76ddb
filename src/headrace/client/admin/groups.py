"""Consumer groups seen from outside: listing, describing, committed offsets, lag, resetting and deleting.

Each request goes to the group's coordinator, found anew when it has moved. Works against Apache Kafka as well.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.client.admin.admin import EARLIEST, Admin, only
from headrace.client.errors import ClientError, RequestFailed, UnsupportedApi, check
from headrace.client.net.cluster import Cluster
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import GROUP, Coordinators
from headrace.client.raw import fetch
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import DATA, ApiKey
from headrace.protocol.primitives import ProtocolError
from headrace.records.reader import iter_records

SEVERAL_GROUPS_VERSION = 8
BY_NAME_VERSION = 9
"""The last version of OffsetCommit and OffsetFetch that names topics by their names."""
ASSIGNMENT = DATA["ConsumerProtocolAssignment"]
CONSUMER_PROTOCOL = "consumer"
AT_ONCE = 64
"""Partitions that are looked at side by side."""

TopicPartition = tuple[str, int]
NO_OFFSET = -1


class ListedGroup(msgspec.Struct, frozen=True):
    group_id: str
    state: str
    type: str
    protocol_type: str


class Member(msgspec.Struct, frozen=True):
    """One member, and the partitions it has."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...]
    epoch: int | None = None


class Group(msgspec.Struct, frozen=True):
    """`assignor` is the protocol that a classic group has chosen, or the server-side assignor."""

    group_id: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    epoch: int | None = None


class Committed(msgspec.Struct, frozen=True):
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class Lag(msgspec.Struct, frozen=True):
    """How far a group is behind in one partition. None: not known, as without a committed offset."""

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    records: int | None
    seconds: float | None
    """The age of the oldest record that is not consumed; 0 when there is none."""


class Groups:
    """`Groups(admin)`: the groups of the cluster that `admin` talks to."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._cluster: Cluster = admin.cluster
        self._coordinators = Coordinators(self._cluster, GROUP, "group")

    async def coordinator(self, group_id: str) -> int:
        """The broker that keeps the group."""
        return await self._coordinators.find(group_id)

    async def _request(self, connection: Connection, key: ApiKey, body: Any, version_max: int | None = None) -> Any:
        return await connection.request(key, body, version_max=version_max, timeout_s=self._cluster.request_timeout_s)

    # -- looking

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """Groups of all brokers, by name; only those in one of `states` or of one of `types` if given."""
        await self._cluster.refresh(())
        wanted_states, wanted_types = list(states), list(types)
        request = m.ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types)

        async def of(node_id: int) -> list[ListedGroup]:
            async def attempt() -> list[ListedGroup]:
                connection = await self._cluster.broker_connection(node_id)
                answer: m.ListGroupsResponse = await self._request(connection, ApiKey.LIST_GROUPS, request)
                check(answer.error_code, f"groups of broker {node_id}")
                return [ListedGroup(g.group_id, g.group_state, g.group_type, g.protocol_type) for g in answer.groups]

            return await self._cluster.retrying(attempt)

        found = await asyncio.gather(*(of(node_id) for node_id in self._cluster.brokers))
        return sorted((group for part in found for group in part), key=lambda group: group.group_id)

    async def describe(self, group_id: str) -> Group:
        """A group of either protocol. Raises RequestFailed with GROUP_ID_NOT_FOUND."""
        try:
            return await self._describe_consumer(group_id)
        except UnsupportedApi:
            return await self._describe_classic(group_id)
        except RequestFailed as error:
            # Not a group of the new protocol, or the broker has it switched off.
            if error.error not in (Err.GROUP_ID_NOT_FOUND, Err.UNSUPPORTED_VERSION):
                raise
            return await self._describe_classic(group_id)

    async def _describe_consumer(self, group_id: str) -> Group:
        request = m.ConsumerGroupDescribeRequest(group_ids=[group_id])

        async def ask(connection: Connection) -> Group:
            answer: m.ConsumerGroupDescribeResponse = await self._request(
                connection, ApiKey.CONSUMER_GROUP_DESCRIBE, request
            )
            got = only(answer.groups, "ConsumerGroupDescribe")
            check(got.error_code, f"group {group_id!r}", got.error_message)
            members = tuple(
                Member(
                    row.member_id,
                    row.client_id,
                    row.client_host,
                    row.instance_id,
                    tuple(
                        (topic.topic_name, index)
                        for topic in row.assignment.topic_partitions
                        for index in topic.partitions
                    ),
                    row.member_epoch,
                )
                for row in got.members
            )
            coordinator = self._coordinators.known[group_id]
            return Group(
                group_id, got.group_state, "consumer", got.assignor_name, coordinator, members, got.group_epoch
            )

        return await self._coordinators.ask(group_id, ask)

    async def _describe_classic(self, group_id: str) -> Group:
        request = m.DescribeGroupsRequest(groups=[group_id])

        async def ask(connection: Connection) -> Group:
            answer: m.DescribeGroupsResponse = await self._request(connection, ApiKey.DESCRIBE_GROUPS, request)
            got = only(answer.groups, "DescribeGroups")
            # Before version 6 a group that does not exist is described as dead.
            missing = got.group_state == "Dead" or got.error_code == Err.GROUP_ID_NOT_FOUND
            check(Err.GROUP_ID_NOT_FOUND if missing else got.error_code, f"group {group_id!r}", _no_group(missing))
            members = tuple(
                Member(
                    row.member_id, row.client_id, row.client_host, row.group_instance_id,
                    _assignment(row.member_assignment) if got.protocol_type == CONSUMER_PROTOCOL else (),
                )
                for row in got.members
            )  # fmt: skip
            coordinator = self._coordinators.known[group_id]
            return Group(group_id, got.group_state, "classic", got.protocol_data, coordinator, members)

        return await self._coordinators.ask(group_id, ask)

    # -- offsets

    async def committed(self, group_id: str, *, stable: bool = False) -> dict[TopicPartition, Committed]:
        """All offsets that the group has committed; `stable` waits for transactions that are just ending."""
        kind = m.OffsetFetchRequest

        async def ask(connection: Connection) -> dict[TopicPartition, Committed]:
            if connection.version_of(ApiKey.OFFSET_FETCH) >= SEVERAL_GROUPS_VERSION:
                request = kind(
                    groups=[kind.OffsetFetchRequestGroup(group_id=group_id, topics=None)], require_stable=stable
                )
            else:
                request = kind(group_id=group_id, topics=None)
            answer: m.OffsetFetchResponse = await self._request(
                connection, ApiKey.OFFSET_FETCH, request, BY_NAME_VERSION
            )
            got = only(answer.groups, "OffsetFetch") if answer.groups else answer
            check(got.error_code, f"offsets of group {group_id!r}")
            found = {}
            for topic in got.topics:
                for row in topic.partitions:
                    check(row.error_code, f"offset of group {group_id!r} in {topic.name}-{row.partition_index}")
                    found[topic.name, row.partition_index] = Committed(
                        row.committed_offset, row.committed_leader_epoch, row.metadata
                    )
            return dict(sorted(found.items()))

        return await self._coordinators.ask(group_id, ask)

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], *, metadata: str = "") -> None:
        """Commit for a group without members. Raises UNKNOWN_MEMBER_ID while it has any."""
        kind = m.OffsetCommitRequest
        topics: dict[str, list[Any]] = {}
        for (topic, index), offset in offsets.items():
            row = kind.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=metadata
            )
            topics.setdefault(topic, []).append(row)
        request = kind(
            group_id=group_id,
            generation_id_or_member_epoch=-1,
            topics=[kind.OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )

        async def ask(connection: Connection) -> None:
            answer: m.OffsetCommitResponse = await self._request(
                connection, ApiKey.OFFSET_COMMIT, request, BY_NAME_VERSION
            )
            for topic in answer.topics:
                for row in topic.partitions:
                    check(row.error_code, f"offset of group {group_id!r} in {topic.name}-{row.partition_index}")

        await self._coordinators.ask(group_id, ask)

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and all its offsets."""
        request = m.DeleteGroupsRequest(groups_names=[group_id])

        async def ask(connection: Connection) -> None:
            answer: m.DeleteGroupsResponse = await self._request(connection, ApiKey.DELETE_GROUPS, request)
            got = only(answer.results, "DeleteGroups")
            check(got.error_code, f"group {group_id!r} was not deleted")

        await self._coordinators.ask(group_id, ask)

    # -- lag

    async def lag(self, group_id: str, more: Iterable[TopicPartition] = (), *, now_ms: int) -> list[Lag]:
        """The lag of every partition that the group has committed, and of those in `more`."""
        committed = await self.committed(group_id)
        wanted = sorted({*committed, *more})
        offsets = {at: committed[at].offset if at in committed else NO_OFFSET for at in wanted}
        ends = await self._admin.ends_and_ages({at: max(0, offset) for at, offset in offsets.items()})
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(at: TopicPartition) -> Lag:
            async with gate:
                return await self._lag(at, at in committed, offsets[at], ends.get(at), now_ms)

        return list(await asyncio.gather(*map(one, wanted)))

    async def _lag(
        self, at: TopicPartition, known: bool, offset: int, end: tuple[int, int | None] | None, now_ms: int
    ) -> Lag:
        topic, index = at
        if end is None:
            # The topic is gone, or has no leader: the committed offset is still worth showing.
            return Lag(topic, index, offset if known else None, None, None, None)
        end_offset, age_ms = end
        if offset < 0:
            return Lag(topic, index, None, end_offset, None, None)
        records = max(0, end_offset - offset)
        if records and age_ms is None:
            age_ms = await self._age_ms(topic, index, offset, now_ms)
        seconds = None if records and (age_ms is None or age_ms < 0) else (age_ms or 0) / 1000
        return Lag(topic, index, offset, end_offset, records, seconds)

    async def _age_ms(self, topic: str, index: int, offset: int, now_ms: int) -> int | None:
        """How old the first record at or after `offset` is, for brokers that do not tell: by reading it."""
        timestamp = await self._timestamp_at(topic, index, offset)
        return None if timestamp is None else max(0, now_ms - timestamp)

    async def _timestamp_at(self, topic: str, index: int, offset: int) -> int | None:
        """When the first record at or after `offset` was written."""
        try:
            start = (await self._admin.list_offsets(topic, {index: EARLIEST}))[index].offset
            # A broker sends at least one whole batch, however little is asked for.
            got = await fetch(self._cluster, topic, index, max(offset, start), max_bytes=1, max_wait_ms=0)
        except ClientError:
            return None
        for record in iter_records(got.records):
            if record.offset >= offset:
                return record.timestamp
        return None


def _no_group(missing: bool) -> str | None:
    return "there is no group of this name" if missing else None


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What a classic consumer was assigned; clients write it, so it may be anything."""
    if len(data) < 2:
        return ()
    version = min(int.from_bytes(data[:2], "big", signed=True), ASSIGNMENT.max_version)
    try:
        found, _ = ASSIGNMENT.decoder(max(version, 0))(data, 2, len(data))
    except ProtocolError:
        return ()
    return tuple((topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions)
