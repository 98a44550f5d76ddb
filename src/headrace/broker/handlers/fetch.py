"""Fetch v4-18. v7: sessions (KIP-227). v9: leader epochs. v11: racks. v12: flexible, diverging epochs. v13: topic ids.

An answer is headers and slices of log files: records are sent by the kernel, never read here. A request that finds
too little waits at its partitions until enough was committed or its time is up.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.connection import FETCH, Answer, Request
from headrace.broker.first_reads import warm
from headrace.broker.handlers.consumer_shortcut import ConsumerShortcut
from headrace.broker.handlers.follower_fetch import FollowerFetches
from headrace.broker.handlers.leader_hints import LEADER_MOVED, endpoints_of
from headrace.broker.handlers.pace import Pace, may_pause
from headrace.broker.handlers.produce_shortcut import Hosted
from headrace.broker.outbox import Chunk, release
from headrace.broker.partition import Partition
from headrace.broker.readahead import PageCache
from headrace.broker.waiters import Bucket, TimerWheel
from headrace.errors import Err, KafkaError
from headrace.protocol.consumer_shape import BY_ID, consumer_shape_of
from headrace.protocol.hot import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Endpoint,
    FetchDetail,
    FetchQuery,
    FetchResult,
    LeaderHint,
    decode_fetch,
    encode_fetch_response_head,
)
from headrace.protocol.primitives import ProtocolError
from headrace.replication.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchContext, Session, Target, Topic
from headrace.replication.selector import RACK_AWARE_SELECTOR, Candidate, in_rack
from headrace.storage.log import Log, Slice
from headrace.storage.segment import CorruptSegment

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.fetch")

LEVELS = READ_UNCOMMITTED, READ_COMMITTED
WAIT_MS_MAX = 24 * 3600 * 1000
FETCH_BYTES, FETCH_BYTES_EACH = 300 * 1024, 300
"""A Fetch may have so many bytes, and so many more for each partition that is here: it names none twice."""
STORAGE_ERROR_SINCE, FOLLOWER_READS_SINCE, HINTS_SINCE = 6, 11, 16
"""Versions from which clients understand these."""


class Reading:
    """One pass over the partitions of a request: what to answer and whether it is enough."""

    __slots__ = ("cold", "enough", "length", "partitions", "results", "slices")

    def __init__(self) -> None:
        self.results: list[tuple[Target, FetchResult]] = []
        self.slices: list[Slice] = []  # in the order of the results that have records
        self.cold: list[Slice] = []
        self.partitions: list[tuple[Partition, Target]] = []
        self.length = 0
        self.enough = False

    def release(self) -> None:
        release(self.slices)

    def leave_out(self, unreadable: list[Slice], failure: Callable[[Target], FetchResult]) -> None:
        """The disk could not give these: an error for their partitions, the records of all others."""
        pieces = iter(self.slices)
        for at, (target, result) in enumerate(self.results):
            if result[5] and next(pieces) in unreadable:
                self.results[at] = target, failure(target)
        release(unreadable)
        self.slices = [piece for piece in self.slices if piece not in unreadable]


class FetchHandler:
    """The hot path of reading."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._replicas = broker.replicas
        self.sessions = broker.sessions
        self.metrics = broker.metrics
        self.monotonic_ms = broker.runtime.clock.monotonic_ms
        self.loop = broker.runtime.loop
        self.bytes_max = broker.settings.fetch_bytes_max
        self.cache = PageCache() if broker.runtime.can_sendfile else None
        self.follower_reads = broker.config["replica.selector.class"] == RACK_AWARE_SELECTOR
        """Consumers are sent to a replica in their own rack (KIP-392)."""
        self.followers = FollowerFetches(broker, self)

    def __call__(self, request: Request, pos: int) -> Answer | None:
        size = request.end - pos
        if size > FETCH_BYTES and size > FETCH_BYTES + FETCH_BYTES_EACH * len(self._broker.replicas):
            raise ProtocolError(f"a Fetch of {size} bytes, which names more partitions than there are")
        query = decode_fetch(request.buf, pos, request.end, request.version)
        if query.replica_id >= 0:
            return self.followers(request, pos, query)
        targets = [
            Target(topic, index, offset, max_bytes, leader_epoch, last_epoch, log_start)
            for topic, partitions in query.topics
            for index, leader_epoch, offset, last_epoch, log_start, max_bytes, _, _ in partitions
        ]
        if len(targets) > 1:
            # Named twice, a partition is read once, as it is named last.
            targets = list({(target.topic, target.index): target for target in targets}.values())
        if len(targets) == 1 and not query.forgotten:
            self._learn(request, pos, query, targets[0])
        return self.serve(request, query, query.session_epoch, targets)

    def _learn(self, request: Request, body: int, query: FetchQuery, asked: Target) -> None:
        """A consumer that names one partition alone, and has no others in its session, is likely to go on so."""
        by_id, session_id, epoch = request.version >= BY_ID, query.session_id, query.session_epoch
        if session_id == NO_SESSION:
            goes_on = epoch == FINAL_EPOCH
        else:
            goes_on = self.sessions.reads_only(session_id, epoch, (asked.topic, asked.index))
        isolation, is_bounded = query.isolation_level, asked.max_bytes >= 0 and query.max_bytes >= 0
        if not goes_on or not is_bounded or isolation not in LEVELS or asked.last_fetched_epoch >= 0 or self._sends_on(query):
            return
        shape = consumer_shape_of(request.buf, request.frame, body, request.end, request.version, query)
        if shape is not None:
            hosted: Hosted = self._replicas.by_id if by_id else self._replicas.by_name
            pauses = session_id == NO_SESSION and may_pause(request.connection.client_software[0])
            pace = Pace() if pauses else None
            request.connection.shortcuts[FETCH] = ConsumerShortcut(self, shape, query, asked.at(0), hosted, pace)

    def _sends_on(self, query: FetchQuery) -> bool:
        return self.follower_reads and query.rack_id != ""

    def serve(self, request: Request, query: FetchQuery, session_epoch: int, targets: list[Target]) -> Answer | None:
        """Answer a request, or have it wait. `query` says within which limits."""
        context = self.sessions.open(
            query.session_id, session_epoch, targets, _forgotten(query), request.version >= BY_ID,
            self.monotonic_ms(),
        )  # fmt: skip
        if context.error:
            (head,) = encode_fetch_response_head(request.correlation_id, request.version, (), context.error)
            return head
        if query.isolation_level not in LEVELS:
            return self._refuse(request, query, Err.INVALID_REQUEST)
        reading = self.read(context.targets, query, request.version)
        wait_ms = query.max_wait_ms
        if reading.enough or wait_ms <= 0 or not context.targets:
            return self.finish(request, query, context, reading)
        reading.release()
        request.waiter = waiter = FetchWaiter(self, request, query, context, reading)
        self._broker.wheel.add(waiter, min(wait_ms, WAIT_MS_MAX))
        return None

    def _refuse(self, request: Request, query: FetchQuery, error: Err) -> Answer:
        """Nothing of the request is served. From v13 on the answer names no partitions then."""
        topics: list[tuple[Topic, list[FetchResult]]] = []
        if request.version < 13:
            topics = [
                (topic, [(index, error, -1, -1, -1, 0, None, -1, None) for index, *_ in partitions])
                for topic, partitions in query.topics
            ]
        (head,) = encode_fetch_response_head(request.correlation_id, request.version, topics, error)
        return head

    def read(self, targets: Iterable[Target], query: FetchQuery, version: int) -> Reading:
        """Find what every partition can give now, within the request's limits."""
        reading = Reading()
        try:
            self._read(reading, targets, query, version)
        except BaseException:
            reading.release()
            raise
        return reading

    def _read(self, reading: Reading, targets: Iterable[Target], query: FetchQuery, version: int) -> None:
        bytes_max = left = min(query.max_bytes, self.bytes_max)
        committed_only = query.isolation_level == READ_COMMITTED
        find = self._replicas.readable if version >= FOLLOWER_READS_SINCE else self._replicas.leader
        sends_on = self._sends_on(query)
        for target in targets:
            try:
                partition = find(target.topic, target.index, target.leader_epoch)
                elsewhere = self.diverging(partition, target.index, target.last_fetched_epoch, target.offset)
                if elsewhere is None and sends_on:
                    elsewhere = self._nearer(partition, target, query.rack_id)
                if elsewhere is not None:
                    reading.results.append((target, elsewhere))
                    reading.enough = True
                    continue
                high_watermark = partition.high_watermark
                log = partition.log
                stable = partition.last_stable_offset
                bound = stable if committed_only else high_watermark
                limit = target.max_bytes if target.max_bytes < left else left
                if limit < 0:
                    raise KafkaError(Err.INVALID_REQUEST, f"at most {limit} bytes are asked for")
                # The first records are given even if they alone are too much: a consumer must never get stuck.
                piece = log.read(target.offset, limit, bound, reading.length == 0)
                aborted = None
                if committed_only:
                    aborted = _aborted(log, target.offset, bound, piece)
            except KafkaError as error:
                reading.results.append((target, self._failure(target, error, version)))
                reading.enough = True
                continue
            except (OSError, CorruptSegment) as error:
                logger.error("%s cannot be read: %s", partition, error)
                reading.results.append((target, self._unreadable(target, version)))
                reading.enough = True
                continue
            length = 0
            if piece is not None:
                length = piece.length
                left = left - length if left > length else 0
                reading.length += length
                reading.slices.append(piece)
                if piece.is_unchecked or (
                    self.cache is not None and not self.cache.holds(piece, log.bytes_written(piece))
                ):
                    reading.cold.append(piece)
            reading.partitions.append((partition, target))
            reading.results.append((
                target,
                (target.index, 0, high_watermark, stable, log.log_start_offset, length, aborted, -1, None),
            ))  # fmt: skip
        # One who wants more than it is ready to take gets what it takes.
        if reading.length >= query.min_bytes or reading.length >= bytes_max:
            reading.enough = True

    @staticmethod
    def diverging(
        partition: Partition, index: int, last_fetched_epoch: int, offset: int
    ) -> FetchResult | None:
        """The fetcher's last record is of another history than this log: tell it where they part (KIP-595)."""
        if last_fetched_epoch < 0:
            return None
        shared = partition.parting(last_fetched_epoch, offset)
        if shared is None:
            return None
        detail = FetchDetail(diverging_epoch_and_end_offset=shared)
        log_start = partition.log.log_start_offset
        return index, 0, partition.high_watermark, partition.last_stable_offset, log_start, 0, None, -1, detail

    def _nearer(self, partition: Partition, target: Target, rack: str) -> FetchResult | None:
        """A replica in the consumer's rack is in sync and has what it asks for: the consumer should go there."""
        leader, log = partition.leader, partition.log
        if leader is None or not leader.followers:
            return None
        brokers = self._broker.image.brokers
        near = [
            Candidate(follower.node_id, brokers[follower.node_id].rack, follower.end_offset, follower.caught_up_ms)
            for follower in leader.followers.values()
            if follower.node_id in leader.isr
            and follower.node_id in brokers
            and brokers[follower.node_id].active
            and -1 < follower.log_start_offset <= target.offset <= follower.end_offset
        ]
        node_id = self._broker.node_id
        own = Candidate(node_id, self._broker.config["broker.rack"], log.end_offset, 0)
        chosen = in_rack(rack, own, near)
        if chosen == node_id:
            return None
        stable = partition.last_stable_offset
        return target.index, 0, leader.high_watermark, stable, log.log_start_offset, 0, None, chosen, None

    def _failure(self, target: Target, error: KafkaError, version: int) -> FetchResult:
        detail, code = None, error.error
        if code in LEADER_MOVED and version >= HINTS_SINCE:
            partition = self._replicas.known(target.topic, target.index)
            if partition is not None:
                detail = FetchDetail(leader=LeaderHint(partition.leader_id, partition.leader_epoch))
        elif code == Err.UNKNOWN_TOPIC_ID and target.told_log_start >= 0:
            code = Err.UNKNOWN_TOPIC_OR_PARTITION  # its session knew the topic, which is gone
        elif code == Err.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
            code = Err.NOT_LEADER_OR_FOLLOWER  # which clients of that age try again
        return target.index, code, -1, -1, -1, 0, None, -1, detail

    def _unreadable(self, target: Target, version: int) -> FetchResult:
        return self._failure(target, KafkaError(Err.KAFKA_STORAGE_ERROR), version)

    def finish(self, request: Request, query: FetchQuery, context: FetchContext, reading: Reading) -> Answer | None:
        """Answer with what `reading` found; later, if some of it has to come from the disk first."""
        if reading.cold:
            self._broker.spawn(self._warm(request, query, context, reading))
            return None
        try:
            return self._encode(request, query, context, reading)
        except BaseException:
            reading.release()
            raise

    async def _warm(self, request: Request, query: FetchQuery, context: FetchContext, reading: Reading) -> None:
        try:
            unchecked = [piece for piece in reading.cold if piece.is_unchecked]
            warmed = await self._broker.runtime.run_in_thread(warm, reading.cold, unchecked)
            warmed.settle()
            unreadable = warmed.unreadable
            for piece, reason in warmed.damaged:
                self._broker.maintenance.scrubber.suspect(piece.file.path, reason)
            if request.connection.closed:
                reading.release()
                return
            if unreadable:
                logger.error("records cannot be read from %s", ", ".join(piece.file.path for piece in unreadable))
                reading.leave_out(unreadable, lambda target: self._unreadable(target, request.version))
            answer = self._encode(request, query, context, reading)
        except Exception:
            reading.release()
            self.failed(request)
            return
        except BaseException:
            reading.release()  # the broker stops
            raise
        self.answered(request, answer)

    def _encode(
        self, request: Request, query: FetchQuery, context: FetchContext, reading: Reading
    ) -> list[Chunk] | bytes:
        version = request.version
        session = context.session
        results = reading.results
        session_id = 0
        if context.superseded:
            reading.release()
            (head,) = encode_fetch_response_head(
                request.correlation_id, version, (), Err.INVALID_FETCH_SESSION_EPOCH, session.id  # type: ignore[union-attr]
            )  # fmt: skip
            return head
        if session is not None:
            session_id = session.id
            results = _changed_only(session, results)
        elif context.wants_session and version >= 7:
            now_ms = self.monotonic_ms()
            created = self.sessions.create(context.targets, False, version >= BY_ID, now_ms)
            if created is not None:
                session_id = created.id
                _changed_only(created, results)
        topics = _by_topic(results)
        endpoints = self._endpoints(request, results)
        heads = encode_fetch_response_head(
            request.correlation_id, version, topics, 0, session_id, 0, endpoints
        )
        if len(heads) == 1:
            return heads[0]
        chunks: list[Chunk] = []
        for head, piece in zip(heads, reading.slices):
            chunks.append(head)
            chunks.append(piece)
        if heads[-1]:
            chunks.append(heads[-1])
        self.metrics.bytes_out += reading.length
        return chunks

    def _endpoints(self, request: Request, results: list[tuple[Target, FetchResult]]) -> list[Endpoint]:
        if request.version < HINTS_SINCE:
            return []
        hinted = {r[8].leader.leader_id for _, r in results if r[8] is not None and r[8].leader is not None}
        return endpoints_of(self._broker, request.connection, hinted) if hinted else []

    def answered(self, request: Request, answer: Answer) -> None:
        """A request that waited is done."""
        if request.connection.closed:
            release(answer if isinstance(answer, list) else ())
            return
        request.connection.listener.router.parked_done(request)
        request.complete(answer)

    def failed(self, request: Request) -> None:
        """A bug: the client learns of it by the closed connection, and nobody else is affected."""
        logger.exception("a Fetch from %s failed", request.connection.peer_host)
        self._broker.metrics.requests_failed += 1
        request.connection.transport.abort()


