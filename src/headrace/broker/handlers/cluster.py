"""What admin tools ask about the cluster as a whole.

DescribeCluster v0-2 (v1: endpoint type, v2: fenced brokers).
DescribeClientQuotas v0-1.
"""

from headrace.broker.cluster.node import Node
from headrace.broker.handlers.metadata import CLUSTER_OPERATIONS
from headrace.broker.net.request import Request
from headrace.errors import Err, KafkaError
from headrace.metadata.quotas import describe_client_quotas
from headrace.protocol import messages as m
from headrace.quorum import Quorum

BROKERS, CONTROLLERS = 1, 2


class ClusterHandlers:
    """Asked of a broker, or of a controller."""

    def __init__(self, node: Node, quorum: Quorum) -> None:
        self._node = node
        self._quorum = quorum

    def describe_cluster(self, request: Request, message: m.DescribeClusterRequest) -> m.DescribeClusterResponse:
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
            cluster_id=self._node.cluster_id,
            controller_id=self._node.controller_hint(),
            brokers=[
                R.DescribeClusterBroker(broker_id=n.node_id, host=n.host, port=n.port, rack=n.rack)
                for n in self._node.client_endpoints(request.connection)
            ],
        )
        if message.include_fenced_brokers:
            name = request.connection.endpoint.name
            response.brokers += [
                R.DescribeClusterBroker(
                    broker_id=fenced.id, host=endpoint.host, port=endpoint.port, rack=fenced.rack, is_fenced=True
                )
                for fenced in self._node.image.brokers.values()
                if fenced.fenced
                for endpoint in fenced.endpoints
                if endpoint.name == name
            ]
        if message.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def describe_controllers(self, request: Request, message: m.DescribeClusterRequest) -> m.DescribeClusterResponse:
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
        name = request.connection.endpoint.name
        response = R(
            endpoint_type=CONTROLLERS,
            cluster_id=self._node.cluster_id,
            controller_id=self._quorum.leader_id,
            brokers=[
                R.DescribeClusterBroker(broker_id=controller.id, host=endpoint.host, port=endpoint.port, rack=None)
                for controller in self._node.image.controllers.values()
                for endpoint in controller.endpoints
                if endpoint.name == name
            ],
        )
        if message.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def describe_quotas(
        self, request: Request, message: m.DescribeClientQuotasRequest
    ) -> m.DescribeClientQuotasResponse:
        try:
            return describe_client_quotas(self._node.image, message)
        except KafkaError as error:
            return m.DescribeClientQuotasResponse(error_code=error.error, error_message=error.message, entries=None)
