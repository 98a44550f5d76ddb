"""Produce v3-13. v9: flexible. v8: errors per record. v10: leader hints (KIP-951). v13: topic ids only.

acks=1 is answered once written, acks=all once committed; acks=0 is not answered, and an error closes the connection,
since there is no other way to tell.
"""

from typing import TYPE_CHECKING

from headrace.broker.connection import PRODUCE, Answer, Connection, Request
from headrace.broker.handlers.leader_hints import LEADER_MOVED, endpoints_of
from headrace.broker.handlers.produce_order import Behind, Key, Refused
from headrace.broker.handlers.produce_shortcut import Hosted, ProduceShortcut
from headrace.broker.partition import Partition
from headrace.broker.waiters import Bucket
from headrace.errors import Err, KafkaError
from headrace.metadata.names import INTERNAL
from headrace.protocol.hot import (
    Endpoint,
    LeaderHint,
    ProduceDetail,
    ProducePartition,
    ProduceResult,
    decode_produce,
    encode_produce_response,
)
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.produce_shape import BY_ID, shape_of
from headrace.records.batch import HEADER_BYTES, NotOneBatch, require_one_batch
from headrace.records.compression import Codec
from headrace.records.layout import ATTRIBUTES_AT, CODEC_MASK, MAGIC_AT, TRANSACTIONAL
from headrace.replication.partition import LeaderState

if TYPE_CHECKING:
    from headrace.broker.server import Broker

ADMIN_CLIENT_ID = "__admin_client"
TIMEOUT_MS_MAX = 24 * 3600 * 1000
ZSTD_SINCE, HINTS_SINCE = 7, 10
"""Versions from which clients understand these."""

ROWS, ROWS_BYTES = 5000, 32 * 1024
"""A Produce names each partition once, so at most as many as there are here, and some that have just left. In so few bytes
there is no room for too many."""

Results = list[tuple[str | bytes, list[ProduceResult]]]
Waiting = tuple[Partition, int, LeaderState, list[ProduceResult], int]
"""(partition, end offset of what was appended, who led it then, the answers of its topic, its place among them)."""
LOST = 1 << 63
"""An end offset that is never committed."""


