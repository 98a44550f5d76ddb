"""A node that is broker and controller in one, telling its own quorum that it comes and goes.

The requests are those that a broker sends to a controller elsewhere, so that nothing changes when it is one. A restart
raises leader epochs as with Kafka: leadership is given up on the way down (or found abandoned) and taken on the way up.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.metadata.brokers import leads_any
from headrace.metadata.controller import Controller
from headrace.metadata.image import Endpoint, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.versions import KNOWN_FEATURES
from headrace.protocol import messages as m
from headrace.quorum import Quorum


class LocalNode(NamedTuple):
    node_id: int
    cluster_id: str
    incarnation_id: bytes
    """New with each start."""
    endpoints: Sequence[Endpoint]
    """Where clients and other brokers reach this one: the advertised listeners."""
    controller_endpoints: Sequence[Endpoint]
    rack: str | None
    directory_ids: Sequence[bytes]
    """Of the log dirs that are online."""
    previous_broker_epoch: int = -1
    """From the mark that a clean shutdown leaves."""


async def register(quorum: Quorum, controller: Controller, node: LocalNode) -> int:
    """Register as controller and as broker, fenced; returns the broker epoch.

    No other incarnation of this broker can be alive: the folders of this one are locked.
    """
    await quorum.append(controller.register_controller(_controller_request(node)))
    request = _broker_request(node)

    def decide(image: Image) -> Outcome[int]:
        return controller.register_broker(image, request, quorum.next_offset, session_alive=False)

    epoch: int = await quorum.write(decide)
    return epoch


async def unfence(quorum: Quorum, controller: Controller, node_id: int) -> None:
    """Once the node serves all that it has: take back the partitions that wait for it."""
    await quorum.write(lambda image: Outcome(controller.unfence_broker(image, node_id), None))


async def leave(quorum: Quorum, controller: Controller, node_id: int) -> None:
    """A clean way down: leadership first, while this node still answers, then the broker itself."""
    if leads_any(quorum.tip, node_id):
        await quorum.write(lambda image: Outcome(controller.controlled_shutdown(image, node_id), None))
    await quorum.write(lambda image: Outcome(controller.fence_broker(image, node_id), None))


def _controller_request(node: LocalNode) -> m.ControllerRegistrationRequest:
    request = m.ControllerRegistrationRequest
    return request(
        controller_id=node.node_id,
        incarnation_id=node.incarnation_id,
        zk_migration_ready=False,
        listeners=[
            request.Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in node.controller_endpoints
        ],
        features=[
            request.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(KNOWN_FEATURES.items())
        ],
    )


def _broker_request(node: LocalNode) -> m.BrokerRegistrationRequest:
    request = m.BrokerRegistrationRequest
    return request(
        broker_id=node.node_id,
        cluster_id=node.cluster_id,
        incarnation_id=node.incarnation_id,
        listeners=[
            request.Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in node.endpoints
        ],
        features=[
            request.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(KNOWN_FEATURES.items())
        ],
        rack=node.rack,
        log_dirs=list(node.directory_ids),
        previous_broker_epoch=node.previous_broker_epoch,
    )
