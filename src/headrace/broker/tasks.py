"""Tasks that belong to a broker, and what ends it: nothing may fail in silence."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger("headrace.server")


class Tasks:
    """All tasks of one broker. An exception that a task does not handle stops the broker, loudly."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[Any]] = set()
        self.stopping = asyncio.Event()
        """Set once the broker is to stop."""
        self.failure: BaseException | None = None
        """Why it has to, if not because it was told to."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run `work` for as long as the broker runs."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("an internal task failed; stopping", exc_info=error)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Nothing more can be promised: stop, and do not call the end clean."""
        self.failure = self.failure or error
        self.stopping.set()

    def cancel(self) -> None:
        """End what still runs."""
        for task in list(self._running):
            task.cancel()
