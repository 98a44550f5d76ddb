"""One partition's batches on their way to its leader: their order, their sequences, and what is sent again.

Pure: `producer` sends and asks; here is what a failure, a batch that is too large or a lost producer id does to the
queue.
"""

from collections import deque

import msgspec

from headrace.client.errors import ClientError, RequestFailed
from headrace.errors import Err
from headrace.records.batch import build_batch, next_sequence, read_header, read_records
from headrace.records.builder import set_producer


class ProducerId(msgspec.Struct, frozen=True, gc=False):
    """What a broker knows a producer by."""

    id: int
    epoch: int


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

    __slots__ = ("count", "deadline", "is_retry", "order", "sequence", "view")

    def __init__(self, view: memoryview, count: int, sequence: int, order: int, deadline: float) -> None:
        self.view = view
        self.count = count
        self.sequence = sequence
        self.order = order
        self.deadline = deadline
        self.is_retry = False


class PartitionQueue:
    """One partition's queue. While `recovering` nothing of it is sent."""

    __slots__ = (
        "error",
        "failed",
        "fresh_starts",
        "in_flight",
        "is_known",
        "next_sequence",
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
        self.order = 0
        self.pending: deque[QueuedBatch] = deque()
        self.failed: list[QueuedBatch] = []
        self.in_flight = 0
        self.is_known = False
        """Whether the leader has taken a batch of this producer: of one unknown to it, it takes any sequence first."""
        self.error: ClientError | None = None
        """The first failure since the queue was last healthy: those behind it follow from the gap it left."""
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

    def append(self, view: memoryview, count: int, deadline: float) -> None:
        """Number a batch and queue it."""
        set_producer(view, self.producer.id, self.producer.epoch, self.next_sequence)
        self.pending.append(QueuedBatch(view, count, self.next_sequence, self.order, deadline))
        self.next_sequence = next_sequence(self.next_sequence, count)
        self.order += 1

    def acknowledge(self, batch: QueuedBatch, base_offset: int) -> None:
        """A batch in flight was written; `base_offset` is -1 where the broker did not tell it."""
        self.written.add(batch.count, len(batch.view), base_offset)
        self.in_flight -= 1
        self.fresh_starts = 0
        self.is_known = True
        if batch.is_retry:
            self.retries -= 1

    def put_back_failed(self) -> None:
        """All answers are in: what failed goes first again, in its old order and under its old sequences."""
        for batch in sorted(self.failed, key=lambda batch: batch.order, reverse=True):
            self.pending.appendleft(batch)
            self.retries += not batch.is_retry
            batch.is_retry = True
        self.failed.clear()

    def split_first(self, error: ClientError) -> int:
        """Halve the batch that the broker finds too large, and return how many bytes more the queue holds for it.

        Sequences count records, so the batches behind it keep theirs.
        """
        batch = self.pending.popleft()
        if batch.count == 1:
            raise RequestFailed(
                f"produce to {self.name}",
                Err.MESSAGE_TOO_LARGE,
                f"a record of {len(batch.view)} bytes is larger than the topic takes: raise its max.message.bytes",
            ) from error
        header = read_header(batch.view)
        records = read_records(batch.view, 0, header)
        sequence, middle = batch.sequence, batch.count // 2
        halves = []
        for part in (records[:middle], records[middle:]):
            whole = build_batch(part, compression=header.codec, transactional=header.is_transactional)
            view = memoryview(bytearray(whole))
            set_producer(view, self.producer.id, self.producer.epoch, sequence)
            halves.append(QueuedBatch(view, len(part), sequence, batch.order, batch.deadline))
            halves[-1].is_retry = True
            sequence = next_sequence(sequence, len(part))
        self.retries += 1
        self.pending.extendleft(reversed(halves))
        for order, queued in enumerate(self.pending, start=batch.order):
            queued.order = order
        self.order = batch.order + len(self.pending)
        return sum(len(half.view) for half in halves) - len(batch.view)

    def start_afresh(self, producer: ProducerId) -> None:
        """Number what is left from 0 under a new producer id: the broker has lost records of the old one.

        It refused the head of the queue, so none of it is written and nothing can double.
        """
        self.producer = producer
        self.is_known = False
        sequence = 0
        for batch in self.pending:
            batch.sequence = sequence
            set_producer(batch.view, producer.id, producer.epoch, sequence)
            sequence = next_sequence(sequence, batch.count)
        self.next_sequence = sequence
