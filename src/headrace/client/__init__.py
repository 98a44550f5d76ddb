"""Talks to Kafka brokers, Headrace's or Apache's: administration, groups, record batches in and out.

The public names, by room:

- `admin`: `Admin` for topics, options and offsets, `Groups` for consumer groups, `Operations` for the cluster itself
- `produce`: `ProducerCore` collects records, and sends them or whole batches exactly once and in order
- `api`: `Producer` and `Consumer`, also by their short names `headrace.Producer` and `headrace.Consumer`
- `consume`: `ConsumerCore` beneath the latter; `RangeFetcher` reads a range of one partition's offsets
- `columnar`: record batches to Arrow and back; needs the extra `spark`, so import it by its own name
- `security`: `read_security` takes Kafka's own settings for TLS and logins
- `net`: connections and a `Cluster` of brokers, which all of the above stand on
- `raw`: whole record batches in and out of one partition (`raw.produce`, `raw.fetch`)

Failures are `ClientError`s. Nothing here knows a broker's insides.
"""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.admin import Admin as Admin, Groups as Groups, Operations as Operations, Resource as Resource
    from headrace.client.consume import (
        RangeFetcher as RangeFetcher,
    )
    from headrace.client.errors import (
        BrokerUnreachable as BrokerUnreachable,
        ClientError as ClientError,
        ConnectionLost as ConnectionLost,
        NotKafka as NotKafka,
        RequestFailed as RequestFailed,
        RequestTimedOut as RequestTimedOut,
        SecurityFailed as SecurityFailed,
        SettingRefused as SettingRefused,
        UnsupportedApi as UnsupportedApi,
    )
    from headrace.client.net import Cluster as Cluster
    from headrace.client.produce import OutgoingBatch as OutgoingBatch, ProducerCore as ProducerCore
    from headrace.client.security import Security as Security, read_security as read_security
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "admin": ["Admin", "Groups", "Operations", "Resource"],
            "consume": ["RangeFetcher"],
            "errors": [
                "BrokerUnreachable",
                "ClientError",
                "ConnectionLost",
                "NotKafka",
                "RequestFailed",
                "RequestTimedOut",
                "SecurityFailed",
                "SettingRefused",
                "UnsupportedApi",
            ],
            "net": ["Cluster"],
            "produce": ["OutgoingBatch", "ProducerCore"],
            "security": ["Security", "read_security"],
        },
    )
