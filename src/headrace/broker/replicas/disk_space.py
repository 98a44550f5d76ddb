"""How much space each log dir has left, and what follows: a dir with less than its reserve takes no more records.

`LogDirSpace` decides, by what it is told; `DiskSpace` looks at the disks and tells everybody: partitions, which then
refuse records; fetchers, which copy none; the controller, which has others lead; operators. The reserve is for what
keeps a full broker useful: offsets of groups, metadata, checkpoints. An append costs nothing more: a full partition has
a largest batch of no bytes, so that the check of the size, which is there anyway, refuses every batch.
"""

import logging
from collections.abc import Callable

from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.log_dir_space import LogDirSpace
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.replica_copy import space_changed
from headrace.broker.runtime import Runtime
from headrace.metadata.names import INTERNAL
from headrace.protocol.private_fields.disk_space import NO_RECORDS, NOTHING, FullDirectories, Space
from headrace.storage.manager import LogDir, LogManager

logger = logging.getLogger("headrace.disk_space")


class DiskSpace:
    """Of all log dirs of this broker. `maintenance/disk_space_watch.py` has it look again and again."""

    def __init__(self, runtime: Runtime, config: DynamicBrokerConfig, logs: LogManager, replicas: Replicas) -> None:
        self._runtime = runtime
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self.dirs: dict[str, LogDirSpace] = {}
        """By path; those that are online."""
        self._listeners: list[Callable[[], None]] = []
        self._stopped = False

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a log dir has become full, or has room again."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Nobody is told any more."""
        self._stopped = True

    # ---- looking

    def look_around(self) -> list[LogDir]:
        """Look at every log dir and tell what has changed. Returns those that are full."""
        live = self._logs.live_dirs()
        self.dirs = {log_dir.path: self._known(log_dir) for log_dir in live}
        changed = [log_dir for log_dir in live if self._look(log_dir)]
        if changed:
            self._changed(changed)
        return [log_dir for log_dir in live if self.dirs[log_dir.path].level]

    def _known(self, log_dir: LogDir) -> LogDirSpace:
        return self.dirs.get(log_dir.path) or LogDirSpace(self._config["log.dir.reserve.bytes"])

    def _look(self, log_dir: LogDir) -> bool:
        space = self.dirs[log_dir.path]
        space.configured_bytes = self._config["log.dir.reserve.bytes"]
        try:
            # On the loop, as every append is: a disk that does not answer this would not take a record either.
            total_bytes, usable_bytes = self._runtime.disk.free_bytes(log_dir.path)
        except OSError as error:
            logger.warning("cannot tell how much room %s has: %s", log_dir.path, error)
            return False
        return space.look(total_bytes, usable_bytes, self._now_ms())

    def write_failed(self, partition: Partition) -> None:
        """There was no room for a record: known before the next look."""
        log_dir = self._logs.dir_of(partition.log)
        space = self.dirs.get(log_dir.path)
        if space is None or self._stopped:
            return
        total_bytes, usable_bytes = self._runtime.disk.free_bytes(log_dir.path)
        if space.write_failed(total_bytes, usable_bytes, self._now_ms(), own=partition.topic in INTERNAL):
            # Not at once: the partition is in the midst of an append.
            self._runtime.loop.call_soon(self._changed, [log_dir])

    # ---- telling

    def _changed(self, log_dirs: list[LogDir]) -> None:
        for log_dir in log_dirs:
            space = self.dirs.get(log_dir.path)
            if space is None:
                continue
            self._say(log_dir.path, space)
            for partition in self._replicas:
                if partition.log in log_dir.logs:
                    self.admit(partition)
        for listener in self._listeners:
            listener()

    def _say(self, path: str, space: LogDirSpace) -> None:
        left = f"{space.usable_bytes:,} bytes free, {space.reserve_bytes:,} reserved"
        if space.level == 0:
            logger.warning("%s has room again: %s", path, left)
        elif space.level == NO_RECORDS:
            logger.error(
                "%s is full: records are refused, others lead its partitions; offsets are written on (%s)",
                path,
                left,
            )
        else:
            logger.critical("%s has no room at all: others lead all its partitions (%s)", path, left)

    def admit(self, partition: Partition) -> None:
        """Have a partition take records, or not, as there is room in its dir."""
        space = self.dirs.get(partition.log.path.rpartition("/")[0])
        level = 0 if space is None else space.level
        full = level >= (NOTHING if partition.topic in INTERNAL else NO_RECORDS)
        if full != partition.full:
            partition.set_full(full)
            space_changed(partition)

    def full(self) -> FullDirectories:
        """What a heartbeat tells."""
        levels = {
            log_dir.directory_id: space.level
            for log_dir in self._logs.live_dirs()
            if (space := self.dirs.get(log_dir.path)) is not None and space.level
        }
        return FullDirectories(levels, min((space.level for space in self.dirs.values()), default=0))

    def space(self, path: str) -> Space | None:
        """How full a log dir is, and how fast it fills."""
        space = self.dirs.get(path)
        return None if space is None else space.space(self._now_ms())

    def _now_ms(self) -> int:
        return self._runtime.clock.monotonic_ms()
