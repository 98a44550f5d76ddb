"""Changes of metadata that wait to be applied to the replicas here: in order, and a little at a time."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator

from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks

logger = logging.getLogger("headrace.replicas")

PORTION_SECONDS = 0.02
PORTION_CHANGES = 200
"""How much metadata is applied before others have their turn."""


class DeltaQueue:
    """Runs the steps of one delta after the other.

    At once, unless that would keep the loop: thousands of new folders take seconds, and a node that is silent for so
    long is taken for dead. What is left over is done in portions, and later deltas wait for their turn.
    """

    def __init__(self, runtime: Runtime, tasks: Tasks) -> None:
        self._loop = runtime.loop
        self._perf_counter = runtime.perf_counter
        self._tasks = tasks
        self._work: deque[Iterator[None]] = deque()
        """Deltas that are being applied, the first of them in part."""
        self._settled: list[asyncio.Future[None]] = []

    @property
    def is_empty(self) -> bool:
        """Whether all that the metadata says has been done."""
        return not self._work

    def add(self, steps: Iterator[None]) -> None:
        """Run `steps` when all before them are done."""
        self._work.append(steps)
        if len(self._work) == 1:
            self._go_on()

    def clear(self) -> None:
        """The broker stops: nothing more is done."""
        self._work.clear()

    def _go_on(self) -> None:
        until = self._perf_counter() + PORTION_SECONDS
        left = PORTION_CHANGES
        try:
            while self._work:
                for _ in self._work[0]:
                    left -= 1
                    if not left or self._perf_counter() > until:
                        self._loop.call_soon(self._go_on)
                        return
                if self._work:  # cleared meanwhile
                    self._work.popleft()
        except Exception as error:
            # The image has moved on without these replicas: nothing that this node says can be relied on.
            logger.critical("metadata could not be applied; stopping", exc_info=error)
            self._tasks.fail(error)
            self._work.clear()
        settled, self._settled = self._settled, []
        for waiter in settled:
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self) -> None:
        """Return when all that the metadata says by now has been done."""
        if self._work:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._settled.append(waiter)
            await waiter
