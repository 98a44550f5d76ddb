"""Talks to Kafka brokers, Headrace's or Apache's: connections, routing to leaders, administration.

`Admin` is the door for administration; `raw` sends and fetches whole record batches. Nothing here knows a broker's
insides.
"""

from headrace.client.admin import Admin
from headrace.client.cluster import Cluster
from headrace.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestFailed,
    RequestTimedOut,
    UnsupportedApi,
)

__all__ = [
    "Admin",
    "BrokerUnreachable",
    "ClientError",
    "Cluster",
    "ConnectionLost",
    "NotKafka",
    "RequestFailed",
    "RequestTimedOut",
    "UnsupportedApi",
]
