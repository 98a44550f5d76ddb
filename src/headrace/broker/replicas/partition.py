"""One partition on this node: its log, its replication state, and the requests that wait for either.

The order of an append is the order of the promises: check, stamp, write, then let the high watermark follow what is
durable (`durability=fsync`) or written (`durability=replicated`), and only then wake whoever waits for it. A follower
writes what its leader sends, byte for byte, and learns from it what is committed.
"""

import logging
from collections import deque
from collections.abc import Callable

from headrace.broker.replicas.environment import Environment as Environment
from headrace.broker.replicas.partition_waiters import AckWaiter, Copying, FetchWaiter, Watcher
from headrace.errors import Err, KafkaError
from headrace.metadata.image import NO_LEADER, Partition as Assignment
from headrace.metadata.names import INTERNAL
from headrace.records.batch import check_incoming, require_one_batch, stamp, validate
from headrace.records.layout import LOG_OVERHEAD, TRANSACTIONAL, iter_headers
from headrace.records.validation import Rules, prepare
from headrace.replication.partition import LeaderState
from headrace.replication.throttle import is_throttled
from headrace.replication.verification import Verification
from headrace.storage.files import NO_SPACE, start_writeback
from headrace.storage.log import Log

logger = logging.getLogger("headrace.partition")

FSYNC = "fsync"
"""`durability`: a record counts once it is on disk."""

NO_TIMESTAMP = -1
WRITEBACK_BYTES = 8 << 20
NEVER = (1 << 63) - 1
NO_SPACE_LEFT = "no space left on the log directory"
DOUBT_MS = 3_000
"""How long a batch that went to the last leader may take until it is sent again here."""


