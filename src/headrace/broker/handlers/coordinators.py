"""FindCoordinator v0-6. v1: key types. v4: several keys at once (KIP-699). v5: a new error for transactions.
v6: share groups (KIP-932).

Groups only: transactions and share groups are not served.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.connection import Request
from headrace.broker.coordinator_topic import create_offsets_topic
from headrace.errors import Err
from headrace.metadata.image import NO_LEADER
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.server import Broker

GROUP, TRANSACTION, SHARE = 0, 1, 2
BATCHED = 4
"""The first version that asks about several keys."""

Found = tuple[Err, int, str, int]
"""(error, node id, host, port)."""


def find_coordinator(
    broker: "Broker", request: Request, message: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse | Awaitable[m.FindCoordinatorResponse]:
    broker.departures.check()
    keys = message.coordinator_keys if request.version >= BATCHED else [message.key]
    if message.key_type == GROUP and keys and broker.image.topic_named(OFFSETS_TOPIC) is None:
        return _create_then_answer(broker, request, message)
    return _answer(broker, request, message)


async def _create_then_answer(
    broker: "Broker", request: Request, message: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    # Kafka answers with an error while it creates and lets the client ask again; here the client waits once.
    await create_offsets_topic(broker)
    return _answer(broker, request, message)


def _answer(broker: "Broker", request: Request, message: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
    R = m.FindCoordinatorResponse
    if request.version < BATCHED:
        error, node_id, host, port = _find(broker, request, message.key_type, message.key)
        # Kafka says NONE where it has nothing to say.
        text = error.text if error else "NONE"
        return R(error_code=error, error_message=text, node_id=node_id, host=host, port=port)
    response = R()
    for key in message.coordinator_keys:
        error, node_id, host, port = _find(broker, request, message.key_type, key)
        # What a Java client tells its user about a failure is this text and nothing else.
        text = error.text if error else ""
        response.coordinators.append(
            R.Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=text)
        )
    return response


def _find(broker: "Broker", request: Request, key_type: int, key: str) -> Found:
    if key_type == TRANSACTION:
        # Nothing that asks for trying again: a producer would wait for its whole max.block.ms and not know why.
        return _nowhere(Err.UNSUPPORTED_VERSION)
    if key_type != GROUP:
        return _nowhere(Err.INVALID_REQUEST)
    topic = broker.image.topic_named(OFFSETS_TOPIC)
    partition = None if topic is None else topic.partitions.get(broker.groups.partition_of(key))
    if partition is None or partition.leader == NO_LEADER:
        return _nowhere(Err.COORDINATOR_NOT_AVAILABLE)
    for node in broker.nodes(request.connection):
        if node.node_id == partition.leader:
            return Err.NONE, node.node_id, node.host, node.port
    return _nowhere(Err.COORDINATOR_NOT_AVAILABLE)


def _nowhere(error: Err) -> Found:
    return error, -1, "", -1