class ProduceHandler:
    """The hot path of writing."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._by_name = broker.replicas.by_name
        self._by_id = broker.replicas.by_id

    def __call__(self, request: Request, pos: int) -> Answer | None:
        version, buf, view = request.version, request.buf, request.view
        rows_max = ROWS if request.end - pos < ROWS_BYTES else 2 * len(self._broker.replicas) + ROWS
        transactional_id, acks, timeout_ms, topics = decode_produce(buf, pos, request.end, version, rows_max)
        if not -1 <= acks <= 1:
            return self._refuse_all(request, topics, KafkaError(Err.INVALID_REQUIRED_ACKS))
        wait_for_commit = acks == -1
        connection = request.connection
        results: Results = []
        waiting: list[Waiting] | None = None
        failed = False
        for topic, partitions in topics:
            hosted = (self._by_id if version >= BY_ID else self._by_name).get(topic)  # type: ignore[arg-type]
            answers: list[ProduceResult] = []
            if partitions:
                results.append((topic, answers))
            for index, start, end in partitions:
                partition = hosted.get(index) if hosted is not None else None
                try:
                    if partition is None or partition.topic in INTERNAL:
                        partition = self._unusual(topic, index, request)
                    if version < ZSTD_SINCE:
                        _check_old_codec(buf, start, end)
                    if connection.refused is not None:
                        connection.refused.judge((topic, index), partition.log.producers, buf, start, end)
                    base_offset, append_time, end_offset = partition.append(buf, view, start, end, wait_for_commit)
                except KafkaError as error:
                    failed = True
                    refusal = self.refusal(connection, topic, index, partition, error, transactional_id, buf, start, end)
                    answers.append(refusal)
                    continue
                if connection.refused is not None:
                    _in_order_again(connection, (topic, index))
                if wait_for_commit and partition.leader.high_watermark < end_offset:  # type: ignore[union-attr]
                    if waiting is None:
                        waiting = []
                    waiting.append((partition, end_offset, partition.leader, answers, len(answers)))  # type: ignore[arg-type]
                error_code = 0 if base_offset >= 0 else Err.DUPLICATE_SEQUENCE_NUMBER
                answers.append((index, error_code, base_offset, append_time, partition.log.log_start_offset, None))
        if acks == 0:
            if failed:
                raise ProtocolError("a Produce with acks=0 failed, and closing is the only way to say so")
            return b""
        if waiting is not None:
            waiter = self.park(request, results, waiting, timeout_ms)
            if failed:
                waiter.look_again()
                return None
        if failed:
            return self.encode(request, results)
        if transactional_id is None and len(topics) == 1 and len(partitions) == 1:
            self._learn(request, topic, partitions[0], wait_for_commit, timeout_ms)
        return encode_produce_response(request.correlation_id, version, results) if waiting is None else None

    def park(self, request: Request, results: Results, waiting: list[Waiting], timeout_ms: int) -> "ProduceWaiter":
        """What was appended has to be committed before it is answered."""
        waiter = ProduceWaiter(self, request, results, waiting)
        self._broker.wheel.add(waiter, min(max(timeout_ms, 0), TIMEOUT_MS_MAX))
        return waiter

    def _learn(
        self, request: Request, topic: str | bytes, partition: ProducePartition, needs_commit: bool, timeout_ms: int
    ) -> None:
        """A connection that has written to the same topic twice in a row is likely to go on so.

        What it calls itself is part of the shape: internal topics stay with those who may write to them.
        """
        connection = request.connection
        if connection.last_topic != topic:
            connection.last_topic = topic
            return
        shape = shape_of(request.buf, request.frame, request.end, request.version, topic, partition)
        if shape is not None:
            hosted: Hosted = self._by_id if request.version >= BY_ID else self._by_name
            connection.shortcuts[PRODUCE] = ProduceShortcut(self, shape, topic, hosted, needs_commit, timeout_ms)

    def _unusual(self, topic: str | bytes, index: int, request: Request) -> Partition:
        """Not here, or a topic that only the broker and its tools may write to."""
        partition = self._broker.replicas.find(topic, index)
        if partition.topic in INTERNAL and request.client_id != ADMIN_CLIENT_ID:
            raise KafkaError(Err.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is written by the broker only")
        return partition

    def refusal(
        self, connection: Connection, topic: str | bytes, index: int, partition: Partition | None, error: KafkaError,
        transactional_id: str | None, buf: bytearray, start: int, end: int,
    ) -> ProduceResult:  # fmt: skip
        """The answer about a batch, `buf[start:end]`, that was not appended; what comes behind it has to wait for it."""
        if transactional_id is None and _is_transactional(buf, start, end):
            error = KafkaError(Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not isinstance(error, Behind):
            refused = _refused_of(connection)
            refused.note((topic, index), error.error, buf, start, end)
            connection.refused = refused or None
        return self._refusal(index, partition, error)

    def _refusal(self, index: int, partition: Partition | None, error: KafkaError) -> ProduceResult:
        self._broker.metrics.produce_errors += 1
        hint = None
        if error.error in LEADER_MOVED and partition is not None:
            hint = LeaderHint(partition.leader_id, partition.leader_epoch)
        detail = ProduceDetail(error.message, getattr(error, "record_errors", ()), hint)
        log_start = -1
        if partition is not None and error.error not in _FOUND_BEFORE and not isinstance(error, NotOneBatch):
            log_start = partition.log.log_start_offset
        return index, error.error, -1, -1, log_start, detail

    def _refuse_all(self, request: Request, topics: list, error: KafkaError) -> Answer:  # type: ignore[type-arg]
        results: Results = [
            (topic, [self._refusal(index, None, error) for index, _, _ in partitions]) for topic, partitions in topics
        ]
        return self.encode(request, results)

    @property
    def is_cut_off(self) -> bool:
        return self._broker.departures.cut_off

    def has_too_few(self, partition: Partition) -> bool:
        """Whether fewer replicas are in sync than the minimum, whoever leads them."""
        if partition.leader is not None:
            return partition.leader.too_few
        known = self._broker.image.partition(partition.topic_id, partition.index)
        return known is None or len(known.isr) < min(partition.log.config.min_insync_replicas, len(known.replicas))

    def encode(self, request: Request, results: Results) -> bytes:
        """An answer that may carry leader hints, and so the addresses of the leaders."""
        if len(results) == 1 and len(results[0][1]) == 1 and results[0][1][0][5] is None:
            return encode_produce_response(request.correlation_id, request.version, results)  # nearly always
        hinted = {
            result[5].leader.leader_id
            for _, answers in results
            for result in answers
            if result[5] is not None and result[5].leader is not None
        }
        endpoints: list[Endpoint] = []
        if hinted and request.version >= HINTS_SINCE:
            endpoints = endpoints_of(self._broker, request.connection, hinted)
        return encode_produce_response(request.correlation_id, request.version, results, 0, endpoints)

    def answered(self, request: Request, results: Results) -> None:
        """A request that waited is done."""
        request.connection.listener.router.parked_done(request)
        request.complete(self.encode(request, results))


# Errors found while appending tell where the log starts; those found before do not.
_FOUND_BEFORE = frozenset(
    {
        Err.UNKNOWN_TOPIC_OR_PARTITION,
        Err.UNKNOWN_TOPIC_ID,
        Err.NOT_LEADER_OR_FOLLOWER,
        Err.INVALID_TOPIC_EXCEPTION,
        Err.INVALID_REQUIRED_ACKS,
        Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Err.MESSAGE_TOO_LARGE,
        Err.RECORD_LIST_TOO_LARGE,
        Err.CORRUPT_MESSAGE,
        Err.KAFKA_STORAGE_ERROR,
    }
)


def _refused_of(connection: Connection) -> Refused:
    return connection.refused if connection.refused is not None else Refused()


def _in_order_again(connection: Connection, key: Key) -> None:
    """A batch was taken: its producer has sent again what was refused before it, or the log has it from elsewhere."""
    refused = _refused_of(connection)
    refused.pop(key, None)
    connection.refused = refused or None


def _is_transactional(buf: bytearray, start: int, end: int) -> bool:
    return end - start >= HEADER_BYTES and buf[start + MAGIC_AT] == 2 and bool(buf[start + ATTRIBUTES_AT + 1] & TRANSACTIONAL)


def _check_old_codec(buf: bytearray, start: int, end: int) -> None:
    """Before v7 no client knew zstd, so none is to find it in a log."""
    require_one_batch(buf, start, end)
    if end - start >= HEADER_BYTES and buf[start + ATTRIBUTES_AT + 1] & CODEC_MASK >= Codec.ZSTD:
        raise NotOneBatch(Err.UNSUPPORTED_COMPRESSION_TYPE, "this version of Produce knows no such compression")


class ProduceWaiter:
    """A Produce with acks=all between append and commit."""

    __slots__ = ("_handler", "_remaining", "_request", "_results", "_waiting", "bucket")

    outlives_leader = True

    def __init__(
        self,
        handler: ProduceHandler,
        request: Request,
        results: Results,
        waiting: list[Waiting],
    ) -> None:
        self.bucket: Bucket | None = None
        self._handler = handler
        self._request = request
        self._results = results
        self._waiting = waiting
        self._remaining = len(waiting)
        for partition, end_offset, _, _, _ in waiting:
            partition.ack_waiters.append((end_offset, self))

    def look_again(self) -> None:
        """A disk that failed under a later partition of the request may have taken earlier ones with it."""
        for partition, _, leader, _, _ in self._waiting:
            if partition.leader is not leader:
                self._note_lost(partition)
                self.committed()

    def committed(self) -> None:
        self._remaining -= 1
        if self._remaining == 0 and self.bucket is not None:
            self.bucket.pop(self, None)
            self.bucket = None
            self._finish()

    def lost(self, partition: Partition) -> None:
        """Noted at once, not when the whole request is answered: what comes behind it may be judged before that."""
        request = self._request
        refused = _refused_of(request.connection)
        refused.note_lost((partition.topic_id if request.version >= BY_ID else partition.topic, partition.index))
        request.connection.refused = refused
        self._note_lost(partition)
        self.committed()

    def _note_lost(self, partition: Partition) -> None:
        for at, (lost, _, leader, answers, position) in enumerate(self._waiting):
            if lost is partition:
                self._waiting[at] = partition, LOST, leader, answers, position

    def expire(self) -> None:
        self._finish()

    def _finish(self) -> None:
        for partition, end_offset, leader, answers, position in self._waiting:
            index = partition.index
            if partition.leader is leader:
                if leader.high_watermark < end_offset:
                    # A timeout is tried again here, for ever. Cut off from all others, this node is no leader any more.
                    error = Err.NOT_LEADER_OR_FOLLOWER if self._handler.is_cut_off else Err.REQUEST_TIMED_OUT
                    answers[position] = (index, error, -1, -1, -1, None)
                elif leader.too_few:
                    # Committed, and since then too few are in sync to call it safe.
                    answers[position] = (index, Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, -1, -1, None)
            elif partition.high_watermark < end_offset:
                error = Err.KAFKA_STORAGE_ERROR if partition.failed else Err.NOT_LEADER_OR_FOLLOWER
                detail = ProduceDetail(leader=LeaderHint(partition.leader_id, partition.leader_epoch))
                answers[position] = (index, error, -1, -1, -1, detail)
            elif self._handler.has_too_few(partition):
                answers[position] = (index, Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, -1, -1, None)
            # Else it is committed, though another node has led since. The offset alone would not prove that: another leader
            # may have put other records there. But this log was cut before it took them, and whoever waited is LOST since.
        self._handler.answered(self._request, self._results)
