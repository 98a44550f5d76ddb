"""Makes damaged replicas whole: serves what is left around the damage, then has the rest fetched and put in place.

    1. A damaged segment was set aside (`Log.set_aside`): all of its offsets are an error now.
    2. `Repairs` salvages it in another process: the batches around the damage are segments of their own again.
    3. Where this node led and another in-sync replica can lead, that one does by now (`Replicas`).
    4. As a follower it fetches from its leader as always, only from where the hole begins. That tells the leader that
       it has
       lost something, so that it is not counted on; and the answer brings what is missing (`Patch`).
    5. What came is synced beside the log and put in place (`storage/mending.py`). Then the fetching goes on from the
       end.

Alone, a replica stays at step 2: readers get an error for the damaged batches, and for nothing else.
"""

import asyncio
import logging

from headrace.broker.metrics import Metrics
from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.patch import Patch
from headrace.broker.replicas.replica_copy import holes_changed
from headrace.broker.replicas.standing import Standing
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.storage.file_names import CORRUPT_SUFFIX
from headrace.storage.holes import Hole
from headrace.storage.log import Log
from headrace.storage.mending import begin_mending
from headrace.storage.salvage import Part, salvage
from headrace.storage.swap import discard

logger = logging.getLogger("headrace.repair")

BUSY_AGAIN_S = 0.5
"""How soon a log is looked at again that was being compacted when it was found damaged."""


class Repairs:
    """One segment at a time."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        metrics: Metrics,
        failures: LogDirFailures,
        cleaner: CleanerManager,
        standing: Standing,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._metrics = metrics
        self._failures = failures
        self._cleaner = cleaner
        self._standing = standing
        self._looked_at: dict[int, Hole] = {}
        """Holes whose files have nothing more to give, by what they are and not by their names, which may come
        again."""
        self._worthless: set[str] = set()
        """Files that are about to be set aside, and are not to be looked at."""
        self._waiting: dict[Partition, None] = {}
        self._placing: set[Partition] = set()
        self._running = False
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def consider(self, partition: Partition) -> None:
        """Something of it was set aside, now or in an earlier life."""
        if self._stopped or partition.failed or not self._next_hole(partition.log):
            return
        self._waiting[partition] = None
        if not self._running:
            self._running = True
            self._tasks.spawn(self._salvage_all())

    def skip_salvage(self, path: str) -> None:
        """The log file, about to be set aside, is whole and yet wrong: nothing of it is to be served again."""
        self._worthless.add(path + CORRUPT_SUFFIX)

    def is_busy(self, partition: Partition) -> bool:
        """Whether its holes are about to change."""
        return partition in self._waiting or partition in self._placing

    def _next_hole(self, log: Log) -> Hole | None:
        return next((hole for hole in log.holes if id(hole) not in self._looked_at), None)

    # ---- what is left of a damaged segment

    async def _salvage_all(self) -> None:
        try:
            while self._waiting and not self._stopped:
                partition = next(iter(self._waiting))
                log = partition.log
                while log is self._cleaner.busy:
                    # The compaction would remove what is written here together with its own leftovers. It ends soon,
                    # and a log with holes is not compacted again.
                    await asyncio.sleep(BUSY_AGAIN_S)
                while (hole := self._next_hole(log)) is not None and not log.abandoned and log.failed is None:
                    self._looked_at[id(hole)] = hole
                    if hole.path in self._worthless:
                        self._worthless.discard(hole.path)
                    else:
                        await self._salvage(partition, hole)
                del self._waiting[partition]
                holes_changed(partition)
        finally:
            self._running = False

    async def _salvage(self, partition: Partition, hole: Hole) -> None:
        log, runtime = partition.log, self._runtime
        start, end = hole.start_offset, hole.end_offset
        saved = 0
        try:
            if not runtime.disk.size(hole.path):
                return  # only the place of something that is gone
            parts = runtime.steps(salvage, hole.path, start, end, log.config.index_interval_bytes, log.config.compact)
            async for part in parts:
                if not await self._place(partition, hole, part):
                    return
                saved += part.size
        except OSError as error:
            # Nothing has changed but what is in place by now. A disk that is full may have room at the next start.
            logger.error("%s: what is left of %s cannot be read or copied: %s", partition, hole.path, error)
            if not log.abandoned:
                with log.folder_lock:
                    discard(log.disk, log.path)
            return
        missing = [(one.start_offset, one.end_offset - 1) for one in log.holes if start <= one.start_offset < end]
        logger.warning(
            "%s: %d bytes of the damaged segment at %d can be read again; missing: %s",
            partition, saved, start, ", ".join(f"{first} to {last}" for first, last in sorted(missing)) or "nothing",
        )  # fmt: skip

    async def _place(self, partition: Partition, hole: Hole, part: Part) -> bool:
        """Have readers find a part that was written beside the log. False if there is no place for it any more."""
        log = partition.log
        mending = begin_mending(log, hole, part)
        if mending is None:
            return False
        try:
            await self._runtime.run_in_thread(mending.run)
            mending.finish()
        except OSError as error:
            self._failures.failed(log, error)
            return False
        return not log.abandoned

    # ---- what another replica has

    async def fill(self, partition: Partition, patch: Patch) -> bool:
        """Put in place what was fetched. True when a hole is closed."""
        log = partition.log
        self._placing.add(partition)
        try:
            part = await self._runtime.run_in_thread(patch.finish)
            if not await self._place(partition, patch.hole, part):
                return False
        except OSError as error:
            hole = patch.hole
            logger.error(
                "%s: offsets %d to %d cannot be written: %s", partition, hole.start_offset, hole.end_offset - 1, error
            )
            patch.discard()
            return False
        finally:
            self._placing.discard(partition)
        self._metrics.holes_mended += 1
        logger.warning("%s: offsets %d to %d are here again", partition, part.base_offset, part.end_offset - 1)
        if not log.holes and not partition.incomplete:
            self._standing.whole_again(partition)
        return True
