"""What happens when a write or an fsync fails: the log dir is offline until a restart, and the others serve on."""

import logging
from collections.abc import Callable

from headrace.broker.tasks import Tasks
from headrace.storage.files import NOT_THE_DISK
from headrace.storage.log import Log
from headrace.storage.manager import LogDir, LogManager

logger = logging.getLogger("headrace.node")


class LogDirFailures:
    """Told of by whoever writes; tells whoever has to do without the log dir, or without one log of it."""

    def __init__(self, logs: LogManager, tasks: Tasks) -> None:
        self._logs = logs
        self._tasks = tasks
        self._dir_listeners: list[Callable[[LogDir], None]] = []
        self._log_listeners: list[Callable[[Log], None]] = []

    def listen(
        self, dir_failed: Callable[[LogDir], None], log_failed: Callable[[Log], None] = lambda log: None
    ) -> None:
        """`log_failed` is called where only one log cannot be used, and its log dir can."""
        self._dir_listeners.append(dir_failed)
        self._log_listeners.append(log_failed)

    def failed(self, log: Log, error: OSError) -> None:
        """Writing, syncing or changing the files of `log` was not possible."""
        if log.abandoned:
            return  # deleted meanwhile: that its files are gone says nothing about the disk
        log_dir = self._logs.dir_of(log)
        if error.errno in NOT_THE_DISK:
            logger.critical("%s cannot be used, the rest of %s can: %s", log.path, log_dir.path, error)
            log.failed = log.failed or error
            for log_failed in self._log_listeners:
                log_failed(log)
        elif log_dir.failed is None:
            logger.critical("log directory %s failed and is offline: %s", log_dir.path, error)
            self._logs.fail_dir(log_dir, error)
            for dir_failed in self._dir_listeners:
                dir_failed(log_dir)
            if not self._logs.live_dirs():
                self._tasks.fail(error)
