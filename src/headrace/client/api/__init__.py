"""The public face of the client: `Producer` and `Consumer` with their options, serializers and what they return."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.api.consumer import Consumer as Consumer, RecordUnreadable as RecordUnreadable
    from headrace.client.api.options import OptionRefused as OptionRefused
    from headrace.client.api.producer import Producer as Producer
    from headrace.client.api.serializers import (
        Deserializer as Deserializer,
        Json as Json,
        SerializationFailed as SerializationFailed,
        Serializer as Serializer,
        Str as Str,
    )
    from headrace.client.api.transaction import Transaction as Transaction
    from headrace.client.api.types import (
        Batch as Batch,
        GroupMetadata as GroupMetadata,
        PartitionLag as PartitionLag,
        Record as Record,
        TopicPartition as TopicPartition,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "consumer": ["Consumer", "RecordUnreadable"],
            "options": ["OptionRefused"],
            "producer": ["Producer"],
            "serializers": ["Deserializer", "Json", "SerializationFailed", "Serializer", "Str"],
            "transaction": ["Transaction"],
            "types": ["Batch", "GroupMetadata", "PartitionLag", "Record", "TopicPartition"],
        },
    )
