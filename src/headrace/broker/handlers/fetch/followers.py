"""Fetch v4-18 by followers. v7: sessions. v12: diverging epochs. v15: broker epochs. v16: leader hints.

They get all there is, committed or not; what one asks for next says what it has.
"""

from collections.abc import Callable, Iterable

from headrace.broker.cluster.node import Node
from headrace.broker.fastpath.fast_path import Frame, recognized_request
from headrace.broker.handlers.fetch.follower_sessions import FollowerSession, Key, Row
from headrace.broker.handlers.fetch.reader import UNREADABLE, Reader, Reading
from headrace.broker.metrics import Metrics
from headrace.broker.net.connection import Connection
from headrace.broker.net.request import FETCH, Answer, Request
from headrace.broker.net.waiters import Bucket, TimerWheel
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.isr import IsrChanges
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.config import BrokerConfig
from headrace.errors import Err, KafkaError
from headrace.protocol.hot import FetchQuery, encode_fetch_response_head
from headrace.protocol.templates.follower_fetch import Progress, follower_fetch_template
from headrace.replication.fetch_sessions import EVICTION_MS, FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from headrace.replication.throttle import Throttle
from headrace.storage.log import Slice

WAIT_MS_MAX = 60_000


Gathered = Reading[Row]
"""What one pass over a session's news found."""


