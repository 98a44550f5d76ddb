"""When to write a snapshot of the metadata, and which old snapshots and log segments may go.

A snapshot is made piece by piece on the loop, since making it is Python work that a thread would only get in the way
of; writing and deleting files is a thread's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headrace.clock import Clock
from headrace.metadata.image import Image
from headrace.metadata.snapshot import image_records
from headrace.quorum.snapshots import SnapshotId, Voter, encode_snapshot, write_snapshot
from headrace.storage.files import Disk
from headrace.storage.log import Log


class SnapshotLimits(NamedTuple):
    """metadata.log.max.record.bytes.between.snapshots, metadata.log.max.snapshot.interval.ms,
    metadata.max.retention.*"""

    bytes_between: int = 20 << 20
    interval_ms: int = 3_600_000
    """0 for no limit."""
    retention_bytes: int = 100 << 20
    retention_ms: int = 604_800_000
    """Both -1 for no limit."""


class SnapshotKeeper:
    def __init__(
        self,
        disk: Disk,
        log: Log,
        limits: SnapshotLimits,
        snapshots: list[SnapshotId],
        bytes_since: int,
        clock: Clock,
        run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.snapshots = list(snapshots)
        """On disk, oldest first."""
        self.bytes_since = bytes_since
        self._disk = disk
        self._log = log
        self._limits = limits
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._on_failure = on_failure
        self._last_ms = clock.monotonic_ms()
        self._task: asyncio.Task[None] | None = None

    def wrote(self, size: int) -> None:
        self.bytes_since += size

    def maybe_start(self, image: Image, kraft_version: int, voters: tuple[Voter, ...]) -> None:
        """After a commit: make a snapshot beside other work, if enough has been written since the last."""
        if self._task is None and self._due(image):
            self._task = asyncio.get_running_loop().create_task(
                self._run(image, kraft_version, voters), name="metadata snapshot"
            )

    async def maintain(self, image: Image, kraft_version: int, voters: tuple[Voter, ...]) -> None:
        self.maybe_start(image, kraft_version, voters)
        if self._task is not None:
            await self._task
        else:
            await self._clean()

    async def close(self) -> None:
        if self._task is not None:
            await self._task

    def _due(self, image: Image) -> bool:
        latest = self.snapshots[-1].end_offset if self.snapshots else 0
        if image.offset + 1 <= latest or self.bytes_since == 0:
            return False
        interval_ms = self._limits.interval_ms
        waited_ms = self._clock.monotonic_ms() - self._last_ms
        return self.bytes_since >= self._limits.bytes_between or 0 < interval_ms <= waited_ms

    async def _run(self, image: Image, kraft_version: int, voters: tuple[Voter, ...]) -> None:
        covered = self.bytes_since
        try:
            chosen = SnapshotId(image.offset + 1, image.epoch)
            batches: list[bytes] = []
            for batch in encode_snapshot(
                image_records(image),
                epoch=image.epoch,
                now_ms=self._clock.wall_ms(),
                timestamp_ms=image.timestamp_ms,
                kraft_version=kraft_version,
                voters=voters,
            ):
                batches.append(batch)
                await asyncio.sleep(0)
            folder = self._log.path
            await self._run_in_thread(lambda: write_snapshot(self._disk, folder, chosen, batches))
            if not self.snapshots or self.snapshots[-1].end_offset < chosen.end_offset:
                self.snapshots.append(chosen)
            elif chosen not in self.snapshots:
                # Overtaken by one from the leader, behind which the log begins now: this one leads nowhere.
                await self._run_in_thread(lambda: self._remove([f"{folder}/{chosen.file_name}"]))
            self._last_ms = self._clock.monotonic_ms()
            self.bytes_since -= covered
            await self._clean()
        except OSError:
            # Disk full, most likely. The log still has everything, so it can wait for the next time one is due.
            self.bytes_since = 1
            self._last_ms = self._clock.monotonic_ms()
        except Exception as error:
            # Not the disk but a bug: metadata that cannot be written down must not be built upon.
            self._on_failure(error)
        finally:
            self._task = None

    # --- deleting -----------------------------------------------------------------------------------------------------

    async def _clean(self) -> None:
        """Oldest first, and never the last snapshot: with the log behind it, it is all there is."""
        gone: list[str] = []
        while len(self.snapshots) > 1 and self._may_go(self.snapshots[0]):
            oldest, following = self.snapshots[0], self.snapshots[1]
            gone += self._drop_segments(following.end_offset)
            del self.snapshots[0]
            gone.append(f"{self._log.path}/{oldest.file_name}")
        if gone:
            await self._run_in_thread(lambda: self._remove(gone))

    def _may_go(self, snapshot: SnapshotId) -> bool:
        limits = self._limits
        sizes = [self._disk.size(f"{self._log.path}/{s.file_name}") for s in self.snapshots]
        if 0 <= limits.retention_bytes < self._log.size + sum(sizes):
            return True
        modified_ms = self._disk.modified_ms(f"{self._log.path}/{snapshot.file_name}")
        return 0 <= limits.retention_ms < self._clock.wall_ms() - modified_ms

    def _drop_segments(self, end_offset: int) -> list[str]:
        """Segments that lie wholly below a snapshot that stays."""
        bases = [segment.base_offset for segment in self._log.segments]
        count = sum(1 for following in bases[1:] if following <= end_offset)
        removed = self._log.delete_segments(count, self._clock.wall_ms()) if count else []
        self._log.advance_log_start(end_offset)
        return removed

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self._disk.remove(path)
        self._disk.sync_dir(self._log.path)
