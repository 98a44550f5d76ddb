"""Records from partitions: ranges of offsets, and members of groups."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.consume.buffer_pool import BufferPool as BufferPool
    from headrace.client.consume.consumer import ConsumerCore as ConsumerCore
    from headrace.client.consume.range_fetcher import (
        BlockingFetcher as BlockingFetcher,
        OffsetsGone as OffsetsGone,
        RangeFetcher as RangeFetcher,
    )
    from headrace.client.consume.records import Record as Record, TopicPartition as TopicPartition
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "buffer_pool": ["BufferPool"],
            "consumer": ["ConsumerCore"],
            "range_fetcher": ["BlockingFetcher", "OffsetsGone", "RangeFetcher"],
            "records": ["Record", "TopicPartition"],
        },
    )
