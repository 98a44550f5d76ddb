"""Which log is being compacted, and up to where each has been: known to all who must not disturb a compaction."""

import asyncio
import logging

from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.storage.checkpoints import CLEANER_OFFSETS, TopicPartition, encode_offsets
from headrace.storage.log import Log
from headrace.storage.manager import LogDir, LogManager

logger = logging.getLogger("headrace.cleaner")


class CleanerManager:
    """The state of compaction; `maintenance/cleaner.py` compacts."""

    def __init__(self, runtime: Runtime, tasks: Tasks, logs: LogManager) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._logs = logs
        self.busy: Log | None = None
        """The log whose closed segments nobody else may touch now."""
        self.uncleanable: set[Log] = set()
        """Logs that were found damaged: not tried again before a restart."""
        self._checkpoints: dict[TopicPartition, int] | None = None
        self._saving = asyncio.Lock()

    @property
    def checkpoints(self) -> dict[TopicPartition, int]:
        """Up to which offset each log was compacted; what the log dirs have is read when it is first asked for."""
        if self._checkpoints is None:
            self._checkpoints = {}
            for log_dir in self._logs.live_dirs():
                self._checkpoints.update(log_dir.cleaned)
        return self._checkpoints

    def has_cleaned(self, partition: Partition) -> bool:
        """Whether records of it may have been compacted away, now or before its configuration changed."""
        return (partition.topic, partition.index) in self.checkpoints

    async def cleaned(self, partition: Partition, clean_until: int) -> None:
        """Remember that a log was compacted up to an offset."""
        self.checkpoints[partition.topic, partition.index] = clean_until
        await self._save(self._logs.dir_of(partition.log))

    def forget(self, partition: Partition) -> None:
        """Deleted: a topic of the same name starts with nothing compacted."""
        self.uncleanable.discard(partition.log)
        known = self._checkpoints
        if known is not None and known.pop((partition.topic, partition.index), None) is not None:
            self._tasks.spawn(self._save(self._logs.dir_of(partition.log)))

    async def _save(self, log_dir: LogDir) -> None:
        path = f"{log_dir.path}/{CLEANER_OFFSETS}"
        async with self._saving:  # one writer at a time, and what it writes is what is known when it writes
            mine = {(log.topic, log.partition) for log in log_dir.logs}
            data = encode_offsets({key: offset for key, offset in self.checkpoints.items() if key in mine})
            try:
                await self._runtime.run_in_thread(self._runtime.disk.replace_bytes, path, data)
            except OSError as error:
                logger.warning("cannot write %s: %s", path, error)
