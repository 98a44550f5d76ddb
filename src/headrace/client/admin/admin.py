"""Administration: topics, partitions, configurations, offsets, log dirs.

One call is about one thing, and raises RequestFailed when that fails. Calls may run at once (`asyncio.gather`): they
share connections and are pipelined, so many topics cost no more round trips than one.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from headrace.client.errors import ClientError, NotKafka, RequestFailed, check, err_of
from headrace.client.net.cluster import NO_TOPIC, NOT_THERE, UNKNOWN_TOPIC_WAIT_S, Broker, Cluster, Topic, topic_from
from headrace.client.net.connection import Connection
from headrace.client.options import COMMON_NAMES, COMMON_UNUSED, CommonSettings, read_settings
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.private_fields.disk_space import QUESTION, Space, space_in
from headrace.protocol.private_fields.record_age import FIRST_VERSION, tagged, value_in
from headrace.protocol.private_fields.scrub import (
    FIRST_VERSION as SCRUB_VERSION,
    ScrubQuestion,
    ScrubStatus,
    ask,
    replica_in,
    status_in,
)

T = TypeVar("T")

OPERATION_TIMEOUT_MS = 30_000
LOOKUPS_AT_ONCE = 1_000
"""Partitions in one ListOffsets: enough to save round trips, few enough that the leader is soon free for others."""
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""Timestamps with a meaning of their own in `list_offsets`."""
ADMIN_UNUSED = COMMON_UNUSED | {"bootstrap.controllers", "retries"}
IN_SECONDS = ("connect_timeout_s", "request_timeout_s", "retry_timeout_s")


class Resource(IntEnum):
    """What has a configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a configuration's value comes from."""

    UNKNOWN = -1
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntry(msgspec.Struct, frozen=True):
    """One option of a resource. `value` is None when it has none or is a secret."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


class CreatedTopic(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


class ClusterDescription(msgspec.Struct, frozen=True):
    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


class ReplicaSize(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool
    checked_ms: int | None = None
    """When all of it was last checked for damage, -1 if never; None from a broker that is no Headrace."""
    holes: int = 0
    """Ranges of offsets that are damaged and not repaired yet."""


class LogDir(msgspec.Struct, frozen=True):
    """One data folder of one broker; sizes are -1 where the broker does not tell them."""

    node_id: int
    path: str
    error: Err
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaSize, ...]
    space: Space | None = None
    """What is reserved and how fast it fills, where the broker is one of Headrace's."""


class FoundOffset(msgspec.Struct, frozen=True):
    """`offset` is -1 when no record matches."""

    offset: int
    timestamp: int
    leader_epoch: int


