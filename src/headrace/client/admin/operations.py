"""Running a cluster from outside: its brokers and quorum, moving replicas, electing leaders, changing voters.

Only requests that Kafka serves on its client port, so that everything here works against Apache Kafka as well.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.client.admin.admin import OPERATION_TIMEOUT_MS, Admin, LogDir, Resource, only
from headrace.client.errors import ClientError, RequestFailed, UnsupportedApi, check, err_of
from headrace.client.net.address import format_address
from headrace.client.net.cluster import Broker, Topic
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

METADATA_TOPIC = "__cluster_metadata"
PREFERRED, UNCLEAN = 0, 1
"""Kinds of election."""

FENCED_VERSION = 2
"""Since this version of DescribeCluster one can ask for fenced brokers too."""
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED_LEADERS = "leader.replication.throttled.replicas"
THROTTLED_FOLLOWERS = "follower.replication.throttled.replicas"

TopicPartition = tuple[str, int]
Placement = Mapping[TopicPartition, Sequence[int]]
"""Which brokers hold each partition, the preferred leader first."""


class ClusterBroker(msgspec.Struct, frozen=True):
    """A registered broker; a fenced one is down, starting, or out of touch with the controller."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


class QuorumReplica(msgspec.Struct, frozen=True):
    """A voter or an observer of the metadata log. Times are -1 where the leader has not heard of it."""

    node_id: int
    directory_id: bytes
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    addresses: tuple[str, ...] = ()


class Quorum(msgspec.Struct, frozen=True):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def end_offset(self) -> int:
        """Where the leader's log ends; what others lack is their lag."""
        return max((v.end_offset for v in self.voters if v.node_id == self.leader_id), default=self.high_watermark)

    def lag(self, replica: QuorumReplica) -> int | None:
        """Records that a replica lacks; None when it has never been heard of in this epoch."""
        return None if replica.end_offset < 0 else max(0, self.end_offset - replica.end_offset)


