"""Tells partitions how a transaction has ended: one WriteTxnMarkers at a time to each broker that leads some of them,
and a call to this one.

1. The decision is in `__transaction_state`, below the high watermark: from now on it cannot change.
2. Each partition's leader gets a marker. One that has moved, or does not answer, is found and told again, for ever:
   until then readers with read_committed wait at the transaction.
3. When all have theirs, the coordinator writes that the transaction is complete.

A coordinator that dies in between leaves the decision behind; the next one begins again at 2. A partition that gets its
marker twice takes it for what it is. One that has heard of a later coordinator refuses it, and this one has to stop.
"""

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.broker.transactions.calls import BatchedCalls
from headrace.client.errors import err_of
from headrace.coordinator.transactions.records import by_topic
from headrace.coordinator.transactions.shard import Markers
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.private_fields.marker_origin import decision_tag, leader_epochs_tag

logger = logging.getLogger("headrace.transactions")

RETRY_S = 0.1
"""Before a partition is told again: its next leader may be known by then."""

TURN_S = 0.005
"""Markers are written here for so long before others get their turn,"""
PORTION = 50
"""and so many before the clock is looked at again. Other brokers are told of so many partitions at a time, too."""

SUPERSEDED = frozenset({Err.INVALID_PRODUCER_EPOCH, Err.TRANSACTION_COORDINATOR_FENCED})
"""Somebody has gone on with this transactional id: another coordinator, or a producer after this transaction."""
NOT_NEEDED = frozenset({Err.UNSUPPORTED_FOR_MESSAGE_FORMAT, Err.UNSUPPORTED_VERSION})
"""The partition could not have taken the transaction's records either."""


