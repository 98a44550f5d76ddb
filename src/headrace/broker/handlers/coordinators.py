"""FindCoordinator v0-6. v1: key types. v4: several keys at once (KIP-699). v5: a new error for transactions.
v6: share groups (KIP-932).

Groups and transactions; share groups are not served.
"""

from collections.abc import Awaitable, Callable

from headrace.broker.cluster.isolation import Isolation
from headrace.broker.cluster.node import Node
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.net.request import Request
from headrace.errors import Err
from headrace.metadata.image import NO_LEADER
from headrace.protocol import messages as m

GROUP, TRANSACTION, SHARE = 0, 1, 2
BATCHED = 4
"""The first version that asks about several keys."""

CreateStateTopic = Callable[[str], Awaitable[bool]]

Found = tuple[Err, int, str, int]
"""(error, node id, host, port)."""


class CoordinatorHandlers:
    """Where a group or a transactional id finds its coordinator."""

    def __init__(
        self,
        node: Node,
        isolation: Isolation,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        create_state_topic: CreateStateTopic,
    ) -> None:
        self._node = node
        self._isolation = isolation
        self._coordinators: dict[int, GroupCoordinator | TransactionCoordinator] = {
            GROUP: groups,
            TRANSACTION: transactions,
        }
        self._create_state_topic = create_state_topic

    def find_coordinator(
        self, request: Request, message: m.FindCoordinatorRequest
    ) -> m.FindCoordinatorResponse | Awaitable[m.FindCoordinatorResponse]:
        self._isolation.check()
        keys = message.coordinator_keys if request.version >= BATCHED else [message.key]
        coordinator = self._coordinators.get(message.key_type)
        if coordinator is not None and keys and self._node.image.topic_named(coordinator.topic) is None:
            return self._create_then_answer(coordinator.topic, request, message)
        return self._answer(request, message)

    async def _create_then_answer(
        self, topic: str, request: Request, message: m.FindCoordinatorRequest
    ) -> m.FindCoordinatorResponse:
        # Kafka answers with an error while it creates and lets the client ask again; here the client waits once.
        await self._create_state_topic(topic)
        return self._answer(request, message)

    def _answer(self, request: Request, message: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        R = m.FindCoordinatorResponse
        if request.version < BATCHED:
            error, node_id, host, port = self._find(request, message.key_type, message.key)
            # Kafka says NONE where it has nothing to say.
            text = error.text if error else "NONE"
            return R(error_code=error, error_message=text, node_id=node_id, host=host, port=port)
        response = R()
        for key in message.coordinator_keys:
            error, node_id, host, port = self._find(request, message.key_type, key)
            # What a Java client tells its user about a failure is this text and nothing else.
            text = error.text if error else ""
            response.coordinators.append(
                R.Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=text)
            )
        return response

    def _find(self, request: Request, key_type: int, key: str) -> Found:
        coordinator = self._coordinators.get(key_type)
        if coordinator is None or (key_type == TRANSACTION and not key):
            return _nowhere(Err.INVALID_REQUEST)
        topic = self._node.image.topic_named(coordinator.topic)
        partition = None if topic is None else topic.partitions.get(coordinator.partition_of(key))
        if partition is None or partition.leader == NO_LEADER:
            return _nowhere(Err.COORDINATOR_NOT_AVAILABLE)
        for node in self._node.client_endpoints(request.connection):
            if node.node_id == partition.leader:
                return Err.NONE, node.node_id, node.host, node.port
        return _nowhere(Err.COORDINATOR_NOT_AVAILABLE)


def _nowhere(error: Err) -> Found:
    return error, -1, "", -1
