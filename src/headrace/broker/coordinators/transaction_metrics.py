"""What Prometheus is shown of transactions: those that are open, and the readers that they hold back.

A scrape is another thread's: it looks at copies, made in one step each.
"""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Any

from headrace.broker.coordinators.host import State
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.replicas.partition import Partition

SHOWN_PARTITIONS_MAX = 100
"""The partitions whose readers are held back the furthest: ten thousand must stay scrapable."""


def collect(transactions: TransactionCoordinator, partitions: Iterable[Partition]) -> Iterator[Any]:
    """Of the ids that this broker coordinates, and of the partitions that it leads."""
    from prometheus_client.core import GaugeMetricFamily

    shards = [host.shard for host in list(transactions.hosts.values()) if host.state is State.ACTIVE]
    began_ms = [start_ms for shard in shards for start_ms in list(shard.open_since.values())]
    oldest_ms = max(0, transactions.wall_ms() - min(began_ms)) if began_ms else 0
    held_back = [
        (lag, partition)
        for partition in partitions
        if partition.leader is not None
        and partition.log.producers.first_unstable_offset is not None
        and (lag := partition.high_watermark - partition.last_stable_offset) > 0
    ]
    shown = nlargest(SHOWN_PARTITIONS_MAX, held_back, key=lambda one: one[0])
    lags = GaugeMetricFamily(
        "headrace_partition_lso_lag_records",
        "Committed records behind a transaction that is open, where there are any",
        labels=["topic", "partition"],
    )
    for lag, partition in shown:
        lags.add_metric([partition.topic, str(partition.index)], lag)
    yield lags
    for name, doc, value in (
        ("headrace_partition_lso_lags_hidden", "Such partitions, too many to show", len(held_back) - len(shown)),
        ("headrace_transactions_open", "Transactions coordinated here that have not ended", len(began_ms)),
        ("headrace_transaction_oldest_seconds", "Age of the oldest of them", oldest_ms / 1000),
        (
            "headrace_transactional_ids",
            "Transactional ids coordinated here",
            sum(len(shard.transactions.live) for shard in shards),
        ),
        (
            "headrace_transaction_requests_waiting",
            "Requests that wait for the markers of the transaction before",
            sum(shard.waiting_count for shard in shards),
        ),
    ):
        gauge = GaugeMetricFamily(name, doc)
        gauge.add_metric([], value)
        yield gauge
