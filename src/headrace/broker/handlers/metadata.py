"""Metadata v0-13. v1: null means all topics. v4: auto-creation can be declined. v8-10: authorized operations.
v10: topic ids. v12: look-up by topic id. v13: an error for the whole answer.

DescribeTopicPartitions v0: pages of topics in order of name, with a cursor (KIP-966).
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from headrace.broker.cluster.isolation import Isolation
from headrace.broker.cluster.lost_brokers import LostBrokers
from headrace.broker.cluster.node import Node
from headrace.broker.net.request import Request
from headrace.config import BrokerConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.image import NO_LEADER, Image, Partition, Topic
from headrace.metadata.names import INTERNAL, check_topic_name
from headrace.protocol import messages as m
from headrace.protocol.codec import CODECS
from headrace.protocol.primitives import Encoded

M = m.MetadataResponse
D = m.DescribeTopicPartitionsResponse
ZERO_ID = bytes(16)
# Bits of the operations that exist for a resource; without ACLs everyone may do them all.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
Found = Topic | m.MetadataResponse.MetadataResponseTopic
"""A topic, or the entry that says why there is none."""
AutoCreate = Callable[[list[str]], Awaitable[dict[str, int]]]
"""Creates topics that a client asked about. Returns errors by name, of those that could not be."""
VIEWS_KEPT = 8
"""Of how many kinds of clients entries are kept: by version, listener, and whether they ask for operations."""


class MetadataHandlers:
    """Who leads what, as the client behind a connection should see it."""

    def __init__(
        self,
        node_id: int,
        node: Node,
        lost_brokers: LostBrokers,
        isolation: Isolation,
        config: Callable[[], BrokerConfig],
        auto_create: AutoCreate,
    ) -> None:
        self._node_id = node_id
        self._node = node
        self._lost_brokers = lost_brokers
        self._isolation = isolation
        self._config = config
        self._auto_create = auto_create
        self._entries = TopicEntries()

    def metadata(
        self, request: Request, message: m.MetadataRequest
    ) -> m.MetadataResponse | Awaitable[m.MetadataResponse]:
        self._isolation.check()
        asked = message.topics
        if asked is None or (request.version == 0 and not asked):
            return self._answer(request, message, self._node.image.topics.values())
        ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_ID)
        names = dict.fromkeys(topic.name for topic in asked if topic.name is not None)
        if (ids and request.version < 12) or (not ids and any(topic.name is None for topic in asked)):
            return _refused(asked)
        if ids:  # then names are not looked at
            return self._answer(request, message, (_topic_by_id(self._node.image, topic_id) for topic_id in ids))
        if message.allow_auto_topic_creation and self._config()["auto.create.topics.enable"]:
            known = self._node.image.topic_ids
            missing = [name for name in names if name not in known]
            if missing:
                return self._create_then_answer(request, message, list(names), missing)
        if names and len(self._node.image.brokers) > 1:
            return self._settle_then_answer(request, message, list(names))
        return self._answer(request, message, _topics_by_name(self._node.image, names, {}))

    async def _settle_then_answer(
        self, request: Request, message: m.MetadataRequest, names: list[str]
    ) -> m.MetadataResponse:
        await self._lost_brokers.settled(names)
        return self._answer(request, message, _topics_by_name(self._node.image, names, {}))

    async def _create_then_answer(
        self, request: Request, message: m.MetadataRequest, names: list[str], missing: list[str]
    ) -> m.MetadataResponse:
        # Kafka answers with an error while it creates and lets the client ask again; here the client waits once.
        errors = await self._auto_create(missing)
        return self._answer(request, message, _topics_by_name(self._node.image, names, errors))

    def _answer(self, request: Request, message: m.MetadataRequest, topics: Iterable[Found]) -> m.MetadataResponse:
        version = request.version
        nodes = self._node.client_endpoints(request.connection)
        controller = self._node.controller_hint()
        if self._isolation.cut_off:
            nodes = [node for node in nodes if node.node_id != self._node_id]
            controller = nodes[0].node_id if nodes else NO_LEADER
        view = ClientView(self._node.image, {node.node_id for node in nodes}, version)
        listener = request.connection.endpoint.name
        gone = [(b, e) for b in self._lost_brokers.lingering() for e in b.endpoints if e.name == listener]
        response = M(
            brokers=[
                *(M.MetadataResponseBroker(n.node_id, n.host, n.port, n.rack) for n in nodes),
                *(M.MetadataResponseBroker(b.id, e.host, e.port, b.rack) for b, e in gone),
            ],
            cluster_id=self._node.cluster_id,
            controller_id=controller,
            topics=self._entries.of(view, topics, message.include_topic_authorized_operations),
        )
        if message.include_cluster_authorized_operations and 8 <= version <= 10:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def describe_topic_partitions(
        self, request: Request, message: m.DescribeTopicPartitionsRequest
    ) -> m.DescribeTopicPartitionsResponse:
        image, cursor, asked = self._node.image, message.cursor, {topic.name for topic in message.topics}
        names = sorted(asked or image.topic_ids)
        first_topic, first_partition = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
        if first_partition < 0 or (cursor is not None and asked and first_topic not in asked):
            return D(
                topics=[
                    D.DescribeTopicPartitionsResponseTopic(error_code=Err.INVALID_REQUEST, name=topic.name)
                    for topic in message.topics
                ]
            )
        view = ClientView(
            image, {node.node_id for node in self._node.client_endpoints(request.connection)}, request.version
        )
        response = D()
        left = max(1, min(message.response_partition_limit, self._config()["max.request.partition.size.limit"]))
        for name in names[bisect_left(names, first_topic) :]:
            topic = image.topic_named(name)
            start = first_partition if name == first_topic else 0
            if left == 0:
                response.next_cursor = D.Cursor(topic_name=name, partition_index=0)
                break
            if topic is None:
                response.topics.append(
                    D.DescribeTopicPartitionsResponseTopic(
                        error_code=unknown_topic_error(name),
                        name=name,
                        is_internal=name in INTERNAL,
                        topic_authorized_operations=TOPIC_OPERATIONS,
                    )
                )
                continue
            end = min(len(topic.partitions), start + left)
            response.topics.append(_described(view, topic, range(start, end)))
            if end < len(topic.partitions):
                response.next_cursor = D.Cursor(topic_name=name, partition_index=end)
                break
            left -= max(0, end - start)
        return response


def _refused(asked: Iterable[Any]) -> m.MetadataResponse:
    error = Err.INVALID_REQUEST
    topics = [M.MetadataResponseTopic(error_code=error, name=t.name or "", topic_id=t.topic_id) for t in asked]
    return M(error_code=error, topics=topics)


def _topic_by_id(image: Image, topic_id: bytes) -> Found:
    topic: Topic | None = image.topics.get(topic_id)
    return topic or M.MetadataResponseTopic(error_code=Err.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)


def _topics_by_name(image: Image, names: Iterable[str], errors: dict[str, int]) -> Iterable[Found]:
    for name in names:
        topic = image.topic_named(name)
        if topic is not None:
            yield topic
        else:
            error = errors.get(name, unknown_topic_error(name))
            yield M.MetadataResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL)


def unknown_topic_error(name: str) -> Err:
    """What to say about a topic that does not exist."""
    try:
        check_topic_name(name)
    except KafkaError as invalid:
        return invalid.error
    return Err.UNKNOWN_TOPIC_OR_PARTITION


class TopicEntries:
    """Entries of topics as they were last sent.

    Every client asks for them when a broker is lost, all within a moment; ten thousand partitions take some 40 ms to
    encode. Topics and brokers of an image never change, so what was made of the same ones is the same.
    """

    def __init__(self) -> None:
        self._brokers: Any = None
        self._views: dict[tuple[int, bool, frozenset[int]], dict[bytes, tuple[Topic, bytes]]] = {}

    def of(self, view: "ClientView", topics: Iterable[Found], with_operations: bool) -> Encoded:
        known = self._known(view, with_operations)
        entries = Encoded()
        for found in topics:
            if not isinstance(found, Topic):
                entries.append(_encoded(found, view.version, with_operations))
                continue
            topic, entry = known.get(found.id, (None, b""))
            if topic is not found:
                entry = _encoded(view.topic(found), view.version, with_operations)
                known[found.id] = found, entry
            entries.append(entry)
        return entries

    def _known(self, view: "ClientView", with_operations: bool) -> dict[bytes, tuple[Topic, bytes]]:
        if self._brokers is not view.image.brokers:
            self._brokers = view.image.brokers
            self._views.clear()
        key = view.version, with_operations, frozenset(view.alive)
        known = self._views.get(key)
        if known is None or len(known) > 2 * len(view.image.topics):  # most of them deleted
            if len(self._views) >= VIEWS_KEPT:
                self._views.clear()
            known = self._views[key] = {}
        return known


def _encoded(entry: Any, version: int, with_operations: bool) -> bytes:
    if with_operations and entry.name is not None:
        entry.topic_authorized_operations = TOPIC_OPERATIONS
    return CODECS["MetadataResponse"].encode_entry(entry, version)


class ClientView:
    """The cluster as one client sees it: only the brokers that its listener can reach are alive to it."""

    def __init__(self, image: Image, alive: set[int], version: int) -> None:
        self.image = image
        self.alive = alive
        self.version = version

    def topic(self, topic: Topic) -> Any:
        return M.MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL,
            partitions=[self._partition(index, known) for index, known in sorted(topic.partitions.items())],
        )

    def _partition(self, index: int, partition: Partition) -> Any:
        replicas, isr = list(partition.replicas), list(partition.isr)
        error = Err.NONE
        if self.version == 0:
            # Clients of v0 know nothing of brokers that are gone, and take them for a mistake.
            replicas = [replica for replica in replicas if replica in self.alive]
            isr = [replica for replica in isr if replica in self.alive]
            if len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
                error = Err.REPLICA_NOT_AVAILABLE
        leader = self.leader(partition)
        if leader == NO_LEADER:
            error = Err.LEADER_NOT_AVAILABLE
            if self.version >= 6 and partition.leader in self.image.brokers:
                error = Err.LISTENER_NOT_FOUND
        return M.MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=self.offline(partition),
        )

    def leader(self, partition: Partition) -> int:
        return partition.leader if partition.leader in self.alive else NO_LEADER

    def offline(self, partition: Partition) -> list[int]:
        return [
            replica
            for replica, directory in zip(partition.replicas, partition.directories)
            if replica not in self.alive or not self.image.brokers[replica].has_online_directory(directory)
        ]


def _described(view: ClientView, topic: Topic, indexes: range) -> Any:
    partitions = []
    for index in indexes:
        partition = topic.partitions[index]
        partitions.append(
            D.DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=view.leader(partition),
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=view.offline(partition),
            )
        )
    return D.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
