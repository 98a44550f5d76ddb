"""A range of one partition's offsets, answer after answer: the next is under way while the last is being worked on.

Follows the leader through moves and restarts for as long as the cluster's `retry_timeout_s`. Works against Apache Kafka
as well. Records come as the broker sent them; `columnar` takes them apart.
"""

import asyncio
from collections.abc import Iterator
from struct import Struct
from typing import Any

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.consume.buffer_pool import BufferPool
from headrace.client.errors import BrokerUnreachable, ClientError, RequestFailed, RequestTimedOut
from headrace.client.net.background import LoopThread
from headrace.client.net.cluster import Cluster, is_retriable
from headrace.client.raw import Fetched, fetch
from headrace.errors import Err
from headrace.records.layout import HEADER_BYTES, LENGTH_MIN, LOG_OVERHEAD, read_header

FETCH_BYTES = 8 << 20
FIRST_BYTES = 256 << 10
"""Asked for first, so that the first rows need not wait for many others; then more and more, since who wanted only
those must not have paid for many."""
GROWTH = 4
FETCH_BYTES_MAX = 512 << 20
MAX_WAIT_MS = 500

_LENGTH_AT, _LENGTH_TO_MAGIC = 8, Struct(">iib")


class OffsetsGone(ClientError):
    """The range reaches outside of what the log holds: records were deleted, or the log is another one now."""

    def __init__(self, topic: str, partition: int, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(topic, partition, offset, log_start, log_end)
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end
        self.what = f"{topic}-{partition}"

    def __str__(self) -> str:
        return f"{self.what}: offset {self.offset} is wanted, but the log holds {self.log_start} to {self.log_end}"


class RangeFetcher:
    """`async for fetched in RangeFetcher(...)`: everything with start_offset <= offset < end_offset.

    An answer begins with the batch that holds its first offset and may go beyond the range: cut both ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        fetch_bytes: int = FETCH_BYTES,
        read_committed: bool = False,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._end_offset = end_offset
        self._fetch_bytes_later = fetch_bytes
        self._fetch_bytes = min(fetch_bytes, FIRST_BYTES)
        self._read_committed = read_committed
        self.position = start_offset
        """The first offset that is not in what was handed out."""
        self.answer_start = start_offset
        """The first offset that was asked for by the last answer: its batch may begin before."""
        self._under_way: asyncio.Task[Fetched] | None = None

    def __aiter__(self) -> "RangeFetcher":
        return self

    async def __anext__(self) -> Fetched:
        got = await self.next()
        if got is None:
            raise StopAsyncIteration
        return got

    async def next(self) -> Fetched | None:
        """The next answer, None at the end of the range. Raises OffsetsGone."""
        deadline = asyncio.get_running_loop().time() + self._cluster.retry_timeout_s
        while self.position < self._end_offset:
            got = await self._answer()
            behind = end_of(got.records)
            if behind > self.position:
                self.answer_start, self.position = self.position, behind
                self._fetch_bytes = max(self._fetch_bytes, min(self._fetch_bytes * GROWTH, self._fetch_bytes_later))
                if behind < self._end_offset:
                    self._under_way = asyncio.create_task(self._fetch(behind))
                return got
            if len(got.records):
                self._grow()
            else:
                await self._check_bounds(got, deadline)
        return None

    def skip_to(self, offset: int) -> None:
        """Go on from another offset, as after OffsetsGone."""
        self.close()
        self.position = offset

    def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            self._under_way = None

    async def _answer(self) -> Fetched:
        task, self._under_way = self._under_way, None
        try:
            return await (task if task is not None else self._fetch(self.position))
        except RequestFailed as error:
            if error.error is not Err.OFFSET_OUT_OF_RANGE:
                raise
            raise await self._gone() from None

    async def _fetch(self, offset: int) -> Fetched:
        return await fetch(
            self._cluster,
            self._topic,
            self._partition,
            offset,
            max_bytes=self._fetch_bytes,
            max_wait_ms=MAX_WAIT_MS,
            read_committed=self._read_committed,
            can_retry=may_pass,
        )

    def _grow(self) -> None:
        """Only a piece of a batch came: it is larger than was asked for, and this broker sends no more than that."""
        if self._fetch_bytes >= FETCH_BYTES_MAX:
            raise ClientError(
                f"{self._topic}-{self._partition}: a batch of over {self._fetch_bytes} bytes at {self.position}"
            )
        self._fetch_bytes *= GROWTH

    async def _check_bounds(self, got: Fetched, deadline: float) -> None:
        """Nothing came though the range goes on: wait for a log that is catching up, give up on one that ends
        before."""
        end = got.last_stable_offset if self._read_committed else got.high_watermark
        late = asyncio.get_running_loop().time() > deadline
        if late and end < self._end_offset:
            raise await self._gone()
        if late:
            raise RequestTimedOut(
                f"{self._topic}-{self._partition}: nothing came at offset {self.position} within "
                f"{self._cluster.retry_timeout_s:g} s, though the log goes to {end}"
            )

    async def _gone(self) -> OffsetsGone:
        admin = Admin(cluster=self._cluster)
        first = await admin.list_offsets(self._topic, {self._partition: EARLIEST})
        last = await admin.list_offsets(self._topic, {self._partition: LATEST}, read_committed=self._read_committed)
        start, end = first[self._partition].offset, last[self._partition].offset
        return OffsetsGone(self._topic, self._partition, self.position, start, end)


def may_pass(error: ClientError) -> bool:
    """Whether reading again may cure it: besides what the broker calls so, everything a restart looks like."""
    return is_retriable(error) or isinstance(error, BrokerUnreachable | RequestTimedOut)


def end_of(records: bytes | bytearray | memoryview) -> int:
    """The offset behind the last whole batch, -1 when there is none. Raises CORRUPT_MESSAGE where no batch is."""
    pos, last, size = 0, -1, len(records)
    while size - pos >= HEADER_BYTES:
        length, _, magic = _LENGTH_TO_MAGIC.unpack_from(records, pos + _LENGTH_AT)
        if magic != 2 or length < LENGTH_MIN:
            read_header(records, pos)
        if length + LOG_OVERHEAD > size - pos:
            break
        last, pos = pos, pos + length + LOG_OVERHEAD
    return read_header(records, last).end_offset if last >= 0 else -1


class BlockingFetcher:
    """A RangeFetcher for callers that cannot await: iterate, and the next answer is fetched on another thread.

    What an answer's records lie in is used again when the next one is asked for, and by the next fetcher that is given
    the same `buffers`.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        client: dict[str, Any] | None = None,
        buffers: BufferPool | None = None,
        **options: Any,
    ) -> None:
        self._thread = LoopThread("headrace-fetch")
        self._buffers = BufferPool() if buffers is None else buffers
        self._last: Fetched | None = None
        self._cluster = Cluster(bootstrap, **(client or {}))
        self._cluster.allocate = self._buffers.take
        self._fetcher = RangeFetcher(self._cluster, topic, partition, start_offset, end_offset, **options)

    @property
    def position(self) -> int:
        return self._fetcher.position

    @property
    def answer_start(self) -> int:
        return self._fetcher.answer_start

    def next(self) -> Fetched | None:
        self._give_back()
        self._last = self._thread.run(self._fetcher.next())
        return self._last

    def __iter__(self) -> Iterator[Fetched]:
        while (got := self.next()) is not None:
            yield got

    def skip_to(self, offset: int) -> None:
        """Go on from another offset, as after OffsetsGone."""

        async def skip() -> None:
            self._fetcher.skip_to(offset)

        self._thread.run(skip())

    def close(self) -> None:
        async def end() -> None:
            self._fetcher.close()
            self._cluster.close()

        self._thread.run(end())
        self._thread.close()
        self._give_back()

    def _give_back(self) -> None:
        if self._last is not None:
            self._buffers.give_back(self._last.records)
            self._last = None
