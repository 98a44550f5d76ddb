"""Compaction by the clock: finds the log that needs it most, has it compacted in another process, swaps the result in.

The Python work of compaction never runs in this process: it would hold the interpreter lock and enter every latency.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.broker.worker import Pace
from headrace.storage.checkpoints import CLEANER_OFFSETS, TopicPartition, encode_offsets
from headrace.storage.compaction import (
    Cleaned,
    CompactionFailed,
    Dirty,
    begin_swap,
    dirty_range,
    discard,
    plan,
)
from headrace.storage.log import Log
from headrace.storage.manager import LogDir
from headrace.storage.segment import CorruptSegment

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.cleaner")


class Cleaner:
    """One compaction at a time."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self.busy: Log | None = None
        """The log whose closed segments nobody else may touch now."""
        self._checkpoints: dict[TopicPartition, int] = {}
        self._loaded = False
        self._uncleanable: set[Log] = set()
        self._saving = asyncio.Lock()

    async def run(self) -> None:
        """Compact whatever is due, the filthiest first, until nothing is."""
        config = self._broker.config
        if not config["log.cleaner.enable"]:
            return
        if not self._loaded:
            self._load(self._broker.logs.live_dirs())
        while (found := self._filthiest()) is not None:
            partition, dirty = found
            if not await self._compact(partition, dirty):
                return

    def _load(self, log_dirs: Iterable[LogDir]) -> None:
        self._loaded = True
        for log_dir in log_dirs:
            self._checkpoints.update(log_dir.cleaned)

    def _filthiest(self) -> tuple[Partition, Dirty] | None:
        now_ms = self._runtime.clock.wall_ms()
        best: tuple[Partition, Dirty] | None = None
        for partition in self._broker.replicas:
            log = partition.log
            if not log.config.compact or not partition.in_use or partition.failed or log in self._uncleanable:
                continue
            checkpoint = self._checkpoints.get((partition.topic, partition.index))
            try:
                dirty = dirty_range(log, checkpoint, partition.last_stable_offset, now_ms)
            except CorruptSegment as damage:
                self._broker.maintenance.scrubber.suspect(damage.path, damage.reason)
                continue
            except OSError as error:
                logger.error("%s cannot be looked at for compaction: %s", partition, error)
                continue
            if not dirty.is_due(log.config.min_cleanable_dirty_ratio):
                continue
            if best is None or (dirty.overdue_ms > 0, dirty.ratio) > (best[1].overdue_ms > 0, best[1].ratio):
                best = partition, dirty
        return best

    async def _compact(self, partition: Partition, dirty: Dirty) -> bool:
        """One round on one log. False when nothing came of it, so that the caller does not try again at once."""
        log, config = partition.log, self._broker.config
        job = plan(log, dirty, self._runtime.clock.wall_ms(), config["log.cleaner.dedupe.buffer.size"])
        if job is None:
            return False
        rate = config["log.cleaner.io.max.bytes.per.second"]
        pace = Pace(rate) if rate < 1e300 else None
        self.busy = log
        before, clean_until = log.size, -1
        try:
            # After a crash a gap above what is committed, as far as the disk tells, is taken for an end that was lost.
            checkpoint = self._broker.logs.checkpoint_plan(self._broker.node.high_watermarks())
            await self._runtime.run_in_thread(checkpoint.run)
            async for cleaned in self._runtime.compact(job, pace):
                if not await self._swap(partition, cleaned):
                    return False
                clean_until = cleaned.clean_until
        except CompactionFailed as error:
            # Tried again only after a restart: a damaged log does not mend itself.
            logger.error("%s cannot be compacted: %s", partition, error)
            self._uncleanable.add(log)
            return False
        except OSError as error:
            logger.error("compaction of %s failed: %s", partition, error)
            return False
        finally:
            self.busy = None
            if log.failed is None and not log.abandoned:
                # After a swap that is still under way, though nobody waits for it any more: the broker is stopping.
                with log.folder_lock:
                    discard(self._runtime.disk, log.path)
        if clean_until < 0 or log.abandoned:
            return False
        self._checkpoints[partition.topic, partition.index] = clean_until
        await self._save(self._broker.logs.dir_of(log))
        self._broker.metrics.compactions += 1
        logger.info("compacted %s up to offset %d: %d bytes became %d", partition, clean_until, before, log.size)
        return True

    async def _swap(self, partition: Partition, cleaned: Cleaned) -> bool:
        log = partition.log
        swap = begin_swap(log, cleaned)
        if swap is None:
            return False
        try:
            await self._runtime.run_in_thread(swap.run)
        except OSError as error:
            self._broker.dir_failed(log, error)
        if log.abandoned:
            return False  # gone meanwhile, with all that was pinned
        self._broker.maintenance.remove_later(log, swap.finish(), log.config.file_delete_delay_ms)
        return True

    def has_cleaned(self, partition: Partition) -> bool:
        """Whether records of it may have been compacted away, now or before its configuration changed."""
        if not self._loaded:
            self._load(self._broker.logs.live_dirs())
        return (partition.topic, partition.index) in self._checkpoints

    def forget(self, partition: Partition) -> None:
        """Deleted: a topic of the same name starts with nothing compacted."""
        self._uncleanable.discard(partition.log)
        if self._checkpoints.pop((partition.topic, partition.index), None) is not None:
            self._broker.spawn(self._save(self._broker.logs.dir_of(partition.log)))

    async def _save(self, log_dir: LogDir) -> None:
        path = f"{log_dir.path}/{CLEANER_OFFSETS}"
        async with self._saving:  # one writer at a time, and what it writes is what is known when it writes
            mine = {(log.topic, log.partition) for log in log_dir.logs}
            data = encode_offsets({key: offset for key, offset in self._checkpoints.items() if key in mine})
            try:
                await self._runtime.run_in_thread(self._runtime.disk.replace_bytes, path, data)
            except OSError as error:
                logger.warning("cannot write %s: %s", path, error)