class Decision(Protocol):
    """The shard that a transaction belongs to, as long as it is served here."""

    @property
    def coordinator_epoch(self) -> int: ...

    @property
    def is_served(self) -> bool:
        """Whether this broker still has the say."""
        ...

    def marked(self, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        """These partitions have their marker, or are gone."""
        ...


class Leaders(Protocol):
    """Who leads what, as far as this broker knows."""

    def leader_of(self, topic: str, partition: int) -> int | None:
        """-1: nobody, at the moment. None: there is no such partition any more."""
        ...

    def leader_epoch_of(self, topic: str, partition: int) -> int: ...


class _Told(NamedTuple):
    """What one broker is to be told of a transaction."""

    decision: Decision
    markers: Markers
    partitions: frozenset[TopicPartition]


class LocalWriter(Protocol):
    """Writes to the partitions that this broker leads."""

    def write_here(
        self,
        markers: Markers,
        coordinator_epoch: int,
        partitions: Iterable[TopicPartition],
        tell: Callable[[Errors], None],
    ) -> None:
        """Appends them, and tells what became of them once they are committed, or not in time."""
        ...


Write = Callable[[int, m.WriteTxnMarkersRequest], Awaitable[m.WriteTxnMarkersResponse]]
"""Sends a request to another broker. Raises KafkaError when there is no answer."""


class MarkerSender:
    """All markers that this broker's coordinator has to have written."""

    def __init__(
        self,
        node_id: int,
        leaders: Leaders,
        local: LocalWriter,
        write: Write,
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
        loop: AbstractEventLoop,
        perf_counter: Callable[[], float],
    ) -> None:
        self._node_id = node_id
        self._leaders = leaders
        self._local = local
        self._write = write
        self._loop = loop
        self._perf_counter = perf_counter
        self._own: deque[_Told] = deque()
        """For partitions that are led here."""
        self._calls: BatchedCalls[_Told] = BatchedCalls(self._send, spawn)

    def send(self, decision: Decision, markers: Markers) -> None:
        """Have the markers of a transaction written; `decision.marked` hears of each."""
        self._tell(decision, markers, markers.partitions)

    def _tell(self, decision: Decision, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        if not decision.is_served:
            return
        by_leader: dict[int, set[TopicPartition]] = {}
        gone = []
        for one in partitions:
            leader = self._leaders.leader_of(*one)
            if leader is None:
                gone.append(one)
            else:
                by_leader.setdefault(leader, set()).add(one)
        leaderless = by_leader.pop(-1, None)
        if leaderless:
            self._again(decision, markers, leaderless)
        for leader, some in by_leader.items():
            several = list(some)
            for start in range(0, len(several), PORTION):
                self._tell_leader(leader, _Told(decision, markers, frozenset(several[start : start + PORTION])))
        if gone:
            decision.marked(markers, gone)

    def _tell_leader(self, leader: int, told: _Told) -> None:
        if leader != self._node_id:
            self._calls.add(leader, told)
            return
        if not self._own:
            self._loop.call_soon(self._write_own)
        self._own.append(told)

    def _again(self, decision: Decision, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        self._loop.call_later(RETRY_S, self._tell, decision, markers, frozenset(partitions))

    def _write_own(self) -> None:
        own = self._own
        stop = self._perf_counter() + TURN_S
        while own:
            told = own[0]  # as long as it is there, whoever adds another knows that this goes on
            try:
                if told.decision.is_served:
                    self._local.write_here(
                        told.markers, told.decision.coordinator_epoch, told.partitions, partial(self._take, told)
                    )
            except Exception:
                logger.exception("the end of %s's transaction is not written here", told.markers.transactional_id)
                self._again(*told)
            own.popleft()
            if own and self._perf_counter() > stop:
                self._loop.call_soon(self._write_own)
                return

    async def _send(self, broker_id: int, told: list[_Told]) -> None:
        told = [one for one in told if one.decision.is_served]
        if not told:
            return
        try:
            answer = await self._write(broker_id, _request(told, self._leaders))
        except Exception as error:
            # A mistake of ours, too: it must not end the broker, and these partitions have to hear of it all the same.
            mistake = None if isinstance(error, KafkaError) else error
            logger.log(
                logging.INFO if mistake is None else logging.ERROR,
                "broker %d was not told how %d transactions ended: %s", broker_id, len(told), error, exc_info=mistake,
            )  # fmt: skip
            for one in told:
                self._again(*one)
            return
        errors: dict[int, dict[TopicPartition, int]] = {}
        for result in answer.markers:
            of_producer = errors.setdefault(result.producer_id, {})
            for topic in result.topics:
                of_producer.update({(topic.name, row.partition_index): row.error_code for row in topic.partitions})
        for one in told:
            self._take(one, errors.get(one.markers.producer_id, {}))

    def _take(self, told: _Told, errors: Mapping[TopicPartition, int]) -> None:
        done, again = [], []
        for one in told.partitions:
            error = errors.get(one, Err.UNKNOWN_SERVER_ERROR)
            if error == Err.NONE or error in NOT_NEEDED:
                done.append(one)
            elif error in SUPERSEDED:
                logger.warning(
                    "%s-%d refuses the end of %s's transaction: %s. Somebody else has gone on with it",
                    *one, told.markers.transactional_id, err_of(error).name,
                )  # fmt: skip
                return
            else:
                again.append(one)
        if done and told.decision.is_served:
            told.decision.marked(told.markers, done)
        if again:
            self._again(told.decision, told.markers, again)


def _request(told: list[_Told], leaders: Leaders) -> m.WriteTxnMarkersRequest:
    kind = m.WriteTxnMarkersRequest

    def topic(name: str, indexes: list[int]) -> m.WriteTxnMarkersRequest.WritableTxnMarkerTopic:
        epochs = [leaders.leader_epoch_of(name, index) for index in indexes]
        return kind.WritableTxnMarkerTopic(name=name, partition_indexes=indexes, unknown_tags=leader_epochs_tag(epochs))

    return kind(
        markers=[
            kind.WritableTxnMarker(
                producer_id=markers.producer_id,
                producer_epoch=markers.producer_epoch,
                transaction_result=markers.committed,
                topics=[topic(name, indexes) for name, indexes in by_topic(partitions).items()],
                coordinator_epoch=decision.coordinator_epoch,
                transaction_version=markers.transaction_version,
                unknown_tags=decision_tag(markers.decision),
            )
            for decision, markers, partitions in told
        ]
    )
