"""Questions about offsets.

ListOffsets v1-11. v4: leader epochs. v7: -3, max timestamp. v8: -4, earliest local. v9: -5, latest tiered.
v11: -6, earliest pending upload; v6: the age of what follows offsets (`protocol/private_fields/record_age.py`).
OffsetForLeaderEpoch v2-4. DeleteRecords v0-2.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from typing import Any

from headrace.broker.cluster.node import Node
from headrace.broker.net.pauses import Pauses
from headrace.broker.net.request import Request
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.record_age import age_ms
from headrace.broker.runtime import Runtime
from headrace.errors import Err, KafkaError
from headrace.metadata.names import INTERNAL
from headrace.protocol import messages as m
from headrace.protocol.hot import READ_COMMITTED, READ_UNCOMMITTED
from headrace.protocol.private_fields.record_age import tagged, values_in
from headrace.storage.segment import CorruptSegment

logger = logging.getLogger("headrace.offsets")

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
CONSUMER, DEBUGGER = -1, -2
"""Replica ids of those who are none."""
NO_EPOCH = -1

Found = tuple[int, int, int]
"""(offset, timestamp, leader epoch)."""
NOTHING: Found = (-1, -1, -1)
HIGH_WATERMARK = -1
"""DeleteRecords: up to the high watermark."""
AGES_AT_ONCE = 50
"""Between two looks at the clock. Each costs microseconds, in a compacted topic some more."""


class OffsetHandlers:
    """Answered from the logs of this node."""

    def __init__(self, replicas: Replicas, node: Node, checkpoints: Checkpoints, runtime: Runtime) -> None:
        self._replicas = replicas
        self._node = node
        self._checkpoints = checkpoints
        self._runtime = runtime

    def list_offsets(
        self, request: Request, message: m.ListOffsetsRequest
    ) -> m.ListOffsetsResponse | Awaitable[m.ListOffsetsResponse]:
        response = m.ListOffsetsResponse()
        steps = self._list_offsets(request.version, message, response)
        pauses = Pauses(self._runtime.perf_counter)
        for _ in steps:
            if pauses.due:
                return _between_others(steps, pauses, response)
        return response

    def _list_offsets(
        self, version: int, message: m.ListOffsetsRequest, response: m.ListOffsetsResponse
    ) -> Iterator[None]:
        """Fills in the response. Between two steps anything may happen to a partition."""
        R = m.ListOffsetsResponse
        topics: dict[str, dict[int, list[Any]]] = {}
        for topic in message.topics:
            partitions = topics.setdefault(topic.name, {})
            for asked in topic.partitions:
                partitions.setdefault(asked.partition_index, []).append(asked)
            yield
        for name, partitions in topics.items():
            results = []
            for index, (asked, *twice) in partitions.items():
                result = R.ListOffsetsPartitionResponse(partition_index=index)
                try:
                    if twice:
                        raise KafkaError(Err.INVALID_REQUEST, "the partition is named twice")
                    result.offset, result.timestamp, epoch = self._look_up(version, message, name, asked)
                    if version >= 4:
                        result.leader_epoch = epoch
                    if asked.unknown_tags:
                        yield from self._tell_ages(name, asked, result)
                except KafkaError as error:
                    result = R.ListOffsetsPartitionResponse(partition_index=index, error_code=error.error)
                except (OSError, CorruptSegment) as damage:
                    logger.error("%s-%d cannot be looked up by time: %s", name, index, damage)
                    result = R.ListOffsetsPartitionResponse(partition_index=index, error_code=Err.KAFKA_STORAGE_ERROR)
                results.append(result)
                yield
            if results:
                response.topics.append(R.ListOffsetsTopicResponse(name=name, partitions=results))

    def _look_up(self, version: int, message: m.ListOffsetsRequest, topic: str, asked: Any) -> Found:
        timestamp = asked.timestamp
        if timestamp < 0 and version < SINCE_VERSION.get(timestamp, 1 << 15):
            raise KafkaError(Err.UNSUPPORTED_VERSION)
        if message.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise KafkaError(Err.INVALID_REQUEST, f"isolation level {message.isolation_level} does not exist")
        partition = self._partition(topic, asked.partition_index, asked.current_leader_epoch, message.replica_id)
        log, leader = partition.log, partition.leader
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return log.log_start_offset, -1, log.epochs.epoch_for(log.log_start_offset)
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NOTHING  # nothing is tiered
        end_offset, certain = log.end_offset, True
        if message.replica_id == CONSUMER and leader is not None:
            committed_only = message.isolation_level == READ_COMMITTED
            end_offset = partition.last_stable_offset if committed_only else leader.high_watermark
            certain = leader.knows_committed
        not_yet = KafkaError(Err.OFFSET_NOT_AVAILABLE if version >= 5 else Err.LEADER_NOT_AVAILABLE)
        if timestamp == LATEST:
            if not certain:
                raise not_yet
            return end_offset, -1, partition.leader_epoch
        found = (
            log.max_timestamp_offset()
            if timestamp == MAX_TIMESTAMP
            else log.offset_for_timestamp(timestamp, log.end_offset)
        )
        if found is None or found.offset >= end_offset:
            if not certain:
                raise not_yet
            return NOTHING
        return found.offset, found.timestamp, found.leader_epoch

    def _tell_ages(self, topic: str, asked: Any, result: Any) -> Iterator[None]:
        """How long what follows some offsets has been waiting, for those who ask so."""
        offsets = values_in(asked.unknown_tags)
        now_ms = self._runtime.clock.wall_ms()
        ages_ms: list[int] = []
        for start in range(0, len(offsets), AGES_AT_ONCE):
            partition = self._replicas.find(topic, asked.partition_index)
            ages_ms += [age_ms(partition, offset, now_ms) for offset in offsets[start : start + AGES_AT_ONCE]]
            yield
        if ages_ms:
            result.unknown_tags = tagged(*ages_ms)

    def _partition(self, topic: str, index: int, epoch: int, replica_id: int = CONSUMER) -> Partition:
        """The partition as it is led here, in the epoch the client knows; debuggers may ask any replica."""
        if replica_id == DEBUGGER:
            return self._replicas.find(topic, index)
        partition = self._replicas.leader(topic, index, epoch)
        if epoch < NO_EPOCH:
            raise KafkaError(Err.FENCED_LEADER_EPOCH)
        return partition

    def offset_for_leader_epoch(
        self, request: Request, message: m.OffsetForLeaderEpochRequest
    ) -> m.OffsetForLeaderEpochResponse:
        R = m.OffsetForLeaderEpochResponse
        response = R()
        for topic in message.topics:
            results = []
            for asked in topic.partitions:
                result = R.EpochEndOffset(partition=asked.partition)
                try:
                    partition = self._partition(topic.topic, asked.partition, asked.current_leader_epoch)
                    log = partition.log
                    result.leader_epoch, result.end_offset = log.epochs.end_offset_for(
                        asked.leader_epoch, log.end_offset
                    )
                except KafkaError as error:
                    result.error_code = error.error
                results.append(result)
            response.topics.append(R.OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
        return response

    async def delete_records(self, request: Request, message: m.DeleteRecordsRequest) -> m.DeleteRecordsResponse:
        R = m.DeleteRecordsResponse
        response = R()
        cut: list[tuple[Any, Partition, int]] = []
        topics: dict[str, dict[int, Any]] = {}
        for topic in message.topics:
            # Named twice, a partition is cut once, at the offset named last.
            topics.setdefault(topic.name, {}).update((asked.partition_index, asked) for asked in topic.partitions)
        for name, partitions in topics.items():
            results = []
            for index, asked in partitions.items():
                result = R.DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1)
                try:
                    partition, offset = self._delete_up_to(name, asked)
                    cut.append((result, partition, offset))
                except KafkaError as error:
                    result.error_code = error.error
                results.append(result)
            if results:
                response.topics.append(R.DeleteRecordsTopicResult(name=name, partitions=results))
        if cut:
            # Before the answer: deleted records must not come back after a crash.
            try:
                await self._checkpoints.write_log_starts()
            except OSError as error:
                logger.error("log start offsets cannot be saved: %s", error)
                for row in (row for topic in response.topics for row in topic.partitions if not row.error_code):
                    row.error_code, row.low_watermark = Err.KAFKA_STORAGE_ERROR, -1
                return response
            await self._followed(cut, message.timeout_ms)
        return response

    async def _followed(self, cut: list[tuple[Any, Partition, int]], timeout_ms: int) -> None:
        """Wait until every live replica has deleted as much: whoever leads next must not bring records back."""
        deadline_ms = self._runtime.clock.monotonic_ms() + max(0, timeout_ms)
        for row, partition, offset in cut:
            low = self._low_watermark(partition)
            while low is not None and low < offset:
                left_ms = deadline_ms - self._runtime.clock.monotonic_ms()
                heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                partition.start_waiters.append(lambda heard=heard: heard.done() or heard.set_result(None))  # type: ignore[misc]
                try:
                    async with asyncio.timeout(left_ms / 1000):
                        await heard
                except TimeoutError:
                    break
                low = self._low_watermark(partition)
            if low is None:
                row.error_code = Err.NOT_LEADER_OR_FOLLOWER
            else:
                row.low_watermark = low
                row.error_code = Err.NONE if low >= offset else Err.REQUEST_TIMED_OUT

    def _low_watermark(self, partition: Partition) -> int | None:
        """Where the log of the replica begins that begins first, of all that live; None when others lead by now."""
        if partition.leader is None:
            return None
        brokers = self._node.image.brokers
        starts = [
            follower.log_start_offset
            for follower in partition.leader.followers.values()
            if follower.node_id in brokers and not brokers[follower.node_id].fenced
        ]
        return min([partition.log.log_start_offset, *starts])

    def _delete_up_to(self, topic: str, asked: Any) -> tuple[Partition, int]:
        if topic in INTERNAL:
            raise KafkaError(Err.INVALID_TOPIC_EXCEPTION, f"{topic} is kept by the broker")
        partition: Partition = self._replicas.leader(topic, asked.partition_index)
        if partition.log.config.compact and not partition.log.config.delete:
            raise KafkaError(Err.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
        high_watermark = partition.high_watermark
        offset = high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        if not 0 <= offset <= high_watermark:
            raise KafkaError(Err.OFFSET_OUT_OF_RANGE)
        partition.delete_up_to(offset)
        return partition, offset


async def _between_others(
    steps: Iterator[None], pauses: Pauses, response: m.ListOffsetsResponse
) -> m.ListOffsetsResponse:
    """The rest of a long answer."""
    await pauses.take()
    for _ in steps:
        if pauses.due:
            await pauses.take()
    return response
