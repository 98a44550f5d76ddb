"""How much space each log dir has left, and what follows: a dir with less than its reserve takes no more records.

`DirectoryRoom` decides, by what it is told; `RoomWatch` looks at the disks and tells everybody: partitions, which then refuse
records; fetchers, which copy none; the controller, which has others lead; operators. The reserve is for what keeps a full
broker useful: offsets of groups, metadata, checkpoints. An append costs nothing more: a full partition has a largest batch of
no bytes, so that the check of the size, which is there anyway, refuses every batch.
"""

import logging
from asyncio import TimerHandle
from collections import deque
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.metadata.names import INTERNAL
from headrace.protocol.room_tag import NO_RECORDS, NOTHING, FullDirectories, Space
from headrace.storage.files import Disk

if TYPE_CHECKING:
    from headrace.broker.server import Broker
    from headrace.storage.manager import LogDir

logger = logging.getLogger("headrace.room")

RESERVE_BYTES_MAX = 256 << 20
RESERVE_SHARE = 20
"""One part in so many of the file system, where `log.dir.reserve.bytes` says nothing."""
LITTLE_BYTES = 64 << 10
"""Too little to promise anybody anything, whatever the reserve is."""
STEP_BYTES = 1 << 20
FILL_BYTES_PER_S = 1 << 30
"""Faster than any broker fills a disk: how soon to look again."""
LOOK_S, LOOK_S_MIN, LOOK_FULL_S = 1.0, 0.05, 0.2
PROBE_S, PROBE_S_MAX = 1.0, 60.0
PROBE_FILE = ".headrace_room"
RELIEF_S = 10.0
"""How often a full dir looks for what it may delete."""
SAMPLE_MS = 60_000
SAMPLES_MAX = 61
"""An hour."""
MOMENT_MS = 60_000
"""No rate is told of less."""


