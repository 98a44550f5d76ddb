"""Fetch by followers: all there is, committed or not; what one asks for next says what it has.

A follower names its partitions once, then only what changes, and an answer looks only at partitions with news: ten
thousand that are idle cost nothing. News are told to sessions by the partitions themselves (`Partition.watchers`).
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.connection import FETCH, Answer, Connection, Request
from headrace.broker.handlers.follower_shortcut import FollowerShortcut
from headrace.broker.handlers.leader_hints import LEADER_MOVED
from headrace.broker.outbox import Chunk, release
from headrace.broker.partition import Partition
from headrace.broker.readahead import PageCache, read_ahead
from headrace.broker.waiters import Bucket, TimerWheel
from headrace.errors import Err, KafkaError
from headrace.protocol.follower_shape import follower_shape_of
from headrace.protocol.hot import FetchDetail, FetchQuery, FetchResult, LeaderHint, encode_fetch_response_head
from headrace.replication.fetch_sessions import EPOCH_MAX, EVICTION_MS, FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from headrace.storage.log import Slice
from headrace.storage.segment import CorruptSegment

if TYPE_CHECKING:
    from headrace.broker.handlers.fetch import FetchHandler
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.followers")

Topic = str | bytes
HINTS_SINCE = 16
WAIT_MS_MAX = 60_000
LIVE_MS = 1_000
"""A follower that was answered so long ago, on a connection that still stands, is about to ask again."""


class Row:
    """One partition in a follower's session: what it asked for last, and what it was told."""

    __slots__ = (
        "index", "last_epoch", "leader_epoch", "log_start", "max_bytes", "named", "offset", "partition", "session",
        "told_high_watermark", "told_log_start", "topic",
    )  # fmt: skip

    def __init__(self, session: "FollowerSession", topic: Topic, index: int) -> None:
        self.session = session
        self.topic = topic
        self.index = index
        self.offset = self.log_start = self.leader_epoch = self.last_epoch = -1
        self.max_bytes = 0
        self.named = False
        """By the request being handled: so its offset is news about the follower."""
        self.partition: Partition | None = None
        self.told_high_watermark = -1
        self.told_log_start = -1

    def ask(self, leader_epoch: int, offset: int, last_epoch: int, log_start: int, max_bytes: int) -> None:
        """What a request says of it."""
        self.leader_epoch = leader_epoch
        self.offset = offset
        self.last_epoch = last_epoch
        self.log_start = log_start
        self.max_bytes = max_bytes
        self.named = True
        self.session.dirty[self] = None

    # A partition's watcher

    def appended(self) -> None:
        session = self.session
        dirty = session.dirty
        if self not in dirty:
            dirty[self] = None
            partition = self.partition
            if partition is not None and partition.leader is not None:
                follower = partition.leader.followers.get(session.replica_id)
                if follower is not None and follower.end_offset >= 0:
                    # It was not dirty, so it had everything up to now, as it said with its last request.
                    partition.leader.was_caught_up(follower, session.fetched_ms)
        waiter = session.waiter
        if waiter is not None:
            waiter.wake()
        else:
            session.overtaken = True

    def committed(self) -> None:
        session = self.session
        session.dirty[self] = None
        if session.prompt and session.waiter is not None:
            session.waiter.wake()

    def live_replica(self, now_ms: int) -> int:
        return self.session.replica_id if self.session.is_live(now_ms) else -1

    def watch(self, partition: Partition | None) -> None:
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
        self.partition = partition
        if partition is not None:
            partition.watchers[self] = None


