"""Produce v3-13. v9: flexible. v8: errors per record. v10: leader hints (KIP-951). v13: topic ids only.

acks=1 is answered once written, acks=all once committed; acks=0 is not answered, and an error closes the connection,
since there is no other way to tell.
"""

from collections.abc import Mapping
from typing import Any

from headrace.broker.cluster.isolation import Isolation
from headrace.broker.cluster.leader_hints import LEADER_MOVED, endpoints_of
from headrace.broker.cluster.node import Node
from headrace.broker.fastpath.fast_path import Frame, recognized_request
from headrace.broker.handlers.produce.transaction_checks import NotVerified
from headrace.broker.handlers.produce.waiter import ProduceWaiter, Results, Waiting, refused_of
from headrace.broker.metrics import Metrics
from headrace.broker.net.connection import Connection
from headrace.broker.net.request import PRODUCE, Answer, Request
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
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
from headrace.protocol.templates.produce import BY_ID, ProduceTemplate, produce_template
from headrace.records.batch import HEADER_BYTES, NotOneBatch, require_one_batch
from headrace.records.compression import Codec
from headrace.records.layout import ATTRIBUTES_AT, CODEC_MASK, MAGIC_AT, TRANSACTIONAL
from headrace.replication.refused_batches import Behind, RefusedBatches
from headrace.replication.verification import Verification

ADMIN_CLIENT_ID = "__admin_client"
TIMEOUT_MS_MAX = 24 * 3600 * 1000
ZSTD_SINCE, HINTS_SINCE = 7, 10
"""Versions from which clients understand these."""

ROWS, ROWS_BYTES = 5000, 32 * 1024
"""A Produce names each partition once, so at most as many as there are here, and some that have just left. In so few
bytes there is no room for too many."""

Hosted = Mapping[Any, Mapping[int, Partition]]
"""This node's partitions, by the name or the id of their topic."""