class DirectoryRoom:
    """One log dir. Pure: sizes and times are arguments.

    It is full below its reserve, and has room again some way above it, so that deleting one segment does not make it flap.
    """

    __slots__ = ("_samples", "_unexplained", "configured_bytes", "level", "total_bytes", "usable_bytes")

    def __init__(self, configured_bytes: int) -> None:
        self.configured_bytes = configured_bytes
        """`log.dir.reserve.bytes`; -1: by the size of the file system."""
        self.total_bytes = self.usable_bytes = 0
        self.level = 0
        """0, NO_RECORDS or NOTHING."""
        self._unexplained = False
        """A write found no room although the file system says that there is: a quota, or no more files can be made."""
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        """(milliseconds, usable bytes), one a minute."""

    @property
    def reserve_bytes(self) -> int:
        if self.configured_bytes >= 0:
            return self.configured_bytes
        return min(RESERVE_BYTES_MAX, self.total_bytes // RESERVE_SHARE)

    @property
    def resume_bytes(self) -> int:
        """From here on, one that was full has room again."""
        return self.reserve_bytes + max(self.reserve_bytes // 4, min(STEP_BYTES, self.total_bytes // 64))

    @property
    def must_be_tried(self) -> bool:
        """Whether only a write can tell if there is room again."""
        return self._unexplained and self.usable_bytes >= self.resume_bytes

    def look(self, total_bytes: int, usable_bytes: int, now_ms: int) -> bool:
        """What the file system says now. True when that changes the level."""
        self.total_bytes, self.usable_bytes = total_bytes, usable_bytes
        if not self._samples or now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, usable_bytes))
        before, self.level = self.level, self._judged()
        return self.level != before

    def _judged(self) -> int:
        usable_bytes, reserve_bytes = self.usable_bytes, self.reserve_bytes
        if self._unexplained:
            return self.level
        if usable_bytes < reserve_bytes // 8:
            return NOTHING
        if self.level == NOTHING and usable_bytes < max(reserve_bytes // 4, 2 * LITTLE_BYTES):
            return NOTHING
        is_full = usable_bytes < (self.resume_bytes if self.level else reserve_bytes)
        return NO_RECORDS if is_full else 0

    def write_failed(self, total_bytes: int, usable_bytes: int, now_ms: int, *, own: bool) -> bool:
        """There was no room for a write, `own`: one of those that the reserve is for. True when that changes the level."""
        before = self.level
        self.look(total_bytes, usable_bytes, now_ms)
        self._unexplained = usable_bytes >= self.resume_bytes
        is_nothing = own or self._unexplained or usable_bytes < LITTLE_BYTES
        self.level = max(self.level, NOTHING if is_nothing else NO_RECORDS)
        return self.level != before

    def write_succeeded(self) -> None:
        """What was tried for want of a better sign has found room."""
        self._unexplained = False

    def space(self, now_ms: int) -> Space:
        """How fast it fills, by the last hour."""
        filled_bytes = over_ms = 0
        if self._samples and now_ms - self._samples[0][0] >= MOMENT_MS:
            over_ms = now_ms - self._samples[0][0]
            filled_bytes = self._samples[0][1] - self.usable_bytes
        return Space(self.level, self.reserve_bytes, filled_bytes, over_ms)

    @property
    def look_again_s(self) -> float:
        if self.level:
            return LOOK_FULL_S
        return min(LOOK_S, max(LOOK_S_MIN, (self.usable_bytes - self.reserve_bytes) / FILL_BYTES_PER_S))


class RoomWatch:
    """Of all log dirs of this broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self.dirs: dict[str, DirectoryRoom] = {}
        """By path; those that are online."""
        self._timer: TimerHandle | None = None
        self._probing: set[str] = set()
        self._probe_s = PROBE_S
        self._probe_at = 0.0
        self._relief_at = 0.0
        self._stopped = False
        self.is_behind = False
        """There is no room for the metadata, either: others may lead what this node takes itself to lead."""
        broker.environment.no_room = self.write_failed

    def start(self) -> None:
        """Once the log dirs are open: a broker that starts full says so before it is given anything."""
        self._look_around()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # ---- looking

    def _look_around(self) -> None:
        if self._stopped:
            return
        live = self._broker.logs.live_dirs()
        self.dirs = {log_dir.path: self._known(log_dir) for log_dir in live}
        changed = [log_dir for log_dir in live if self._look(log_dir)]
        if changed:
            self._changed(changed)
        delay_s = min((room.look_again_s for room in self.dirs.values()), default=LOOK_S)
        self._timer = self._runtime.loop.call_later(delay_s, self._look_around)
        self._look_at_metadata()
        full = [log_dir for log_dir in live if self.dirs[log_dir.path].level]
        if full:
            self._relieve()
            self._probe([log_dir for log_dir in full if self.dirs[log_dir.path].must_be_tried])

    def _look_at_metadata(self) -> None:
        """A node that cannot write down who leads now must not have readers wait for what others are told."""
        is_behind = self._broker.node.quorum.is_starved and not self._broker.node.alone
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            if is_behind:
                logger.critical("there is no room for metadata: this node leads only what no other replica can")
                self._broker.replicas.lead_nothing()
            else:
                self._broker.replicas.lead_all(self._broker.image)
            self._broker.groups.refresh_soon()

    def _known(self, log_dir: "LogDir") -> DirectoryRoom:
        return self.dirs.get(log_dir.path) or DirectoryRoom(self._broker.config["log.dir.reserve.bytes"])

    def _look(self, log_dir: "LogDir") -> bool:
        room = self.dirs[log_dir.path]
        room.configured_bytes = self._broker.config["log.dir.reserve.bytes"]
        try:
            # On the loop, as every append is: a disk that does not answer this would not take a record either.
            total_bytes, usable_bytes = self._runtime.disk.free_bytes(log_dir.path)
        except OSError as error:
            logger.warning("cannot tell how much room %s has: %s", log_dir.path, error)
            return False
        return room.look(total_bytes, usable_bytes, self._now_ms())

    def write_failed(self, partition: Partition) -> None:
        """There was no room for a record: known before the next look."""
        log_dir = self._broker.logs.dir_of(partition.log)
        room = self.dirs.get(log_dir.path)
        if room is None or self._stopped:
            return
        total_bytes, usable_bytes = self._runtime.disk.free_bytes(log_dir.path)
        if room.write_failed(total_bytes, usable_bytes, self._now_ms(), own=partition.topic in INTERNAL):
            # Not at once: the partition is in the midst of an append.
            self._runtime.loop.call_soon(self._changed, [log_dir])

    def _probe(self, doubtful: "list[LogDir]") -> None:
        """Try whether a quota, or whatever it was, leaves room again: less and less often while it does not."""
        now_s = self._now_ms() / 1000
        if not doubtful or self._probing or now_s < self._probe_at:
            return
        for log_dir in doubtful:
            self._probing.add(log_dir.path)
            self._broker.spawn(self._try(log_dir))

    async def _try(self, log_dir: "LogDir") -> None:
        try:
            await self._runtime.run_in_thread(try_write, self._runtime.disk, f"{log_dir.path}/{PROBE_FILE}")
        except OSError as error:
            logger.debug("%s has no room yet: %s", log_dir.path, error)
        else:
            if (room := self.dirs.get(log_dir.path)) is not None:  # the dir may have failed meanwhile
                room.write_succeeded()
        finally:
            self._probing.discard(log_dir.path)
            self._probe_at = self._now_ms() / 1000 + self._probe_s
            self._probe_s = min(2 * self._probe_s, PROBE_S_MAX)

    def _relieve(self) -> None:
        """Delete now what may be deleted, and hear from leaders what was: both would else come too late."""
        now_s = self._now_ms() / 1000
        if now_s >= self._relief_at:
            self._relief_at = now_s + RELIEF_S
            self._broker.maintenance.retention_now()
            self._broker.replicas.fetchers.follow_log_starts()

    # ---- telling

    def _changed(self, log_dirs: "list[LogDir]") -> None:
        for log_dir in log_dirs:
            room = self.dirs.get(log_dir.path)
            if room is None:
                continue
            self._say(log_dir.path, room)
            for partition in self._broker.replicas:
                if partition.log in log_dir.logs:
                    self.admit(partition)
        if not any(room.level for room in self.dirs.values()):
            self._probe_s = PROBE_S
        self._broker.node.lifecycle.tell_soon()

    def _say(self, path: str, room: DirectoryRoom) -> None:
        left = f"{room.usable_bytes:,} bytes free, {room.reserve_bytes:,} reserved"
        if room.level == 0:
            logger.warning("%s has room again: %s", path, left)
        elif room.level == NO_RECORDS:
            logger.error(
                "%s is full: records are refused, others lead its partitions; offsets are written on (%s)",
                path,
                left,
            )
        else:
            logger.critical("%s has no room at all: others lead all its partitions (%s)", path, left)

    def admit(self, partition: Partition) -> None:
        """Have a partition take records, or not, as there is room in its dir."""
        room = self.dirs.get(partition.log.path.rpartition("/")[0])
        level = 0 if room is None else room.level
        full = level >= (NOTHING if partition.topic in INTERNAL else NO_RECORDS)
        if full != partition.full:
            partition.set_full(full)
            self._broker.replicas.fetchers.room_changed(partition)

    def full(self) -> FullDirectories:
        """What a heartbeat tells."""
        levels = {
            log_dir.directory_id: room.level
            for log_dir in self._broker.logs.live_dirs()
            if (room := self.dirs.get(log_dir.path)) is not None and room.level
        }
        return FullDirectories(levels, min((room.level for room in self.dirs.values()), default=0))

    def space(self, path: str) -> Space | None:
        room = self.dirs.get(path)
        return None if room is None else room.space(self._now_ms())

    def _now_ms(self) -> int:
        return self._runtime.clock.monotonic_ms()


def try_write(disk: Disk, path: str) -> None:
    """Make a file of some size, and remove it."""
    file = disk.open(path, create=True)
    try:
        file.append(bytes(STEP_BYTES))
        file.sync()
    finally:
        file.close()
        disk.remove(path)
