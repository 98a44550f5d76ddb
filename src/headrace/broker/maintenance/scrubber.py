"""Reads all segments again and again, slowly and in another process, and sets aside what is damaged: `repair` does the
rest.

A pass goes through the partitions by name. How far it is, and when each was last checked, is kept in a small file of
each log dir, so that a restart goes on where it was. What was written before a clean stop and not rolled yet is checked
like everything else: nobody else would look at it again.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import msgspec

from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.maintenance.comparison import Comparison
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.repair import Repairs
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.broker.worker import UNLIMITED
from headrace.protocol.private_fields.scrub import ScrubStatus
from headrace.storage.checkpoints import TopicPartition
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.storage.scrub import Checked, Target, scrub
from headrace.storage.segment import Segment

logger = logging.getLogger("headrace.scrubber")

FILE_NAME = ".headrace_scrub"
"""Kafka looks only at folders and at files of names that it knows."""
MISSING = "the file is not there any more"
COMPARE_AGAIN_MS = 3_600_000
"""Other brokers end their passes at other times."""
OTHERS_MS = 20_000
PORTION_SECONDS = 300
PORTION_BYTES_MAX = 4 << 30
PORTION_FILES_MAX = 2_000
"""One process reads so much before the next one is told what is there by then."""


class Progress(msgspec.Struct):
    """What the file of a log dir says."""

    last_pass_ms: int = -1
    """When a pass over everything last ended."""
    started_ms: int = -1
    """When the pass under way, or the last one, began."""
    cursor: tuple[str, int] | None = None
    """The last partition that the pass under way has checked; None: there is none under way."""
    checked_ms: dict[str, int] = {}
    """When all of each replica was last checked, by `topic-partition`. Only in the file: a partition knows its own,
    so that nothing is left of it when it is deleted."""


class Scrubber:
    """One pass at a time."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metrics: Metrics,
        metadata: MetadataCache,
        logs: LogManager,
        replicas: Replicas,
        failures: LogDirFailures,
        cleaner: CleanerManager,
        repairs: Repairs,
        comparison: Comparison,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._config = config
        self._metrics = metrics
        self._metadata = metadata
        self._logs = logs
        self._replicas = replicas
        self._failures = failures
        self._cleaner = cleaner
        self._repairs = repairs
        self.progress = Progress()
        self._loaded = False
        self._asked_for: tuple[list[str] | None] | None = None
        """A pass that somebody wants now, and of which topics."""
        self._reading: asyncio.Task[None] | None = None
        self.comparison = comparison
        self._compared_ms = 0
        self._suspected: set[str] = set()
        self._is_running = False
        self._passes = 0
        self._bytes_done = 0
        self._bytes_total = 0

    # ---- when

    async def run(self) -> None:
        """By the clock: begin or continue a pass if one is due."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while True:
                if (asked := self._asked_for) is not None:
                    self._asked_for = None
                    await self._pass(UNLIMITED, topics=asked[0])
                elif self._is_due():
                    await self._pass(self._config["log.scrub.io.max.bytes.per.second"])
                else:
                    break
            if self._runtime.clock.monotonic_ms() - self._compared_ms > COMPARE_AGAIN_MS:
                await self._compare()
        finally:
            self._is_running = False

    def start_now(self, topics: list[str] | None) -> None:
        """Somebody wants to know: as fast as the disk gives, from the start. What the clock has begun goes on
        afterwards."""
        self._asked_for = (topics,)
        if self._reading is not None:
            self._reading.cancel()
        if not self._is_running:
            self._tasks.spawn(self.run())

    def _is_due(self) -> bool:
        if not self._config["log.scrub.enable"]:
            return False
        self._load()
        since_ms = self._runtime.clock.wall_ms() - self.progress.started_ms
        # A clock that was set back must not keep passes away for years.
        return self.progress.cursor is not None or not 0 <= since_ms < self._config["log.scrub.interval.ms"]

    def status(self) -> ScrubStatus:
        # A scrape is another thread's: it looks at copies, made in one step each.
        partitions = [p for topic in list(self._replicas.by_name.values()) for p in list(topic.values())]
        holes = [(partition, len(partition.log.holes)) for partition in partitions if partition.log.holes]
        metrics = self._metrics
        return ScrubStatus(
            self._passes, self._is_running or self._asked_for is not None, self._bytes_done, self._bytes_total,
            metrics.segments_damaged, metrics.holes_mended, sum(count for _, count in holes),
            sum(count for partition, count in holes if self._has_others(partition)), self.progress.last_pass_ms,
        )  # fmt: skip

    def _has_others(self, partition: Partition) -> bool:
        known = self._metadata.image.partition(partition.topic_id, partition.index)
        return known is not None and len(known.replicas) > 1

    # ---- one pass

    async def _pass(self, bytes_per_second: float, topics: list[str] | None = None) -> None:
        progress, is_whole = self.progress, topics is None
        by_clock = bytes_per_second < UNLIMITED
        cursor = progress.cursor if by_clock else None
        if cursor is None:
            self._bytes_done = 0
            if is_whole:
                progress.started_ms = self._runtime.clock.wall_ms()
        names = None if topics is None else set(topics)
        self._bytes_total = sum(p.log.size for p in self._replicas if names is None or p.topic in names)
        if cursor is not None:
            self._bytes_done = sum(p.log.size for p in self._replicas if (p.topic, p.index) <= cursor)
        budget = min(PORTION_BYTES_MAX, PORTION_SECONDS * bytes_per_second)
        while portion := self._portion(cursor, names, int(budget)):
            self._reading = self._runtime.loop.create_task(self._read(portion, bytes_per_second))
            try:
                await self._reading
            except asyncio.CancelledError:
                if self._asked_for is None:
                    raise
                return  # for a pass that somebody wants now
            finally:
                self._reading = None
            cursor = portion[-1].key
            now_ms = self._runtime.clock.wall_ms()
            for piece in portion:
                if piece.is_last:
                    piece.partition.scrubbed_ms = now_ms
            if by_clock:
                progress.cursor = cursor
                await self._save()
        await self._compare()
        if not by_clock:
            await self._compare_again_until_told()
        self._passes += 1
        if is_whole:
            progress.cursor = None
            progress.last_pass_ms = self._runtime.clock.wall_ms()
            await self._save()

    async def _compare_again_until_told(self) -> None:
        """The others are asked for a pass, too, and somebody waits for what comes of it."""
        clock = self._runtime.clock
        deadline_ms = clock.monotonic_ms() + OTHERS_MS
        while self.comparison.pending and clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(0.2)
            await self._compare()

    def _portion(self, cursor: TopicPartition | None, names: set[str] | None, budget: int) -> "list[Piece]":
        """Whole partitions, at least one."""
        keys = sorted((p.topic, p.index) for p in self._replicas if names is None or p.topic in names)
        portion: list[Piece] = []
        size = 0
        for key in keys[0 if cursor is None else bisect_right(keys, cursor) :]:
            partition = self._replicas.known(*key)
            if partition is None or partition.failed or partition.log.abandoned:
                continue
            pieces = list(_pieces(partition))
            size += sum(piece.target.size for piece in pieces)
            if portion and (size > budget or len(portion) + len(pieces) > PORTION_FILES_MAX):
                break
            portion += pieces
        return portion

    async def _read(self, portion: "list[Piece]", bytes_per_second: float) -> None:
        pieces = {piece.target: piece for piece in portion}
        targets = [piece.target for piece in portion if piece.target.size]
        whole: dict[Partition, list[tuple[Segment, Checked]]] = {piece.partition: [] for piece in portion}
        try:
            async for checked in self._checked(targets, bytes_per_second):
                piece = pieces[checked.target]
                if checked.damage is not None or checked.is_gone:
                    whole.pop(piece.partition, None)
                elif not piece.is_last and piece.partition in whole:
                    whole[piece.partition].append((piece.segment, checked))
                self._bytes_done += piece.target.size
                self._metrics.scrub_bytes += checked.bytes_read
                if checked.damage is None and not checked.is_gone:
                    piece.is_good()
                elif await self._is_damaged(piece):
                    self._set_aside(piece, checked.damage or MISSING)
        except OSError as error:
            logger.error("segments cannot be checked: %s", error)
            return
        for partition, found in whole.items():
            self.comparison.note(partition, found)

    async def _compare(self) -> None:
        """Whatever is whole here and not what the others have is fetched again, like what is damaged."""
        self._compared_ms = self._runtime.clock.monotonic_ms()
        for partition in list(self.comparison.pending):
            for segment in await self.comparison.different(partition):
                piece = Piece(partition, segment, _target(partition.log, segment))
                if piece.now() is not None:
                    self._repairs.skip_salvage(segment.path(".log"))
                    self._set_aside(piece, "whole, but not what the other replicas have")

    async def _checked(self, targets: list[Target], bytes_per_second: float) -> AsyncIterator[Checked]:
        if targets:
            async for checked in self._runtime.steps(scrub, targets, bytes_per_second=bytes_per_second):
                yield checked

    async def _is_damaged(self, piece: "Piece") -> bool:
        """Look again: meanwhile the segment may have been compacted, cut or deleted, and another be under its name."""
        again = piece.now()
        if again is None:
            return False
        is_damaged = False
        async for checked in self._checked([again.target], UNLIMITED):
            is_damaged = checked.damage is not None or checked.is_gone
        # While a compaction changes names, there may be no file of this one.
        return is_damaged and piece.now() is not None and piece.partition.log is not self._cleaner.busy

    def suspect(self, path: str, reason: str) -> None:
        """A reader has found damage in a log file."""
        folder = path.rpartition("/")[0]
        topic, _, index = folder.rpartition("/")[2].rpartition("-")
        partition = self._replicas.known(topic, int(index)) if index.isdigit() else None
        if partition is None or path in self._suspected:
            return
        found = [segment for segment in partition.log.segments if segment.path(".log") == path]
        if found:
            self._suspected.add(path)
            self._tasks.spawn(self._look_again(Piece(partition, found[0], _target(partition.log, found[0])), reason))

    async def _look_again(self, piece: "Piece", reason: str) -> None:
        try:
            if await self._is_damaged(piece):
                self._set_aside(piece, reason)
        except OSError as error:
            logger.error("%s cannot be checked: %s", piece.target.path, error)
        finally:
            self._suspected.discard(piece.target.path)

    def _set_aside(self, piece: "Piece", damage: str) -> None:
        log = piece.partition.log
        logger.critical("%s: %s is damaged: %s", piece.partition, piece.target.path, damage)
        self._metrics.segments_damaged += 1
        try:
            if damage == MISSING:
                # An empty file is set aside in its place, so that a start knows of the hole.
                self._runtime.disk.open(piece.target.path, create=True).close()
            log.set_aside(piece.segment, damage)
        except OSError as error:
            log.failed = log.failed or error
        if log.failed is not None:
            self._failures.failed(log, log.failed)

    # ---- what is remembered

    def checked_ms(self, partition: Partition) -> int:
        """When all of a replica was last checked; -1: never."""
        self._load()
        return partition.scrubbed_ms

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for log_dir in self._logs.live_dirs():
            with suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
                found = msgspec.json.decode(self._runtime.disk.read_bytes(f"{log_dir.path}/{FILE_NAME}"), type=Progress)
                for log in log_dir.logs:
                    partition = self._replicas.known(log.topic, log.partition)
                    if partition is not None and partition.scrubbed_ms < 0:
                        partition.scrubbed_ms = found.checked_ms.get(f"{log.topic}-{log.partition}", -1)
                found.checked_ms.clear()
                self.progress = found

    async def _save(self) -> None:
        """It need not survive a power cut: then something is checked twice."""
        progress = self.progress
        files = {}
        for log_dir in self._logs.live_dirs():
            own = {
                f"{p.topic}-{p.index}": p.scrubbed_ms
                for p in self._replicas
                if p.scrubbed_ms >= 0 and p.log in log_dir.logs
            }
            said = Progress(progress.last_pass_ms, progress.started_ms, progress.cursor, own)
            files[f"{log_dir.path}/{FILE_NAME}"] = said

        def write() -> None:
            for path, said in files.items():
                try:
                    self._runtime.disk.replace_bytes(path, msgspec.json.encode(said))
                except OSError as error:
                    logger.warning("cannot write %s: %s", path, error)

        await self._runtime.run_in_thread(write)


class Piece:
    """A segment of a portion, as it was when the portion was made."""

    __slots__ = ("is_last", "partition", "segment", "target")

    def __init__(self, partition: Partition, segment: Segment, target: Target) -> None:
        self.partition = partition
        self.segment = segment
        self.target = target
        self.is_last = segment is partition.log.active

    @property
    def key(self) -> TopicPartition:
        return self.partition.topic, self.partition.index

    def is_good(self) -> None:
        """Readers need not check again what was written in an earlier life."""
        handle = self.segment.handle
        if handle.unchecked is not None and self.now() is not None and handle.unchecked.add(0, self.target.size):
            handle.unchecked = None

    def now(self) -> "Piece | None":
        """The same segment as it is by now; None if it is no longer a part of the log."""
        log = self.partition.log
        if self.segment not in log.segments or log.abandoned or log.failed is not None or self.partition.failed:
            return None
        return Piece(self.partition, self.segment, _target(log, self.segment))


def _pieces(partition: Partition) -> Iterator[Piece]:
    for segment in partition.log.segments:
        yield Piece(partition, segment, _target(partition.log, segment))


def _target(log: Log, segment: Segment) -> Target:
    """What is on the disk of a segment. Of the active one the rest is about to be."""
    edges = [one.base_offset for one in log.segments] + [hole.start_offset for hole in log.holes] + [log.end_offset]
    end_offset = min((edge for edge in edges if edge > segment.base_offset), default=log.end_offset)
    size = segment.synced_size if segment is log.active else segment.size
    return Target(segment.path(".log"), segment.base_offset, end_offset, size)