class ProduceHandler:
    """The hot path of writing."""

    def __init__(
        self, replicas: Replicas, node: Node, isolation: Isolation, wheel: TimerWheel, metrics: Metrics
    ) -> None:
        self._replicas = replicas
        self._node = node
        self._isolation = isolation
        self._wheel = wheel
        self._metrics = metrics
        self._by_name = replicas.by_name
        self._by_id = replicas.by_id

    def __call__(self, request: Request, pos: int) -> Answer | None:
        version, buf, view = request.version, request.buf, request.view
        rows_max = ROWS if request.end - pos < ROWS_BYTES else 2 * len(self._replicas) + ROWS
        transactional_id, acks, timeout_ms, topics = decode_produce(buf, pos, request.end, version, rows_max)
        if not -1 <= acks <= 1:
            return self._refuse_all(request, topics, KafkaError(Err.INVALID_REQUIRED_ACKS))
        needs_commit, in_transaction = acks == -1, transactional_id is not None
        connection = request.connection
        connection.has_produced = True
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
                    guard = _guard(partition, start) if in_transaction else None
                    refused = connection.refused
                    if refused is None:
                        base_offset, append_time, end_offset = partition.append(
                            buf, view, start, end, needs_commit, in_transaction, guard
                        )
                    else:
                        base_offset, append_time, end_offset = self.append_in_order(
                            refused, connection, topic, partition, buf, view, start, end, needs_commit,
                            in_transaction, guard,
                        )  # fmt: skip
                except KafkaError as error:
                    failed = True
                    refusal = self.refusal(
                        connection, topic, index, partition, error, transactional_id, buf, start, end
                    )
                    answers.append(refusal)
                    continue
                if needs_commit and partition.leader.high_watermark < end_offset:  # type: ignore[union-attr]
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
            self._learn(request, topic, partitions[0], needs_commit, timeout_ms)
        return encode_produce_response(request.correlation_id, version, results) if waiting is None else None

    @staticmethod
    def append_in_order(
        refused: RefusedBatches, connection: Connection, topic: str | bytes, partition: Partition, buf: bytearray,
        view: memoryview, start: int, end: int, needs_commit: bool, in_transaction: bool = False,
        guard: Verification | None = None,
    ) -> tuple[int, int, int]:  # fmt: skip
        """`Partition.append` on a connection where batches were `refused`: none of the same producer may overtake
        them."""
        key = topic, partition.index
        refused.judge(key, partition.log.producers, buf, start, end)
        appended = partition.append(buf, view, start, end, needs_commit, in_transaction, guard)
        # Its producer has sent again what was refused before it, or the log has it from elsewhere.
        refused.pop(key, None)
        connection.refused = refused or None
        return appended

    def park(self, request: Request, results: Results, waiting: list[Waiting], timeout_ms: int) -> ProduceWaiter:
        """What was appended has to be committed before it is answered."""
        waiter = ProduceWaiter(self, request, results, waiting)
        self._wheel.add(waiter, min(max(timeout_ms, 0), TIMEOUT_MS_MAX))
        return waiter

    def _learn(
        self, request: Request, topic: str | bytes, partition: ProducePartition, needs_commit: bool, timeout_ms: int
    ) -> None:
        """A connection that has written to the same topic twice in a row is likely to go on so.

        What it calls itself is part of the template: internal topics stay with those who may write to them.
        """
        fast = request.connection.fast
        if fast is None or not fast.repeats(PRODUCE, topic):
            return
        template = produce_template(request.buf, request.frame, request.end, request.version, topic, partition)
        if template is not None:
            hosted: Hosted = self._by_id if request.version >= BY_ID else self._by_name
            repeated = RepeatedProduce(self, template, topic, hosted, needs_commit, timeout_ms)
            fast.learn(PRODUCE, template, repeated.serve)

    def _unusual(self, topic: str | bytes, index: int, request: Request) -> Partition:
        """Not here, or a topic that only the broker and its tools may write to."""
        partition = self._replicas.find(topic, index)
        if partition.topic in INTERNAL and request.client_id != ADMIN_CLIENT_ID:
            raise KafkaError(Err.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is written by the broker only")
        return partition

    def refusal(
        self, connection: Connection, topic: str | bytes, index: int, partition: Partition | None, error: KafkaError,
        transactional_id: str | None, buf: bytearray, start: int, end: int,
    ) -> ProduceResult:  # fmt: skip
        """The answer about a batch, `buf[start:end]`, that was not appended; what comes behind it has to wait for
        it."""
        if transactional_id is None and _is_transactional(buf, start, end):
            error = KafkaError(Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not isinstance(error, Behind):
            refused = refused_of(connection)
            refused.note((topic, index), error.error, buf, start, end)
            connection.refused = refused or None
        return self._refusal(index, partition, error)

    def _refusal(self, index: int, partition: Partition | None, error: KafkaError) -> ProduceResult:
        self._metrics.produce_errors += 1
        hint = None
        if error.error in LEADER_MOVED and partition is not None:
            hint = LeaderHint(partition.leader_id, partition.leader_epoch)
        detail = ProduceDetail(error.message, getattr(error, "record_errors", ()), hint)
        log_start = -1
        if (
            partition is not None
            and error.error not in _FOUND_BEFORE
            and not isinstance(error, NotOneBatch | NotVerified)
        ):
            log_start = partition.log.log_start_offset
        return index, error.error, -1, -1, log_start, detail

    def _refuse_all(self, request: Request, topics: list, error: KafkaError) -> Answer:  # type: ignore[type-arg]
        results: Results = [
            (topic, [self._refusal(index, None, error) for index, _, _ in partitions]) for topic, partitions in topics
        ]
        return self.encode(request, results)

    @property
    def is_cut_off(self) -> bool:
        return self._isolation.cut_off

    def has_too_few(self, partition: Partition) -> bool:
        """Whether fewer replicas are in sync than the minimum, whoever leads them."""
        if partition.leader is not None:
            return partition.leader.too_few
        known = self._node.image.partition(partition.topic_id, partition.index)
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
            endpoints = endpoints_of(self._node, request.connection, hinted)
        return encode_produce_response(request.correlation_id, request.version, results, 0, endpoints)


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


def _guard(partition: Partition, start: int) -> Verification | None:
    """What the first batch of a transaction may be appended with; raises what its coordinator has against it."""
    guard = partition.environment.guards.get((partition, start))
    if isinstance(guard, KafkaError):
        raise guard
    return guard


def _is_transactional(buf: bytearray, start: int, end: int) -> bool:
    return (
        end - start >= HEADER_BYTES
        and buf[start + MAGIC_AT] == 2
        and bool(buf[start + ATTRIBUTES_AT + 1] & TRANSACTIONAL)
    )


def _check_old_codec(buf: bytearray, start: int, end: int) -> None:
    """Before v7 no client knew zstd, so none is to find it in a log."""
    require_one_batch(buf, start, end)
    if end - start >= HEADER_BYTES and buf[start + ATTRIBUTES_AT + 1] & CODEC_MASK >= Codec.ZSTD:
        raise NotOneBatch(Err.UNSUPPORTED_COMPRESSION_TYPE, "this version of Produce knows no such compression")


class RepeatedProduce:
    """A connection that sends one batch after the other for partitions of the same topic."""

    __slots__ = ("_answer", "_handler", "_hosted", "_needs_commit", "_timeout_ms", "_topic", "_version")

    def __init__(
        self, handler: ProduceHandler, template: ProduceTemplate, topic: str | bytes, hosted: Hosted,
        needs_commit: bool, timeout_ms: int,
    ) -> None:  # fmt: skip
        self._handler = handler
        self._answer = template.answer
        self._version = template.version
        self._topic = topic
        self._hosted = hosted
        self._needs_commit = needs_commit
        self._timeout_ms = timeout_ms

    def serve(self, connection: Connection, found: ProducePartition, frame: Frame) -> Answer | Request | None:
        """See `FastPath`."""
        index, start, end = found
        topic, handler = self._topic, self._handler
        # Looked up each time: a topic that is gone may have a successor of the same name.
        partitions = self._hosted.get(topic)
        partition = partitions.get(index) if partitions is not None else None
        if partition is None or not partition.plain:
            return None  # unknown, or its records have to be looked at first
        inbox, refused = connection.inbox, connection.refused
        buf, needs_commit = inbox.buf, self._needs_commit
        try:
            if refused is None:
                base_offset, append_time, end_offset = partition.append(buf, inbox.view, start, end, needs_commit)
            else:
                base_offset, append_time, end_offset = handler.append_in_order(
                    refused, connection, topic, partition, buf, inbox.view, start, end, needs_commit
                )
        except KafkaError as error:
            refusal = handler.refusal(connection, topic, index, partition, error, None, buf, start, end)
            return handler.encode(recognized_request(connection, PRODUCE, self._version, frame), [(topic, [refusal])])
        if base_offset < 0:
            return None  # a duplicate of long ago, which is found again when the request is read
        log_start, leader = partition.log.log_start_offset, partition.leader
        assert leader is not None
        if needs_commit and leader.high_watermark < end_offset:
            request = recognized_request(connection, PRODUCE, self._version, frame)
            answers: list[ProduceResult] = [(index, 0, base_offset, append_time, log_start, None)]
            handler.park(request, [(topic, answers)], [(partition, end_offset, leader, answers, 0)], self._timeout_ms)
            return request
        return self._answer(frame[2], index, base_offset, append_time, log_start)