class Admin:
    """`async with Admin("127.0.0.1:9092") as admin: await admin.create_topic("orders", partitions=6)`.

    Options are keywords (`CommonSettings` has all of them; timeouts also in seconds, as `request_timeout_s`) or, in
    `config`, the names of Kafka's own clients. With `cluster`, connections that are open already are used.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        cluster: Cluster | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        for name in IN_SECONDS:
            if name in options:
                options[f"{name}_ms".replace("_s_ms", "_ms")] = round(options.pop(name) * 1000)
        if cluster is None:
            given = {**options, "bootstrap": bootstrap}
            settings = read_settings(CommonSettings, COMMON_NAMES, ADMIN_UNUSED, config, given)
            cluster = settings.new_cluster()
        self.cluster = cluster

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.end()

    # -- topics

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic; -1 means the broker's default. `assignments` places replicas by hand, partition ->
        brokers."""
        kind = m.CreateTopicsRequest
        row = kind.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[kind.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
            assignments=[
                kind.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in sorted((assignments or {}).items())
            ],
        )
        request = kind(topics=[row], timeout_ms=OPERATION_TIMEOUT_MS, validate_only=validate_only)

        async def attempt() -> CreatedTopic:
            answer: m.CreateTopicsResponse = await self.cluster.to_controller(ApiKey.CREATE_TOPICS, request)
            got = only(answer.topics, "CreateTopics")
            check(got.error_code, f"topic {name!r} was not created", got.error_message)
            return CreatedTopic(name, got.topic_id, got.num_partitions, got.replication_factor)

        return await self.cluster.retrying(attempt)

    async def delete_topic(self, name: str) -> None:
        """Raises RequestFailed if there is no such topic."""
        state = m.DeleteTopicsRequest.DeleteTopicState(name=name)
        request = m.DeleteTopicsRequest(topics=[state], topic_names=[name], timeout_ms=OPERATION_TIMEOUT_MS)

        async def attempt() -> None:
            answer: m.DeleteTopicsResponse = await self.cluster.to_controller(ApiKey.DELETE_TOPICS, request)
            got = only(answer.responses, "DeleteTopics")
            unknown = got.error_code == Err.UNKNOWN_TOPIC_OR_PARTITION
            check(got.error_code, f"topic {name!r} was not deleted", NOT_THERE if unknown else got.error_message)

        await self.cluster.retrying(attempt)
        self.cluster.topics.pop(name, None)

    async def list_topics(self, *, include_internal: bool = False) -> list[Topic]:
        """Every topic, by name."""
        answer = await self.cluster.metadata(None)
        found = [topic_from(row) for row in answer.topics if row.error_code == 0]
        return sorted(
            (topic for topic in found if include_internal or not topic.is_internal), key=lambda topic: topic.name
        )

    async def describe_topic(self, name: str) -> Topic:
        """Its partitions, leaders and replicas, asked anew."""

        async def attempt() -> Topic:
            answer = await self.cluster.metadata([name])
            row = only(answer.topics, "Metadata")
            # A partition without a leader is a fact to be shown, not a failure to describe the topic.
            if row.error_code != Err.LEADER_NOT_AVAILABLE:
                unknown = row.error_code == Err.UNKNOWN_TOPIC_OR_PARTITION
                check(row.error_code, f"topic {name!r}", NO_TOPIC if unknown else None)
            return topic_from(row)

        return await self.cluster.retrying(attempt)

    async def create_partitions(
        self, name: str, total: int, *, assignments: Sequence[Sequence[int]] | None = None, validate_only: bool = False
    ) -> None:
        """Raise a topic's number of partitions to `total`; `assignments` has one list of brokers per new partition."""
        kind = m.CreatePartitionsRequest
        rows = (
            None if assignments is None else [kind.CreatePartitionsAssignment(broker_ids=list(a)) for a in assignments]
        )
        request = kind(
            topics=[kind.CreatePartitionsTopic(name=name, count=total, assignments=rows)],
            timeout_ms=OPERATION_TIMEOUT_MS,
            validate_only=validate_only,
        )

        async def attempt() -> None:
            answer: m.CreatePartitionsResponse = await self.cluster.to_controller(ApiKey.CREATE_PARTITIONS, request)
            got = only(answer.results, "CreatePartitions")
            check(got.error_code, f"topic {name!r} was not given {total} partitions", got.error_message)

        await self.cluster.retrying(attempt)
        self.cluster.topics.pop(name, None)

    # -- configurations

    async def describe_configs(
        self, resource: Resource, name: str, names: Iterable[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """The options of a topic, a broker (by its id) or another resource; only `names` of them if given."""
        kind = m.DescribeConfigsRequest
        row = kind.DescribeConfigsResource(
            resource_type=resource, resource_name=name, configuration_keys=None if names is None else list(names)
        )
        request = kind(resources=[row], include_documentation=documentation)

        async def attempt() -> list[ConfigEntry]:
            answer: m.DescribeConfigsResponse = await self._to_resource(
                resource, name, ApiKey.DESCRIBE_CONFIGS, request
            )
            got = only(answer.results, "DescribeConfigs")
            check(got.error_code, f"configuration of {resource.name.lower()} {name!r}", got.error_message)
            return [
                ConfigEntry(c.name, c.value, c.config_source, c.read_only, c.is_sensitive, c.documentation or None)
                for c in got.configs
            ]

        return await self.cluster.retrying(attempt)

    async def alter_configs(
        self,
        resource: Resource,
        name: str,
        *,
        set: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change some options and leave the others: set a value, go back to the default, add to or take from a list."""
        kind = m.IncrementalAlterConfigsRequest
        changes: list[tuple[int, str, str | None]] = [
            *((0, key, value) for key, value in (set or {}).items()),
            *((1, key, None) for key in unset),
            *((2, key, value) for key, value in (append or {}).items()),
            *((3, key, value) for key, value in (subtract or {}).items()),
        ]
        rows = [kind.AlterableConfig(name=key, config_operation=code, value=value) for code, key, value in changes]
        row = kind.AlterConfigsResource(resource_type=resource, resource_name=name, configs=rows)
        request = kind(resources=[row], validate_only=validate_only)

        async def attempt() -> None:
            answer: m.IncrementalAlterConfigsResponse = await self._to_resource(
                resource, name, ApiKey.INCREMENTAL_ALTER_CONFIGS, request
            )
            got = only(answer.responses, "IncrementalAlterConfigs")
            check(got.error_code, f"{resource.name.lower()} {name!r} was not changed", got.error_message)

        await self.cluster.retrying(attempt)

    async def _to_resource(self, resource: Resource, name: str, key: ApiKey, request: Any) -> Any:
        """What concerns one broker goes to that broker; everything else to any."""
        if resource in (Resource.BROKER, Resource.BROKER_LOGGER) and name:
            if not name.isdecimal():
                raise RequestFailed(f"broker {name!r}", Err.INVALID_REQUEST, "a broker is named by its number")
            connection = await self.cluster.broker_connection(int(name))
            return await connection.request(key, request, timeout_s=self.cluster.request_timeout_s)
        return await self.cluster.to_any(key, request)

    # -- the cluster and its disks

    async def describe_cluster(self) -> ClusterDescription:
        """Its id, controller and brokers."""
        await self.cluster.refresh(())
        brokers = tuple(broker for _, broker in sorted(self.cluster.brokers.items()))
        return ClusterDescription(self.cluster.cluster_id, self.cluster.controller_id, brokers)

    async def describe_log_dirs(self, node_id: int, topics: Mapping[str, Sequence[int]] | None = None) -> list[LogDir]:
        """The data folders of one broker and what lies in them; only some topics' partitions if given."""
        answer = await self._describe_log_dirs(node_id, topics, ScrubQuestion())
        return [_log_dir(node_id, row) for row in answer.results]

    async def scrub(self, node_id: int, question: ScrubQuestion) -> ScrubStatus | None:
        """Ask a broker to check its files now, or how far it is; None from a broker that is no Headrace."""
        answer = await self._describe_log_dirs(node_id, {}, question)
        return status_in(answer.unknown_tags)

    async def _describe_log_dirs(
        self, node_id: int, topics: Mapping[str, Sequence[int]] | None, question: ScrubQuestion
    ) -> m.DescribeLogDirsResponse:
        kind = m.DescribeLogDirsRequest
        rows = None
        if topics is not None:
            rows = [
                kind.DescribableLogDirTopic(topic=topic, partitions=list(indexes)) for topic, indexes in topics.items()
            ]

        async def attempt() -> m.DescribeLogDirsResponse:
            connection = await self.cluster.broker_connection(node_id)
            request = kind(topics=rows)
            if connection.version_of(ApiKey.DESCRIBE_LOG_DIRS) >= SCRUB_VERSION:
                request.unknown_tags = {**ask(question), **QUESTION}
            answer: m.DescribeLogDirsResponse = await connection.request(
                ApiKey.DESCRIBE_LOG_DIRS, request, timeout_s=self.cluster.request_timeout_s
            )
            check(answer.error_code, f"log dirs of broker {node_id}")
            return answer

        return await self.cluster.retrying(attempt)

    # -- offsets

    async def list_offsets(
        self, topic: str, wanted: Mapping[int, int] | None = None, *, read_committed: bool = False
    ) -> dict[int, FoundOffset]:
        """partition -> timestamp (or LATEST, EARLIEST, MAX_TIMESTAMP): the first offset at or after it.

        Without `wanted`, the end offset of every partition.
        """
        if wanted is None:
            self.cluster.topics.pop(topic, None)
            wanted = dict.fromkeys((await self.cluster.topic(topic)).partitions, LATEST)
        timestamps = {(topic, index): timestamp for index, timestamp in wanted.items()}
        found = await self.offsets_at(timestamps, read_committed=read_committed)
        return {index: row for (_, index), row in found.items()}

    async def offsets_at(
        self, timestamps: Mapping[tuple[str, int], int], *, read_committed: bool = False
    ) -> dict[tuple[str, int], FoundOffset]:
        """`list_offsets` for partitions of any topics, in one request to each leader (of `LOOKUPS_AT_ONCE` partitions
        at most). Those whose leader moves, or is away, are waited for one by one."""
        found = await self._offsets_by_leader(timestamps, read_committed)
        rest = [at for at in timestamps if at not in found]
        lookups = (self._list_offset(*at, timestamps[at], read_committed) for at in rest)
        found |= dict(zip(rest, await asyncio.gather(*lookups)))
        return {at: found[at] for at in timestamps}

    async def _list_offset(self, topic: str, index: int, timestamp: int, read_committed: bool) -> FoundOffset:
        got = await self._ask_offset(topic, index, timestamp, read_committed)
        return FoundOffset(got.offset, got.timestamp, got.leader_epoch)

    async def ends_and_ages(
        self, offsets: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], tuple[int, int | None]]:
        """For each partition with an offset, its end offset and how many milliseconds ago the record at that offset was
        written, by its leader's time index.

        The age is 0 at the end of the log, -1 without timestamps, and None from a broker that is no Headrace. What does
        not exist, or has no leader, is left out.
        """
        found: dict[tuple[str, int], tuple[int, int | None]] = {}
        for leader, wanted in (await self._by_leader(offsets)).items():
            for start in range(0, len(wanted), LOOKUPS_AT_ONCE):
                chunk = {at: offsets[at] for at in wanted[start : start + LOOKUPS_AT_ONCE]}
                try:
                    connection = await self.cluster.broker_connection(leader)
                    found |= await self._ends_and_ages(connection, chunk)
                except ClientError:
                    continue  # asked for one by one below, wherever they are led by then

        async def alone(at: tuple[str, int]) -> None:
            try:
                got = await self._ask_offset(*at, LATEST, False, age_from=offsets[at])
                found[at] = got.offset, value_in(got.unknown_tags)
            except ClientError:
                pass  # left out

        await asyncio.gather(*(alone(at) for at in offsets.keys() - found.keys()))
        return found

    async def offsets_of(self, partitions: Iterable[tuple[str, int]], timestamp: int) -> dict[tuple[str, int], int]:
        """As `offsets_at`, but who has no leader that answers is left out."""
        rows = await self._offsets_by_leader(dict.fromkeys(partitions, timestamp), False)
        return {at: row.offset for at, row in rows.items()}

    async def _offsets_by_leader(
        self, timestamps: Mapping[tuple[str, int], int], read_committed: bool
    ) -> dict[tuple[str, int], FoundOffset]:
        async def ask(leader: int, wanted: list[tuple[str, int]]) -> None:
            rows: dict[str, list[Any]] = {}
            try:
                connection = await self.cluster.broker_connection(leader)
                for topic, index in wanted:
                    epoch = self.cluster.topics[topic].partitions[index].leader_epoch
                    rows.setdefault(topic, []).append(_asked(connection, index, epoch, timestamps[topic, index], None))
                answer = await self._list(connection, rows, read_committed)
            except (ClientError, KeyError):  # KeyError: the topic was seen to be gone while the connection was made
                return
            found.update(
                ((topic.name, got.partition_index), FoundOffset(got.offset, got.timestamp, got.leader_epoch))
                for topic in answer.topics
                for got in topic.partitions
                if not got.error_code
            )

        found: dict[tuple[str, int], FoundOffset] = {}
        by_leader = await self._by_leader(timestamps)
        await asyncio.gather(
            *(
                ask(leader, wanted[start : start + LOOKUPS_AT_ONCE])
                for leader, wanted in by_leader.items()
                for start in range(0, len(wanted), LOOKUPS_AT_ONCE)
            )
        )
        return found

    async def _by_leader(self, partitions: Iterable[tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
        """As far as the cluster was last seen to have leaders."""
        by_leader: dict[int, list[tuple[str, int]]] = {}
        unseen = {topic for topic, _ in partitions} - self.cluster.topics.keys()
        if unseen:
            await self.cluster.refresh(sorted(unseen))
        for topic, index in partitions:
            known = self.cluster.topics.get(topic)
            row = None if known is None else known.partitions.get(index)
            if row is not None and row.leader >= 0:
                by_leader.setdefault(row.leader, []).append((topic, index))
        return by_leader

    async def _ends_and_ages(
        self, connection: Connection, offsets: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], tuple[int, int | None]]:
        rows: dict[str, list[Any]] = {}
        for (topic, index), offset in offsets.items():
            epoch = self.cluster.topics[topic].partitions[index].leader_epoch
            rows.setdefault(topic, []).append(_asked(connection, index, epoch, LATEST, offset))
        answer = await self._list(connection, rows, False)
        return {
            (topic.name, got.partition_index): (got.offset, value_in(got.unknown_tags))
            for topic in answer.topics
            for got in topic.partitions
            if not got.error_code
        }

    async def _ask_offset(
        self, topic: str, index: int, timestamp: int, read_committed: bool, age_from: int | None = None
    ) -> Any:
        async def attempt() -> Any:
            _, row, connection = await self.cluster.leader(topic, index)
            asked = _asked(connection, index, row.leader_epoch, timestamp, age_from)
            answer = await self._list(connection, {topic: [asked]}, read_committed)
            got = only(only(answer.topics, "ListOffsets").partitions, "ListOffsets")
            check(got.error_code, f"offsets of {topic}-{index}")
            return got

        return await self.cluster.retrying(attempt, topics=(topic,), unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S)

    async def _list(
        self, connection: Connection, rows: Mapping[str, list[Any]], read_committed: bool
    ) -> m.ListOffsetsResponse:
        kind = m.ListOffsetsRequest
        request = kind(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[kind.ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in rows.items()],
            timeout_ms=OPERATION_TIMEOUT_MS,
        )
        answer: m.ListOffsetsResponse = await connection.request(
            ApiKey.LIST_OFFSETS, request, timeout_s=self.cluster.request_timeout_s
        )
        return answer

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Forget records below an offset (-1: all), partition -> offset; returns where each log starts now."""
        deletions = (self._delete_records(topic, index, offset) for index, offset in before.items())
        return dict(zip(before, await asyncio.gather(*deletions)))

    async def _delete_records(self, topic: str, index: int, offset: int) -> int:
        kind = m.DeleteRecordsRequest
        part = kind.DeleteRecordsPartition(partition_index=index, offset=offset)
        request = kind(topics=[kind.DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=OPERATION_TIMEOUT_MS)

        async def attempt() -> int:
            _, _, connection = await self.cluster.leader(topic, index)
            answer: m.DeleteRecordsResponse = await connection.request(
                ApiKey.DELETE_RECORDS, request, timeout_s=self.cluster.request_timeout_s
            )
            got = only(only(answer.topics, "DeleteRecords").partitions, "DeleteRecords")
            check(got.error_code, f"records of {topic}-{index} below {offset} were not deleted")
            return got.low_watermark

        return await self.cluster.retrying(attempt, topics=(topic,), unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S)


def only(rows: Sequence[T], api: str) -> T:
    """The one row that answers a request about one thing."""
    if len(rows) != 1:
        raise NotKafka(f"the broker answered {api} about one thing with {len(rows)} rows")
    return rows[0]


def _log_dir(node_id: int, row: m.DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDir:
    replicas = tuple(
        ReplicaSize(
            topic.name, part.partition_index, part.partition_size, part.offset_lag, part.is_future_key,
            *(replica_in(part.unknown_tags) or (None, 0)),
        )
        for topic in row.topics
        for part in topic.partitions
    )  # fmt: skip
    return LogDir(
        node_id,
        row.log_dir,
        err_of(row.error_code),
        row.total_bytes,
        row.usable_bytes,
        replicas,
        space_in(row.unknown_tags),
    )


def _asked(connection: Connection, index: int, leader_epoch: int, timestamp: int, age_from: int | None) -> Any:
    """A partition in ListOffsets, with the question for the age of a record where the broker could know it."""
    row = m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=index, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    if age_from is not None and connection.version_of(ApiKey.LIST_OFFSETS) >= FIRST_VERSION:
        row.unknown_tags = tagged(age_from)
    return row