class Move(msgspec.Struct, frozen=True):
    """A reassignment under way: `replicas` has those that come and those that go."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Operations:
    """`Operations(admin)`: the cluster that `admin` talks to."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self._cluster = admin.cluster

    # -- looking

    async def brokers(self) -> list[ClusterBroker]:
        """Every registered broker by id; those that are fenced only as far as the cluster tells of them."""

        async def attempt() -> list[ClusterBroker]:
            connection = await self._cluster.any_connection()
            try:
                fenced_too = connection.version_of(ApiKey.DESCRIBE_CLUSTER) >= FENCED_VERSION
            except UnsupportedApi:
                return await self._brokers_by_metadata()
            request = m.DescribeClusterRequest(include_fenced_brokers=fenced_too)
            answer: m.DescribeClusterResponse = await connection.request(
                ApiKey.DESCRIBE_CLUSTER, request, timeout_s=self._cluster.request_timeout_s
            )
            check(answer.error_code, "cluster", answer.error_message)
            found = [ClusterBroker(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in answer.brokers]
            for b in found:
                if not b.is_fenced:
                    # A broker that is cut off from the controllers leaves itself out of Metadata, and can be asked.
                    self._cluster.brokers.setdefault(b.node_id, Broker(b.node_id, b.host, b.port, b.rack))
            return sorted(found, key=lambda broker: broker.node_id)

        return await self._cluster.retrying(attempt)

    async def _brokers_by_metadata(self) -> list[ClusterBroker]:
        await self._cluster.refresh(())
        return [
            ClusterBroker(b.node_id, b.host, b.port, b.rack, False) for _, b in sorted(self._cluster.brokers.items())
        ]

    async def quorum(self) -> Quorum:
        """Who leads the controllers, who votes, and how far each of them and each broker has read."""
        kind = m.DescribeQuorumRequest
        topic = kind.TopicData(topic_name=METADATA_TOPIC, partitions=[kind.PartitionData(partition_index=0)])

        async def attempt() -> Quorum:
            answer: m.DescribeQuorumResponse = await self._cluster.to_any(ApiKey.DESCRIBE_QUORUM, kind(topics=[topic]))
            check(answer.error_code, "quorum", answer.error_message or None)
            row = only(only(answer.topics, "DescribeQuorum").partitions, "DescribeQuorum")
            check(row.error_code, "quorum", row.error_message or None)
            addresses = {
                node.node_id: tuple(format_address(at.host, at.port) for at in node.listeners) for node in answer.nodes
            }

            def replica(r: m.DescribeQuorumResponse.ReplicaState) -> QuorumReplica:
                where = addresses.get(r.replica_id, ())
                return QuorumReplica(
                    r.replica_id,
                    r.replica_directory_id,
                    r.log_end_offset,
                    r.last_fetch_timestamp,
                    r.last_caught_up_timestamp,
                    where,
                )

            return Quorum(
                row.leader_id,
                row.leader_epoch,
                row.high_watermark,
                tuple(sorted(map(replica, row.current_voters), key=lambda r: r.node_id)),
                tuple(sorted(map(replica, row.observers), key=lambda r: r.node_id)),
            )

        return await self._cluster.retrying(attempt)

    async def topics(self) -> list[Topic]:
        return await self.admin.list_topics(include_internal=True)

    # -- moving replicas

    async def reassign(self, placement: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Begin to move partitions to these brokers; None calls a move off. Raises at the first refusal."""
        kind = m.AlterPartitionReassignmentsRequest
        rows = [
            kind.ReassignableTopic(
                name=topic,
                partitions=[
                    kind.ReassignablePartition(partition_index=index, replicas=None if to is None else list(to))
                    for index, to in parts.items()
                ],
            )
            for topic, parts in _by_topic(placement).items()
        ]
        request = kind(topics=rows, timeout_ms=OPERATION_TIMEOUT_MS)

        async def attempt() -> None:
            answer: m.AlterPartitionReassignmentsResponse = await self._cluster.to_controller(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS, request
            )
            check(answer.error_code, "reassignment", answer.error_message)
            for topic in answer.responses:
                for part in topic.partitions:
                    what = f"{topic.name}-{part.partition_index} was not reassigned"
                    check(part.error_code, what, part.error_message)

        await self._cluster.retrying(attempt)

    async def moves(self) -> list[Move]:
        """Every reassignment under way."""
        request = m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=OPERATION_TIMEOUT_MS)

        async def attempt() -> list[Move]:
            answer: m.ListPartitionReassignmentsResponse = await self._cluster.to_controller(
                ApiKey.LIST_PARTITION_REASSIGNMENTS, request
            )
            check(answer.error_code, "reassignments", answer.error_message)
            return [
                Move(
                    topic.name,
                    p.partition_index,
                    tuple(p.replicas),
                    tuple(p.adding_replicas),
                    tuple(p.removing_replicas),
                )
                for topic in answer.topics
                for p in topic.partitions
            ]

        return await self._cluster.retrying(attempt)

    async def throttle(self, moves: Placement, current: Placement, bytes_per_s: int) -> None:
        """Hold the copying of `moves` to so many bytes per second and broker, other replication untouched."""
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        involved: set[int] = set()
        for (topic, index), target in moves.items():
            old = current[topic, index]
            coming = [node for node in target if node not in old]
            if not coming:
                continue
            leaders.setdefault(topic, []).extend(f"{index}:{node}" for node in old)
            followers.setdefault(topic, []).extend(f"{index}:{node}" for node in coming)
            involved.update(old, coming)
        # What is throttled comes before how much: a rate without replicas slows nothing down.
        for topic in leaders:
            replicas = {THROTTLED_LEADERS: ",".join(leaders[topic]), THROTTLED_FOLLOWERS: ",".join(followers[topic])}
            await self.admin.alter_configs(Resource.TOPIC, topic, set=replicas)
        live = {broker.node_id for broker in await self.brokers() if not broker.is_fenced}
        for node in sorted(involved & live):
            await self.admin.alter_configs(Resource.BROKER, str(node), set=dict.fromkeys(RATES, str(bytes_per_s)))

    async def lift_throttle(self, topics: Iterable[str]) -> None:
        """Take back every throttle of these topics' replicas, and all brokers' rates."""
        for broker in await self.brokers():
            if not broker.is_fenced:
                await self.admin.alter_configs(Resource.BROKER, str(broker.node_id), unset=RATES)
        for topic in topics:
            try:
                await self.admin.alter_configs(Resource.TOPIC, topic, unset=(THROTTLED_LEADERS, THROTTLED_FOLLOWERS))
            except RequestFailed as error:
                if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
                    raise

    # -- leaders

    async def elect(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, RequestFailed | None]:
        """Elect leaders, of all partitions with None; each one's refusal, or None where there is a new leader.

        Partitions that need no election are not mentioned.
        """
        kind = m.ElectLeadersRequest
        rows = None
        if partitions is not None:
            by_topic = _by_topic(dict.fromkeys(partitions))
            rows = [kind.TopicPartitions(topic=topic, partitions=sorted(parts)) for topic, parts in by_topic.items()]
        request = kind(
            election_type=UNCLEAN if unclean else PREFERRED, topic_partitions=rows, timeout_ms=OPERATION_TIMEOUT_MS
        )

        async def attempt() -> dict[TopicPartition, RequestFailed | None]:
            answer: m.ElectLeadersResponse = await self._cluster.to_controller(ApiKey.ELECT_LEADERS, request)
            check(answer.error_code, "election")
            found: dict[TopicPartition, RequestFailed | None] = {}
            for topic in answer.replica_election_results:
                for part in topic.partition_result:
                    error = err_of(part.error_code)
                    if error is not Err.ELECTION_NOT_NEEDED:
                        what = f"{topic.topic}-{part.partition_id} has no new leader"
                        failed = RequestFailed(what, error, part.error_message)
                        found[topic.topic, part.partition_id] = failed if error is not Err.NONE else None
            return found

        return await self._cluster.retrying(attempt)

    # -- members

    async def add_voter(self, node_id: int, directory_id: bytes, listener: tuple[str, str, int]) -> None:
        """Give a controller that follows the quorum a vote. `listener` is its (name, host, port)."""
        kind = m.AddRaftVoterRequest
        name, host, port = listener
        request = kind(
            cluster_id=self._cluster.cluster_id,
            timeout_ms=OPERATION_TIMEOUT_MS,
            voter_id=node_id,
            voter_directory_id=directory_id,
            listeners=[kind.Listener(name=name, host=host, port=port)],
        )

        async def attempt() -> None:
            answer: m.AddRaftVoterResponse = await self._cluster.to_any(ApiKey.ADD_RAFT_VOTER, request)
            check(answer.error_code, f"node {node_id} was not made a voter", answer.error_message)

        await self._cluster.retrying(attempt)

    async def remove_voter(self, node_id: int, directory_id: bytes) -> None:
        """Take a controller's vote away, also of one whose disk is lost."""
        request = m.RemoveRaftVoterRequest(
            cluster_id=self._cluster.cluster_id, voter_id=node_id, voter_directory_id=directory_id
        )

        async def attempt() -> None:
            answer: m.RemoveRaftVoterResponse = await self._cluster.to_any(ApiKey.REMOVE_RAFT_VOTER, request)
            check(answer.error_code, f"node {node_id} keeps its vote", answer.error_message)

        await self._cluster.retrying(attempt)

    async def unregister(self, node_id: int) -> None:
        """Forget a broker that will not come back. It must be down and hold no replicas."""
        request = m.UnregisterBrokerRequest(broker_id=node_id)

        async def attempt() -> None:
            answer: m.UnregisterBrokerResponse = await self._cluster.to_controller(ApiKey.UNREGISTER_BROKER, request)
            check(answer.error_code, f"broker {node_id} was not unregistered", answer.error_message)

        await self._cluster.retrying(attempt)

    # -- sizes

    async def log_dirs(self, nodes: Iterable[int], timeout_s: float | None = None) -> list[LogDir]:
        """Of all these brokers, as far as they answer, within `timeout_s` if given."""

        async def one(node: int) -> list[LogDir]:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.admin.describe_log_dirs(node)
            except (ClientError, TimeoutError):
                return []

        return [log_dir for part in await asyncio.gather(*map(one, nodes)) for log_dir in part]

    async def replica_bytes(
        self, nodes: Iterable[int], timeout_s: float | None = None
    ) -> dict[tuple[int, str, int], int]:
        """(broker, topic, partition) -> bytes of that replica, as far as brokers answer in `timeout_s`, if given."""
        return sizes_in(await self.log_dirs(nodes, timeout_s))


def sizes_in(log_dirs: Iterable[LogDir]) -> dict[tuple[int, str, int], int]:
    """(broker, topic, partition) -> bytes of that replica."""
    return {(d.node_id, r.topic, r.partition): r.size_bytes for d in log_dirs for r in d.replicas}


def _by_topic(partitions: Mapping[TopicPartition, Sequence[int] | None]) -> dict[str, dict[int, Sequence[int] | None]]:
    found: dict[str, dict[int, Sequence[int] | None]] = {}
    for (topic, index), value in partitions.items():
        found.setdefault(topic, {})[index] = value
    return found