class FollowerSession:
    """All that one fetcher of one follower copies from this node."""

    __slots__ = (
        "connection", "dirty", "epoch", "fetched_ms", "id", "last_named", "overtaken", "prompt", "replica_epoch", "replica_id", "rows",
        "waiter",
    )  # fmt: skip

    def __init__(self, session_id: int, replica_id: int, replica_epoch: int, prompt: bool) -> None:
        self.id = session_id
        self.epoch = 1
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.prompt = prompt
        """Whether a new high watermark is told at once: where consumers read from followers. Otherwise it goes along
        with the next records, or when the follower's patience ends, which saves a round trip for every commit."""
        self.fetched_ms = 0
        self.connection: Connection | None = None
        """On which its last request came."""
        self.rows: dict[tuple[Topic, int], Row] = {}
        self.dirty: dict[Row, None] = {}
        """Those with something to tell, in the order in which they are served."""
        self.waiter: FollowerWaiter | None = None
        self.last_named: Row | None = None
        self.overtaken = False
        """More was appended while no request waited for it."""

    def is_live(self, now_ms: int) -> bool:
        """Its request waits here, or was answered a moment ago: a busy one hardly ever waits."""
        if self.waiter is not None:
            return True
        connection = self.connection
        return connection is not None and not connection.closed and now_ms - self.fetched_ms <= LIVE_MS

    def advance(self) -> None:
        """A request has come: the next one has the next number."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def name(self, query: FetchQuery) -> None:
        """Take what a request says about partitions."""
        rows = self.rows
        for topic, partitions in query.topics:
            for index, leader_epoch, offset, last_epoch, log_start, max_bytes, _, _ in partitions:
                row = rows.get((topic, index))
                if row is None:
                    row = rows[topic, index] = Row(self, topic, index)
                row.ask(leader_epoch, offset, last_epoch, log_start, max_bytes)
        for topic, indexes in query.forgotten:
            for index in indexes:
                row = rows.pop((topic, index), None)
                if row is not None:
                    row.watch(None)
                    self.dirty.pop(row, None)

    def registered_anew(self, replica_epoch: int) -> None:
        """In the same process, or it would begin another session: what it said last, it says again under its new epoch."""
        self.replica_epoch = replica_epoch
        for row in self.rows.values():
            row.named = True
            self.dirty[row] = None

    def close(self) -> None:
        for row in self.rows.values():
            row.watch(None)
        self.rows.clear()
        self.dirty.clear()
        self.connection = None


class Gathered:
    """What one pass over a session's news found."""

    __slots__ = ("cold", "enough", "length", "results", "slices")

    def __init__(self) -> None:
        self.results: list[tuple[Row, FetchResult]] = []
        self.slices: list[Slice] = []
        self.cold: list[Slice] = []
        self.length = 0
        self.enough = False


