"""How far a consumer has come in each of its partitions: fetched, handed out, passed, committed. Pure."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from headrace.client.consume.epochs import UNKNOWN, FetchedEpochs
from headrace.client.consume.records import Record
from headrace.client.errors import ClientError
from headrace.errors import KafkaError

CHUNKS_MAX = 2
"""Answers that wait for each partition: the next is fetched while one is worked on."""


class Start(NamedTuple):
    """Where a partition is read from, and the leader epoch of the record before, where that is known."""

    offset: int
    leader_epoch: int = UNKNOWN


class Chunk:
    """What one fetch brought of one partition, taken apart batch by batch as it is wanted."""

    __slots__ = ("batches", "end_offset", "raw", "size_bytes", "start_offset")

    def __init__(
        self, batches: Iterator[tuple[int, list[Record]]], start_offset: int, end_offset: int, size_bytes: int
    ) -> None:
        self.batches = batches
        self.start_offset = start_offset
        self.end_offset = end_offset
        """Behind the last whole batch: control batches and what compaction has removed end a fetch without a record."""
        self.size_bytes = size_bytes
        self.raw: tuple[object, tuple[tuple[int, int], ...]] | None = None
        """The bytes and the aborted transactions in them, for whoever takes them apart in columns."""


class Place:
    """One partition: `position` is the offset of the next record to be handed out."""

    __slots__ = (
        "_ready",
        "_ready_at",
        "checked_epoch",
        "chunks",
        "committed",
        "end_offset",
        "epochs",
        "failure",
        "fetch_offset",
        "in_queue",
        "is_paused",
        "log_start",
        "partition",
        "passed",
        "position",
        "replica",
        "replica_until_s",
        "seeks",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, partition: int, position: int, topic_id: bytes, leader_epoch: int = UNKNOWN) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        """A position means nothing in another topic that has taken the name."""
        self.position = position
        self.passed = position
        """All records before it were handed out, and the next one asked for: what may be committed by itself."""
        self.committed: int | None = None
        """None: not known, or the position was moved since, so that a commit may go back."""
        self.seeks = 0
        """How often the position was moved: a commit that was under way then says nothing of where it is now."""
        self.epochs = FetchedEpochs(position, leader_epoch)
        self.checked_epoch = -1
        """The epoch of the last leader that has all that was fetched: in a later one's log it may be cut."""
        self.failure: ClientError | None = None
        """Why it cannot be read on, until somebody seeks."""
        self.fetch_offset = position
        self.end_offset = -1
        """Where the partition ended at the last fetch: the high watermark, or the last stable offset."""
        self.log_start = -1
        self.is_paused = False
        self.in_queue = False
        """Whether it stands in the queue of places that have records."""
        self.replica = -1
        """The replica to read from instead of the leader, until then."""
        self.replica_until_s = 0.0
        self.chunks: deque[Chunk] = deque()
        self._ready: list[Record] = []
        self._ready_at = 0

    @property
    def wants_more(self) -> bool:
        return len(self.chunks) < CHUNKS_MAX and not self.is_paused and self.failure is None

    @property
    def has_records(self) -> bool:
        """Whether something waits to be handed out; it may turn out to be control batches alone."""
        return self._ready_at < len(self._ready) or bool(self.chunks)

    @property
    def is_begun(self) -> bool:
        """Whether records of the first chunk were handed out, and others not yet."""
        return bool(self._ready) and bool(self.chunks)

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.position)

    @property
    def is_settled(self) -> bool:
        """Whether a commit would say nothing new, and will not before something is handed out or moved."""
        return self.committed == self.position == self.passed

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before an offset that was fetched; -1 where it is not known."""
        return self.epochs.before(offset) if offset <= self.fetch_offset else UNKNOWN

    def must_be_checked(self, leader_epoch: int) -> bool:
        """Whether this leader may not have what was fetched from another, and can tell."""
        return leader_epoch > self.checked_epoch and self.epochs.last >= 0

    def seek(self, offset: int, leader_epoch: int = UNKNOWN) -> int:
        """Go on from any offset, as the caller wishes, and return how many bytes were let go of. What is under way
        comes too late."""
        self.passed, self.committed, self.failure = offset, None, None
        self.epochs, self.checked_epoch = FetchedEpochs(offset, leader_epoch), -1
        return self._move(offset)

    def reset(self, offset: int) -> int:
        """As `seek`, where the log or a fetch demands it: what is being worked on does not count as passed by that."""
        self.passed = offset if self.passed == self.position else min(self.passed, offset)
        if offset < self.position:
            self.committed = None
        if offset <= self.fetch_offset:
            self.epochs.cut(offset)
        else:
            self.epochs = FetchedEpochs(offset)
        return self._move(offset)

    def _move(self, offset: int) -> int:
        freed = sum(chunk.size_bytes for chunk in self.chunks)
        self.position = self.fetch_offset = offset
        self.seeks += 1
        self.chunks.clear()
        self._ready, self._ready_at = [], 0
        return freed

    def keep(self, chunk: Chunk) -> None:
        """Add what a fetch from `fetch_offset` brought."""
        assert chunk.start_offset == self.fetch_offset
        self.chunks.append(chunk)
        self.fetch_offset = chunk.end_offset

    def take(self, limit: int) -> tuple[list[Record], int]:
        """Up to `limit` records of one batch, and how many bytes are no longer held; the position is behind them then.

        KafkaError where a damaged batch comes next. The position stays before it, so it is fetched, and told, again.
        """
        freed = 0
        while True:
            at, ready = self._ready_at, self._ready
            if at < len(ready):
                whole = at == 0 and len(ready) <= limit
                taken = ready if whole else ready[at : at + limit]
                self._ready_at = at + len(taken)
                self.position = taken[-1].offset + 1
                return taken, freed
            if not self.chunks:
                return [], freed
            chunk = self.chunks[0]
            try:
                step = next(chunk.batches, None)
            except KafkaError:
                self.reset(self.position)
                raise
            if step is None:
                self.position = max(self.position, chunk.end_offset)
                freed += chunk.size_bytes
                self.chunks.popleft()
                self._ready, self._ready_at = [], 0
            else:
                _, self._ready = step
                self._ready_at = 0

    def give_back(self, records: list[Record]) -> None:
        """Put the last of what was taken back: it is handed out again, first."""
        if records:
            self._ready = records + self._ready[self._ready_at :]
            self._ready_at = 0
            self.position = records[0].offset


class Handed:
    """What was handed out last and is not known to be passed: records of one partition, up to the current one."""

    __slots__ = ("current", "place", "raw", "records", "seeks")

    def __init__(self, place: Place, records: list[Record]) -> None:
        self.place = place
        self.records = records
        self.raw = records
        """As they were read, where `records` are what deserializers have made of them: what is given back is of these,
        since it will be deserialized again."""
        self.seeks = place.seeks
        self.current: Record | None = None
        """The one that is being worked on, for whoever takes them one by one; None: all of them are."""

    @property
    def position(self) -> int:
        """Behind what was handed out, and never behind where the log was cut meanwhile."""
        if self.current is None:
            return self.place.position
        behind = self.current.offset + 1
        return behind if self.place.seeks == self.seeks else min(behind, self.place.position)
