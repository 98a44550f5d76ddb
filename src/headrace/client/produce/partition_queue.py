"""One partition's batches on their way to its leader: their order, their sequences, and what is sent again.

Pure: `producer` sends and asks; here is what a failure, a batch that is too large or a lost producer id does to the
queue.
"""

from collections import deque
from math import inf

import msgspec

from headrace.client.errors import ClientError
from headrace.client.produce.deliveries import OpenBatch
from headrace.records.batch import build_batch, next_sequence, read_header, read_records
from headrace.records.builder import set_producer
from headrace.records.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

EPOCH_MAX = 0x7FFE
"""Kafka keeps the last epoch for itself: it fences a producer with it."""


class ProducerId(msgspec.Struct, frozen=True, gc=False):
    """What a broker knows a producer by."""

    id: int
    epoch: int

    @property
    def next_epoch(self) -> "ProducerId | None":
        """The same producer with its epoch one higher (KIP-360), which fences what is still under way in this one.

        None when epochs are used up.
        """
        return ProducerId(self.id, self.epoch + 1) if self.epoch < EPOCH_MAX else None


NO_PRODUCER = ProducerId(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
"""Without idempotence: nothing is numbered, and a broker takes whatever comes twice."""


class Written(msgspec.Struct):
    """What one partition has taken so far. Offsets are -1 while unknown; other writers' records may lie between."""

    records: int = 0
    size_bytes: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def add(self, records: int, size_bytes: int, base_offset: int) -> None:
        """Count one acknowledged batch; `base_offset` is -1 where the broker did not tell it."""
        self.records += records
        self.size_bytes += size_bytes
        if base_offset >= 0:
            self.first_offset = base_offset if self.first_offset < 0 else self.first_offset
            self.last_offset = max(self.last_offset, base_offset + records - 1)


class QueuedBatch:
    """A batch under way. `order` counts up within its partition; sequences start again at 0 now and then."""

    __slots__ = (
        "attempts",
        "count",
        "deadline",
        "error",
        "first",
        "is_retry",
        "order",
        "refusal",
        "sequence",
        "source",
        "view",
    )

    def __init__(
        self,
        view: memoryview,
        count: int,
        sequence: int,
        order: int,
        deadline: float,
        source: OpenBatch | None = None,
        first: int = 0,
    ) -> None:
        self.view = view
        self.count = count
        self.sequence = sequence
        self.order = order
        self.deadline = deadline
        self.source = source
        """Who is told what became of the records; `first` of them is the first in here."""
        self.first = first
        self.attempts = 0
        self.error: ClientError | None = None
        """Why it was not acknowledged when it was last sent."""
        self.refusal: ClientError | None = None
        """Why sending it again would not help."""
        self.is_retry = False

    def resolve(self, base_offset: int, log_append_time_ms: int, error: ClientError | None = None) -> None:
        if self.source is not None:
            self.source.resolve(self.first, self.count, base_offset, log_append_time_ms, error)


class PartitionQueue:
    """One partition's queue. While `recovering` nothing of it is sent."""

    __slots__ = (
        "error",
        "failed",
        "first_sequence",
        "fresh_starts",
        "in_flight",
        "is_due",
        "is_known",
        "last_count",
        "leader",
        "next_sequence",
        "open",
        "order",
        "partition",
        "pause_s",
        "pending",
        "producer",
        "recovering",
        "retries",
        "topic",
        "waiting",
        "written",
    )

    def __init__(self, topic: str, partition: int, producer: ProducerId, pause_s: float) -> None:
        self.topic = topic
        self.partition = partition
        self.producer = producer
        self.next_sequence = 0
        self.first_sequence = 0
        """Where the open transaction began."""
        self.order = 0
        self.open: OpenBatch | None = None
        """The batch that takes records now, behind all that is pending."""
        self.is_due = False
        """Whether the open batch may be closed as soon as there is a request to put it into."""
        self.pending: deque[QueuedBatch] = deque()
        self.failed: list[QueuedBatch] = []
        self.in_flight = 0
        self.leader = -1
        """The broker that all in flight went to. No other gets anything before that is answered: one that has not
        taken the earlier batches refuses the later ones, and its refusal says nothing about the earlier ones."""
        self.is_known = False
        """Whether the leader has taken a batch of this producer: of one unknown to it, it takes any sequence first."""
        self.last_count = 0
        """Records of the batch that was queued last: more than one say that many are sent at once."""
        self.error: ClientError | None = None
        """Why it recovers. Once all is answered, what the head failed of, whichever failure came first: those behind it
        follow from the gap it left."""
        self.recovering = False
        self.retries = 0
        """Batches that failed before and are not acknowledged yet.

        While there are any, one goes at a time: it may have been written at first, and a broker that has seen five
        later ones would no longer know it again.
        """
        self.waiting = False
        """Whether the queue stands in its broker's list of queues with something to send."""
        self.pause_s = pause_s
        self.fresh_starts = 0
        self.written = Written()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def has_something(self) -> bool:
        """Whether there is a batch to send."""
        return bool(self.pending) or (self.open is not None and self.is_due)

    @property
    def deadline(self) -> float:
        """When the first of what is queued is given up; never, if nothing is."""
        if self.pending:
            return self.pending[0].deadline
        return self.open.deadline if self.open is not None else inf

    @property
    def is_numbered(self) -> bool:
        return self.producer is not NO_PRODUCER

    def append(self, view: memoryview, count: int, deadline: float, source: OpenBatch | None = None) -> None:
        """Number a batch and queue it."""
        sequence = self.next_sequence if self.is_numbered else NO_SEQUENCE
        set_producer(view, self.producer.id, self.producer.epoch, sequence)
        self.pending.append(QueuedBatch(view, count, sequence, self.order, deadline, source))
        self.next_sequence = next_sequence(self.next_sequence, count)
        self.order += 1
        self.last_count = count

    def acknowledge(self, batch: QueuedBatch, base_offset: int) -> None:
        """A batch in flight was written; `base_offset` is -1 where the broker did not tell it."""
        assert self.in_flight > 0
        self.written.add(batch.count, len(batch.view), base_offset)
        self.in_flight -= 1
        self.fresh_starts = 0
        self.is_known = True
        if batch.is_retry:
            self.retries -= 1

    def fail(self, batch: QueuedBatch, error: ClientError) -> None:
        """A batch in flight was not acknowledged."""
        assert self.in_flight > 0
        self.in_flight -= 1
        batch.error = error
        self.failed.append(batch)

    def put_back_failed(self) -> None:
        """All answers are in: what failed goes first again, in its old order and under its old sequences."""
        assert not self.in_flight
        for batch in sorted(self.failed, key=lambda batch: batch.order, reverse=True):
            self.error = batch.error
            self.pending.appendleft(batch)
            self.retries += not batch.is_retry
            batch.is_retry = True
        self.failed.clear()

    def drop(self, batch: QueuedBatch) -> None:
        """Give a pending batch up. If it is not written, the gap in sequences shows when the next one is refused."""
        self.pending.remove(batch)
        if batch.is_retry:
            self.retries -= 1

    def drop_pending(self) -> list[QueuedBatch]:
        """Give up all that is pending; sequences that were never sent are used again."""
        dropped, self.pending = [*self.pending], deque()
        if dropped and not any(batch.attempts for batch in dropped):
            self.next_sequence = dropped[0].sequence
        self.retries -= sum(batch.is_retry for batch in dropped)
        return dropped

    def clear(self) -> None:
        """The producer has ended: nothing of this is sent any more."""
        self.open = None
        self.pending.clear()
        self.failed.clear()

    def rewind(self) -> None:
        """Nothing of the open transaction was sent: use its sequences again, or the broker would find a gap."""
        if not (self.in_flight or self.pending or self.failed):
            self.next_sequence = self.first_sequence

    def split_first(self) -> int:
        """Halve the batch that the broker finds too large, and return how many bytes more the queue holds for it.

        Sequences count records, so the batches behind it keep theirs.
        """
        batch = self.pending.popleft()
        assert batch.count > 1, "one record cannot be split"
        header = read_header(batch.view)
        records = read_records(batch.view, 0, header)
        sequence, middle = batch.sequence, batch.count // 2
        halves: list[QueuedBatch] = []
        for part in (records[:middle], records[middle:]):
            whole = build_batch(part, compression=header.codec, transactional=header.is_transactional)
            view = memoryview(bytearray(whole))
            set_producer(view, self.producer.id, self.producer.epoch, sequence)
            first = batch.first + (middle if halves else 0)
            halves.append(QueuedBatch(view, len(part), sequence, batch.order, batch.deadline, batch.source, first))
            halves[-1].is_retry = True
            if self.is_numbered:
                sequence = next_sequence(sequence, len(part))
        self.retries += 1
        self.pending.extendleft(reversed(halves))
        for order, queued in enumerate(self.pending, start=batch.order):
            queued.order = order
        self.order = batch.order + len(self.pending)
        return sum(len(half.view) for half in halves) - len(batch.view)

    def start_afresh(self, producer: ProducerId) -> None:
        """Number what is left from 0 under another producer id or epoch.

        The broker has lost records of the old one, or one was given up. It refused the head of the queue, so none of it
        is written and nothing can double.
        """
        self.producer = producer
        self.is_known = False
        sequence = 0
        for batch in self.pending:
            batch.sequence = sequence
            set_producer(batch.view, producer.id, producer.epoch, sequence)
            sequence = next_sequence(sequence, batch.count)
        self.next_sequence = sequence