class Partition:
    """A replica on this node and, while it leads, the rules it leads by."""

    __slots__ = (
        "_after_max_ms", "_append_bytes_max", "_before_max_ms", "_durable_acks", "_flush_messages", "_flushes",
        "_high_watermark", "_log_append_time", "_unflushed", "_writeback_segment", "_written_back", "ack_waiters",
        "bytes_in", "copying", "environment", "failed", "fetch_waiters", "follower_throttled", "full", "incomplete",
        "index", "joining", "leader", "leader_epoch", "leader_id", "leader_throttled", "log", "messages_in", "plain",
        "scrubbed_ms", "start_waiters", "topic", "topic_id", "unflushed_since_ms", "watchers",
    )  # fmt: skip

    def __init__(self, topic: str, topic_id: bytes, index: int, log: Log, environment: Environment) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.environment = environment
        self.leader: LeaderState | None = None
        self.leader_id = -1
        self.leader_epoch = -1
        self.failed = False
        self.full = False
        """Its log dir has no room for its records."""
        self.incomplete = False
        """Begun anew after it had records, and perhaps still counted on for them: it must not lead."""
        self.joining = False
        """Being copied here as part of a move."""
        self.scrubbed_ms = -1
        """When all of it was last checked for damage; -1: never."""
        self.copying: Copying | None = None
        """While another node leads: what fetches from it."""
        self._high_watermark = log.log_start_offset
        """As far as known, while this node does not lead."""
        self.watchers: dict[Watcher, None] = {}
        self.start_waiters: list[Callable[[], None]] = []
        """Who waits for followers to delete what was deleted here; called when one of them may have."""
        self.ack_waiters: deque[tuple[int, AckWaiter]] = deque()  # offsets ascend
        self.fetch_waiters: dict[FetchWaiter, None] = {}  # a set's order would not be repeatable
        self.messages_in = 0
        self.bytes_in = 0
        self._unflushed = 0  # records since the last sync; matters only where the kernel decides when to sync
        self.unflushed_since_ms = 0
        self._written_back = 0
        self._writeback_segment: object = None
        self.configure()

    def configure(self) -> None:
        """The log's configuration has changed."""
        config = self.log.config
        self.set_full(self.full)
        self._log_append_time = config.log_append_time
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._before_max_ms = config.message_timestamp_before_max_ms
        # Nothing in the records themselves matters: the header decides and the bytes stay as they are.
        self.plain = not (
            config.compact
            or config.log_append_time
            or config.compression is not None
            or self.environment.validate_records
        )
        if not self.plain and self.topic not in INTERNAL:
            self.environment.checks_records = True
        # Two ask for every record to be synced before it counts, whatever `durability` says: flush.messages=1, and what
        # the broker itself promised to groups and transactions, a few bytes that nobody else can tell again.
        self._durable_acks = self.environment.durable_acks or config.flush_messages == 1 or self.topic in INTERNAL
        self._flush_messages = config.flush_messages
        self._flushes = config.flush_messages < NEVER or config.flush_ms < NEVER
        node_id = self.environment.node_id
        self.leader_throttled = is_throttled(config.leader_replication_throttled_replicas, self.index, node_id)
        self.follower_throttled = is_throttled(config.follower_replication_throttled_replicas, self.index, node_id)
        if self.leader is not None:
            if self.leader.configure(config.min_insync_replicas):
                self._committed(self.leader.high_watermark)
            if not self._durable_acks:
                self._reached(self.log.end_offset)  # records may have waited for the disk until now

    def set_full(self, full: bool) -> None:
        """While it is full no batch is small enough: what is refused takes the slow way, and all else none that is
        longer."""
        self.full = full
        self._append_bytes_max = -1 if full else min(self.log.config.max_message_bytes, self.log.config.segment_bytes)

    def restore(self, high_watermark: int) -> None:
        """What was known to be committed in the last life of this node."""
        log = self.log
        self._high_watermark = max(log.log_start_offset, min(high_watermark, log.end_offset))
        # Transactions were read from the log as if their ends were new: nobody tells of these again.
        log.producers.committed(self._high_watermark)

    # ---- whose it is

    def become_leader(self, assigned: Assignment) -> None:
        """Lead from a new epoch on. Everything already in the log belongs to earlier epochs."""
        log, environment = self.log, self.environment
        node_id = environment.node_id
        self.leader_id = node_id
        self.leader_epoch = assigned.leader_epoch
        log.epochs.assign(assigned.leader_epoch, log.end_offset)
        if self.leader is None:
            if assigned.leader_epoch and len(assigned.replicas) > 1:
                log.producers.doubt_until_ms = environment.monotonic_ms() + DOUBT_MS
            self.restore(self._high_watermark)
            self.leader = LeaderState(
                node_id, assigned.leader_epoch, log.end_offset, self._high_watermark, assigned.isr,
                log.config.min_insync_replicas, assigned.replicas, partition_epoch=assigned.partition_epoch,
                eligible=environment.eligible, lag_ms_max=environment.lag_ms_max, now_ms=environment.monotonic_ms(),
            )  # fmt: skip
        elif self.leader.renew(
            assigned.leader_epoch, log.end_offset, assigned.isr, assigned.replicas, assigned.partition_epoch,
            environment.monotonic_ms(),
        ):  # fmt: skip
            # The log is the same, so whoever waits for its records may go on waiting.
            self._committed(self.leader.high_watermark)
        self._tell_watchers()  # they fetch in an epoch that is over
        if not self._durable_acks:
            self._reached(log.end_offset)
        elif log.durable_end < log.end_offset:
            environment.syncer.dirty(self)
        else:
            self._reached(log.durable_end)

    def reassign(self, assigned: Assignment) -> None:
        """The ISR or the replicas have changed within this leader's epoch."""
        if self.leader is not None and self.leader.assign(assigned.isr, assigned.replicas, assigned.partition_epoch):
            self._committed(self.leader.high_watermark)

    def become_follower(self, leader_id: int, leader_epoch: int) -> None:
        """Another node leads, or none does (-1).

        What was appended here and is not committed may be in the log of the next leader, and be committed yet. Whoever
        waits for it hears which of the two it was: `leader_told` or `truncated`. Not so those that are numbered: the
        next leader knows them if it has them, and the sooner they are sent there the better. See
        docs/decisions/0020-answers-outlive-leaders.md.
        """
        self.leader_id, self.leader_epoch = leader_id, leader_epoch
        if self.leader is not None:
            kept: list[tuple[int, AckWaiter]] = []
            if self.ack_waiters and leader_id != NO_LEADER and not self.failed:
                numbered = self.log.producers.ends_behind(self.leader.high_watermark)
                kept = [
                    (end, waiter) for end, waiter in self.ack_waiters if waiter.outlives_leader and end not in numbered
                ]
            self._step_down(kept)
        elif leader_id == NO_LEADER:
            self.lose_acks()

    # ---- writing

    def append(
        self,
        buf: bytearray,
        view: memoryview,
        start: int,
        end: int,
        needs_isr: bool,
        in_transaction: bool = False,
        guard: Verification | None = None,
    ) -> tuple[int, int, int]:
        """Append a client's batch. Returns (base offset, log append time or -1, end offset); raises KafkaError.

        A batch that was there already is answered as it was the first time, and waits for the same commit. Its base
        offset is -1 if that is too long ago to be known. Transactional batches come with a transactional id, and the
        first of a transaction with its `guard`: the coordinator was asked whether it knows of it.
        """
        leader = self.leader
        if leader is None:
            raise self._not_led()
        if needs_isr and leader.too_few:
            leader.require_min_isr()
        if end - start > self._append_bytes_max:
            self._check_large(buf, view, start, end)
        header = validate(buf, view, start, end, self._log_append_time)
        _, length, _, _, _, attributes, last_delta, first_timestamp, max_timestamp, producer_id, producer_epoch, \
            sequence, _ = header  # fmt: skip
        end = start + LOG_OVERHEAD + length
        environment = self.environment
        now_ms = environment.wall_ms()
        append_time = NO_TIMESTAMP
        if not self.plain or max_timestamp - now_ms > self._after_max_ms or (
            now_ms - first_timestamp > self._before_max_ms and first_timestamp != NO_TIMESTAMP
        ):  # fmt: skip
            buf, view, start, end, max_timestamp, append_time = self._prepare(buf, view, start, end, now_ms)
            length = end - start - LOG_OVERHEAD
        log = self.log
        producers = log.producers
        if producer_id >= 0:
            transactional = attributes & TRANSACTIONAL != 0
            if transactional and not in_transaction:
                raise KafkaError(Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            try:
                duplicate = producers.check(producer_id, producer_epoch, sequence, last_delta, transactional, guard)
            except KafkaError as error:
                duplicate = producers.look_again(
                    error, producer_id, producer_epoch, sequence, last_delta, environment.monotonic_ms(),
                    transactional, guard,
                )  # fmt: skip
            if duplicate is not None:
                return duplicate.base_offset, duplicate.timestamp, duplicate.last_offset + 1
        base_offset = log.end_offset
        last_offset = base_offset + last_delta
        stamp(buf, start, base_offset, length, self.leader_epoch)
        try:
            log.append(view[start:end], base_offset, last_offset, self.leader_epoch, max_timestamp, now_ms)
        except OSError as error:
            raise self._storage_error(error) from error
        if producer_id >= 0:
            producers.record(
                producer_id, producer_epoch, sequence, base_offset, last_delta, max_timestamp, transactional
            )
        self.messages_in += last_delta + 1
        self.bytes_in += end - start
        if self.watchers:
            self._tell_watchers()
        if self._durable_acks:
            environment.syncer.dirty(self)
        else:
            if leader.own_reached(last_offset + 1):
                self._committed(leader.high_watermark)
            if self._flushes:
                self._count_unflushed(last_delta + 1, now_ms)
            active = log.active
            if active.size - self._written_back > WRITEBACK_BYTES or active is not self._writeback_segment:
                self._write_back()
        return base_offset, append_time, last_offset + 1

    def append_own(
        self, batch: bytearray, count: int, max_timestamp: int, record: Callable[[int], None] | None = None
    ) -> int:
        """Append a batch that this broker made: nothing to validate, only offset and epoch to stamp.

        Returns its end offset; raises KafkaError, and then nothing was appended, unless the log has failed. `record` is
        told its base offset before anything can be committed by it.
        """
        leader = self.leader
        if leader is None:
            raise self._not_led()
        leader.require_min_isr()
        log = self.log
        base_offset = log.end_offset
        end_offset = base_offset + count
        stamp(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, self.leader_epoch)
        try:
            log.append(
                memoryview(batch),
                base_offset,
                end_offset - 1,
                self.leader_epoch,
                max_timestamp,
                self.environment.wall_ms(),
            )
        except OSError as error:
            raise self._storage_error(error) from error
        if record is not None:
            record(base_offset)
        self.messages_in += count
        self.bytes_in += len(batch)
        if self.watchers:
            self._tell_watchers()
        if self._durable_acks:
            self.environment.syncer.dirty(self)
            return end_offset
        # A marker, in a topic whose records count without a sync. Were it lost in a power cut, its transaction would be
        # open again, and nobody ends it: so it does not wait for the kernel to write it out, half a minute later.
        self.environment.syncer.dirty_later(self)
        if leader.own_reached(end_offset):
            self._committed(leader.high_watermark)
        return end_offset

    def append_copied(self, records: memoryview) -> bool:
        """Append what the leader of this epoch sent. True when it has to reach the disk before it counts.

        Raises KafkaError where the bytes are not what comes next, and then nothing was appended.
        """
        if self.full:
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, NO_SPACE_LEFT)
        log = self.log
        if log.log_start_offset == log.end_offset > 0:
            self._begin_in_mid_batch(records)
        batches = check_incoming(records, log.end_offset, self.leader_epoch)
        if not batches:
            return False
        try:
            log.append_checked(records, batches, self.environment.wall_ms())
        except OSError as error:
            raise self._storage_error(error) from error
        if self._durable_acks:
            self.environment.syncer.dirty(self)
            return True
        if self._flushes:
            self._count_unflushed(batches[-1][1].end_offset - batches[0][1].base_offset, self.environment.wall_ms())
        if any(header.is_control for _, header in batches):
            self.environment.syncer.dirty_later(self)  # a marker, as in `append_own`: this may lead after a power cut
        active = log.active
        if active.size - self._written_back > WRITEBACK_BYTES or active is not self._writeback_segment:
            self._write_back()
        return False

    def _begin_in_mid_batch(self, records: memoryview) -> None:
        """DeleteRecords may put a log's start into a batch. Its leader sends the whole batch: an empty log begins with
        that."""
        log = self.log
        first = next((header for _, header in iter_headers(records)), None)
        if first is not None and first.base_offset < log.end_offset < first.end_offset:
            try:
                log.truncate_fully(first.base_offset)  # with the answer comes where the leader's log starts
            except OSError as error:
                raise self._storage_error(error) from error

    def _prepare(
        self, buf: bytearray, view: memoryview, start: int, end: int, now_ms: int
    ) -> tuple[bytearray, memoryview, int, int, int, int]:
        """The slow way: look at every record, and rewrite the batch where the topic's configuration asks for it."""
        config = self.log.config
        known = self.environment.prepared.get((self, start))
        if known is not None and known[0] is config:
            if isinstance(known[1], KafkaError):
                raise known[1]
            prepared, buf = known[1]
            view, start, end, now_ms = memoryview(buf), 0, len(buf), prepared.max_timestamp
        else:
            prepared = prepare(view[start:end], Rules.of(config), now_ms)
        append_time = now_ms if config.log_append_time else NO_TIMESTAMP
        if prepared.data is None:
            self._check_segment_size(end - start)
            return buf, view, start, end, prepared.max_timestamp, append_time
        data = bytearray(prepared.data)
        self._check_message_size(len(data))
        self._check_segment_size(len(data))
        return data, memoryview(data), 0, len(data), prepared.max_timestamp, append_time

    def _check_large(self, buf: bytearray, view: memoryview, start: int, end: int) -> None:
        """More bytes than a message or a segment may have. Recompressed they may be fewer: `_prepare` looks again."""
        if self.full:
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, NO_SPACE_LEFT)
        end = require_one_batch(buf, start, end)
        self._check_message_size(end - start)
        if self.plain:
            validate(buf, view, start, end, self._log_append_time)
            self._check_segment_size(end - start)

    def _check_message_size(self, size: int) -> None:
        limit = self.log.config.max_message_bytes
        if size > limit:
            raise KafkaError(Err.MESSAGE_TOO_LARGE, f"record batch of {size} bytes, max.message.bytes is {limit}")

    def _check_segment_size(self, size: int) -> None:
        limit = self.log.config.segment_bytes
        if size > limit:
            raise KafkaError(Err.RECORD_LIST_TOO_LARGE, f"record batch of {size} bytes, segment.bytes is {limit}")

    def _not_led(self) -> KafkaError:
        if self.failed:
            return KafkaError(Err.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        return KafkaError(Err.NOT_LEADER_OR_FOLLOWER)

    def _storage_error(self, error: OSError) -> KafkaError:
        if error.errno in NO_SPACE and self.log.failed is None:
            logger.error("%s: no space left; the write was refused whole", self)
            self.environment.no_space(self)
            return KafkaError(Err.KAFKA_STORAGE_ERROR, NO_SPACE_LEFT)
        self.environment.dir_failed(self.log, error)
        return KafkaError(Err.KAFKA_STORAGE_ERROR, f"the log directory failed: {error.strerror}")

    def _count_unflushed(self, records: int, now_ms: int) -> None:
        """flush.messages and flush.ms: sync by count here, by time in the broker's maintenance."""
        if not self._unflushed:
            self.unflushed_since_ms = now_ms
        self._unflushed += records
        if self._unflushed >= self._flush_messages:
            self.flush()

    def flush(self) -> None:
        """Sync what was written, without anybody waiting for it."""
        self._unflushed = 0
        self.environment.syncer.dirty(self)

    @property
    def unflushed(self) -> bool:
        return self._unflushed > 0

    def _write_back(self) -> None:
        """Have the kernel write out early and steadily, so that it never stops a write() to catch up."""
        active = self.log.active
        if active is not self._writeback_segment:
            if self._writeback_segment is not None:
                self.flush()  # a segment that is closed gets synced, so that recovery and compaction can rely on it
            self._writeback_segment, self._written_back = active, active.size
            return
        handle, start = active.handle, self._written_back
        self._written_back = active.size
        done = self.environment.run_in_thread(start_writeback, handle.pin(), start, active.size - start)
        done.add_done_callback(lambda _: handle.unpin())

    # ---- committing

    def durable(self) -> None:
        """The log's durable end has moved."""
        if self._durable_acks:
            self._reached(self.log.durable_end)
            if self.log.durable_end < self.log.end_offset:
                self.environment.syncer.dirty(self)
                return
        if self.copying is not None:
            self.copying.durable()

    @property
    def in_use(self) -> bool:
        """Led here or copied: what is committed is known, and old records may go."""
        return self.leader is not None or self.copying is not None

    @property
    def countable_end(self) -> int:
        """As far as this replica may say that it has the log: what a power cut could take does not count."""
        return self.log.durable_end if self._durable_acks else self.log.end_offset

    def _reached(self, end_offset: int) -> None:
        leader = self.leader
        if leader is not None and leader.own_reached(end_offset):
            self._committed(leader.high_watermark)

    def follower_fetched(self, replica: int, offset: int, log_start: int, broker_epoch: int, now_ms: int) -> None:
        """A follower has all below `offset`, and may so have committed more."""
        leader = self.leader
        assert leader is not None
        if leader.fetched(leader.followers[replica], offset, log_start, broker_epoch, self.log.end_offset, now_ms):
            self._committed(leader.high_watermark)
        if self.start_waiters:
            self._tell_start_waiters()

    def _tell_start_waiters(self) -> None:
        waiters, self.start_waiters = self.start_waiters, []
        for waiter in waiters:
            waiter()

    def delete_up_to(self, offset: int) -> None:
        """Readers no longer see what lies below; followers are told at once."""
        if self.log.advance_log_start(offset):
            self._tell_watchers()

    def advanced(self) -> None:
        """The high watermark has moved because others count now."""
        assert self.leader is not None
        self._committed(self.leader.high_watermark)

    def leader_told(self, high_watermark: int, log_start_offset: int) -> None:
        """What the leader says is committed, and where its log begins."""
        log = self.log
        if high_watermark > log.end_offset:
            high_watermark = log.end_offset
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            self._committed(high_watermark)
        if log_start_offset > log.log_start_offset:
            log.advance_log_start(min(log_start_offset, self._high_watermark))

    def truncated(self) -> None:
        """The log was cut: its leader never had the rest."""
        end_offset = self.log.end_offset
        if self._high_watermark > end_offset:
            # An unclean election, which has said so, or damage that is being repaired.
            logger.warning("%s: cut to %d, below its high watermark %d", self, end_offset, self._high_watermark)
            self._high_watermark = end_offset
        self.log.producers.committed(self._high_watermark)  # read again from the log, as in `restore`
        self._writeback_segment = None
        self.lose_acks(end_offset)

    def lose_acks(self, end_offset: int = -1) -> None:
        """Whoever waits for records beyond `end_offset` waits in vain."""
        lost = [waiter for end, waiter in self.ack_waiters if end > end_offset]
        if lost:
            self.ack_waiters = deque((end, waiter) for end, waiter in self.ack_waiters if end <= end_offset)
            for waiter in lost:
                waiter.lost(self)

    def give_up_acks(self, leader_epoch: int) -> None:
        """The node that took over in this epoch has not said in time what became of them."""
        if self.ack_waiters and self.leader is None and self.leader_epoch == leader_epoch:
            logger.warning("%s: broker %d does not say what became of the last records led here", self, self.leader_id)
            self.lose_acks()

    def _committed(self, high_watermark: int) -> None:
        for watcher in self.watchers:
            watcher.committed()
        producers = self.log.producers
        if producers.first_unstable_offset is not None:
            producers.committed(high_watermark)
        if self.ack_waiters:
            self._acknowledge(high_watermark)
        if self.fetch_waiters:
            self.environment.fetchable(self)

    def _acknowledge(self, high_watermark: int) -> None:
        waiters = self.ack_waiters
        committed = []
        while waiters and waiters[0][0] <= high_watermark:
            committed.append(waiters.popleft()[1])
        # The last first: answers leave in order, so those of one connection go out together, with its oldest.
        for waiter in reversed(committed):
            try:
                waiter.committed()
            except Exception:
                # One that cannot be answered must not keep all the others waiting for ever.
                logger.exception("%s: a request that waited for %d could not be answered", self, high_watermark)

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark if self.leader is not None else self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open."""
        unstable = self.log.producers.first_unstable_offset
        high_watermark = self.high_watermark
        if unstable is None or unstable > high_watermark:
            return high_watermark
        # The first records of an open transaction may be deleted already, and readers cannot begin before the log does.
        return max(unstable, self.log.log_start_offset)

    def diverging_epoch(self, last_epoch: int, offset: int) -> tuple[int, int] | None:
        """(epoch, its end here), the last that this log may share with another one; None: all of the other's is here.

        The other one ends at `offset` with a record of `last_epoch`. Raises OFFSET_OUT_OF_RANGE where none can be told.
        """
        log = self.log
        epoch, end_offset = log.epochs.end_offset_for(last_epoch, log.end_offset)
        if epoch == -1 or end_offset == -1:
            raise KafkaError(Err.OFFSET_OUT_OF_RANGE, "no leader epoch is known for the fetched offset")
        return None if epoch >= last_epoch and end_offset >= offset else (epoch, end_offset)

    # ---- leaving

    def stop(self) -> None:
        """Deleted, or its disk has failed, or nobody leads it: nobody may go on waiting for it."""
        self._step_down([])

    def _step_down(self, kept: list[tuple[int, AckWaiter]]) -> None:
        """Lead no more. `kept` are those that still wait for their records."""
        if self.leader is not None:
            self._high_watermark = self.leader.high_watermark
            self.leader = None
        before, self.ack_waiters = self.ack_waiters, deque(kept)
        still = {waiter for _, waiter in kept}
        for _, waiter in before:
            if waiter not in still:
                waiter.lost(self)
        for fetch in list(self.fetch_waiters):
            fetch.advanced(self)
        self._tell_watchers()
        self._tell_start_waiters()

    def _tell_watchers(self) -> None:
        for watcher in self.watchers:
            watcher.appended()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"
