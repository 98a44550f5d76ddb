"""Talks to Kafka brokers, Headrace's or Apache's: connections, routing to leaders, administration.

`Admin` is the door for administration; `raw` sends and fetches whole record batches. `read_security` takes Kafka's own
settings for TLS and logins. Nothing here knows a broker's insides.
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
    SecurityFailed,
    SettingRefused,
    UnsupportedApi,
)
from headrace.client.security import Security, read_security

__all__ = [
    "Admin",
    "BrokerUnreachable",
    "ClientError",
    "Cluster",
    "ConnectionLost",
    "NotKafka",
    "RequestFailed",
    "RequestTimedOut",
    "Security",
    "SecurityFailed",
    "SettingRefused",
    "UnsupportedApi",
    "read_security",
]
