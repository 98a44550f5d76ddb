"""Looks at the disks by the clock. For a full one, deletes what may go and tries whether it has room again."""

import logging
from asyncio import TimerHandle

from headrace.broker.cluster.isolation import Isolation
from headrace.broker.maintenance.retention import Retention
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.log_dir_space import LOOK_S, STEP_BYTES
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.storage.files import Disk
from headrace.storage.manager import LogDir

logger = logging.getLogger("headrace.disk_space")

PROBE_S, PROBE_S_MAX = 1.0, 60.0
PROBE_FILE = ".headrace_room"
RELIEF_S = 10.0
"""How often a full dir looks for what it may delete."""


class DiskSpaceWatch:
    """One timer: the fuller the disks, the sooner it looks again."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        disk_space: DiskSpace,
        isolation: Isolation,
        retention: Retention,
        fetchers: Fetchers,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._disk_space = disk_space
        self._isolation = isolation
        self._retention = retention
        self._fetchers = fetchers
        self._timer: TimerHandle | None = None
        self._probing: set[str] = set()
        self._probe_s = PROBE_S
        self._probe_at = 0.0
        self._relief_at = 0.0
        self._stopped = False
        disk_space.listen(self._changed)

    def start(self) -> None:
        """Once the log dirs are open: a broker that starts full says so before it is given anything."""
        self._look_around()

    def stop(self) -> None:
        self._stopped = True
        self._disk_space.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _look_around(self) -> None:
        if self._stopped:
            return
        full = self._disk_space.look_around()
        dirs = self._disk_space.dirs
        delay_s = min((space.look_again_s for space in dirs.values()), default=LOOK_S)
        self._timer = self._runtime.loop.call_later(delay_s, self._look_around)
        self._isolation.look_at_metadata()
        if full:
            self._relieve()
            self._probe([log_dir for log_dir in full if dirs[log_dir.path].must_be_tried])

    def _changed(self) -> None:
        if not any(space.level for space in self._disk_space.dirs.values()):
            self._probe_s = PROBE_S

    def _relieve(self) -> None:
        """Delete now what may be deleted, and hear from leaders what was: both would else come too late."""
        now_s = self._now_s()
        if now_s >= self._relief_at:
            self._relief_at = now_s + RELIEF_S
            self._retention.start_now()
            self._fetchers.follow_log_starts()

    def _probe(self, doubtful: list[LogDir]) -> None:
        """Try whether a quota, or whatever it was, leaves room again: less and less often while it does not."""
        if not doubtful or self._probing or self._now_s() < self._probe_at:
            return
        for log_dir in doubtful:
            self._probing.add(log_dir.path)
            self._tasks.spawn(self._try(log_dir))

    async def _try(self, log_dir: LogDir) -> None:
        try:
            await self._runtime.run_in_thread(try_write, self._runtime.disk, f"{log_dir.path}/{PROBE_FILE}")
        except OSError as error:
            logger.debug("%s has no room yet: %s", log_dir.path, error)
        else:
            if (space := self._disk_space.dirs.get(log_dir.path)) is not None:  # the dir may have failed meanwhile
                space.write_succeeded()
        finally:
            self._probing.discard(log_dir.path)
            self._probe_at = self._now_s() + self._probe_s
            self._probe_s = min(2 * self._probe_s, PROBE_S_MAX)

    def _now_s(self) -> float:
        return self._runtime.clock.monotonic_ms() / 1000


def try_write(disk: Disk, path: str) -> None:
    """Make a file of some size, and remove it."""
    file = disk.open(path, create=True)
    try:
        file.append(bytes(STEP_BYTES))
        file.sync()
    finally:
        file.close()
        disk.remove(path)
