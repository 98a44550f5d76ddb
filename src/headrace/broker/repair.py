"""Makes damaged replicas whole: serves what is left around the damage, then has the rest fetched and put in place.

    1. A damaged segment was set aside (`Log.set_aside`): all of its offsets are an error now.
    2. `Repairs` salvages it in another process: the batches around the damage are segments of their own again.
    3. Where this node led and another in-sync replica can lead, that one does by now (`Replicas`).
    4. As a follower it fetches from its leader as always, only from where the hole begins. That tells the leader that it has
       lost something, so that it is not counted on; and the answer brings what is missing (`Patch`).
    5. What came is synced beside the log and put in place (`storage/mending.py`). Then the fetching goes on from the end.

Alone, a replica stays at step 2: readers get an error for the damaged batches, and for nothing else.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.errors import Err, KafkaError
from headrace.records.batch import crc_matches
from headrace.records.layout import BatchHeader, iter_headers
from headrace.storage.file_names import CORRUPT_SUFFIX
from headrace.storage.holes import Hole
from headrace.storage.log import Log
from headrace.storage.mending import begin_mending, discard_part
from headrace.storage.salvage import Part, salvage
from headrace.storage.segment_writer import SegmentWriter
from headrace.storage.swap import discard

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.repair")

BUSY_AGAIN_S = 0.5
"""How soon a log is looked at again that was being compacted when it was found damaged."""


class Misfit(Exception):
    """What the leader has in the place of a hole is not what was there: the log has to be copied anew."""


class Repairs:
    """One segment at a time."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._looked_at: dict[int, Hole] = {}
        """Holes whose files have nothing more to give, by what they are and not by their names, which may come again."""
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
            self._broker.spawn(self._salvage_all())

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
                while log is self._broker.maintenance.cleaner.busy:
                    # The compaction would remove what is written here together with its own leftovers. It ends soon, and
                    # a log with holes is not compacted again.
                    await asyncio.sleep(BUSY_AGAIN_S)
                while (hole := self._next_hole(log)) is not None and not log.abandoned and log.failed is None:
                    self._looked_at[id(hole)] = hole
                    if hole.path in self._worthless:
                        self._worthless.discard(hole.path)
                    else:
                        await self._salvage(partition, hole)
                del self._waiting[partition]
                self._broker.replicas.fetchers.holes_changed(partition)
        finally:
            self._running = False

    async def _salvage(self, partition: Partition, hole: Hole) -> None:
        log, runtime = partition.log, self._broker.runtime
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
            await self._broker.runtime.run_in_thread(mending.run)
            mending.finish()
        except OSError as error:
            self._broker.dir_failed(log, error)
            return False
        return not log.abandoned

    # ---- what another replica has

    async def fill(self, partition: Partition, patch: "Patch") -> bool:
        """Put in place what was fetched. True when a hole is closed."""
        log = partition.log
        self._placing.add(partition)
        try:
            part = await self._broker.runtime.run_in_thread(patch.finish)
            if not await self._place(partition, patch.hole, part):
                return False
        except OSError as error:
            hole = patch.hole
            logger.error("%s: offsets %d to %d cannot be written: %s", partition, hole.start_offset, hole.end_offset - 1, error)
            patch.discard()
            return False
        finally:
            self._placing.discard(partition)
        self._broker.metrics.holes_mended += 1
        logger.warning("%s: offsets %d to %d are here again", partition, part.base_offset, part.end_offset - 1)
        if not log.holes and not partition.incomplete:
            self._broker.replicas.whole_again(partition)
        return True


class Patch:
    """What a follower fetches into one hole, as it comes: checked batch by batch, and written beside the log."""

    def __init__(self, log: Log, hole: Hole) -> None:
        self.log = log
        self.hole = hole
        self.next_offset = max(hole.start_offset, log.log_start_offset)
        self.last_epoch = log.epochs.epoch_for(self.next_offset - 1)
        self._has_markers = False
        self._is_empty = True
        self._writer: SegmentWriter | None = SegmentWriter(
            log.disk, log.path, hole.start_offset, log.config.index_interval_bytes
        )

    @property
    def is_valid(self) -> bool:
        """The hole may have been forgotten meanwhile, or cut off: then so is this."""
        return self.hole in self.log.holes and self.next_offset >= self.log.log_start_offset

    def take(self, records: memoryview) -> bool:
        """True when nothing is missing any more. Raises Misfit, or KafkaError for bytes that are damaged themselves."""
        hole = self.hole
        for position, header in iter_headers(records):
            if header.end_offset <= self.next_offset:
                continue
            if self.next_offset >= hole.end_offset:
                break
            batch = records[position : position + header.size]
            if not crc_matches(header, batch):
                raise KafkaError(Err.CORRUPT_MESSAGE, f"record batch at offset {header.base_offset}: CRC mismatch")
            self._check(header)
            assert self._writer is not None
            self._writer.append(header, bytes(batch))
            self._has_markers = self._has_markers or header.is_control
            self._is_empty = False
            self.next_offset, self.last_epoch = header.end_offset, header.leader_epoch
        return self.next_offset == hole.end_offset

    def _check(self, header: BatchHeader) -> None:
        """Byte for byte what was here: the same offsets in the same epochs, and none of them compacted away.

        A tombstone that the leader no longer has may have been in the hole, and what it deleted is still before it.
        """
        begins = header.base_offset == self.next_offset or (self._is_empty and header.base_offset < self.next_offset)
        if not begins or header.base_offset < self.hole.start_offset or header.last_offset >= self.hole.end_offset:
            raise Misfit(f"its leader has {header.base_offset} to {header.last_offset} where {self.next_offset} comes next")
        if header.count != header.last_offset_delta + 1:
            raise Misfit(f"its leader has compacted {header.base_offset} to {header.last_offset}")
        if header.leader_epoch != self.log.epochs.epoch_for(header.base_offset):
            raise Misfit(f"its leader has another history at {header.base_offset}")

    def finish(self) -> Part:
        """In a thread."""
        assert self._writer is not None
        size = self._writer.finish()
        self._writer.close()
        self._writer = None
        self.log.disk.sync_dir(self.log.path)
        return Part(self.hole.start_offset, self.hole.end_offset, size, self._has_markers)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with self.log.folder_lock:
            if not self.log.abandoned:
                discard_part(self.log.disk, self.log.path, self.hole.start_offset)
