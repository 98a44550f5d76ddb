"""Fetch v4-18. v7: sessions (KIP-227). v9: leader epochs. v11: racks. v12: flexible, diverging epochs. v13: topic ids.
v16: leader hints.

An answer is headers and slices of log files: records are sent by the kernel, never read here. A request that finds
too little waits at its partitions until enough was committed or its time is up.
"""

from collections.abc import Callable, Iterable

from headrace.broker.cluster.leader_hints import endpoints_of
from headrace.broker.cluster.node import Node
from headrace.broker.fastpath.fast_path import Frame, recognized_request
from headrace.broker.handlers.fetch.followers import FollowerFetches
from headrace.broker.handlers.fetch.held import HeldFetch
from headrace.broker.handlers.fetch.reader import HINTS_SINCE, UNREADABLE, Reader, Reading, by_topic
from headrace.broker.handlers.fetch.session_news import LARGE, Manner, SessionNews
from headrace.broker.metrics import Metrics
from headrace.broker.net.connection import Connection
from headrace.broker.net.outbox import Chunk
from headrace.broker.net.request import FETCH, Answer, Request
from headrace.broker.net.waiters import Bucket, TimerWheel
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.config import BrokerConfig
from headrace.errors import Err, KafkaError
from headrace.protocol.hot import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Endpoint,
    FetchQuery,
    FetchResult,
    decode_fetch,
    encode_fetch_response_head,
)
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.templates.consumer_fetch import BY_ID, ConsumerFetchTemplate, consumer_fetch_template
from headrace.replication.fetch_pacing import FetchPacing, may_pause
from headrace.replication.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    Session,
    SessionCache,
    Target,
    Topic,
)
from headrace.replication.selector import RACK_AWARE_SELECTOR, Candidate, in_rack
from headrace.storage.segment import CorruptSegment

LEVELS = READ_UNCOMMITTED, READ_COMMITTED
WAIT_MS_MAX = 24 * 3600 * 1000
FETCH_BYTES, FETCH_BYTES_EACH = 300 * 1024, 300
"""A Fetch may have so many bytes, and so many more for each partition that is here: it names none twice."""
FOLLOWER_READS_SINCE = 11
"""The version from which clients may read from followers."""


class ConsumerReading(Reading[Target]):
    """What one pass over a consumer's partitions found."""

    __slots__ = ("partitions",)

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.partitions: list[tuple[Partition, Target]] = []


