"""The short way for a consumer that asks for what comes next in the same partition, and nothing else."""

from typing import TYPE_CHECKING

from headrace.broker.connection import FETCH, Answer, Connection, Request
from headrace.broker.handlers.pace import HeldFetch, Pace
from headrace.broker.handlers.produce_shortcut import Hosted
from headrace.broker.outbox import Chunk
from headrace.broker.readahead import Outlook
from headrace.errors import KafkaError
from headrace.protocol.consumer_shape import BY_ID, ConsumerShape
from headrace.protocol.headers import CLIENT_ID_AT
from headrace.protocol.hot import READ_COMMITTED, FetchQuery
from headrace.replication.fetch_sessions import FINAL_EPOCH, NO_SESSION, Target
from headrace.storage.segment import CorruptSegment

if TYPE_CHECKING:
    from headrace.broker.handlers.fetch import FetchHandler


class ConsumerShortcut:
    """Serves requests of one shape.

    Where records are at hand, of a partition that is as it was, they are the answer. Everything else goes the way of all
    requests, with nothing left to decode.
    """

    __slots__ = (
        "_asked", "_by_id", "_find", "_handler", "_head", "_hold_s", "_hosted", "_is_committed", "_key", "_least_bytes",
        "_most_bytes", "_outlook", "_pace", "_query", "_session_id", "_tail", "said", "version",
    )  # fmt: skip

    def __init__(
        self, handler: "FetchHandler", shape: ConsumerShape, query: FetchQuery, asked: Target, hosted: Hosted,
        pace: Pace | None,
    ) -> None:  # fmt: skip
        self.version = shape.version
        self.said = shape.said
        self._find = shape.find
        self._head = shape.head
        self._tail = shape.tail
        self._handler = handler
        self._query = query
        self._asked = asked
        self._hosted = hosted
        self._pace = pace
        self._hold_s = 0.0
        self._session_id = query.session_id
        self._by_id = shape.version >= BY_ID
        self._key = asked.topic, asked.index
        self._outlook = Outlook(handler.cache) if handler.cache is not None else None
        self._is_committed = query.isolation_level == READ_COMMITTED
        self._most_bytes = min(asked.max_bytes, query.max_bytes, handler.bytes_max)
        self._least_bytes = min(query.min_bytes, query.max_bytes, handler.bytes_max)

    def take(
        self, connection: Connection, pos: int, end: int, correlation_id: int, started: float
    ) -> Answer | Request | None:
        """The answer to the frame at `pos`, or its place in the queue if it has to wait; None: nothing was done."""
        found = self._find(connection.buf, pos, end)
        if found is None:
            return None
        epoch, offset = found
        session_id = self._session_id
        if session_id == NO_SESSION:
            is_usual = epoch == FINAL_EPOCH
        else:
            is_usual = self._handler.sessions.reads_only(session_id, epoch, self._key)
        if is_usual:
            answer = self._records(epoch, offset, correlation_id, started)
            if answer is not None:
                return answer
        request = Request(connection, FETCH, self.version, correlation_id, -1, pos + CLIENT_ID_AT, end, started)
        request.let_go()
        if self._hold_s:
            HeldFetch(self._handler, request, self._query, self._asked.at(offset), self._hold_s, self._handler.loop)
            self._hold_s = 0.0
            return request
        return self._handler.serve(request, self._query, epoch, [self._asked.at(offset)]) or request

    def _records(self, epoch: int, offset: int, correlation_id: int, now: float) -> list[Chunk] | None:
        """The answer, where there is nothing to tell but records that are in memory."""
        asked, outlook = self._asked, self._outlook
        # Looked up each time: a topic that is gone may have a successor of the same name.
        partitions = self._hosted.get(asked.topic)
        partition = partitions.get(asked.index) if partitions is not None else None
        if partition is None or partition.leader is None or partition.failed:
            return None
        if asked.leader_epoch not in (-1, partition.leader_epoch):
            return None
        log = partition.log
        high_watermark = partition.leader.high_watermark
        stable = partition.last_stable_offset
        bound = stable if self._is_committed else high_watermark
        try:
            if self._is_committed and log.aborted_transactions(offset, bound):
                return None
            piece = log.read(offset, self._most_bytes, bound)
        except (KafkaError, OSError, CorruptSegment):
            return None
        if piece is None:
            return None
        length, log_start = piece.length, log.log_start_offset
        is_cold = outlook is not None and not outlook.holds(piece, log.bytes_written(piece), now)
        if is_cold or piece.is_unchecked or length < self._least_bytes:
            piece.release()
            return None
        if self._pace is not None and 2 * length > self._most_bytes:
            self._hold_s = min(self._pace.hold_s(length, now), max(self._query.max_wait_ms, 0) / 1000)
            if self._hold_s:
                piece.release()
                return None
        if self._session_id != NO_SESSION:
            self._tell_session(epoch, offset, high_watermark, log_start, length)
        self._handler.metrics.bytes_out += length
        head = self._head(correlation_id, high_watermark, stable, log_start, length)
        return [head, piece, self._tail] if self._tail else [head, piece]

    def _tell_session(self, epoch: int, offset: int, high_watermark: int, log_start: int, length: int) -> None:
        """It goes on as by the long way."""
        handler = self._handler
        context = handler.sessions.open(
            self._session_id, epoch, [self._asked.at(offset)], (), self._by_id, handler.monotonic_ms()
        )
        assert context.session is not None
        (target,) = context.targets
        context.session.must_tell(target, 0, high_watermark, log_start, length, False)
