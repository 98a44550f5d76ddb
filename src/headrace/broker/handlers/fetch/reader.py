"""What may be read of a partition: the rules for consumers, followers and requests that are recognised, in one place.

Consumers read what is committed: up to the high watermark, or to the last stable offset if they want no open
transactions. Followers read all there is. Nobody gets more than it asks for in bytes, except that the first batch is
always given whole. What is not in memory is read in a thread before it is sent.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from headrace.broker.cluster.leader_hints import LEADER_MOVED
from headrace.broker.handlers.fetch.cold_reads import warm
from headrace.broker.net.outbox import Chunk, release
from headrace.broker.net.page_cache import CachedAhead, PageCache
from headrace.broker.net.request import Answer, Request
from headrace.broker.net.router import Spawn
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.errors import Err, KafkaError
from headrace.protocol.hot import READ_COMMITTED, FetchDetail, FetchResult, LeaderHint
from headrace.storage.log import Log, Slice
from headrace.storage.segment import CorruptSegment

logger = logging.getLogger("headrace.fetch")

STORAGE_ERROR_SINCE, HINTS_SINCE = 6, 16
"""Versions of Fetch from which clients understand these."""
UNREADABLE = (KafkaError, OSError, CorruptSegment)
"""What may come of reading."""

Topic = str | bytes
Read = tuple[Slice | None, int, int, list[tuple[int, int]] | None]
"""(records, high watermark, last stable offset, aborted transactions or None where nobody asks for them)."""
Suspect = Callable[[str, str], None]
"""Told of a file that was found damaged, and how."""


class Asked(Protocol):
    """A partition as a request names it."""

    @property
    def topic(self) -> Topic: ...

    @property
    def index(self) -> int: ...


A = TypeVar("A", bound=Asked)


class Reading(Generic[A]):
    """One pass over the partitions of a request: what to answer and whether it is enough."""

    __slots__ = ("cold", "enough", "left", "length", "results", "slices")

    def __init__(self, bytes_max: int) -> None:
        self.results: list[tuple[A, FetchResult]] = []
        self.slices: list[Slice] = []  # in the order of the results that have records
        self.cold: list[Slice] = []
        self.length = 0
        self.left = bytes_max
        self.enough = False

    def tell(self, asked: A, result: FetchResult) -> None:
        """Something that is worth an answer by itself."""
        self.results.append((asked, result))
        self.enough = True

    def take(self, piece: Slice, is_cold: bool) -> int:
        """Records that go into the answer; returns their length."""
        length = piece.length
        left = self.left
        self.left = left - length if left > length else 0
        self.length += length
        self.slices.append(piece)
        if is_cold:
            self.cold.append(piece)
        return length

    def release(self) -> None:
        release(self.slices)

    def leave_out(self, unreadable: list[Slice], failure: Callable[[A], FetchResult]) -> None:
        """The disk could not give these: an error for their partitions, the records of all others."""
        pieces = iter(self.slices)
        for at, (asked, result) in enumerate(self.results):
            if result[5] and next(pieces) in unreadable:
                self.results[at] = asked, failure(asked)
        release(unreadable)
        self.slices = [piece for piece in self.slices if piece not in unreadable]

    def by_topic(self) -> list[tuple[Topic, list[FetchResult]]]:
        """Neighbours of one topic share its entry."""
        return by_topic(self.results)

    def chunks(self, heads: list[bytes]) -> list[Chunk] | bytes:
        """The answer: `heads` are what stands before, between and behind the records."""
        if len(heads) == 1:
            return heads[0]
        chunks: list[Chunk] = []
        for head, piece in zip(heads, self.slices):
            chunks.append(head)
            chunks.append(piece)
        if heads[-1]:
            chunks.append(heads[-1])
        return chunks


class Reader:
    """Reads logs for Fetch, and sees to it that what is sent is in memory."""

    def __init__(self, runtime: Runtime, replicas: Replicas, spawn: Spawn, suspect: Suspect, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """`fetch.max.bytes`: of one answer."""
        self.cache = PageCache() if runtime.disk_can_wait else None
        self._run_in_thread: Callable[..., Awaitable[Any]] = runtime.run_in_thread
        self._replicas = replicas
        self._spawn = spawn
        self._suspect = suspect

    # ---- the rules

    @staticmethod
    def committed(partition: Partition, offset: int, limit: int, isolation: int, is_first: bool) -> Read:
        """What a consumer may read from `offset` on. Raises KafkaError, OSError or CorruptSegment."""
        if limit < 0:
            raise KafkaError(Err.INVALID_REQUEST, f"at most {limit} bytes are asked for")
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        if isolation != READ_COMMITTED:
            return partition.log.read(offset, limit, high_watermark, is_first), high_watermark, stable, None
        log = partition.log
        piece = log.read(offset, limit, stable, is_first)
        return piece, high_watermark, stable, _aborted(log, offset, stable, piece)

    @staticmethod
    def written(log: Log, offset: int, limit: int, is_first: bool) -> Slice | None:
        """What a follower may read from `offset` on: all there is. Raises like `committed`."""
        return log.read(offset, limit, log.end_offset, is_first)

    @staticmethod
    def readable_bytes(partition: Partition, offset: int, isolation: int) -> int:
        """How much a consumer could read from `offset` on."""
        stable = isolation == READ_COMMITTED
        return partition.log.bytes_after(offset, partition.last_stable_offset if stable else partition.high_watermark)

    @staticmethod
    def diverging(partition: Partition, index: int, last_fetched_epoch: int, offset: int) -> FetchResult | None:
        """The fetcher's last record is of another history than this log: tell it where they part (KIP-595)."""
        if last_fetched_epoch < 0:
            return None
        shared = partition.diverging_epoch(last_fetched_epoch, offset)
        if shared is None:
            return None
        detail = FetchDetail(diverging_epoch_and_end_offset=shared)
        log_start = partition.log.log_start_offset
        return index, 0, partition.high_watermark, partition.last_stable_offset, log_start, 0, None, -1, detail

    def failure(self, asked: Asked, error: Exception, version: int) -> FetchResult:
        """The answer about a partition that cannot be read."""
        if not isinstance(error, KafkaError):
            logger.error("%s-%d cannot be read: %s", asked.topic, asked.index, error)
        code = error.error if isinstance(error, KafkaError) else Err.KAFKA_STORAGE_ERROR
        detail = None
        if code in LEADER_MOVED and version >= HINTS_SINCE:
            partition = self._replicas.known(asked.topic, asked.index)
            if partition is not None:
                detail = FetchDetail(leader=LeaderHint(partition.leader_id, partition.leader_epoch))
        elif code == Err.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
            code = Err.NOT_LEADER_OR_FOLLOWER  # which clients of that age try again
        return asked.index, code, -1, -1, -1, 0, None, -1, detail

    # ---- what is not in memory

    def is_cold(self, piece: Slice, log: Log) -> bool:
        """Whether to send it could stop the loop for a disk."""
        return self.cache is not None and not self.cache.holds(piece, log.bytes_written(piece))

    def ahead(self) -> CachedAhead | None:
        """The same question for a reader that reads on, asked less often."""
        return CachedAhead(self.cache) if self.cache is not None else None

    def finish(
        self, request: Request, reading: Reading[A], encode: Callable[..., Answer], checks: bool, *more: Any
    ) -> Answer | None:
        """Answer by `encode(request, reading, *more)`; later, if some of it has to come from the disk first.

        `checks`: what was written before the last start is looked at once before it is sent.
        """
        if reading.cold:
            self._spawn(self._warm(request, reading, encode, checks, more))
            return None
        try:
            return encode(request, reading, *more)
        except BaseException:
            reading.release()
            raise

    async def _warm(
        self, request: Request, reading: Reading[A], encode: Callable[..., Answer], checks: bool, more: tuple[Any, ...]
    ) -> None:
        try:
            unchecked = [piece for piece in reading.cold if piece.is_unchecked] if checks else []
            warmed = await self._run_in_thread(warm, reading.cold, unchecked)
            warmed.settle()
            for piece, reason in warmed.damaged:
                self._suspect(piece.file.path, reason)
            if request.connection.closed:
                reading.release()
                return
            if warmed.unreadable:
                paths = ", ".join(piece.file.path for piece in warmed.unreadable)
                logger.error("records cannot be read from %s", paths)
                error = KafkaError(Err.KAFKA_STORAGE_ERROR)
                reading.leave_out(warmed.unreadable, lambda asked: self.failure(asked, error, request.version))
            answer = encode(request, reading, *more)
        except Exception:
            reading.release()
            request.fail()
            return
        except BaseException:
            reading.release()  # the broker stops
            raise
        request.done(answer)


def by_topic(results: list[tuple[A, FetchResult]]) -> list[tuple[Topic, list[FetchResult]]]:
    """Neighbours of one topic share its entry."""
    topics: list[tuple[Topic, list[FetchResult]]] = []
    for asked, result in results:
        if topics and topics[-1][0] == asked.topic:
            topics[-1][1].append(result)
        else:
            topics.append((asked.topic, [result]))
    return topics


def _aborted(log: Log, offset: int, bound: int, piece: Slice | None) -> list[tuple[int, int]]:
    if piece is None:
        return []
    try:
        # A reader far behind gets those of its records, not of all that it will read.
        return log.aborted_transactions(offset, min(bound, log.offset_behind(offset, piece)))
    except BaseException:
        piece.release()
        raise