class FetchHandler:
    """Serves consumers; followers' requests go to `FollowerFetches`."""

    def __init__(
        self,
        reader: Reader,
        followers: FollowerFetches,
        runtime: Runtime,
        config: Callable[[], BrokerConfig],
        node: Node,
        replicas: Replicas,
        sessions: SessionCache,
        wheel: TimerWheel,
        metrics: Metrics,
    ) -> None:
        self.reader = reader
        self.followers = followers
        self._config = config
        self._node = node
        self._replicas = replicas
        self._wheel = wheel
        self._loop = runtime.loop
        self._perf_counter = runtime.perf_counter
        self.sessions = sessions
        self.metrics = metrics
        self.monotonic_ms = runtime.clock.monotonic_ms
        self.paces: bool = config()["fetch.pacing"] == "on"
        """Whether consumers that are seen to pause get full answers less often (decision 0012)."""
        self._follower_reads = reads_from_followers(config())

    def __call__(self, request: Request, pos: int) -> Answer | None:
        size = request.end - pos
        if size > FETCH_BYTES and size > FETCH_BYTES + FETCH_BYTES_EACH * len(self._replicas):
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
        if request.connection.fast is not None and len(targets) == 1 and not query.forgotten:
            self._learn(request, pos, query, targets[0])
        return self.serve(request, query, query.session_epoch, targets)

    def _learn(self, request: Request, body: int, query: FetchQuery, asked: Target) -> None:
        """A consumer that names one partition alone, and has no others in its session, is likely to go on so."""
        session_id, epoch, fast = query.session_id, query.session_epoch, request.connection.fast
        if session_id == NO_SESSION:
            goes_on = epoch == FINAL_EPOCH
        else:
            goes_on = self.sessions.reads_only(session_id, epoch, (asked.topic, asked.index))
        is_bounded = asked.max_bytes >= 0 and query.max_bytes >= 0
        is_plain = query.isolation_level in LEVELS and asked.last_fetched_epoch < 0 and not self._sends_on(query)
        if fast is None or not goes_on or not is_bounded or not is_plain:
            return
        template = consumer_fetch_template(request.buf, request.frame, body, request.end, request.version, query)
        if template is not None:
            fast.learn(FETCH, template, RepeatedFetch(self, template, query, asked.at(0)).serve)

    def _sends_on(self, query: FetchQuery) -> bool:
        """Consumers are sent to a replica in their own rack (KIP-392)."""
        return self._follower_reads and query.rack_id != ""

    def serve(
        self, request: Request, query: FetchQuery, session_epoch: int, targets: list[Target], was_held: bool = False
    ) -> Answer | None:
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
        session = context.session
        news = None
        if session is not None and (session.news is not None or len(context.targets) >= LARGE):
            news = self._news(context, session, query, request.version)
        reading = self.look(context, news, query, request.version)
        wait_ms = query.max_wait_ms
        if reading.enough or wait_ms <= 0 or not (context.targets or news):
            if self.paces and not was_held and len(targets) == 1 and query.session_id == NO_SESSION:
                hold_s = self.hold_s(request.connection, query, targets[0], reading.length, self._perf_counter())
                if hold_s:
                    reading.release()
                    self.hold(request, query, targets[0], hold_s)
                    return None
            return self.finish(request, query, context, reading)
        reading.release()
        request.waiter = waiter = WaitingFetch(self, request, query, context, news, reading)
        self._wheel.add(waiter, min(wait_ms, WAIT_MS_MAX))
        return None

    # ---- consumers of many partitions

    def _news(self, context: FetchContext, session: Session, query: FetchQuery, version: int) -> SessionNews | None:
        """Who tells which of a large session's partitions to look at. Nobody, for those who are sent to other replicas:
        where they should go depends on all of them."""
        manner = Manner(query.isolation_level, version >= FOLLOWER_READS_SINCE)
        news = session.news
        if isinstance(news, SessionNews) and news.manner == manner and not self._sends_on(query):
            return news
        session.end()
        if self._sends_on(query):
            context.targets = list(session.targets.values())
            return None
        found = SessionNews(session, manner)
        session.news = found
        return found

    def look(self, context: FetchContext, news: SessionNews | None, query: FetchQuery, version: int) -> ConsumerReading:
        """At all that is asked for, or at what has news."""
        if news is None:
            return self.read(context.targets, query, version)
        reading = self.read(news.due(self._replicas, self.monotonic_ms()), query, version)
        news.settle(reading, reading.partitions)
        return reading

    # ---- consumers that pause

    def hold_s(self, connection: Connection, query: FetchQuery, asked: Target, length: int, now: float) -> float:
        """For how long an answer of `length` bytes is to be held back. Only full answers are."""
        if 2 * length <= min(asked.max_bytes, query.max_bytes, self.reader.bytes_max):
            return 0.0
        pacing = connection.pacing
        if pacing is None:
            if not may_pause(connection.client_software[0]):
                return 0.0
            pacing = connection.pacing = FetchPacing()
        return min(pacing.hold_s(length, now), max(query.max_wait_ms, 0) / 1000)

    def hold(self, request: Request, query: FetchQuery, asked: Target, hold_s: float) -> None:
        """Serve a request later, as if it had come then."""

        def serve() -> Answer | None:
            return self.serve(request, query, query.session_epoch, [asked], was_held=True)

        request.waiter = HeldFetch(request, serve, hold_s, self._loop)

    # ---- reading

    def _refuse(self, request: Request, query: FetchQuery, error: Err) -> Answer:
        """Nothing of the request is served. From v13 on the answer names no partitions then."""
        topics: list[tuple[Topic, list[FetchResult]]] = []
        if request.version < BY_ID:
            topics = [
                (topic, [(index, error, -1, -1, -1, 0, None, -1, None) for index, *_ in partitions])
                for topic, partitions in query.topics
            ]
        (head,) = encode_fetch_response_head(request.correlation_id, request.version, topics, error)
        return head

    def read(self, targets: Iterable[Target], query: FetchQuery, version: int) -> ConsumerReading:
        """Find what every partition can give now, within the request's limits."""
        bytes_max = min(query.max_bytes, self.reader.bytes_max)
        reading = ConsumerReading(bytes_max)
        find = self._replicas.readable if version >= FOLLOWER_READS_SINCE else self._replicas.leader
        rack = query.rack_id if self._sends_on(query) else ""
        try:
            for target in targets:
                try:
                    partition = find(target.topic, target.index, target.leader_epoch)
                    self._read(reading, partition, target, query.isolation_level, rack)
                except UNREADABLE as error:
                    reading.tell(target, self._failure(target, error, version))
        except BaseException:
            reading.release()
            raise
        # One who wants more than it is ready to take gets what it takes.
        if reading.length >= query.min_bytes or reading.length >= bytes_max:
            reading.enough = True
        return reading

    def _read(self, reading: ConsumerReading, partition: Partition, target: Target, isolation: int, rack: str) -> None:
        reader, log, left = self.reader, partition.log, reading.left
        elsewhere = reader.diverging(partition, target.index, target.last_fetched_epoch, target.offset)
        if elsewhere is None and rack:
            elsewhere = self._nearer(partition, target, rack)
        if elsewhere is not None:
            reading.tell(target, elsewhere)
            return
        limit = target.max_bytes if target.max_bytes < left else left
        piece, high_watermark, stable, aborted = reader.committed(
            partition, target.offset, limit, isolation, reading.length == 0
        )
        length = 0
        if piece is not None:
            length = reading.take(piece, piece.is_unchecked or reader.is_cold(piece, log))
        reading.partitions.append((partition, target))
        reading.results.append((
            target,
            (target.index, 0, high_watermark, stable, log.log_start_offset, length, aborted, -1, None),
        ))  # fmt: skip

    def _nearer(self, partition: Partition, target: Target, rack: str) -> FetchResult | None:
        """A replica in the consumer's rack is in sync and has what it asks for: the consumer should go there."""
        leader, log = partition.leader, partition.log
        if leader is None or not leader.followers:
            return None
        brokers = self._node.image.brokers
        near = [
            Candidate(follower.node_id, brokers[follower.node_id].rack, follower.end_offset, follower.caught_up_ms)
            for follower in leader.followers.values()
            if follower.node_id in leader.isr
            and follower.node_id in brokers
            and brokers[follower.node_id].active
            and -1 < follower.log_start_offset <= target.offset <= follower.end_offset
        ]
        own = Candidate(leader.node_id, self._config()["broker.rack"], log.end_offset, 0)
        chosen = in_rack(rack, own, near)
        if chosen == leader.node_id:
            return None
        stable = partition.last_stable_offset
        return target.index, 0, leader.high_watermark, stable, log.log_start_offset, 0, None, chosen, None

    def _failure(self, target: Target, error: Exception, version: int) -> FetchResult:
        if isinstance(error, KafkaError) and error.error == Err.UNKNOWN_TOPIC_ID and target.told_log_start >= 0:
            error = KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)  # its session knew the topic, which is gone
        return self.reader.failure(target, error, version)

    # ---- answering

    def finish(
        self, request: Request, query: FetchQuery, context: FetchContext, reading: ConsumerReading
    ) -> Answer | None:
        """Answer with what `reading` found; later, if some of it has to come from the disk first."""
        return self.reader.finish(request, reading, self._encode, True, context)

    def _encode(self, request: Request, reading: ConsumerReading, context: FetchContext) -> Answer:
        version = request.version
        session = context.session
        results = reading.results
        session_id = 0
        if context.superseded:
            reading.release()
            (head,) = encode_fetch_response_head(
                request.correlation_id, version, (), Err.INVALID_FETCH_SESSION_EPOCH,
                session.id  # type: ignore[union-attr]
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
        endpoints = self._endpoints(request, results)
        heads = encode_fetch_response_head(
            request.correlation_id, version, by_topic(results), 0, session_id, 0, endpoints
        )
        self.metrics.bytes_out += reading.length
        return reading.chunks(heads)

    def _endpoints(self, request: Request, results: list[tuple[Target, FetchResult]]) -> list[Endpoint]:
        if request.version < HINTS_SINCE:
            return []
        hinted = {r[8].leader.leader_id for _, r in results if r[8] is not None and r[8].leader is not None}
        return endpoints_of(self._node, request.connection, hinted) if hinted else []

    def readable(self, asked: Target) -> Partition:
        """Raises what the client should see."""
        return self._replicas.readable(asked.topic, asked.index, asked.leader_epoch)


class RepeatedFetch:
    """A consumer that asks for what comes next in the same partition, and nothing else.

    Where records are at hand they are the answer. Everything else goes the way of all requests, with nothing left to
    decode.
    """

    __slots__ = (
        "_ahead", "_asked", "_handler", "_least_bytes", "_most_bytes", "_query", "_session_id", "_template",
    )  # fmt: skip

    def __init__(
        self, handler: FetchHandler, template: ConsumerFetchTemplate, query: FetchQuery, asked: Target
    ) -> None:
        bytes_max = handler.reader.bytes_max
        self._handler = handler
        self._template = template
        self._query = query
        self._asked = asked
        self._session_id = query.session_id
        self._ahead = handler.reader.ahead()
        self._most_bytes = min(asked.max_bytes, query.max_bytes, bytes_max)
        self._least_bytes = min(query.min_bytes, query.max_bytes, bytes_max)

    def serve(self, connection: Connection, found: tuple[int, int], frame: Frame) -> Answer | Request | None:
        """See `FastPath`."""
        handler = self._handler
        epoch, offset = found
        session_id = self._session_id
        if session_id == NO_SESSION:
            is_usual = epoch == FINAL_EPOCH and not handler.paces
        else:
            is_usual = handler.sessions.reads_only(session_id, epoch, (self._asked.topic, self._asked.index))
        if is_usual:
            answer = self._records(epoch, offset, frame)
            if answer is not None:
                return answer
        request = recognized_request(connection, FETCH, self._template.version, frame)
        return handler.serve(request, self._query, epoch, [self._asked.at(offset)]) or request

    def _records(self, epoch: int, offset: int, frame: Frame) -> list[Chunk] | None:
        """The answer, where there is nothing to tell but records that are in memory."""
        handler, ahead, query = self._handler, self._ahead, self._query
        try:
            partition = handler.readable(self._asked)
            piece, high_watermark, stable, aborted = handler.reader.committed(
                partition, offset, self._most_bytes, query.isolation_level, True
            )
        except UNREADABLE:
            return None
        if piece is None:
            return None
        log, length = partition.log, piece.length
        is_cold = ahead is not None and not ahead.holds(piece, log.bytes_written(piece), frame[3])
        if is_cold or piece.is_unchecked or length < self._least_bytes or aborted:
            piece.release()
            return None
        log_start = log.log_start_offset
        if self._session_id != NO_SESSION:
            self._tell_session(epoch, offset, high_watermark, log_start, length)
        handler.metrics.bytes_out += length
        template = self._template
        head = template.head(frame[2], high_watermark, stable, log_start, length)
        return [head, piece, template.tail] if template.tail else [head, piece]

    def _tell_session(self, epoch: int, offset: int, high_watermark: int, log_start: int, length: int) -> None:
        """It goes on as by the long way."""
        handler = self._handler
        context = handler.sessions.open(
            self._session_id, epoch, [self._asked.at(offset)], (), self._template.version >= BY_ID,
            handler.monotonic_ms(),
        )  # fmt: skip
        assert context.session is not None
        (target,) = context.targets
        context.session.must_tell(target, 0, high_watermark, log_start, length, False)


class WaitingFetch:
    """A Fetch that waits for records. Each partition adds what it got; no append costs more than one addition."""

    __slots__ = (
        "_available", "_bytes_min", "_context", "_done", "_handler", "_news", "_query", "_request", "_targets",
        "_total", "bucket",
    )  # fmt: skip

    def __init__(
        self,
        handler: FetchHandler,
        request: Request,
        query: FetchQuery,
        context: FetchContext,
        news: SessionNews | None,
        reading: ConsumerReading,
    ) -> None:
        self.bucket: Bucket | None = None
        self._handler = handler
        self._request = request
        self._query = query
        self._context = context
        self._news = news
        self._done = False
        if news is None:
            self._targets = dict(reading.partitions)
        else:
            # At those that are quiet by now, others stand.
            self._targets = {one: target for one, target in reading.partitions if target in news.lively}
            news.waiting = self
        self._available: dict[Partition, int] = {}
        self._total = reading.length
        self._bytes_min = min(query.min_bytes, query.max_bytes, handler.reader.bytes_max)
        for partition, target in self._targets.items():
            partition.fetch_waiters[self] = None
            self._available[partition] = self._estimate(partition, target)

    def _estimate(self, partition: Partition, target: Target) -> int:
        isolation = self._query.isolation_level
        return min(self._handler.reader.readable_bytes(partition, target.offset, isolation), target.max_bytes)

    def stirred(self, partition: Partition, target: Target) -> None:
        """See `Waiting`."""
        if not self._done:
            self._targets[partition] = target
            self._available[partition] = 0
            partition.fetch_waiters[self] = None
            self.advanced(partition)

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
            reading = handler.look(self._context, self._news, self._query, request.version)
            answer = handler.finish(request, self._query, self._context, reading)
        except Exception:
            request.fail()
            return
        if answer is not None:
            request.done(answer)

    def abandon(self) -> None:
        """Wait no longer: it is answered now, or its connection is gone."""
        self._done = True
        self._request.waiter = None  # a circle otherwise, left to the collector by every long poll
        TimerWheel.remove(self)
        if self._news is not None and self._news.waiting is self:
            self._news.waiting = None
        for partition in self._targets:
            partition.fetch_waiters.pop(self, None)


def reads_from_followers(config: BrokerConfig) -> bool:
    """Whether consumers are sent to a replica in their own rack (KIP-392)."""
    return bool(config["replica.selector.class"] == RACK_AWARE_SELECTOR)


def _forgotten(query: FetchQuery) -> Iterable[tuple[Topic, int]]:
    return [(topic, index) for topic, indexes in query.forgotten for index in indexes]


def _changed_only(session: Session, results: list[tuple[Target, FetchResult]]) -> list[tuple[Target, FetchResult]]:
    return [
        (target, result)
        for target, result in results
        if session.must_tell(target, result[1], result[2], result[4], result[5], result[8] is not None)
    ]
