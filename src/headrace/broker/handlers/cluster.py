"""What admin tools ask about the cluster as a whole.

DescribeCluster v0-2 (v1: endpoint type, v2: fenced brokers).
DescribeClientQuotas v0-1.
"""

from typing import TYPE_CHECKING

from headrace.broker.connection import Request
from headrace.broker.handlers.metadata import CLUSTER_OPERATIONS
from headrace.errors import Err, KafkaError
from headrace.metadata.quotas import describe_client_quotas
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.server import Broker

BROKERS, CONTROLLERS = 1, 2


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
        cluster_id=broker.node.cluster_id,
        controller_id=broker.node.controller_hint(),
        brokers=[
            R.DescribeClusterBroker(broker_id=n.node_id, host=n.host, port=n.port, rack=n.rack)
            for n in broker.nodes(request.connection)
        ],
    )
    if message.include_fenced_brokers:
        name = request.connection.listener.endpoint.name
        response.brokers += [
            R.DescribeClusterBroker(
                broker_id=fenced.id, host=endpoint.host, port=endpoint.port, rack=fenced.rack, is_fenced=True
            )
            for fenced in broker.image.brokers.values()
            if fenced.fenced
            for endpoint in fenced.endpoints
            if endpoint.name == name
        ]
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def describe_controllers(
    broker: "Broker", request: Request, message: m.DescribeClusterRequest
) -> m.DescribeClusterResponse:
    """DescribeCluster as a controller's listener answers it."""
    R = m.DescribeClusterResponse
    if message.endpoint_type != CONTROLLERS:
        known = message.endpoint_type == BROKERS
        return R(
            error_code=Err.MISMATCHED_ENDPOINT_TYPE if known else Err.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a controller; ask a broker's listener for brokers"
            if known
            else f"endpoint type {message.endpoint_type} does not exist",
        )
    name = request.connection.listener.endpoint.name
    response = R(
        endpoint_type=CONTROLLERS,
        cluster_id=broker.node.cluster_id,
        controller_id=broker.node.quorum.leader_id,
        brokers=[
            R.DescribeClusterBroker(broker_id=controller.id, host=endpoint.host, port=endpoint.port, rack=None)
            for controller in broker.image.controllers.values()
            for endpoint in controller.endpoints
            if endpoint.name == name
        ],
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def describe_quotas(
    broker: "Broker", request: Request, message: m.DescribeClientQuotasRequest
) -> m.DescribeClientQuotasResponse:
    try:
        return describe_client_quotas(broker.image, message)
    except KafkaError as error:
        return m.DescribeClientQuotasResponse(error_code=error.error, error_message=error.message, entries=None)
