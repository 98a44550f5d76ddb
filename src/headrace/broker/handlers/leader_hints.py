"""Telling a client that asked the wrong broker who leads the partition, and where to find that broker (KIP-951)."""

from typing import TYPE_CHECKING

from headrace.broker.connection import Connection
from headrace.errors import Err
from headrace.protocol.hot import Endpoint

if TYPE_CHECKING:
    from headrace.broker.server import Broker

LEADER_MOVED = frozenset({Err.NOT_LEADER_OR_FOLLOWER, Err.FENCED_LEADER_EPOCH})


def endpoints_of(broker: "Broker", connection: Connection, leaders: set[int]) -> list[Endpoint]:
    """Where the client behind `connection` finds these nodes."""
    return [
        Endpoint(node.node_id, node.host, node.port, node.rack)
        for node in broker.nodes(connection)
        if node.node_id in leaders
    ]
