"""Headrace: Kafka's whole job in Python.

`headrace.Producer`, `headrace.Consumer` and `headrace.Admin` talk to any Kafka from asyncio;
`headrace.App` calls functions with the records of topics.
"""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports
from headrace.version import __version__ as __version__

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin as Admin
    from headrace.client.api.consumer import Consumer as Consumer, RecordUnreadable as RecordUnreadable
    from headrace.client.api.options import OptionRefused as OptionRefused
    from headrace.client.api.producer import Producer as Producer
    from headrace.client.api.serializers import Json as Json, SerializationFailed as SerializationFailed, Str as Str
    from headrace.client.api.telemetry import Telemetry as Telemetry
    from headrace.client.api.types import (
        Batch as Batch,
        PartitionLag as PartitionLag,
        Record as Record,
        TopicPartition as TopicPartition,
    )
    from headrace.client.errors import (
        BrokerUnreachable as BrokerUnreachable,
        ClientError as ClientError,
        ConnectionLost as ConnectionLost,
        NotReady as NotReady,
        RequestFailed as RequestFailed,
        RequestTimedOut as RequestTimedOut,
        SecurityFailed as SecurityFailed,
    )
    from headrace.client.produce.deliveries import Delivery as Delivery, RecordMetadata as RecordMetadata
    from headrace.client.registry import (
        Avro as Avro,
        JsonSchema as JsonSchema,
        Protobuf as Protobuf,
        Reference as Reference,
        RegistryError as RegistryError,
        Schema as Schema,
        SchemaRegistry as SchemaRegistry,
    )
    from headrace.listeners.app import App as App, Restart as Restart
    from headrace.listeners.core.retry import (
        BatchFailed as BatchFailed,
        Fatal as Fatal,
        ListenerRefused as ListenerRefused,
        Retry as Retry,
        Skip as Skip,
    )
    from headrace.listeners.handlers import Ack as Ack, Send as Send
    from headrace.listeners.idempotence import (
        MemoryStore as MemoryStore,
        SqliteStore as SqliteStore,
        TopicStore as TopicStore,
    )
    from headrace.listeners.runner import ListenerFailed as ListenerFailed
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "client.admin.admin": ["Admin"],
            "client.api.consumer": ["Consumer", "RecordUnreadable"],
            "client.api.options": ["OptionRefused"],
            "client.api.producer": ["Producer"],
            "client.api.serializers": ["Json", "SerializationFailed", "Str"],
            "client.api.telemetry": ["Telemetry"],
            "client.api.types": ["Batch", "PartitionLag", "Record", "TopicPartition"],
            "client.errors": [
                "BrokerUnreachable",
                "ClientError",
                "ConnectionLost",
                "NotReady",
                "RequestFailed",
                "RequestTimedOut",
                "SecurityFailed",
            ],
            "client.registry": [
                "Avro",
                "JsonSchema",
                "Protobuf",
                "Reference",
                "RegistryError",
                "Schema",
                "SchemaRegistry",
            ],
            "client.produce.deliveries": ["Delivery", "RecordMetadata"],
            "listeners.app": ["App", "Restart"],
            "listeners.core.retry": ["BatchFailed", "Fatal", "ListenerRefused", "Retry", "Skip"],
            "listeners.handlers": ["Ack", "Send"],
            "listeners.idempotence": ["MemoryStore", "SqliteStore", "TopicStore"],
            "listeners.runner": ["ListenerFailed"],
        },
    )
