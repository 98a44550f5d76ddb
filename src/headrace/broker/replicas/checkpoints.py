"""Writes the checkpoints of all logs: by the clock, and soon after a log is new."""

import logging
from asyncio import TimerHandle

from headrace.broker.replicas.hosted import Replicas
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.maintenance")

NEW_LOGS_S = 0.25
"""How soon new logs get a line in the checkpoints, by which a later start would miss them."""
NEW_LOGS_SHARE = 0.02
"""Of the loop's time, where thousands are made: each time the lines of all logs are written."""


class Checkpoints:
    """High watermarks, recovery points and log starts, as they are when they are written."""

    def __init__(self, runtime: Runtime, tasks: Tasks, logs: LogManager, replicas: Replicas) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._logs = logs
        self._replicas = replicas
        self._timer: TimerHandle | None = None
        self._planning_s = 0.0
        self._stopped = False

    def soon(self) -> None:
        """There is a new log."""
        if not self._stopped and self._timer is None:
            delay_s = max(NEW_LOGS_S, self._planning_s / NEW_LOGS_SHARE)
            self._timer = self._runtime.loop.call_later(delay_s, self._write_soon)

    def _write_soon(self) -> None:
        self._timer = None
        self._tasks.spawn(self.run())

    def stop(self) -> None:
        """New logs get their line from the stop itself."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def run(self) -> None:
        """By the clock: a failure is told, and nothing else."""
        try:
            await self.write()
        except OSError as error:
            # Only a hint for the next start is missing; the logs themselves say when a disk is gone.
            logger.warning("cannot write checkpoints: %s", error)

    async def write(self) -> None:
        """All of them. Raises OSError."""
        began = self._runtime.perf_counter()
        plan = self._logs.checkpoint_plan(self._replicas.high_watermarks())
        self._planning_s = self._runtime.perf_counter() - began
        await self._runtime.run_in_thread(plan.run)

    async def write_log_starts(self) -> None:
        """Only what has changed besides high watermarks: of these, those of the last time stay. Raises OSError."""
        await self._runtime.run_in_thread(self._logs.checkpoint_plan().run)
