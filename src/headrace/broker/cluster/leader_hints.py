"""Telling a client that asked the wrong broker who leads the partition, and where to find that broker (KIP-951)."""

from headrace.broker.cluster.node import Node
from headrace.broker.net.connection import Connection
from headrace.errors import Err
from headrace.protocol.hot import Endpoint

LEADER_MOVED = frozenset({Err.NOT_LEADER_OR_FOLLOWER, Err.FENCED_LEADER_EPOCH})


def endpoints_of(node: Node, connection: Connection, leaders: set[int]) -> list[Endpoint]:
    """Where the client behind `connection` finds these nodes."""
    return [
        Endpoint(found.node_id, found.host, found.port, found.rack)
        for found in node.client_endpoints(connection)
        if found.node_id in leaders
    ]