class FollowerFetches:
    """Serves followers. One session for each of their fetchers."""

    def __init__(
        self,
        reader: Reader,
        runtime: Runtime,
        config: Callable[[], BrokerConfig],
        node: Node,
        replicas: Replicas,
        isr: IsrChanges,
        throttle: Throttle,
        wheel: TimerWheel,
        metrics: Metrics,
        prompt: bool,
    ) -> None:
        """`prompt`: followers hear at once of a new high watermark, since consumers read from them."""
        self._reader = reader
        self._runtime = runtime
        self._config = config
        self._node = node
        self._replicas = replicas
        self._isr = isr
        self._throttle = throttle
        self._wheel = wheel
        self._metrics = metrics
        self._prompt = prompt
        self._sessions: dict[int, FollowerSession] = {}
        self._monotonic_ms = runtime.clock.monotonic_ms
        self.call_soon = runtime.loop.call_soon

    def __len__(self) -> int:
        return len(self._sessions)

    def __call__(self, request: Request, body: int, query: FetchQuery) -> Answer | None:
        session, error = self._open(query, self._monotonic_ms())
        if session is None:
            (head,) = encode_fetch_response_head(request.correlation_id, request.version, (), error)
            return head
        session.name(query)
        if session.id:
            self._learn(request, body, query, session)
        return self.serve(request, query, session)

    def _learn(self, request: Request, body: int, query: FetchQuery, session: FollowerSession) -> None:
        """A follower that names the same partition alone twice in a row is likely to go on so."""
        fast = request.connection.fast
        if fast is None or query.forgotten or len(query.topics) != 1 or len(query.topics[0][1]) != 1:
            return
        key = query.topics[0][0], query.topics[0][1][0][0]
        if fast.repeats(FETCH, (session.id, key)):
            template = follower_fetch_template(request.buf, request.frame, body, request.end, request.version, query)
            if template is not None:
                fast.learn(FETCH, template, RepeatedFollowerFetch(self, request.version, query, session, key).serve)

    def serve(self, request: Request, query: FetchQuery, session: FollowerSession) -> Answer | None:
        """Answer a request whose partitions are named, or have it wait. `query` says within which limits."""
        session.fetched_ms = now_ms = self._monotonic_ms()
        session.connection = request.connection
        session.overtaken = False
        gathered = self.gather(session, query, request.version, now_ms, self._is_stale(query))
        wait_ms = query.max_wait_ms
        if gathered.enough or wait_ms <= 0 or not session.rows:
            return self.finish(request, session, gathered)
        gathered.release()
        request.waiter = waiter = FollowerWaiter(self, request, query, session)
        session.waiter = waiter
        self._wheel.add(waiter, min(wait_ms, WAIT_MS_MAX))
        if session.overtaken:
            # What this follower has was committed, and a producer that was told so has written on, all meanwhile.
            waiter.wake()
        return None

    # ---- sessions

    def _open(self, query: FetchQuery, now_ms: int) -> tuple[FollowerSession | None, Err]:
        if query.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(self._sessions.get(query.session_id))
            keep = query.session_epoch == INITIAL_EPOCH
            if keep:
                self._evict(query, now_ms)
            session = FollowerSession(
                self._new_id() if keep else NO_SESSION, query.replica_id, query.replica_epoch, self._prompt
            )  # fmt: skip
            if keep:
                self._sessions[session.id] = session
            return session, Err.NONE
        found = self._sessions.get(query.session_id)
        if found is None or found.replica_id != query.replica_id:
            return None, Err.FETCH_SESSION_ID_NOT_FOUND
        if found.epoch != query.session_epoch:
            return None, Err.INVALID_FETCH_SESSION_EPOCH
        found.advance()
        if found.replica_epoch != query.replica_epoch:
            found.registered_anew(query.replica_epoch)
        return found, Err.NONE

    def _new_id(self) -> int:
        while True:
            session_id = self._runtime.random.randrange(1, 1 << 31)
            if session_id not in self._sessions:
                return session_id

    def _evict(self, query: FetchQuery, now_ms: int) -> None:
        """A follower that was restarted never comes back to its sessions; nor does one that has been silent for
        long."""
        for session in list(self._sessions.values()):
            restarted = session.replica_id == query.replica_id and session.replica_epoch != query.replica_epoch
            if restarted or now_ms - session.fetched_ms > EVICTION_MS:
                self._close(session)

    def _close(self, session: FollowerSession | None) -> None:
        if session is not None:
            del self._sessions[session.id]
            if session.waiter is not None:
                session.waiter.expire()
            session.close()

    # ---- reading

    def gather(self, session: FollowerSession, query: FetchQuery, version: int, now_ms: int, stale: bool) -> Gathered:
        """Find what there is to tell, within the request's limits, and note how far the follower has come."""
        gathered = Gathered(min(query.max_bytes, self._reader.bytes_max))
        try:
            for row in list(session.dirty):
                if stale:
                    gathered.tell(row, self._reader.failure(row, KafkaError(Err.NOT_LEADER_OR_FOLLOWER), version))
                else:
                    self._look(session, row, gathered, version, now_ms)
        except BaseException:
            gathered.release()
            raise
        if gathered.length >= query.min_bytes or gathered.left <= 0:
            gathered.enough = True
        return gathered

    def _is_stale(self, query: FetchQuery) -> bool:
        """A Fetch that an earlier incarnation of the follower sent: what it had may be gone."""
        known = self._node.image.brokers.get(query.replica_id)
        return known is not None and -1 < query.replica_epoch < known.epoch

    def _look(self, session: FollowerSession, row: Row, gathered: Gathered, version: int, now_ms: int) -> None:
        partition = row.partition
        try:
            # Led here in the epoch that the follower knows, as it nearly always is; or looked up, and refused if not.
            if partition is None or partition.leader is None or partition.leader_epoch != row.leader_epoch:
                partition = self._look_up(session, row)
            leader, log = partition.leader, partition.log
            assert leader is not None
            if session.replica_id not in leader.followers:
                # The follower has heard of a reassignment that this node has not: it should try again.
                raise KafkaError(Err.UNKNOWN_LEADER_EPOCH if row.leader_epoch >= 0 else Err.NOT_LEADER_OR_FOLLOWER)
            offset, end_offset = row.offset, log.end_offset
            if (row.last_epoch != log.epochs.latest_epoch or offset > end_offset) and self._tells_where_logs_part(
                partition, row, gathered
            ):
                return
            piece = None
            if offset != end_offset:
                left = gathered.left
                limit = row.max_bytes if row.max_bytes < left else left
                piece = self._reader.written(log, offset, limit, gathered.length == 0)
        except UNREADABLE as error:
            # A disk that fails does not change what the follower has: it counts when the disk can be read again.
            row.named = row.named and not isinstance(error, KafkaError)
            gathered.tell(row, self._reader.failure(row, error, version))
            return
        if row.named:
            row.named = False
            partition.follower_fetched(session.replica_id, row.offset, row.log_start, session.replica_epoch, now_ms)
            self._isr.consider(partition, session.replica_id)
        length = 0
        if piece is not None and partition.leader_throttled and not self._may_send(session, leader.isr, piece, now_ms):
            piece.release()
            piece = None
        if piece is not None:
            length = gathered.take(piece, self._reader.is_cold(piece, log))
        high_watermark, log_start = leader.high_watermark, log.log_start_offset
        # DeleteRecords waits until all replicas have heard of a new start.
        if (log_start != row.told_log_start and row.told_log_start >= 0) or (
            session.prompt and high_watermark != row.told_high_watermark
        ):
            gathered.enough = True
        if length or high_watermark != row.told_high_watermark or log_start != row.told_log_start:
            gathered.results.append(
                (row, (row.index, 0, high_watermark, partition.last_stable_offset, log_start, length, None, -1, None))
            )
        elif row.offset >= log.end_offset:
            del session.dirty[row]

    def _look_up(self, session: FollowerSession, row: Row) -> Partition:
        partition = self._replicas.leader(row.topic, row.index, row.leader_epoch)
        if partition is not row.partition and session.id:
            row.watch(partition)
        return partition

    def _tells_where_logs_part(self, partition: Partition, row: Row, gathered: Gathered) -> bool:
        diverging = self._reader.diverging(partition, row.index, row.last_epoch, row.offset)
        if diverging is None:
            return False
        row.named = False
        gathered.tell(row, diverging)
        return True

    def _may_send(self, session: FollowerSession, isr: Iterable[int], piece: Slice, now_ms: int) -> bool:
        """Throttled replicas wait their turn, unless acks=all waits for them. What is put off is found again later."""
        rate = self._config()["leader.replication.throttled.rate"]
        throttle = self._throttle
        if session.replica_id not in isr and throttle.wait_ms(rate, now_ms):
            return False
        throttle.take(piece.length, rate, now_ms)
        return True

    # ---- answering

    def finish(self, request: Request, session: FollowerSession, gathered: Gathered) -> Answer | None:
        # Followers check every batch themselves.
        return self._reader.finish(request, gathered, self._encode, False, session)

    def _encode(self, request: Request, gathered: Gathered, session: FollowerSession) -> Answer:
        dirty = session.dirty
        for row, result in gathered.results:
            _, error, high_watermark, _, log_start, length, _, _, detail = result
            # Of an answer about where the logs part a follower takes nothing else: all of it is told again.
            row.told_high_watermark = high_watermark if detail is None else -1
            row.told_log_start = log_start
            if row in dirty:
                del dirty[row]
                partition = row.partition
                if error or length or partition is None or row.offset < partition.log.end_offset:
                    dirty[row] = None  # to be looked at again, after all others
        heads = encode_fetch_response_head(request.correlation_id, request.version, gathered.by_topic(), 0, session.id)
        self._metrics.replication_bytes_out += gathered.length
        return gathered.chunks(heads)

    def woken(self, waiter: "FollowerWaiter", expired: bool) -> None:
        """A request that waited: answer it if there is enough to say, or if its time is up."""
        request, session = waiter.request, waiter.session
        try:
            gathered = self.gather(session, waiter.query, request.version, self._monotonic_ms(), False)
            if not gathered.enough and not expired:
                gathered.release()
                return
            waiter.abandon()
            answer = self.finish(request, session, gathered)
        except Exception:
            waiter.abandon()
            request.fail()
            return
        if answer is not None:
            request.done(answer)


