"""One shard of a coordinator at work: runs its decisions, writes their records, answers when they are committed.

All writes of one turn of the loop go out as one batch, and are made durable together. An answer leaves once everything
the shard knew when it decided is below the high watermark. If an append fails, the shard has decided on what never was:
it is dropped and loaded again from the log.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headrace.broker.coordinators.timers import TimerSet
from headrace.broker.net.waiters import Bucket
from headrace.broker.replicas.partition import Partition
from headrace.coordinator.outcome import Cancel, Context, Outcome, Promise, Record
from headrace.coordinator.records import batch_bytes
from headrace.errors import Err, KafkaError
from headrace.records.builder import BatchBuilder

if TYPE_CHECKING:
    from headrace.broker.coordinators.coordinator import Coordinator

logger = logging.getLogger("headrace.coordinator")

UNHURRIED_S = 0.005
"""How long records that nobody waits for may wait for others, to be written and synced together."""
ANSWERS_AT_ONCE = 128
"""More, as when a large group has formed, are given over several turns of the loop."""


class Asker(Protocol):
    """Who wants to know what is decided."""

    def answer(self, response: Any) -> None:
        """The response, if it had to wait."""
        ...

    def refusal(self, error: Err) -> Any:
        """The response that says why there is none."""
        ...


class Requester(Asker, Context, Protocol):
    """Who asked by a request of its own."""


class Shard(Protocol):
    """What a host needs of the state machine that it runs; how it is driven is told in coordinator/outcome.py."""

    def advance(self, high_watermark: int) -> None: ...

    def replay(self, offset: int, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None: ...

    def replay_marker(self, offset: int, producer_id: int, producer_epoch: int, committed: bool) -> None: ...

    def apply(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None: ...

    def loaded(self, now_ms: int) -> Outcome: ...

    def unload(self) -> list[Promise]: ...

    def timeout(self, key: Hashable, now_ms: int) -> Outcome: ...

    def expire(self, now_ms: int) -> Outcome: ...


S = TypeVar("S", bound=Shard)


class State(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Batch:
    """Records of one turn of the loop, and the answers that wait for them."""

    __slots__ = ("answers", "bucket", "builder", "end_offset", "host", "is_due", "timestamp_ms")

    outlives_leader = False
    """The shard that decided it is closed with the leadership."""

    def __init__(self, host: "ShardHost[Any]", builder: BatchBuilder, timestamp_ms: int) -> None:
        self.host = host
        self.builder = builder
        self.timestamp_ms = timestamp_ms
        self.end_offset = -1
        self.answers: list[tuple[Asker, Any]] = []
        self.bucket: Bucket | None = None
        self.is_due = False
        """It is written at the end of this turn, and not later."""

    def committed(self) -> None:
        self.host.batch_committed(self)

    def lost(self, partition: Partition) -> None:
        self.committed()

    def expire(self) -> None:
        """offsets.commit.timeout.ms: the records may yet be committed, but nobody is kept waiting."""
        answers, self.answers = self.answers, []
        for asker, _ in answers:
            asker.answer(asker.refusal(Err.REQUEST_TIMED_OUT))


class ShardHost(Generic[S]):
    """One partition of a coordinator's topic that this broker leads."""

    def __init__(self, coordinator: "Coordinator[S, Any]", partition: Partition) -> None:
        self.coordinator = coordinator
        self.partition = partition
        self._wall_ms = coordinator.wall_ms
        self.state = State.LOADING
        self.reload_ms = 0
        """How long the last load that failed was waited for."""
        self.shard: S
        self.timers = TimerSet(coordinator.timers, self._timer_due)
        self._written_end = 0
        self._pending: Batch | None = None
        self._hurries_later = False
        self._in_flight: deque[Batch] = deque()

    # ---- life

    def activate(self, shard: S) -> None:
        """The shard has seen the whole log: serve. Raises what the shard raises; the host is to be closed then."""
        self.shard = shard
        self._written_end = self.partition.log.end_offset
        self.state = State.ACTIVE
        shard.advance(self.partition.high_watermark)
        self._settle(self.coordinator.catch_up(shard, self.partition), None)
        self._settle(shard.loaded(self.coordinator.wall_ms()), None)
        self.coordinator.advanced(self)

    def close(self, error: Err, state: State = State.CLOSED) -> None:
        """Stop serving; whoever waits is told why. Safe to call twice."""
        was_active, self.state = self.state is State.ACTIVE, state
        self.timers.clear()
        batches = list(self._in_flight)
        self._in_flight.clear()
        if self._pending is not None:
            batches.append(self._pending)
            self._pending = None
        for batch in batches:
            self.coordinator.wheel.remove(batch)
            self.coordinator.deliver([(asker, asker.refusal(error)) for asker, _ in batch.answers])
        if was_active:
            self._refuse_promises(self.shard.unload(), error)

    def drain(self, error: Err) -> None:
        """The broker stops: nothing new is decided, what was written is still answered."""
        self.timers.clear()
        self._flush()
        if self.state is State.ACTIVE:
            self._refuse_promises(self.shard.unload(), error)

    def _refuse_promises(self, promises: list[Promise], error: Err) -> None:
        for promise in promises:
            if promise.waiter is not None:
                asker: Asker = promise.waiter
                promise.waiter = None
                self.coordinator.deliver([(asker, asker.refusal(error))])

    def available(self) -> S:
        """The shard, or the reason why it cannot be asked now."""
        if self.state is State.ACTIVE:
            return self.shard
        raise KafkaError(Err.COORDINATOR_LOAD_IN_PROGRESS if self.state is State.LOADING else Err.NOT_COORDINATOR)

    # ---- deciding

    def ask(self, decision: Callable[[int], Outcome], asker: Asker) -> Any:
        """Decide on what somebody asked: the response, or None, and the asker is answered later."""
        try:
            outcome = decision(self._wall_ms())
        except Exception:
            self._broken(getattr(decision, "__name__", "a request"))
            return asker.refusal(Err.UNKNOWN_SERVER_ERROR)
        return self._settle(outcome, asker)

    def decide(self, decision: Callable[[int], Outcome]) -> Any:
        """A decision of the coordinator's own: a timer, an expiry, a change of the cluster. Returns its response."""
        if self.state is not State.ACTIVE:
            return None
        try:
            outcome = decision(self._wall_ms())
        except Exception:
            self._broken(getattr(decision, "__name__", "a decision"))
            return None
        self._settle(outcome, None)
        return outcome.response

    def when_committed(self, response: Any, asker: Asker) -> Any:
        """`response` now if all that was written is committed, else None, and the asker is answered then."""
        batch = self._last_batch()
        if batch is None:
            return response
        self._park(batch, asker, response)
        return None

    def _timer_due(self, key: Hashable) -> None:
        self.decide(partial(self.shard.timeout, key))

    def _settle(self, outcome: Outcome, asker: Asker | None) -> Any:
        """Do what was decided. The response, or None: the asker, if anybody asked, is answered once it is committed."""
        response = outcome.response
        records = outcome.records
        if records:
            size_bytes = batch_bytes(records)
            limit_bytes = self.partition.log.config.max_message_bytes
            if size_bytes > limit_bytes and outcome.revocable and outcome.atomic:
                return None if asker is None else asker.refusal(Err.MESSAGE_TOO_LARGE)
            self._write(records, size_bytes, limit_bytes, outcome.urgent)
            if self.state is not State.ACTIVE:
                self._refuse_promises(outcome.completed, Err.COORDINATOR_NOT_AVAILABLE)
                return None if asker is None else asker.refusal(Err.COORDINATOR_NOT_AVAILABLE)
        for timer in outcome.timers:
            if isinstance(timer, Cancel):
                self.timers.cancel(timer.key)
            else:
                self.timers.arm(timer.key, timer.delay_ms)
        if isinstance(response, Promise):
            response.waiter = asker
            response = None
        batch = self._last_batch()
        for promise in outcome.completed:
            if promise.waiter is None:
                continue
            waiting: Asker = promise.waiter
            promise.waiter = None
            if batch is None:
                # Not from within a decision: an answer lets its connection go on to the next one.
                self.coordinator.deliver([(waiting, promise.response)])
            else:
                self._park(batch, waiting, promise.response)
        if response is None or batch is None:
            return response
        if asker is not None:
            self._park(batch, asker, response)
        return None

    def _park(self, batch: Batch, asker: Asker, response: Any) -> None:
        """Answer once `batch` is committed. One whose time was up before has its clock started again for those to
        come."""
        batch.answers.append((asker, response))
        if batch is self._pending:
            self._hurry()
        elif batch.bucket is None:
            self.coordinator.wheel.add(batch, self.coordinator.commit_timeout_ms)

    def _last_batch(self) -> Batch | None:
        """What the latest decision waits for; None when all that was written is committed."""
        if self._pending is not None:
            return self._pending
        return self._in_flight[-1] if self._in_flight else None

    def _broken(self, what: str) -> None:
        """A mistake of ours in the middle of a decision: what the shard holds in memory cannot be trusted any more."""
        logger.exception("%s: %s failed; loading the shard again", self.partition, what)
        self._reload(Err.COORDINATOR_NOT_AVAILABLE)

    # ---- writing

    def _write(self, records: list[Record], size_bytes: int, limit_bytes: int, urgent: bool) -> None:
        """Apply records and put them in the batch of this turn, all of them in one if they fit.

        An append that is needed to make room may fail: the host is closed then.
        """
        batch = self._pending
        if batch is None or batch.builder.size_bytes + size_bytes > limit_bytes:
            batch = self._new_batch()
        apply = self.shard.apply
        for record in records:
            if (
                size_bytes > limit_bytes
                and batch.builder.count
                and batch.builder.size_bytes + batch_bytes((record,)) > limit_bytes
            ):
                batch = self._new_batch()
            if self.state is not State.ACTIVE:
                return
            apply(self._written_end, -1, -1, record)
            batch.builder.append(batch.timestamp_ms, record.key, record.value)
            self._written_end += 1
        if urgent:
            self._hurry()
        elif not batch.is_due and not self._hurries_later:
            self._hurries_later = True
            self.coordinator.loop.call_later(UNHURRIED_S, self._hurry_now)

    def _hurry(self) -> None:
        """What is pending is written when this turn of the loop is over."""
        batch = self._pending
        if batch is not None and not batch.is_due:
            batch.is_due = True
            self.partition.environment.syncer.dirty_soon(self.partition, self._flush)

    def _hurry_now(self) -> None:
        self._hurries_later = False
        self._hurry()

    def _new_batch(self) -> Batch:
        is_due = False
        if self._pending is not None:
            is_due = self._pending.is_due
            self._flush()
        builder = BatchBuilder(compression=self.coordinator.compression)
        self._pending = batch = Batch(self, builder, self._wall_ms())
        batch.is_due = is_due
        return batch

    def _flush(self) -> None:
        """Append what this turn of the loop has decided."""
        batch, self._pending = self._pending, None
        if batch is None or self.state is not State.ACTIVE:
            return
        count = batch.builder.count
        try:
            if self.partition.log.end_offset + count != self._written_end:
                raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER, "something else was written to the partition")
            data = bytearray(batch.builder.build())
            end_offset = self.partition.append_own(data, count, batch.timestamp_ms)
        except Exception as error:
            # To be told with all others. Not as the pending one: while a disk fails, others are answered and ask again.
            self._in_flight.append(batch)
            if isinstance(error, KafkaError):
                logger.error("%s: cannot write %d records: %s; loading the shard again", self.partition, count, error)
                self._reload(error.error)
            else:
                self._broken("to write")
            return
        self._in_flight_until(batch, end_offset)

    def _in_flight_until(self, batch: Batch, end_offset: int) -> None:
        """What was appended is on its way to be committed."""
        batch.end_offset = end_offset
        self._in_flight.append(batch)
        self.partition.ack_waiters.append((end_offset, batch))
        self.coordinator.wheel.add(batch, self.coordinator.commit_timeout_ms)

    def _reload(self, error: Err) -> None:
        self.close(error)
        self.coordinator.reload(self)

    # ---- committing

    def batch_committed(self, batch: Batch) -> None:
        """The high watermark has passed `batch`, or the partition is led here no more."""
        if self.state is not State.ACTIVE:
            return
        partition = self.partition
        if partition.leader is None or partition.leader.high_watermark < batch.end_offset:
            self.close(Err.NOT_COORDINATOR)
            self.coordinator.refresh_soon()
            return
        try:
            self.shard.advance(partition.leader.high_watermark)
            self.coordinator.advanced(self)
        except Exception:
            self._broken("to see what is committed")
            return
        # Batches before it as well, which may be told later: an answer lets others decide, and that may close this
        # host.
        in_flight, answers = self._in_flight, []
        while in_flight and in_flight[0].end_offset <= batch.end_offset:
            passed = in_flight.popleft()
            self.coordinator.wheel.remove(passed)
            answers += passed.answers
            passed.answers = []
        if len(answers) > ANSWERS_AT_ONCE:
            self.coordinator.deliver(answers)
            return
        for asker, response in answers:
            asker.answer(response)
