"""What admin tools ask about the cluster as a whole.

DescribeCluster v0-2 (v1: endpoint type, v2: fenced brokers). DescribeQuorum v0-2. ListPartitionReassignments v0.
DescribeClientQuotas v0-1. DescribeAcls v1-3: SECURITY_DISABLED, since there is no authorizer.
"""

from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Request
from headrace.broker.handlers.metadata import CLUSTER_OPERATIONS
from headrace.errors import Err, KafkaError
from headrace.metadata.quotas import describe_client_quotas
from headrace.protocol import messages as m
from headrace.quorum.kraft import VoterFacts

if TYPE_CHECKING:
    from headrace.broker.server import Broker

BROKERS, CONTROLLERS = 1, 2
CLUSTER_METADATA = "__cluster_metadata"


def describe_cluster(
    broker: "Broker", request: Request, message: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    R = m.DescribeClusterResponse
    if message.endpoint_type != BROKERS:
        known = message.endpoint_type == CONTROLLERS
        return R(
            error_code=Err.MISMATCHED_ENDPOINT_TYPE if known else Err.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker; ask a controller's listener for controllers"
            if known
            else f"endpoint type {message.endpoint_type} does not exist",
        )
    response = R(
        endpoint_type=BROKERS if request.version >= 1 else 1,
        cluster_id=broker.node.cluster_id,
        controller_id=broker.node.controller_hint(),
        brokers=[
            R.DescribeClusterBroker(broker_id=n.node_id, host=n.host, port=n.port, rack=n.rack)
            for n in broker.nodes(request.connection)
        ],
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def describe_quorum(
    broker: "Broker", request: Request, message: m.DescribeQuorumRequest
) -> m.DescribeQuorumResponse:
    R = m.DescribeQuorumResponse
    facts = broker.node.quorum.facts()
    now_ms = broker.runtime.clock.wall_ms()
    response = R()
    for topic in message.topics:
        partitions = []
        for asked in topic.partitions:
            data = R.PartitionData(partition_index=asked.partition_index)
            if topic.topic_name != CLUSTER_METADATA or asked.partition_index != 0:
                data.error_code = Err.UNKNOWN_TOPIC_OR_PARTITION
                data.error_message = "only the quorum of the metadata log can be described"
            else:
                data.leader_id, data.leader_epoch = facts.leader_id, facts.leader_epoch
                data.high_watermark = facts.high_watermark
                data.current_voters = [_replica(voter, facts.leader_id, now_ms) for voter in facts.voters]
                data.observers = [_replica(observer, facts.leader_id, now_ms) for observer in facts.observers]
            partitions.append(data)
        response.topics.append(R.TopicData(topic_name=topic.topic_name, partitions=partitions))
    if request.version >= 2:
        response.nodes = [
            R.Node(
                node_id=voter.id,
                listeners=[R.Listener(name=name, host=host, port=port) for name, host, port in voter.endpoints],
            )
            for voter in facts.voters
        ]
    return response


def _replica(voter: VoterFacts, leader_id: int, now_ms: int) -> Any:
    # The leader has always just caught up with itself.
    seen_ms = now_ms if voter.id == leader_id else -1
    return m.DescribeQuorumResponse.ReplicaState(
        replica_id=voter.id,
        replica_directory_id=voter.directory_id,
        log_end_offset=voter.log_end_offset,
        last_fetch_timestamp=seen_ms,
        last_caught_up_timestamp=seen_ms,
    )


def list_partition_reassignments(
    broker: "Broker", request: Request, message: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    R = m.ListPartitionReassignmentsResponse
    image = broker.image
    asked = None if message.topics is None else {t.name: set(t.partition_indexes) for t in message.topics}
    response = R(error_message=None)
    for topic in image.topics.values():
        if asked is not None and topic.name not in asked:
            continue
        moving = [
            R.OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
            for index, partition in sorted(topic.partitions.items())
            if partition.reassigning and (asked is None or index in asked[topic.name])
        ]
        if moving:
            response.topics.append(R.OngoingTopicReassignment(name=topic.name, partitions=moving))
    return response


def describe_quotas(
    broker: "Broker", request: Request, message: m.DescribeClientQuotasRequest
) -> m.DescribeClientQuotasResponse:
    try:
        return describe_client_quotas(broker.image, message)
    except KafkaError as error:
        return m.DescribeClientQuotasResponse(error_code=error.error, error_message=error.message, entries=None)


def describe_acls(broker: "Broker", request: Request, message: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
    return m.DescribeAclsResponse(error_code=Err.SECURITY_DISABLED, error_message="No Authorizer is configured.")
