"""Compaction by the clock: finds the log that needs it most, has it compacted in another process, swaps the result in.

The Python work of compaction never runs in this process: it would hold the interpreter lock and enter every latency.
"""

import logging
from collections.abc import Callable

from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.deletions import DelayedDeletions
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.worker import Throttler
from headrace.errors import KafkaError
from headrace.storage.compaction import (
    Cleaned,
    CompactionFailed,
    Dirty,
    begin_swap,
    dirty_range,
    discard,
    plan,
)
from headrace.storage.segment import CorruptSegment

logger = logging.getLogger("headrace.cleaner")


class Cleaner:
    """One compaction at a time."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        metrics: Metrics,
        replicas: Replicas,
        manager: CleanerManager,
        checkpoints: Checkpoints,
        deletions: DelayedDeletions,
        failures: LogDirFailures,
        suspect: Callable[[str, str], None],
    ) -> None:
        """`suspect` is told of a damaged log file, and how it is damaged."""
        self._runtime = runtime
        self._config = config
        self._metrics = metrics
        self._replicas = replicas
        self._manager = manager
        self._checkpoints = checkpoints
        self._deletions = deletions
        self._failures = failures
        self._suspect = suspect

    async def run(self) -> None:
        """Compact whatever is due, the filthiest first, until nothing is."""
        if not self._config["log.cleaner.enable"]:
            return
        while (found := self._filthiest()) is not None:
            partition, dirty = found
            if not await self._compact(partition, dirty):
                return

    def _filthiest(self) -> tuple[Partition, Dirty] | None:
        now_ms = self._runtime.clock.wall_ms()
        best: tuple[Partition, Dirty] | None = None
        checkpoints, uncleanable = self._manager.checkpoints, self._manager.uncleanable
        for partition in self._replicas:
            log = partition.log
            if not log.config.compact or not partition.in_use or partition.failed or log in uncleanable:
                continue
            checkpoint = checkpoints.get((partition.topic, partition.index))
            try:
                dirty = dirty_range(log, checkpoint, partition.last_stable_offset, now_ms)
            except CorruptSegment as damage:
                self._suspect(damage.path, damage.reason)
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
        log, config = partition.log, self._config
        try:
            job = plan(log, dirty, self._runtime.clock.wall_ms(), config["log.cleaner.dedupe.buffer.size"])
        except KafkaError as damage:
            logger.error("%s cannot be compacted: %s", partition, damage)
            return False
        if job is None:
            return False
        rate = config["log.cleaner.io.max.bytes.per.second"]
        pace = Throttler(rate) if rate < 1e300 else None
        self._manager.busy = log
        before, clean_until = log.size, -1
        try:
            # After a crash a gap above what is committed, as far as the disk tells, is taken for an end that was lost.
            await self._checkpoints.write()
            async for cleaned in self._runtime.compact(job, pace):
                if not await self._swap(partition, cleaned):
                    return False
                clean_until = cleaned.clean_until
        except CompactionFailed as error:
            # Tried again only after a restart: a damaged log does not mend itself.
            logger.error("%s cannot be compacted: %s", partition, error)
            self._manager.uncleanable.add(log)
            return False
        except OSError as error:
            logger.error("compaction of %s failed: %s", partition, error)
            return False
        finally:
            self._manager.busy = None
            if log.failed is None and not log.abandoned:
                # After a swap that is still under way, though nobody waits for it any more: the broker is stopping.
                with log.folder_lock:
                    discard(self._runtime.disk, log.path)
        if clean_until < 0 or log.abandoned:
            return False
        await self._manager.cleaned(partition, clean_until)
        self._metrics.compactions += 1
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
            self._failures.failed(log, error)
        if log.abandoned:
            return False  # gone meanwhile, with all that was pinned
        self._deletions.files(log, swap.finish(), log.config.file_delete_delay_ms)
        return True
