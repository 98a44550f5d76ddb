"""A leader writes the markers that coordinators send it, and answers when they are committed (WriteTxnMarkers)."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.broker.net.waiters import Bucket
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.transactional import append_marker
from headrace.coordinator.transactions.shard import Markers
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.private_fields.marker_origin import UNKNOWN, decision_in, leader_epochs_in
from headrace.records.control import Marker
from headrace.replication.producer import MarkerMark

Results = dict[int, Errors]
"""By producer, as Kafka answers."""


class Wheel(Protocol):
    def add(self, waiter: Any, timeout_ms: int) -> None: ...


class Groups(Protocol):
    """The groups' coordinator, which has to hear of the end of transactions in its own topic."""

    def write_marker(
        self, partition: int, producer_id: int, epoch: int, marker: Marker, transaction_version: int
    ) -> tuple[Partition, int]:
        """(the partition, the end offset of the marker). Raises KafkaError."""
        ...


class MarkerWriter:
    """The markers of other brokers' coordinators, and of this one's."""

    def __init__(
        self,
        hosted: Mapping[str, Mapping[int, Partition]],
        groups: Groups,
        wheel: Wheel,
        timeout_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._hosted = hosted
        """Partitions that this broker has, by topic and index."""
        self._groups = groups
        self._wheel = wheel
        self._timeout_ms = timeout_ms
        self._loop = loop

    def write(self, request: m.WriteTxnMarkersRequest) -> Coroutine[Any, Any, m.WriteTxnMarkersResponse]:
        """Everything is appended before this returns; the answer comes when it is committed, or not in time."""
        results: Results = {}
        done: asyncio.Future[None] = self._loop.create_future()
        waiter = _Waiter(partial(_settle, done))
        for marker in request.markers:
            of_producer = results.setdefault(marker.producer_id, {})
            ending = _Ending(
                marker.producer_id, marker.producer_epoch, Marker(marker.transaction_result, marker.coordinator_epoch),
                marker.transaction_version, decision_in(marker.unknown_tags),
            )  # fmt: skip
            for topic in marker.topics:
                epochs = leader_epochs_in(topic.unknown_tags, len(topic.partition_indexes))
                for index, leader_epoch in zip(topic.partition_indexes, epochs):
                    self._write(ending, (topic.name, index), leader_epoch, of_producer, waiter)
        self._wait(waiter)

        async def answer() -> m.WriteTxnMarkersResponse:
            await done
            return _response(results)

        return answer()

    def write_here(
        self,
        markers: Markers,
        coordinator_epoch: int,
        partitions: Iterable[TopicPartition],
        tell: Callable[[Errors], None],
    ) -> None:
        """The same, asked by a coordinator on this broker."""
        errors: Errors = {}
        waiter = _Waiter(partial(tell, errors))
        ending = _Ending(
            markers.producer_id, markers.producer_epoch, Marker(markers.committed, coordinator_epoch),
            markers.transaction_version, markers.decision,
        )  # fmt: skip
        for place in partitions:
            self._write(ending, place, UNKNOWN, errors, waiter)
        self._wait(waiter)

    def _wait(self, waiter: "_Waiter") -> None:
        if waiter.all_appended():
            self._wheel.add(waiter, self._timeout_ms())

    def _write(
        self, ending: "_Ending", place: TopicPartition, leader_epoch: int, errors: Errors, waiter: "_Waiter"
    ) -> None:
        try:
            partition, end_offset = self._append(ending, *place, leader_epoch)
        except KafkaError as error:
            errors[place] = error.error
            return
        errors[place] = Err.NONE
        if partition.high_watermark < end_offset:
            # Not later, when the answer is waited for: it may be committed by then, or the partition has another
            # leader, and nobody would tell.
            partition.ack_waiters.append((end_offset, _Part(waiter, errors, place)))

    def _append(self, ending: "_Ending", topic: str, index: int, leader_epoch: int) -> tuple[Partition, int]:
        partition = self._hosted.get(topic, {}).get(index)
        if partition is None or partition.failed:
            raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)
        if leader_epoch not in (UNKNOWN, partition.leader_epoch):
            # Asked of another leader, or of this one before another led: the coordinator asks again.
            raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER, f"the marker was meant for leader epoch {leader_epoch}")
        producer_id, epoch, marker, transaction_version, decision = ending
        producers = partition.log.producers
        origin = partition.leader_epoch, marker.coordinator_epoch, decision
        if decision != UNKNOWN and partition.leader is not None:
            end_offset = producers.marker_written(producer_id, *origin)
            if end_offset is not None:
                return partition, end_offset
        if topic == OFFSETS_TOPIC:
            partition, end_offset = self._groups.write_marker(index, producer_id, epoch, marker, transaction_version)
        else:
            end_offset = append_marker(partition, producer_id, epoch, marker, transaction_version)
        if decision != UNKNOWN:
            producers.note_marker(producer_id, MarkerMark(*origin, end_offset))
        return partition, end_offset


class _Ending(NamedTuple):
    """How a transaction ends."""

    producer_id: int
    epoch: int
    marker: Marker
    transaction_version: int
    decision: int


class _Waiter:
    """Markers that were asked for together, on their way to be committed."""

    __slots__ = ("bucket", "done", "is_whole", "parts")

    def __init__(self, done: Callable[[], object]) -> None:
        self.done = done
        self.parts: dict[_Part, None] = {}
        """Those that are not committed."""
        self.is_whole = False
        self.bucket: Bucket | None = None

    def all_appended(self) -> bool:
        """True: some of it has to be waited for."""
        self.is_whole = True
        if not self.parts:
            self._tell()
        return bool(self.parts)

    def settled(self, part: "_Part") -> None:
        self.parts.pop(part, None)
        if not self.parts and self.is_whole:
            if self.bucket is not None:
                self.bucket.pop(self, None)
                self.bucket = None
            self._tell()

    def expire(self) -> None:
        for part in self.parts:
            part.refuse(Err.REQUEST_TIMED_OUT)
        self._tell()

    def _tell(self) -> None:
        """Once: what is committed after its time was up has been told as not committed."""
        done, self.done = self.done, _nothing
        done()


def _nothing() -> None: ...


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


class _Part:
    """One marker of such a request, as its partition knows it."""

    __slots__ = ("_errors", "_place", "_waiter")

    outlives_leader = False
    """The next leader is asked again: it takes a marker that it has already for what it is."""

    def __init__(self, waiter: _Waiter, errors: Errors, place: TopicPartition) -> None:
        self._waiter = waiter
        self._errors = errors
        self._place = place
        waiter.parts[self] = None

    def refuse(self, error: Err) -> None:
        self._errors[self._place] = error

    def committed(self) -> None:
        self._waiter.settled(self)

    def lost(self, partition: Partition) -> None:
        self.refuse(Err.NOT_LEADER_OR_FOLLOWER)
        self._waiter.settled(self)


def _response(results: Results) -> m.WriteTxnMarkersResponse:
    R = m.WriteTxnMarkersResponse
    response = R()
    for producer_id, errors in results.items():
        topics: dict[str, list[Any]] = {}
        for (topic, index), error in errors.items():
            topics.setdefault(topic, []).append(
                R.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
            )
        response.markers.append(
            R.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[R.WritableTxnMarkerTopicResult(name=topic, partitions=rows) for topic, rows in topics.items()],
            )
        )
    return response