class FollowerFetches:
    """Serves followers. One session for each of their fetchers."""

    def __init__(self, broker: "Broker", handler: "FetchHandler") -> None:
        self._broker = broker
        self._handler = handler
        self._replicas = broker.replicas
        self._sessions: dict[int, FollowerSession] = {}
        self._monotonic_ms = broker.runtime.clock.monotonic_ms
        self._cache = PageCache() if broker.runtime.can_sendfile else None

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
        if query.forgotten or len(query.topics) != 1 or len(query.topics[0][1]) != 1:
            return
        row = session.rows[query.topics[0][0], query.topics[0][1][0][0]]
        if session.last_named is row:
            shape = follower_shape_of(request.buf, request.frame, body, request.end, request.version, query)
            if shape is not None:
                request.connection.shortcuts[FETCH] = FollowerShortcut(self, shape, query, session, row)
        session.last_named = row

    def serve(self, request: Request, query: FetchQuery, session: FollowerSession) -> Answer | None:
        """Answer a request whose partitions are named, or have it wait. `query` says within which limits."""
        session.fetched_ms = now_ms = self._monotonic_ms()
        session.connection = request.connection
        session.overtaken = False
        gathered = self.gather(session, query, now_ms, self._is_stale(query))
        wait_ms = query.max_wait_ms
        if gathered.enough or wait_ms <= 0 or not session.rows:
            return self.finish(request, session, gathered)
        release(gathered.slices)
        request.waiter = waiter = FollowerWaiter(self, request, query, session)
        session.waiter = waiter
        self._broker.wheel.add(waiter, min(wait_ms, WAIT_MS_MAX))
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
                self._new_id() if keep else NO_SESSION, query.replica_id, query.replica_epoch,
                self._handler.follower_reads,
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
            session_id = self._broker.runtime.random.randrange(1, 1 << 31)
            if session_id not in self._sessions:
                return session_id

    def _evict(self, query: FetchQuery, now_ms: int) -> None:
        """A follower that was restarted never comes back to its sessions; nor does one that has been silent for long."""
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

    def gather(self, session: FollowerSession, query: FetchQuery, now_ms: int, stale: bool = False) -> Gathered:
        """Find what there is to tell, within the request's limits, and note how far the follower has come."""
        gathered = Gathered()
        left = min(query.max_bytes, self._handler.bytes_max)
        try:
            for row in list(session.dirty):
                if stale:
                    gathered.results.append((row, self._failure(row, KafkaError(Err.NOT_LEADER_OR_FOLLOWER))))
                    gathered.enough = True
                else:
                    left = self._look(session, row, gathered, left, now_ms)
        except BaseException:
            release(gathered.slices)
            raise
        if gathered.length >= query.min_bytes or left <= 0:
            gathered.enough = True
        return gathered

    def _is_stale(self, query: FetchQuery) -> bool:
        """A Fetch that an earlier incarnation of the follower sent: what it had may be gone."""
        known = self._broker.image.brokers.get(query.replica_id)
        return known is not None and -1 < query.replica_epoch < known.epoch

    def _look(self, session: FollowerSession, row: Row, gathered: Gathered, left: int, now_ms: int) -> int:
        partition = row.partition
        try:
            # Led here in the epoch that the follower knows, as it nearly always is; or looked up, and refused if not.
            if partition is None or partition.leader is None or partition.leader_epoch != row.leader_epoch:
                partition = self._replicas.leader(row.topic, row.index, row.leader_epoch)
                if partition is not row.partition and session.id:
                    row.watch(partition)
            leader, log = partition.leader, partition.log
            assert leader is not None
            if session.replica_id not in leader.followers:
                # The follower has heard of a reassignment that this node has not: it should try again.
                raise KafkaError(Err.UNKNOWN_LEADER_EPOCH if row.leader_epoch >= 0 else Err.NOT_LEADER_OR_FOLLOWER)
            offset, end_offset = row.offset, log.end_offset
            if row.last_epoch != log.epochs.latest_epoch or offset > end_offset:
                diverging = self._handler.diverging(partition, row.index, row.last_epoch, offset)
                if diverging is not None:
                    row.named = False
                    gathered.results.append((row, diverging))
                    gathered.enough = True
                    return left
            piece = None
            if offset != end_offset:
                # The first records are given even if they alone are too much: a follower must never get stuck.
                limit = row.max_bytes if row.max_bytes < left else left
                piece = log.read(offset, limit, end_offset, gathered.length == 0)
        except KafkaError as error:
            row.named = False
            gathered.results.append((row, self._failure(row, error)))
            gathered.enough = True
            return left
        except (OSError, CorruptSegment) as error:
            logger.error("%s-%d cannot be read for follower %d: %s", row.topic, row.index, session.replica_id, error)
            gathered.results.append((row, self._failure(row, KafkaError(Err.KAFKA_STORAGE_ERROR))))
            gathered.enough = True
            return left
        if row.named:
            row.named = False
            partition.follower_fetched(session.replica_id, row.offset, row.log_start, session.replica_epoch, now_ms)
            self._replicas.isr.consider(partition, session.replica_id)
        length = 0
        if piece is not None and partition.leader_throttled and not self._may_send(session, leader.isr, piece, now_ms):
            piece.release()
            piece = None
        if piece is not None:
            length = piece.length
            left -= length
            gathered.length += length
            gathered.slices.append(piece)
            if self._cache is not None and not self._cache.holds(piece, log.bytes_written(piece)):
                gathered.cold.append(piece)
        high_watermark, log_start = leader.high_watermark, log.log_start_offset
        if log_start != row.told_log_start and row.told_log_start >= 0:
            gathered.enough = True  # DeleteRecords waits until all replicas have heard of it
        elif session.prompt and high_watermark != row.told_high_watermark:
            gathered.enough = True
        if length or high_watermark != row.told_high_watermark or log_start != row.told_log_start:
            gathered.results.append(
                (row, (row.index, 0, high_watermark, partition.last_stable_offset, log_start, length, None, -1, None))
            )
        elif row.offset >= log.end_offset:
            del session.dirty[row]
        return left

    def _may_send(self, session: FollowerSession, isr: Iterable[int], piece: Slice, now_ms: int) -> bool:
        """Throttled replicas wait their turn, unless acks=all waits for them. What is put off is found again later."""
        rate = self._broker.config["leader.replication.throttled.rate"]
        throttle = self._replicas.leader_throttle
        if session.replica_id not in isr and throttle.wait_ms(rate, now_ms):
            return False
        throttle.take(piece.length, rate, now_ms)
        return True

    def _failure(self, row: Row, error: KafkaError) -> FetchResult:
        detail = None
        if error.error in LEADER_MOVED:
            partition = self._replicas.known(row.topic, row.index)
            if partition is not None:
                detail = FetchDetail(leader=LeaderHint(partition.leader_id, partition.leader_epoch))
        return row.index, error.error, -1, -1, -1, 0, None, -1, detail

    # ---- answering

    def finish(self, request: Request, session: FollowerSession, gathered: Gathered) -> Answer | None:
        if gathered.cold:
            self._broker.spawn(self._warm(request, session, gathered))
            return None
        try:
            return self._encode(request, session, gathered)
        except BaseException:
            release(gathered.slices)
            raise

    async def _warm(self, request: Request, session: FollowerSession, gathered: Gathered) -> None:
        try:
            unreadable = await self._broker.runtime.run_in_thread(read_ahead, gathered.cold)
            if request.connection.closed:
                release(gathered.slices)
                return
            if unreadable:
                self._leave_out(gathered, unreadable)
            answer = self._encode(request, session, gathered)
        except Exception:
            release(gathered.slices)
            self._handler.failed(request)
            return
        except BaseException:
            release(gathered.slices)  # the broker stops
            raise
        self._handler.answered(request, answer)

    def _leave_out(self, gathered: Gathered, unreadable: list[Slice]) -> None:
        pieces = iter(gathered.slices)
        for at, (row, result) in enumerate(gathered.results):
            if result[5] and next(pieces) in unreadable:
                gathered.results[at] = row, self._failure(row, KafkaError(Err.KAFKA_STORAGE_ERROR))
        release(unreadable)
        gathered.slices = [piece for piece in gathered.slices if piece not in unreadable]

    def _encode(self, request: Request, session: FollowerSession, gathered: Gathered) -> list[Chunk] | bytes:
        dirty = session.dirty
        if request.version < HINTS_SINCE:
            gathered.results = [(row, (*result[:8], _unhinted(result[8]))) for row, result in gathered.results]
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
        heads = encode_fetch_response_head(
            request.correlation_id, request.version, _by_topic(gathered.results), 0, session.id
        )
        if len(heads) == 1:
            return heads[0]
        chunks: list[Chunk] = []
        for head, piece in zip(heads, gathered.slices):
            chunks.append(head)
            chunks.append(piece)
        if heads[-1]:
            chunks.append(heads[-1])
        self._broker.metrics.replication_bytes_out += gathered.length
        return chunks

    def woken(self, waiter: "FollowerWaiter", expired: bool) -> None:
        """A request that waited: answer it if there is enough to say, or if its time is up."""
        request, session = waiter.request, waiter.session
        try:
            gathered = self.gather(session, waiter.query, self._monotonic_ms())
            if not gathered.enough and not expired:
                release(gathered.slices)
                return
            waiter.abandon()
            answer = self.finish(request, session, gathered)
        except Exception:
            waiter.abandon()
            self._handler.failed(request)
            return
        if answer is not None:
            self._handler.answered(request, answer)


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
            self._handler._broker.runtime.loop.call_soon(self._look)

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
        TimerWheel.remove(self)
        if self.session.waiter is self:
            self.session.waiter = None


def _by_topic(results: Iterable[tuple[Row, FetchResult]]) -> list[tuple[Topic, list[FetchResult]]]:
    """Neighbours of one topic share its entry."""
    topics: list[tuple[Topic, list[FetchResult]]] = []
    for row, result in results:
        if topics and topics[-1][0] == row.topic:
            topics[-1][1].append(result)
        else:
            topics.append((row.topic, [result]))
    return topics


def _unhinted(detail: FetchDetail | None) -> FetchDetail | None:
    """Before KIP-951 an answer named no leader."""
    return None if detail is not None and detail.leader is not None else detail
