"""Records on their way: a batch that still takes records, and what became of each of them.

Pure but for the futures of those who wait. A record costs no future of its own: its `Delivery` knows the batch and its
place in it, and a future is made only for one who awaits before the batch is written.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import msgspec

from headrace.client.errors import ClientError
from headrace.records.builder import encode_record
from headrace.records.compression import compress
from headrace.records.layout import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
)
from headrace.records.reader import Headers

RECORD_OVERHEAD_MAX = 36
"""Bytes that a record without headers needs beyond its key and value, at most: lengths, deltas, attributes."""


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where a record was written. `offset` is -1 after acks=0, which has no answer."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970: the record's own, or the broker's on a topic with LogAppendTime."""


class WrittenBatch(msgspec.Struct, frozen=True, gc=False):
    """Where consecutive rows of a table were written."""

    partition: int
    offset: int
    """Of the first; the others follow."""
    count: int


class _Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of a run of a batch's records, from one on."""

    first: int
    count: int
    base_offset: int
    log_append_time_ms: int
    error: ClientError | None


class OpenBatch:
    """One partition's next batch: it takes records until it is closed, and knows afterwards what became of them."""

    __slots__ = (
        "_base_timestamp",
        "_callbacks",
        "_left",
        "_max_timestamp",
        "_outcomes",
        "_parts",
        "_waiters",
        "_watched",
        "count",
        "deadline",
        "partition",
        "size_bytes",
        "topic",
    )

    def __init__(self, topic: str, partition: int, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.deadline = deadline
        """When delivery is given up, on the clock of the event loop: counted from the first record."""
        self.count = 0
        self.size_bytes = HEADER_BYTES
        self._parts: list[bytes] = []
        self._base_timestamp = 0
        self._max_timestamp = 0
        self._left = 0
        """Records whose outcome is open, once the batch is closed."""
        self._outcomes: list[_Outcome] = []
        """By their first record. One, unless the broker found the batch too large and it was split."""
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[tuple[Callable[[Delivery], Any], Delivery]] = []
        self._watched: set[int] | None = None

    @classmethod
    def whole(cls, topic: str, partition: int, count: int, deadline: float) -> "OpenBatch":
        """One that was built elsewhere, closed already."""
        batch = cls(topic, partition, deadline)
        batch.count = batch._left = count
        return batch

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Add a record and return how many bytes the batch has grown by."""
        count = self.count
        if count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        record = encode_record(count, timestamp - self._base_timestamp, key, value, headers)
        self._parts.append(record)
        self.count = count + 1
        size = len(record)
        self.size_bytes += size
        return size

    def close(self, codec: int, level: int | None, transactional: bool) -> memoryview:
        """The whole batch but for its producer, sequence and CRC. Nothing is appended from here on."""
        body: bytes = b"".join(self._parts)
        self._parts.clear()
        if codec:
            body = compress(codec, body, level)
        view = memoryview(bytearray(HEADER_BYTES + len(body)))
        view[HEADER_BYTES:] = body
        HEADER.pack_into(
            view,
            0,
            0,
            len(view) - LOG_OVERHEAD,
            NO_LEADER_EPOCH,
            2,
            0,
            codec | (TRANSACTIONAL if transactional else 0),
            self.count - 1,
            self._base_timestamp,
            self._max_timestamp,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            self.count,
        )
        self._left = self.count
        return view

    # -- outcomes

    @property
    def is_done(self) -> bool:
        return self._left == 0 and bool(self._outcomes)

    @property
    def unseen_failure(self) -> ClientError | None:
        """An error of a record whose delivery nobody has looked at."""
        if self._watched is not None and len(self._watched) >= self.count:
            return None
        return next((one.error for one in self._outcomes if one.error is not None), None)

    def resolve(
        self, first: int, count: int, base_offset: int, log_append_time_ms: int, error: ClientError | None
    ) -> None:
        """Tell what became of `count` records from `first` on; who waits is told when all of the batch is known."""
        if self.is_done:
            return  # it was given up before: what was told then stands
        self._outcomes.append(_Outcome(first, count, base_offset, log_append_time_ms, error))
        self._left -= count
        if self._left > 0:
            return
        self._outcomes.sort(key=lambda one: one.first)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        callbacks, self._callbacks = self._callbacks, []
        for callback, delivery in callbacks:
            _call(callback, delivery)

    def abandon(self, error: ClientError) -> None:
        """Nothing more will be heard of records whose outcome is open."""
        if self.is_done:
            return
        if not self._outcomes:
            self._left = self.count
        # Of a batch that was split, some parts may be known: what lies between them is not.
        known = sorted(self._outcomes, key=lambda one: one.first)
        start = 0
        for first, count in [*((one.first, one.count) for one in known), (self.count, 0)]:
            if first > start:
                self.resolve(start, first - start, -1, -1, error)
            start = first + count

    def outcome_of(self, index: int) -> tuple[int, int, ClientError | None]:
        """(offset, the broker's timestamp or -1, error) of a record of a batch that is done."""
        outcomes = self._outcomes
        found = outcomes[0]
        if len(outcomes) > 1:
            found = outcomes[bisect_right(outcomes, index, key=lambda one: one.first) - 1]
        offset = found.base_offset + index - found.first if found.base_offset >= 0 else -1
        return offset, found.log_append_time_ms, found.error

    async def written(self) -> AsyncIterator[WrittenBatch]:
        """Where its records are, a run for each part that it was split into; raises why some are nowhere."""
        if not self.is_done:
            await self.waiter()
        for one in self._outcomes:
            if one.error is not None:
                self._watched = set(range(self.count))
                raise one.error
            yield WrittenBatch(self.partition, one.base_offset, one.count)

    def watch(self, index: int) -> None:
        """Somebody looks at this record's outcome: a failure need not be told by `flush` as well."""
        if self._watched is None:
            self._watched = set()
        self._watched.add(index)

    def unwatch(self, index: int) -> None:
        if self._watched is not None:
            self._watched.discard(index)

    def waiter(self) -> "asyncio.Future[None]":
        """Done with the batch. One for each who waits: one of them that is cancelled must not take the others along."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def call_when_done(self, callback: "Callable[[Delivery], Any]", delivery: "Delivery") -> None:
        if self.is_done:
            _call(callback, delivery)
        else:
            self._callbacks.append((callback, delivery))


class Delivery:
    """What comes of one record. `await` it for its `RecordMetadata`, or look at it later.

    One that nobody has looked at is not lost from sight: `Producer.flush` and `close` raise its error.
    """

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: OpenBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        batch.watch(self._index)
        if not batch.is_done:
            try:
                yield from batch.waiter()
            except BaseException:
                batch.unwatch(self._index)  # cancelled: a failure to come is not seen here
                raise
        return self._metadata()

    @property
    def topic(self) -> str:
        """Where the record goes."""
        return self._batch.topic

    @property
    def partition(self) -> int:
        """Which partition was chosen for it."""
        return self._batch.partition

    def done(self) -> bool:
        """Whether the record is written, or failed for good."""
        return self._batch.is_done

    def exception(self) -> ClientError | None:
        """Why the record failed, None if it is written. Raises ClientError while that is open."""
        self._check_done()
        self._batch.watch(self._index)
        return self._batch.outcome_of(self._index)[2]

    def result(self) -> RecordMetadata:
        """Where the record was written; raises why it was not. Raises ClientError while that is open."""
        self._check_done()
        self._batch.watch(self._index)
        return self._metadata()

    def add_done_callback(self, callback: "Callable[[Delivery], Any]") -> None:
        """Call back on the event loop when done, at once if it is. Records of a partition come in their order."""
        self._batch.watch(self._index)
        self._batch.call_when_done(callback, self)

    def notify(self, callback: "Callable[[Delivery], Any]") -> None:
        """As `add_done_callback`, but it does not count as a look at the outcome: a failure is still raised by
        `flush`."""
        self._batch.call_when_done(callback, self)

    @property
    def outcome(self) -> tuple[int, ClientError | None]:
        """(offset, error) of a record that is done, which does not count as a look either."""
        offset, _, error = self._batch.outcome_of(self._index)
        return offset, error

    def _check_done(self) -> None:
        if not self._batch.is_done:
            raise ClientError("the delivery is still open: await it, or ask done() first")

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        offset, log_append_time_ms, error = batch.outcome_of(self._index)
        if error is not None:
            raise error
        timestamp = self._timestamp if log_append_time_ms < 0 else log_append_time_ms
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp)


def _call(callback: Callable[[Delivery], Any], delivery: Delivery) -> None:
    """A callback that fails must not stop those of other records, nor the producer."""
    try:
        callback(delivery)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"callback for a record of {delivery.topic}-{delivery.partition} failed", "exception": error}
        )
