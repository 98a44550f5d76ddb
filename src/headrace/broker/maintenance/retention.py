"""Deletes segments that are too old or too many: by the clock, and at once where a disk is full."""

import logging

from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.deletions import DelayedDeletions
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.storage.files import NO_SPACE
from headrace.storage.index_check import IndexCheck, unread_segments
from headrace.storage.log import Log

logger = logging.getLogger("headrace.maintenance")


class Retention:
    """Never twice at the same time."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        replicas: Replicas,
        cleaner: CleanerManager,
        deletions: DelayedDeletions,
        failures: LogDirFailures,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._replicas = replicas
        self._cleaner = cleaner
        self._deletions = deletions
        self._failures = failures
        self._is_running = False
        self._may_run = False

    def start(self) -> None:
        """From here on `start_now` is heard: before, not all logs are known."""
        self._may_run = True

    def stop(self) -> None:
        self._may_run = False

    def start_now(self) -> None:
        """A disk is full: what may go need not wait for its time."""
        if self._may_run:
            self._tasks.spawn(self.run())

    async def run(self) -> None:
        """One look at every partition."""
        if not self._is_running:
            self._is_running = True
            try:
                await self._retain()
            finally:
                self._is_running = False

    async def _retain(self) -> None:
        """Delete segments that are too old or too many; the files themselves go later, in a thread."""
        for partition in list(self._replicas):
            if partition.failed or not partition.in_use or partition.log is self._cleaner.busy:
                continue
            await self._check_indexes(partition.log)
            if partition.failed or not partition.in_use or partition.log is self._cleaner.busy:
                continue
            now_ms = self._runtime.clock.wall_ms()
            try:
                doomed, reason = partition.log.apply_retention(partition.high_watermark, now_ms)
            except OSError as error:
                if error.errno in NO_SPACE and partition.log.failed is None:
                    logger.warning("%s: nothing deleted: %s", partition, error)
                else:
                    self._failures.failed(partition.log, error)
                continue
            except Exception:
                logger.exception("%s: nothing deleted; others are looked at", partition)
                continue
            if doomed:
                logger.info("%s: deleted %d files, %s", partition, len(doomed), reason)
                # Whoever reads them has them open; on a full disk nobody waits for those who might come.
                self._deletions.files(
                    partition.log, doomed, 0 if partition.full else partition.log.config.file_delete_delay_ms
                )

    async def _check_indexes(self, log: Log) -> None:
        """Retention reads from every segment's index. One that is damaged is built again without stopping the loop."""
        for segment in unread_segments(log):
            if log.abandoned or segment not in log.segments or log is self._cleaner.busy:
                continue
            try:
                check = IndexCheck(segment)
            except OSError:
                return  # whoever reads it will say so
            try:
                await self._runtime.run_in_thread(check.run)
            finally:
                mended = check.finish(log)
            if mended:
                logger.warning("%s: its indexes were damaged, and were built again from the log", segment.handle.path)
