"""Whole record batches in and out of one partition, for tools that build and read batches themselves.

`headrace.records.batch` makes and takes them apart. There is no batching, no partitioner and no group here.
"""

from collections.abc import Callable

import msgspec

from headrace.client.errors import ClientError, NotKafka, RequestFailed, check
from headrace.client.net.cluster import NO_TOPIC_ID, UNKNOWN_TOPIC_WAIT_S, Cluster, is_retriable
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import read_header

Buffer = bytes | bytearray | memoryview

PRODUCE_VERSION_WITH_NAMES = 12
FETCH_VERSION_WITH_NAMES = 12
"""From the next version on both name topics only by their ids."""

# Refused before anything was written, so sending again cannot double a record.
NOT_WRITTEN = frozenset(
    {
        Err.UNKNOWN_TOPIC_OR_PARTITION,
        Err.UNKNOWN_TOPIC_ID,
        Err.LEADER_NOT_AVAILABLE,
        Err.NOT_LEADER_OR_FOLLOWER,
        Err.NOT_ENOUGH_REPLICAS,
        Err.FENCED_LEADER_EPOCH,
        Err.UNKNOWN_LEADER_EPOCH,
    }
)


class Produced(msgspec.Struct, frozen=True, gc=False):
    """Where a batch went. `base_offset` is -1 after acks=0, which has no answer."""

    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class Fetched(msgspec.Struct, frozen=True):
    """What one Fetch of one partition brought. The last batch in `records` may be cut off."""

    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of aborted transactions that reach into `records`."""


async def produce(
    cluster: Cluster,
    topic: str,
    partition: int,
    batch: Buffer,
    *,
    acks: int = -1,
    timeout_ms: int = 30_000,
    can_retry: Callable[[ClientError], bool] | None = None,
) -> Produced:
    """Write one batch and return where. Retries what cannot double it; with a producer id in the batch, everything.

    `can_retry` is for callers to whom a batch that is there twice does not matter.
    """
    idempotent = read_header(batch).has_producer_id

    async def attempt() -> Produced:
        return await _produce_once(cluster, topic, partition, batch, acks, timeout_ms)

    def doubles_nothing(error: ClientError) -> bool:
        return is_retriable(error) if idempotent else isinstance(error, RequestFailed) and error.error in NOT_WRITTEN

    return await cluster.retrying(
        attempt, topics=(topic,), can_retry=can_retry or doubles_nothing, unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S
    )


async def _produce_once(
    cluster: Cluster, topic: str, partition: int, batch: Buffer, acks: int, timeout_ms: int
) -> Produced:
    found, _, connection = await cluster.leader(topic, partition)
    version_max = PRODUCE_VERSION_WITH_NAMES if found.topic_id == NO_TOPIC_ID else None
    request = m.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name=topic,
                topic_id=found.topic_id,
                partition_data=[m.ProduceRequest.PartitionProduceData(index=partition, records=batch)],
            )
        ],
    )
    if acks == 0:
        await connection.send(ApiKey.PRODUCE, request, version_max=version_max)
        return Produced(-1)
    answer: m.ProduceResponse = await connection.request(
        ApiKey.PRODUCE, request, version_max=version_max, timeout_s=timeout_ms / 1000 + cluster.request_timeout_s
    )
    if len(answer.responses) != 1 or len(answer.responses[0].partition_responses) != 1:
        raise NotKafka(f"{connection.peer} answered Produce of one partition with another number of them")
    row = answer.responses[0].partition_responses[0]
    check(row.error_code, f"produce to {topic}-{partition}", row.error_message)
    return Produced(row.base_offset, row.log_append_time_ms, row.log_start_offset)


async def fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    read_committed: bool = False,
    can_retry: Callable[[ClientError], bool] | None = None,
) -> Fetched:
    """Batches from the one that holds `offset` on. Empty `records` when nothing came within `max_wait_ms`."""

    async def attempt() -> Fetched:
        return await _fetch_once(cluster, topic, partition, offset, max_bytes, min_bytes, max_wait_ms, read_committed)

    return await cluster.retrying(
        attempt, topics=(topic,), can_retry=can_retry, unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S
    )


async def _fetch_once(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    min_bytes: int,
    max_wait_ms: int,
    read_committed: bool,
) -> Fetched:
    found, row, connection = await cluster.leader(topic, partition)
    request = m.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=[
            m.FetchRequest.FetchTopic(
                topic=topic,
                topic_id=found.topic_id,
                partitions=[
                    m.FetchRequest.FetchPartition(
                        partition=partition,
                        current_leader_epoch=row.leader_epoch,
                        fetch_offset=offset,
                        partition_max_bytes=max_bytes,
                    )
                ],
            )
        ],
    )
    answer: m.FetchResponse = await connection.request(
        ApiKey.FETCH,
        request,
        version_max=FETCH_VERSION_WITH_NAMES if found.topic_id == NO_TOPIC_ID else None,
        timeout_s=max_wait_ms / 1000 + cluster.request_timeout_s,
    )
    what = f"fetch from {topic}-{partition} at offset {offset}"
    check(answer.error_code, what)
    if len(answer.responses) != 1 or len(answer.responses[0].partitions) != 1:
        raise NotKafka(f"{connection.peer} answered Fetch of one partition with another number of them")
    got = answer.responses[0].partitions[0]
    check(got.error_code, what)
    return Fetched(
        got.records if got.records is not None else b"",
        got.high_watermark,
        got.last_stable_offset,
        got.log_start_offset,
        tuple((txn.producer_id, txn.first_offset) for txn in got.aborted_transactions or ()),
    )
