"""Copies from one leader all partitions that this node follows there: one connection, one session, one Fetch at a time.

The offset a Fetch asks for says what this replica has, so with `durability=fsync` the next one leaves when all that
the last one brought is on the disk; one sync serves all partitions of an answer. Nothing here waits in a task: answers
and finished syncs are callbacks, since this is half of the work of every acks=all.
"""

import logging
from asyncio import Task, TimerHandle
from collections import deque
from typing import Any, NamedTuple, Protocol

from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.idle_poll import SMALL_BYTES, IdlePoll
from headrace.broker.metadata_cache import MetadataCache, Registration
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.replica_copy import BACKOFF_MS, Copy, Key
from headrace.broker.replicas.standing import Standing
from headrace.broker.replicas.syncer import Syncer
from headrace.broker.replicas.truncation import Truncation, TruncationParts
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.client.errors import ClientError, err_of
from headrace.client.net.connection import Connection
from headrace.errors import Err, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.hot_replica import (
    VERSION_MAX,
    VERSION_MIN,
    CopiedPartition,
    CopiedRow,
    decode_follower_answer,
    encode_client_id,
    encode_follower_fetch,
)
from headrace.protocol.primitives import ProtocolError
from headrace.replication.fetch_sessions import EPOCH_MAX
from headrace.replication.follower import cut_offset
from headrace.replication.throttle import Throttle

logger = logging.getLogger("headrace.fetcher")

IMPATIENT_MS = 5
THROTTLED_MS_MAX = 1_000
FULL_MS = 5_000
"""How long a copy for which there is no room is put off, unless there is some earlier."""
CONNECT_TIMEOUT_S = 2.0
SESSION_ERRORS = frozenset(
    {Err.FETCH_SESSION_ID_NOT_FOUND, Err.INVALID_FETCH_SESSION_EPOCH, Err.FETCH_SESSION_TOPIC_ID_ERROR}
)
QUIET = frozenset(
    {Err.UNKNOWN_LEADER_EPOCH, Err.FENCED_LEADER_EPOCH, Err.NOT_LEADER_OR_FOLLOWER, Err.UNKNOWN_TOPIC_ID,
     Err.UNKNOWN_TOPIC_OR_PARTITION}
)  # fmt: skip
"""What leaders say while metadata is on its way."""


class Limits(NamedTuple):
    """Options of all fetchers."""

    wait_ms: int
    bytes_min: int
    partition_bytes: int
    answer_bytes: int
    backoff_ms_max: int
    timeout_ms: int

    @staticmethod
    def of(config: Any) -> "Limits":
        return Limits(
            config["replica.fetch.wait.max.ms"],
            config["replica.fetch.min.bytes"],
            config["replica.fetch.max.bytes"],
            config["replica.fetch.response.max.bytes"],
            config["replica.fetch.backoff.ms"],
            config["replica.socket.timeout.ms"],
        )


class Reachability(Protocol):
    """Whoever wants to hear which brokers can be reached. Implemented by `cluster/lost_brokers.py`."""

    def lost(self, broker_id: int) -> None:
        """A connection to a broker has closed, and not by us."""
        ...

    def found(self, broker_id: int) -> None:
        """It can be reached again."""
        ...


class FetcherParts(NamedTuple):
    """What the fetchers of all leaders share."""

    runtime: Runtime
    tasks: Tasks
    config: DynamicBrokerConfig
    metadata: MetadataCache
    registration: Registration
    syncer: Syncer
    metrics: Metrics
    idle_poll: IdlePoll | None
    reachability: Reachability
    standing: Standing
    throttle: Throttle
    truncation: TruncationParts


