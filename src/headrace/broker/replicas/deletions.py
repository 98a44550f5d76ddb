"""Removes files once nobody reads them any more: `file.delete.delay.ms` after they have left their log."""

import logging

from headrace.broker.runtime import Runtime
from headrace.storage.log import Log
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.maintenance")


class DelayedDeletions:
    """In a thread each: a large file takes its time."""

    def __init__(self, runtime: Runtime, logs: LogManager) -> None:
        self._runtime = runtime
        self._logs = logs

    def files(self, log: Log, paths: list[str], delay_ms: int) -> None:
        """Remove files that are no longer a part of `log`."""

        def remove() -> None:
            try:
                log.forget_deleted(paths)
            except OSError as error:
                logger.warning("cannot remove files of %s: %s", log.path, error)

        self._runtime.loop.call_later(delay_ms / 1000, lambda: self._runtime.run_in_thread(remove))

    def folder(self, path: str, delay_ms: int) -> None:
        """Remove the folder of a log that is gone."""
        logs, runtime = self._logs, self._runtime
        runtime.loop.call_later(delay_ms / 1000, lambda: runtime.run_in_thread(logs.remove_folder, path))