class FetchWaiter:
    """A Fetch that waits for records. Each partition adds what it got; no append costs more than one addition."""

    __slots__ = (
        "_available", "_bytes_min", "_context", "_done", "_handler", "_query", "_request", "_targets", "_total", "bucket",
    )  # fmt: skip

    def __init__(
        self, handler: FetchHandler, request: Request, query: FetchQuery, context: FetchContext, reading: Reading
    ) -> None:
        self.bucket: Bucket | None = None
        self._handler = handler
        self._request = request
        self._query = query
        self._context = context
        self._done = False
        self._targets = dict(reading.partitions)
        self._available: dict[Partition, int] = {}
        self._total = reading.length
        self._bytes_min = min(query.min_bytes, query.max_bytes, handler.bytes_max)
        for partition, target in self._targets.items():
            partition.fetch_waiters[self] = None
            self._available[partition] = self._estimate(partition, target)

    def _estimate(self, partition: Partition, target: Target) -> int:
        bound = (
            partition.last_stable_offset
            if self._query.isolation_level == READ_COMMITTED
            else partition.high_watermark
        )
        return min(partition.log.bytes_after(target.offset, bound), target.max_bytes)

    def advanced(self, partition: Partition) -> None:
        if self._done:
            return
        try:
            if partition.in_use:
                now = self._estimate(partition, self._targets[partition])
                self._total += now - self._available[partition]
                self._available[partition] = now
                if self._total < self._bytes_min:
                    return
        except (OSError, CorruptSegment):
            pass  # the client learns of it by reading
        self.expire()

    def expire(self) -> None:
        if self._done:
            return
        self.abandon()
        handler, request = self._handler, self._request
        try:
            reading = handler.read(self._context.targets, self._query, request.version)
            answer = handler.finish(request, self._query, self._context, reading)
        except Exception:
            handler.failed(request)
            return
        if answer is not None:
            handler.answered(request, answer)

    def abandon(self) -> None:
        """Wait no longer: it is answered now, or its connection is gone."""
        self._done = True
        TimerWheel.remove(self)
        for partition in self._targets:
            partition.fetch_waiters.pop(self, None)


def _forgotten(query: FetchQuery) -> Iterable[tuple[Topic, int]]:
    return [(topic, index) for topic, indexes in query.forgotten for index in indexes]


def _changed_only(
    session: Session, results: list[tuple[Target, FetchResult]]
) -> list[tuple[Target, FetchResult]]:
    return [
        (target, result)
        for target, result in results
        if session.must_tell(target, result[1], result[2], result[4], result[5], result[8] is not None)
    ]


def _by_topic(results: list[tuple[Target, FetchResult]]) -> list[tuple[Topic, list[FetchResult]]]:
    """Neighbours of one topic share its entry."""
    topics: list[tuple[Topic, list[FetchResult]]] = []
    for target, result in results:
        if topics and topics[-1][0] == target.topic:
            topics[-1][1].append(result)
        else:
            topics.append((target.topic, [result]))
    return topics


def _aborted(log: Log, offset: int, bound: int, piece: Slice | None) -> list[tuple[int, int]]:
    if piece is None:
        return []
    try:
        return log.aborted_transactions(offset, bound)
    except BaseException:
        piece.release()
        raise