class LeaderFetcher:
    """See the module. The leader's address is looked up anew with each connection."""

    def __init__(self, parts: FetcherParts, leader_id: int, limits: Limits) -> None:
        self._runtime = parts.runtime
        self._tasks = parts.tasks
        self._config = parts.config
        self._metadata = parts.metadata
        self._registration = parts.registration
        self._syncer = parts.syncer
        self._metrics = parts.metrics
        self._idle_poll = parts.idle_poll
        self._reachability = parts.reachability
        self._standing = parts.standing
        self._throttle = parts.throttle
        self.leader_id = leader_id
        self._limits = limits
        self.copies: dict[Key, Copy] = {}
        self._undecided: dict[Copy, None] = {}  # producers wait to hear what became of the last records led here
        self._named: dict[Copy, None] = {}
        """To be named in the next request: new in the session, or asked for at another offset."""
        self._forgotten: dict[Key, None] = {}
        self._unsynced: dict[Copy, None] = {}
        """Written and not on the disk yet: what the last answer brought, or a tail from before."""
        self._holding: dict[Copy, None] = {}
        """Those of them that the next request waits for."""
        self._connection: Connection | None = None
        self._version = 0
        self._connecting: Task[Any] | None = None
        self._retry: TimerHandle | None = None
        self._watchdog: TimerHandle | None = None
        self._backoff_ms = BACKOFF_MS
        self._session_id = 0
        self._session_epoch = 0
        self._asked = 0  # so many copies are in the session
        self._requests = 0
        self._client_id = f"broker-{parts.registration.node_id}-fetcher"
        self._client_id_bytes = encode_client_id(self._client_id)
        self._in_flight: deque[_Answer] = deque()
        self._scheduled = False
        self._closed = False
        self._truncation = Truncation(
            parts.truncation, leader_id, limits.timeout_ms / 1000, self._ready, self._delay, self._leave_session
        )

    # ---- what to copy

    def add(self, partition: Partition) -> None:
        """Begin to copy `partition`, whose leader epoch has changed."""
        key = partition.topic_id, partition.index
        self.remove(key)
        copy = self.copies[key] = Copy(self, partition)
        partition.copying = copy
        if partition.ack_waiters:
            self._undecided[copy] = None
        self._ready(copy)

    def remove(self, key: Key) -> None:
        copy = self.copies.pop(key, None)
        if copy is not None:
            copy.end()
            self._leave_session(copy)
            self._unsynced.pop(copy, None)
            self._holding.pop(copy, None)
            self._soon()

    def _leave_session(self, copy: Copy) -> None:
        self._named.pop(copy, None)
        if copy.since:
            copy.since = 0
            self._asked -= 1
            self._forgotten[copy.key] = None

    def _ready(self, copy: Copy) -> None:
        """Ask for what comes next, once what is there counts."""
        partition = copy.partition
        if partition.countable_end < partition.log.end_offset:
            self._unsynced[copy] = None
            self._syncer.dirty(partition)
        else:
            self._named[copy] = None
            self._soon()

    def durable(self, copy: Copy) -> None:
        """All that was written of a partition is on the disk."""
        if copy in self._unsynced:
            del self._unsynced[copy]
            self._named[copy] = None
            if self._holding:
                self._holding.pop(copy, None)
                if self._holding:
                    return
            self._soon()

    def _delay(self, copy: Copy, delay_ms: int | None = None) -> None:
        """Leave a partition out for a moment; the others go on."""
        self._leave_session(copy)
        if copy.timer is None:
            if delay_ms is None:
                delay_ms = copy.backoff_ms
                copy.backoff_ms = min(2 * copy.backoff_ms, self._limits.backoff_ms_max)
            copy.timer = self._runtime.loop.call_later(delay_ms / 1000, self._delay_over, copy)

    def retry_copy(self, copy: Copy) -> None:
        """What it was put off for may be over."""
        if copy.timer is not None:
            copy.timer.cancel()
            self._delay_over(copy)

    def ask_again(self, copy: Copy) -> None:
        """What to ask for has changed, and not by an answer: those on their way are about something else."""
        self._leave_session(copy)
        if copy.timer is not None:
            copy.timer.cancel()
        self._delay_over(copy)

    def _delay_over(self, copy: Copy) -> None:
        copy.timer = None
        if not copy.is_current:
            return
        if copy.unvouched and not self._truncation.vouch(copy):
            self._delay(copy)
        else:
            self._ready(copy)

    def space_changed(self, copy: Copy) -> None:
        """What it copies to has become full, or has room again."""
        if copy.partition.full:
            self._delay(copy, FULL_MS)
            self._soon()
        else:
            self.retry_copy(copy)

    def follow_log_starts(self) -> None:
        """Copies that are put off hear no more from their leader what was deleted there, which may make room."""
        full = [copy for copy in self.copies.values() if copy.partition.full]
        if full and self._connection is not None:
            self._tasks.spawn(self._truncation.follow_log_starts(self._connection, full))

    # ---- the connection

    def retry_now(self) -> None:
        """The leader may be reachable again, or under another address."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
            self._backoff_ms = BACKOFF_MS
            self._soon()

    def _connect(self) -> None:
        if self._connecting is None and self._retry is None:
            self._connecting = self._tasks.spawn(self._open())

    async def _open(self) -> None:
        try:
            address = self._metadata.address(self.leader_id)
            if address is None:
                self._lost(None, "no address is known")
                return
            connection = await Connection.open(
                *address,
                client_id=self._client_id,
                timeout_s=CONNECT_TIMEOUT_S,
                frame_bytes_max=max(self._limits.answer_bytes, self._limits.partition_bytes) + (256 << 20),
            )
            if self._closed:
                connection.close()
                return
            self._version = connection.version_of(ApiKey.FETCH, VERSION_MAX)
            if self._version < VERSION_MIN:
                connection.close()
                self._lost(None, f"Fetch v{self._version} is too old to copy by")
                return
            self._connection = connection
            self._reachability.found(self.leader_id)
        except ClientError as error:
            self._lost(None, str(error))
            return
        finally:
            self._connecting = None
        self._start_session()
        self._soon()

    def _start_session(self) -> None:
        self._session_id = self._session_epoch = self._asked = 0
        self._forgotten.clear()
        for copy in self.copies.values():
            copy.since = 0
            if copy.timer is None and copy not in self._unsynced:
                self._named[copy] = None

    def _lost(self, connection: Connection | None, reason: str) -> None:
        """No connection, or not any more. Tried again soon, and at once when the metadata changes."""
        if self._closed or connection is not self._connection:
            return
        if connection is not None:
            self._reachability.lost(self.leader_id)
        level = logging.INFO if self._backoff_ms == BACKOFF_MS else logging.DEBUG
        logger.log(level, "cannot copy from broker %d: %s", self.leader_id, reason)
        self._drop_connection()
        if self._retry is None and self.copies:
            self._retry = self._runtime.loop.call_later(self._backoff_ms / 1000, self._retry_over)
            self._backoff_ms = min(2 * self._backoff_ms, self._limits.backoff_ms_max)

    def _retry_over(self) -> None:
        self._retry = None
        self._soon()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._in_flight.clear()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Nothing is copied from this leader any more."""
        self._closed = True
        for key in list(self.copies):
            self.remove(key)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._drop_connection()

    # ---- asking

    def _soon(self) -> None:
        """Once for all that changes in this turn of the loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._runtime.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self._closed or self._holding:
            return
        if self._connection is None:
            if self.copies:
                self._connect()
            return
        if not self._in_flight:
            if self._named or self._asked:
                self._send()
        elif len(self._in_flight) == 1 and (self._named or self._forgotten) and self._session_id:
            # The last request may wait at the leader for half a second. A second one behind it has it answered.
            self._send()

    def _send(self) -> None:
        connection = self._connection
        assert connection is not None
        self._requests += 1
        answer = _Answer(self, connection, self._requests)
        topics, forgotten = self._named_topics(), self._forgotten_topics()
        limits, own = self._limits, self._registration
        wait_ms = self._impatient_ms() if self._undecided else limits.wait_ms

        def frame_of(correlation_id: int) -> bytes:
            return encode_follower_fetch(
                correlation_id, self._version, self._client_id_bytes,
                (own.node_id, own.broker_epoch),
                (wait_ms, limits.bytes_min, limits.answer_bytes),
                (self._session_id, self._session_epoch), topics, forgotten,
            )  # fmt: skip

        try:
            connection.start(frame_of, answer)
        except ClientError as error:
            self._lost(connection, str(error))
            return
        self._in_flight.append(answer)
        self._session_epoch = 1 if self._session_epoch == EPOCH_MAX else self._session_epoch + 1
        if self._watchdog is None:
            self._watchdog = self._runtime.loop.call_later(self._limits.timeout_ms / 1000, self._watch, answer)

    def _watch(self, answer: "_Answer") -> None:
        """Twice a timeout at worst: cheaper than a timer for every request."""
        self._watchdog = None
        if self._in_flight:
            if self._in_flight[0] is answer:
                self._lost(self._connection, f"no answer within {self._limits.timeout_ms} ms")
            else:
                self._watchdog = self._runtime.loop.call_later(
                    self._limits.timeout_ms / 1000, self._watch, self._in_flight[0]
                )

    def _impatient_ms(self) -> int:
        """A new high watermark goes along with the next records, if any: while producers wait for it, ask often."""
        self._undecided = {copy: None for copy in self._undecided if copy.is_current and copy.partition.ack_waiters}
        return IMPATIENT_MS if self._undecided else self._limits.wait_ms

    def _rate_of(self, partition: Partition) -> int:
        """How many bytes per second may be copied of what a partition lacks; 0: as many as come."""
        if partition.follower_throttled:
            rate: int = self._config["follower.replication.throttled.rate"]
        elif partition.joining and self._config["auto.balance"]:
            rate = self._config["auto.balance.max.bytes.per.second"]
        else:
            return 0
        return rate

    def _throttled_ms(self, partition: Partition, now_ms: int) -> int:
        rate = self._rate_of(partition)
        return self._throttle.wait_ms(rate, now_ms) if rate else 0

    def _named_topics(self) -> dict[bytes, list[CopiedPartition]]:
        """What to name now: new in the session, or at another offset."""
        topics: dict[bytes, list[CopiedPartition]] = {}
        partition_bytes, number = self._limits.partition_bytes, self._requests
        now_ms = self._runtime.clock.monotonic_ms()
        for copy in list(self._named):
            partition = copy.partition
            if partition.full:
                self._delay(copy, FULL_MS)
                continue
            if copy.behind and (wait_ms := self._throttled_ms(partition, now_ms)):
                self._delay(copy, min(wait_ms, THROTTLED_MS_MAX))
                continue
            if not copy.since:
                copy.since = number
                self._asked += 1
            log = partition.log
            copy.log_start = log_start = log.log_start_offset
            if log.holes:
                offset, epoch = copy.next_offset, copy.last_epoch
            else:
                offset, epoch = log.end_offset, log.epochs.latest_epoch
            copy.asked = offset
            row = partition.index, copy.leader_epoch, offset, epoch, log_start, partition_bytes
            rows = topics.get(partition.topic_id)
            if rows is None:
                topics[partition.topic_id] = [row]
            else:
                rows.append(row)
        self._named.clear()
        return topics

    def _forgotten_topics(self) -> dict[bytes, list[int]]:
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in self._forgotten:
            copy = self.copies.get((topic_id, index))
            if copy is None or not copy.since:
                forgotten.setdefault(topic_id, []).append(index)
        self._forgotten.clear()
        return forgotten

    # ---- answers

    def answered(self, answer: "_Answer", frame: bytes | bytearray) -> None:
        if not self._in_flight or self._in_flight[0] is not answer:
            return  # of a connection that was given up
        self._in_flight.popleft()
        try:
            self._take(answer.number, *decode_follower_answer(frame, self._version))
        except ProtocolError as error:
            self._lost(self._connection, f"an answer cannot be read: {error}")
            return
        except Exception as error:
            # A bug here must not be taken for the leader's fault and tried for ever.
            logger.critical("an answer of broker %d could not be taken", self.leader_id, exc_info=error)
            self._tasks.fail(error)
            return
        self._backoff_ms = BACKOFF_MS
        if not self._holding:
            self._go_on()
            if (idle_poll := self._idle_poll) is not None:
                idle_poll.served(self._runtime.perf_counter(), len(frame) <= SMALL_BYTES)

    def failed(self, answer: "_Answer", error: BaseException) -> None:
        if self._in_flight and answer in self._in_flight:
            self._lost(answer.connection, str(error))

    def _take(self, number: int, error_code: int, session_id: int, rows: list[CopiedRow]) -> None:
        if error_code:
            if error_code not in SESSION_ERRORS:
                logger.warning("broker %d refuses to be copied: %s", self.leader_id, err_of(error_code).name)
                self._lost(self._connection, err_of(error_code).name)
            elif not self._in_flight:
                self._start_session()
            return
        self._session_id = session_id
        if not session_id:
            self._session_epoch = 0  # it has no room for a session: everything is named every time
        copies = self.copies
        cut: list[tuple[Copy, int]] = []
        for row in rows:
            copy = copies.get((row[0], row[1]))
            if copy is not None and 0 < copy.since <= number:
                self._take_partition(copy, row, cut)
        if cut:
            self._truncation.cut(cut)
        if not session_id and not self._in_flight:
            self._start_session()

    def _take_partition(self, copy: Copy, row: CopiedRow, cut: list[tuple[Copy, int]]) -> None:
        _, _, error_code, high_watermark, log_start, records, diverging = row
        partition = copy.partition
        if error_code:
            self._refused(copy, err_of(error_code))
            return
        log = partition.log
        if diverging is not None and diverging[1] >= 0:
            own = log.epochs.end_offset_for(diverging[0], log.end_offset)
            cut.append((copy, cut_offset(*diverging, *own, log.end_offset)))
            return
        if log.holes:
            self._truncation.mend(copy, row, cut)
            return
        copy.backoff_ms = BACKOFF_MS
        try:
            if records is not None:
                self._append(copy, records)
            copy.behind = high_watermark > log.end_offset
            if not copy.behind and partition.incomplete:
                self._standing.whole_again(partition)
            partition.leader_told(high_watermark, log_start)
        except KafkaError as error:
            logger.error("%s: what broker %d sent is refused: %s", partition, self.leader_id, error)
            if partition.failed:
                self.remove(copy.key)
            else:
                self._delay(copy)
            return
        if log.log_start_offset != copy.log_start and copy not in self._unsynced:
            self._named[copy] = None  # the leader waits to hear of it

    def _append(self, copy: Copy, records: memoryview) -> None:
        partition = copy.partition
        before = partition.log.end_offset
        unsynced = partition.append_copied(records)
        self._metrics.replication_bytes_in += len(records)
        if unsynced:
            self._unsynced[copy] = self._holding[copy] = None
        elif partition.log.end_offset > before:
            self._named[copy] = None
        elif copy not in self._named and copy not in self._unsynced:
            self._delay(copy)  # nothing in it was of use, and would be the next time
        if (partition.follower_throttled or partition.joining) and (rate := self._rate_of(partition)):
            self._throttle.take(len(records), rate, self._runtime.clock.monotonic_ms())

    def _refused(self, copy: Copy, error: Err) -> None:
        if error is Err.OFFSET_OUT_OF_RANGE:
            assert self._connection is not None
            self._leave_session(copy)
            self._tasks.spawn(self._truncation.find_range(self._connection, copy))
            return
        level = logging.DEBUG if error in QUIET else logging.WARNING
        logger.log(level, "%s: broker %d answers %s", copy.partition, self.leader_id, error.name)
        self._delay(copy)


class _Answer:
    """Where a connection puts the answer to one Fetch."""

    __slots__ = ("_done", "_fetcher", "connection", "number")

    def __init__(self, fetcher: LeaderFetcher, connection: Connection, number: int) -> None:
        self._fetcher = fetcher
        self.connection = connection
        self.number = number
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, message: Any) -> None:
        self._done = True
        self._fetcher.answered(self, message)

    def set_exception(self, error: BaseException) -> None:
        self._done = True
        self._fetcher.failed(self, error)