class RepeatedFollowerFetch:
    """A follower that asks for what comes next in the same partition of its session, and nothing else."""

    __slots__ = ("_followers", "_key", "_leader_epoch", "_max_bytes", "_query", "_row", "_session", "_version")

    def __init__(
        self, followers: FollowerFetches, version: int, query: FetchQuery, session: FollowerSession, key: Key
    ) -> None:
        row = session.rows[key]
        self._followers = followers
        self._version = version
        self._query = query
        self._session = session
        self._key = key
        self._row = row
        self._leader_epoch = row.leader_epoch
        self._max_bytes = row.max_bytes

    def serve(self, connection: Connection, progress: Progress, frame: Frame) -> Answer | Request | None:
        """See `FastPath`."""
        session, row = self._session, self._row
        epoch, offset, last_epoch, log_start = progress
        # A session that was closed has no rows any more; one may have gone on under another registration.
        if (
            epoch != session.epoch
            or session.rows.get(self._key) is not row
            or session.replica_epoch != self._query.replica_epoch
        ):
            return None
        session.advance()
        row.ask(self._leader_epoch, offset, last_epoch, log_start, self._max_bytes)
        request = recognized_request(connection, FETCH, self._version, frame)
        return self._followers.serve(request, self._query, session) or request


class FollowerWaiter:
    """A follower's Fetch that waits for something to be appended."""

    __slots__ = ("_done", "_handler", "_woken", "bucket", "query", "request", "session")

    gives_way = True
    """Another request behind it on its connection has it answered at once: the follower has something to add."""

    def __init__(self, handler: FollowerFetches, request: Request, query: FetchQuery, session: FollowerSession) -> None:
        self.bucket: Bucket | None = None
        self._handler = handler
        self._done = False
        self._woken = False
        self.request = request
        self.query = query
        self.session = session

    def wake(self) -> None:
        """There may be enough now. Looked at once for everything that happens in this turn of the loop."""
        if not self._woken and not self._done:
            self._woken = True
            self._handler.call_soon(self._look)

    def _look(self) -> None:
        self._woken = False
        if not self._done:
            self._handler.woken(self, expired=False)

    def expire(self) -> None:
        if not self._done:
            self._handler.woken(self, expired=True)

    def abandon(self) -> None:
        """Wait no longer: it is answered now, or its connection is gone."""
        self._done = True
        self.request.waiter = None  # a circle otherwise, left to the collector by every wait
        TimerWheel.remove(self)
        if self.session.waiter is self:
            self.session.waiter = None
