"""Group commit: turns written records into durable ones, many at a time.

    1. On the loop, in one step: each dirty log's end and files are noted in a plan (`Log.sync_plan`).
    2. A thread syncs the files of the plans.
    3. Meanwhile the loop appends more. Whether the sync of step 2 has caught those bytes, nobody can tell.
    4. Back on the loop, the durable end moves to what step 1 has noted (`Log.mark_durable`), not to the log's end.
    5. The log is still dirty from step 3: it belongs to the next round.

A log is in one plan at a time, so that a later end cannot be marked by an earlier sync. What if the log is cut between
step 1 and step 4 is told at `Log.mark_durable`.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from headrace.broker.metrics import Latency
from headrace.broker.runtime import Runtime
from headrace.storage.durability import SyncPlan
from headrace.storage.log import Log

logger = logging.getLogger("headrace.syncer")

PARALLEL_SYNCS = 8
"""Threads that sync at once. Concurrent fdatasyncs share one journal commit of the file system."""


LATER_S = 0.05
"""Until what nobody waits for is synced: short, since a power cut before that takes it; long enough to share syncs."""


class Syncable(Protocol):
    """A partition, as far as syncing goes."""

    log: Log

    def durable(self) -> None:
        """Its log's durable end has moved."""
        ...


class Syncer:
    """Syncs what `dirty` names as soon as a thread is free; a log is never synced twice at the same time."""

    def __init__(self, runtime: Runtime, latency: Latency, on_failure: Callable[[Log, OSError], None]) -> None:
        self._runtime = runtime
        self.latency = latency
        self._on_failure = on_failure
        self._dirty: dict[Syncable, None] = {}
        self._unwritten: dict[Syncable, Callable[[], None]] = {}
        self._later: dict[Syncable, None] = {}
        self._in_flight: set[Syncable] = set()
        self._running = 0
        self._scheduled = False

    def dirty(self, partition: Syncable) -> None:
        """`partition` has records that are not durable yet."""
        self._dirty[partition] = None
        if not self._scheduled and self._running < PARALLEL_SYNCS:
            self._schedule()

    def dirty_soon(self, partition: Syncable, write: Callable[[], None]) -> None:
        """`write` is called once this turn of the loop is over, and what it writes to `partition` is synced."""
        self._unwritten[partition] = write
        self.dirty(partition)
        if not self._scheduled:
            self._schedule()

    def dirty_later(self, partition: Syncable) -> None:
        """`partition` has records that nobody waits for: they are synced soon, with all that comes until then."""
        if not self._later:
            self._runtime.loop.call_later(LATER_S, self._later_due)
        self._later[partition] = None

    def _later_due(self) -> None:
        later, self._later = self._later, {}
        for partition in later:
            self.dirty(partition)

    def _schedule(self) -> None:
        """Not at once: whatever else arrives in this turn of the loop shares the sync."""
        self._scheduled = True
        self._runtime.loop.call_soon(self._start)

    @property
    def idle(self) -> bool:
        return not self._dirty and not self._running

    def _start(self) -> None:
        if self._unwritten:
            self._write()
        self._scheduled = False
        if self._unwritten:
            self._schedule()  # a write that failed has let others go on, and they have decided something
        ready = [partition for partition in self._dirty if partition not in self._in_flight]
        # A thread takes its share, also when it is the only one that is free: one after another, every sync would wait
        # for a journal commit of its own, while threads that finish in a moment find nothing left to do.
        share = -(-len(ready) // PARALLEL_SYNCS)
        for job in range(min(PARALLEL_SYNCS - self._running, len(ready))):
            work: list[tuple[Syncable, SyncPlan]] = []
            for partition in ready[job * share : (job + 1) * share]:
                self._dirty.pop(partition, None)
                plan = self._plan(partition.log)
                if plan is not None:
                    self._in_flight.add(partition)
                    work.append((partition, plan))
            if work:
                self._running += 1
                started = self._runtime.perf_counter()
                self._runtime.sync(partial(_run, [plan for _, plan in work]), partial(self._done, work, started))

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        for partition, write in unwritten.items():
            try:
                write()
            except Exception:
                logger.exception("%s could not be written to; others are synced", partition)

    def _plan(self, log: Log) -> SyncPlan | None:
        if log.failed is not None:
            return None
        try:
            return log.sync_plan()
        except OSError as failure:
            # Not even the files could be opened: what was written cannot be vouched for.
            self._on_failure(log, failure)
            return None

    def _done(self, work: list[tuple[Syncable, SyncPlan]], started: float) -> None:
        self._running -= 1
        self.latency.observe(self._runtime.perf_counter() - started)
        for partition, plan in work:
            self._in_flight.discard(partition)
            try:
                partition.log.mark_durable(plan)
            except OSError as failure:
                # The kernel has dropped the dirty pages: a second fsync would succeed and mean nothing.
                self._dirty.pop(partition, None)
                self._on_failure(partition.log, failure)
                continue
            try:
                partition.durable()
            except Exception:
                logger.exception("%s is durable up to %d, and could not say so", partition, plan.end_offset)
        if self._dirty and not self._scheduled:
            self._start()


def _run(plans: list[SyncPlan]) -> None:
    """In a thread. What fails is noted in its plan, or left undone, which counts as much; the others still count."""
    for plan in plans:
        with suppress(Exception):
            plan.run()
