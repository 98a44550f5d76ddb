"""Record batches to partitions: which partition, and each exactly once and in order."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.produce.partition_queue import Written as Written
    from headrace.client.produce.partitioner import Sticky as Sticky, partition_for_key as partition_for_key
    from headrace.client.produce.producer import OutgoingBatch as OutgoingBatch, ProducerCore as ProducerCore
    from headrace.client.produce.transactions import ProducerTransactions as ProducerTransactions
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "partition_queue": ["Written"],
            "partitioner": ["Sticky", "partition_for_key"],
            "producer": ["OutgoingBatch", "ProducerCore"],
            "transactions": ["ProducerTransactions"],
        },
    )
