"""Metadata v0-13. v1: null means all topics. v4: auto-creation can be declined. v8-10: authorized operations.
v10: topic ids. v12: look-up by topic id. v13: an error for the whole answer.

DescribeTopicPartitions v0: pages of topics in order of name, with a cursor (KIP-966).
"""

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Request
from headrace.broker.handlers.produce import INTERNAL_TOPICS
from headrace.broker.handlers.topics import auto_create
from headrace.errors import Err, KafkaError
from headrace.metadata.image import NO_LEADER, Image, Partition, Topic
from headrace.metadata.names import check_topic_name
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.server import Broker

M = m.MetadataResponse
D = m.DescribeTopicPartitionsResponse
ZERO_ID = bytes(16)
# Bits of the operations that exist for a resource; without ACLs everyone may do them all.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
OPERATIONS_NOT_ASKED = -(1 << 31)


def metadata(
    broker: "Broker", request: Request, message: m.MetadataRequest
) -> m.MetadataResponse | Awaitable[m.MetadataResponse]:
    asked = message.topics
    if request.version == 0 and not asked:
        asked = None
    if asked is not None and request.version < 12 and any(t.name is None or t.topic_id != ZERO_ID for t in asked):
        return _refused(asked, request.version)
    if asked and message.allow_auto_topic_creation and broker.config["auto.create.topics.enable"]:
        image = broker.image
        missing = [t.name for t in asked if t.name is not None and t.name not in image.topic_ids]
        if missing:
            return _create_then_answer(broker, request, message, missing)
    return _answer(broker, request, message, asked, {})


async def _create_then_answer(
    broker: "Broker", request: Request, message: m.MetadataRequest, missing: list[str]
) -> m.MetadataResponse:
    # Kafka answers with an error while it creates and lets the client ask again; here the client waits once.
    errors = await auto_create(broker, missing)
    return _answer(broker, request, message, message.topics, errors)


def _refused(asked: Iterable[Any], version: int) -> m.MetadataResponse:
    return M(
        error_code=Err.INVALID_REQUEST if version >= 13 else 0,
        topics=[M.MetadataResponseTopic(error_code=Err.INVALID_REQUEST, name=t.name or "") for t in asked],
    )


def _answer(
    broker: "Broker", request: Request, message: m.MetadataRequest, asked: list[Any] | None, errors: dict[str, int]
) -> m.MetadataResponse:
    image, version = broker.image, request.version
    operations = TOPIC_OPERATIONS if message.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
    nodes = broker.nodes(request.connection)
    alive = {node.node_id for node in nodes}
    response = M(
        brokers=[M.MetadataResponseBroker(n.node_id, n.host, n.port, n.rack) for n in nodes],
        cluster_id=broker.node.cluster_id,
        controller_id=broker.node.controller_hint(),
    )
    if message.include_cluster_authorized_operations and 8 <= version <= 10:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if asked is None:
        topics: Iterable[Topic] = image.topics.values()
        response.topics = [_topic(topic, alive, operations) for topic in topics]
    else:
        response.topics = [_asked_topic(image, entry, alive, operations, errors, version) for entry in asked]
    return response


def _asked_topic(
    image: Image, entry: Any, alive: set[int], operations: int, errors: dict[str, int], version: int
) -> Any:
    if entry.topic_id != ZERO_ID:
        topic = image.topics.get(entry.topic_id)
        if topic is None:
            return M.MetadataResponseTopic(
                error_code=Err.UNKNOWN_TOPIC_ID, name=None if version >= 12 else "", topic_id=entry.topic_id
            )
        return _topic(topic, alive, operations)
    name = entry.name or ""
    topic = image.topic_named(name)
    if topic is not None:
        return _topic(topic, alive, operations)
    error = errors.get(name)
    if error is None:
        try:
            check_topic_name(name)
            error = Err.UNKNOWN_TOPIC_OR_PARTITION
        except KafkaError as invalid:
            error = invalid.error
    return M.MetadataResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)


def _topic(topic: Topic, alive: set[int], operations: int) -> Any:
    return M.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            M.MetadataResponsePartition(
                error_code=_partition_error(partition, alive),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=_offline(partition, alive),
            )
            for index, partition in sorted(topic.partitions.items())
        ],
        topic_authorized_operations=operations,
    )


def _partition_error(partition: Partition, alive: set[int]) -> Err:
    return Err.NONE if partition.leader != NO_LEADER and partition.leader in alive else Err.LEADER_NOT_AVAILABLE


def _offline(partition: Partition, alive: set[int]) -> list[int]:
    return [replica for replica in partition.replicas if replica not in alive]


# ---- DescribeTopicPartitions


def describe_topic_partitions(
    broker: "Broker", request: Request, message: m.DescribeTopicPartitionsRequest
) -> m.DescribeTopicPartitionsResponse:
    image, cursor = broker.image, message.cursor
    limit = min(message.response_partition_limit, broker.config["max.request.partition.size.limit"])
    if message.topics:
        names = sorted({topic.name for topic in message.topics})
    else:
        names = sorted(image.topic_ids)
    first_partition = 0
    if cursor is not None:
        if cursor.partition_index < 0:
            raise KafkaError(Err.INVALID_REQUEST, "the cursor's partition index is negative")
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = cursor.partition_index
    alive = {node.node_id for node in broker.nodes(request.connection)}
    response = D()
    left = limit
    for name in names:
        topic = image.topic_named(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        indexes = [index for index in sorted(topic.partitions) if index >= first_partition]
        first_partition = 0
        shown = indexes[: max(left, 0)]
        if shown or not indexes:
            response.topics.append(_described(topic, shown, alive))
        left -= len(shown)
        if len(shown) < len(indexes):
            response.next_cursor = D.Cursor(topic_name=name, partition_index=indexes[len(shown)])
            break
    return response


def _unknown(name: str) -> Any:
    try:
        check_topic_name(name)
        error = Err.UNKNOWN_TOPIC_OR_PARTITION
    except KafkaError as invalid:
        error = invalid.error
    return D.DescribeTopicPartitionsResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)


def _described(topic: Topic, indexes: list[int], alive: set[int]) -> Any:
    partitions = []
    for index in indexes:
        partition = topic.partitions[index]
        partitions.append(
            D.DescribeTopicPartitionsResponsePartition(
                error_code=_partition_error(partition, alive),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=_offline(partition, alive),
            )
        )
    return D.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
