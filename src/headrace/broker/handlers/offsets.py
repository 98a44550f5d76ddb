"""Questions about offsets.

ListOffsets v1-11. v4: leader epochs. v7: -3, max timestamp. v8: -4, earliest local. v9: -5, latest tiered.
v11: -6, earliest pending upload. OffsetForLeaderEpoch v2-4. DeleteRecords v0-2.
"""

from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Request
from headrace.broker.handlers.fetch import READ_COMMITTED
from headrace.broker.handlers.produce import INTERNAL_TOPICS
from headrace.broker.partition import Partition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.server import Broker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
DEBUG_REPLICA = -2

Found = tuple[int, int, int]
"""(offset, timestamp, leader epoch)."""
NOTHING: Found = (-1, -1, -1)
HIGH_WATERMARK = -1
"""DeleteRecords: up to the high watermark."""


def list_offsets(broker: "Broker", request: Request, message: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
    R = m.ListOffsetsResponse
    seen: dict[tuple[str, int], int] = {}
    for topic in message.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            seen[key] = seen.get(key, 0) + 1
    response = R()
    for topic in message.topics:
        results = []
        for asked in topic.partitions:
            result = R.ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            try:
                if seen[topic.name, asked.partition_index] > 1:
                    raise KafkaError(Err.INVALID_REQUEST, "the partition is named twice")
                result.offset, result.timestamp, epoch = _look_up(broker, request.version, message, topic, asked)
                if request.version >= 4:
                    result.leader_epoch = epoch
            except KafkaError as error:
                result.error_code = error.error
            results.append(result)
        response.topics.append(R.ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return response


def _look_up(broker: "Broker", version: int, message: m.ListOffsetsRequest, topic: Any, asked: Any) -> Found:
    timestamp = asked.timestamp
    if timestamp < 0 and version < SINCE_VERSION.get(timestamp, 0):
        raise KafkaError(Err.UNSUPPORTED_VERSION)
    partition = broker.replicas.leader(topic.name, asked.partition_index, asked.current_leader_epoch)
    log, leader = partition.log, partition.leader
    assert leader is not None
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1, log.epochs.epoch_for(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING  # nothing is tiered
    consumer = message.replica_id in (-1, DEBUG_REPLICA)
    end_offset = log.end_offset
    if consumer:
        committed = message.isolation_level == READ_COMMITTED
        end_offset = partition.last_stable_offset if committed else leader.high_watermark
        if leader.high_watermark < leader.epoch_start_offset:
            # A new leader does not know yet how much of what it has is committed.
            raise KafkaError(Err.OFFSET_NOT_AVAILABLE if version >= 5 else Err.LEADER_NOT_AVAILABLE)
    if timestamp == LATEST:
        return end_offset, -1, log.epochs.latest_epoch
    found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp, end_offset)
    if found is None or found.offset >= end_offset:
        return NOTHING
    return found.offset, found.timestamp, log.epochs.epoch_for(found.offset)


def offset_for_leader_epoch(
    broker: "Broker", request: Request, message: m.OffsetForLeaderEpochRequest
) -> m.OffsetForLeaderEpochResponse:
    R = m.OffsetForLeaderEpochResponse
    response = R()
    for topic in message.topics:
        results = []
        for asked in topic.partitions:
            result = R.EpochEndOffset(partition=asked.partition)
            try:
                partition = broker.replicas.leader(topic.topic, asked.partition, asked.current_leader_epoch)
                log = partition.log
                result.leader_epoch, result.end_offset = log.epochs.end_offset_for(asked.leader_epoch, log.end_offset)
            except KafkaError as error:
                result.error_code = error.error
            results.append(result)
        response.topics.append(R.OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return response


async def delete_records(
    broker: "Broker", request: Request, message: m.DeleteRecordsRequest
) -> m.DeleteRecordsResponse:
    R = m.DeleteRecordsResponse
    response = R()
    changed = False
    for topic in message.topics:
        results = []
        for asked in topic.partitions:
            result = R.DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            try:
                result.low_watermark = _delete_up_to(broker, topic.name, asked)
                changed = True
            except KafkaError as error:
                result.error_code = error.error
            results.append(result)
        response.topics.append(R.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    if changed:
        # Before the answer: deleted records must not come back after a crash.
        await broker.node.save_log_starts()
    return response


def _delete_up_to(broker: "Broker", topic: str, asked: Any) -> int:
    if topic in INTERNAL_TOPICS:
        raise KafkaError(Err.INVALID_TOPIC_EXCEPTION, f"{topic} is kept by the broker")
    partition: Partition = broker.replicas.leader(topic, asked.partition_index)
    if not partition.log.config.delete:
        raise KafkaError(Err.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
    high_watermark = partition.high_watermark
    offset = high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= high_watermark:
        raise KafkaError(Err.OFFSET_OUT_OF_RANGE)
    partition.log.advance_log_start(offset)
    return partition.log.log_start_offset


