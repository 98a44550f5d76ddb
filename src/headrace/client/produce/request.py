"""A producer's requests: a batch of each of some partitions, a producer id."""

import asyncio
from collections.abc import Mapping

from headrace.client.errors import ClientError, RequestFailed, check
from headrace.client.net.cluster import NO_TOPIC_ID, Cluster, may_pass
from headrace.client.net.connection import Connection
from headrace.client.produce.outgoing import Sender
from headrace.client.produce.partition_queue import PartitionQueue, ProducerId, QueuedBatch
from headrace.client.produce.transactions import ProducerTransactions
from headrace.client.raw import PRODUCE_VERSION_WITH_NAMES
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

Taken = dict[tuple[str, int], tuple[PartitionQueue, QueuedBatch]]
"""What one request carries: a batch of each of some queues, by topic and partition."""


def produce_request(
    cluster: Cluster, taken: Taken, transactions: ProducerTransactions | None, *, acks: int, timeout_ms: int
) -> tuple[m.ProduceRequest, int | None, dict[bytes, str]]:
    """The request, the highest version that can name its topics, and the names behind the topic ids."""
    kind = m.ProduceRequest
    by_topic: dict[str, list[m.ProduceRequest.PartitionProduceData]] = {}
    for (topic, partition), (_, batch) in taken.items():
        by_topic.setdefault(topic, []).append(kind.PartitionProduceData(index=partition, records=batch.view))
    rows, names = [], {}
    version_max = None if transactions is None else transactions.produce_version_max
    for name, partitions in by_topic.items():
        found = cluster.topics.get(name)
        topic_id = found.topic_id if found is not None else NO_TOPIC_ID
        if topic_id == NO_TOPIC_ID:
            version_max = min(PRODUCE_VERSION_WITH_NAMES, version_max or PRODUCE_VERSION_WITH_NAMES)
        names[topic_id] = name
        rows.append(kind.TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions))
    request = kind(acks=acks, timeout_ms=timeout_ms, topic_data=rows)
    if transactions is not None:
        request.transactional_id = transactions.transactional_id
    return request, version_max, names


def idle_way(
    cluster: Cluster, senders: Mapping[int, Sender], queue: PartitionQueue
) -> tuple[Sender, Connection] | None:
    """How to reach a queue's leader in this very turn: neither the queue nor its broker has anything else to do.

    Where many records are sent at once, they go together: that is seen by the batch before.
    """
    if queue.in_flight or queue.pending or queue.waiting or queue.recovering or queue.last_count > 1:
        return None
    topic = cluster.topics.get(queue.topic)
    partition = topic.partitions.get(queue.partition) if topic is not None else None
    sender = senders.get(partition.leader) if partition is not None else None
    if sender is None or sender.in_flight or sender.ready:
        return None
    connection = cluster.open_connection(sender.node_id)
    return (sender, connection) if connection is not None and connection.is_writable else None


def leader_problem(cluster: Cluster, queue: PartitionQueue) -> RequestFailed | None:
    """Why nothing can be sent to a queue's leader now, as far as is known here."""
    topic = cluster.topics.get(queue.topic)
    if topic is None:
        return RequestFailed(f"topic {queue.topic!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, "the topic is gone")
    partition = topic.partitions.get(queue.partition)
    if partition is None or partition.leader < 0:
        return RequestFailed(queue.name, Err.LEADER_NOT_AVAILABLE)
    return None


async def new_producer_id(cluster: Cluster) -> ProducerId:
    """Of a producer without transactions, from any broker."""

    async def attempt() -> ProducerId:
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer: m.InitProducerIdResponse = await cluster.to_any(ApiKey.INIT_PRODUCER_ID, request)
        check(answer.error_code, "producer id")
        return ProducerId(answer.producer_id, answer.producer_epoch)

    return await cluster.retrying(attempt, can_retry=may_pass)


async def stay_informed(cluster: Cluster, max_age_s: float) -> None:
    """Look at the topics in use again and again: they get more partitions, and nothing fails that would tell."""
    while True:
        await asyncio.sleep(max_age_s)
        try:
            await cluster.refresh()
        except ClientError:
            continue
