"""What a broker does by the clock: retention, compaction, scrubbing, checkpoints, idle connections, watching its own lag."""

import logging
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.broker.cleaner import Cleaner
from headrace.broker.scrubber import Scrubber
from headrace.broker.stalled_frames import StalledFrames
from headrace.storage.files import NO_SPACE
from headrace.storage.index_check import IndexCheck, unread_segments
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.broker.connection import Connection
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.maintenance")

LAG_INTERVAL_MS = 250
FLUSH_CHECK_MS = 500
METADATA_CHECK_MS = 10_000
SCRUB_CHECK_MS = 60_000
IDLE_CHECK_MS = 10_000
NEW_LOGS_S = 0.25
"""How soon new logs get a line in the checkpoints, by which a later start would miss them."""
NEW_LOGS_SHARE = 0.02
"""Of the loop's time, where thousands are made: each time the lines of all logs are written."""
SHRINK_AFTER_MS = 30_000
"""Idle this long, a connection gives back the buffer that a burst needed."""


class Maintenance:
    """Runs each chore again and again, never twice at the same time."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._timers: dict[str, TimerHandle] = {}
        self._stopped = False
        self.cleaner = Cleaner(broker)
        self._stalled: StalledFrames[Connection] = StalledFrames()
        self.scrubber = Scrubber(broker)
        self._lag_expected = 0.0
        self._planning_s = 0.0
        self._retaining = False

    def start(self) -> None:
        broker = self._broker
        config = broker.config
        first_ms = config["log.initial.task.delay.ms"]
        self._every("retention", lambda: config["log.retention.check.interval.ms"], self._retention, first_ms)
        self._every("watermarks", lambda: config["replica.high.watermark.checkpoint.interval.ms"], self._checkpoint)
        self._every("compaction", lambda: broker.config["log.cleaner.backoff.ms"], self.cleaner.run)
        self._every("scrub", lambda: SCRUB_CHECK_MS, self.scrubber.run, first_ms)
        self._every("flush", lambda: FLUSH_CHECK_MS, self._flush)
        self._every("metadata", lambda: METADATA_CHECK_MS, self._broker.node.quorum.maintain)
        self._every("idle", self._idle_check_ms, self._idle)
        self._every("producers", lambda: config["producer.id.expiration.check.interval.ms"], self._producers)
        self._every("offsets", lambda: config["offsets.retention.check.interval.ms"], self._broker.groups.expire)
        if config["metrics.port"] is not None and config["metrics.port"] >= 0:  # nobody else asks
            self._every("lag of groups", self._broker.lag.rest_ms, self._broker.lag.refresh)
        self._watch_lag()

    def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _every(
        self, name: str, interval_ms: Callable[[], int], chore: Callable[[], Awaitable[None]], first_ms: int | None = None
    ) -> None:
        async def run() -> None:
            await chore()
            again(interval_ms())

        def again(delay_ms: int) -> None:
            if not self._stopped:
                self._timers[name] = self._runtime.loop.call_later(
                    delay_ms / 1000, lambda: self._broker.spawn(run())
                )

        again(interval_ms() if first_ms is None else first_ms)

    # ---- chores

    async def _retention(self) -> None:
        if not self._retaining:
            self._retaining = True
            try:
                await self._retain()
            finally:
                self._retaining = False

    async def _retain(self) -> None:
        """Delete segments that are too old or too many; the files themselves go later, in a thread."""
        for partition in list(self._broker.replicas):
            if partition.failed or not partition.in_use or partition.log is self.cleaner.busy:
                continue
            await self._check_indexes(partition.log)
            if partition.failed or not partition.in_use or partition.log is self.cleaner.busy:
                continue
            now_ms = self._runtime.clock.wall_ms()
            try:
                doomed, reason = partition.log.apply_retention(partition.high_watermark, now_ms)
            except OSError as error:
                if error.errno in NO_SPACE and partition.log.failed is None:
                    logger.warning("%s: nothing deleted: %s", partition, error)
                else:
                    self._broker.dir_failed(partition.log, error)
                continue
            except Exception:
                logger.exception("%s: nothing deleted; others are looked at", partition)
                continue
            if doomed:
                logger.info("%s: deleted %d files, %s", partition, len(doomed), reason)
                # Whoever reads them has them open; on a full disk nobody waits for those who might come.
                self.remove_later(partition.log, doomed, 0 if partition.full else partition.log.config.file_delete_delay_ms)

    async def _check_indexes(self, log: Log) -> None:
        """Retention reads from every segment's index. One that is damaged is built again without stopping the loop."""
        for segment in unread_segments(log):
            if log.abandoned or segment not in log.segments or log is self.cleaner.busy:
                continue
            try:
                check = IndexCheck(segment)
            except OSError:
                return  # whoever reads it will say so
            try:
                await self._runtime.run_in_thread(check.run)
            finally:
                mended = check.finish(log)
            if mended:
                logger.warning("%s: its indexes were damaged, and were built again from the log", segment.handle.path)

    def retention_now(self) -> None:
        """A disk is full: what may go need not wait for its time."""
        if not self._stopped and "retention" in self._timers:
            self._broker.spawn(self._retention())

    def remove_later(self, log: Log, paths: list[str], delay_ms: int) -> None:
        """Remove files of a log once nobody reads them any more."""

        def remove() -> None:
            try:
                log.forget_deleted(paths)
            except OSError as error:
                logger.warning("cannot remove files of %s: %s", log.path, error)

        self._runtime.loop.call_later(delay_ms / 1000, lambda: self._runtime.run_in_thread(remove))

    def remove_folder_later(self, folder: str, delay_ms: int) -> None:
        logs = self._broker.logs
        self._runtime.loop.call_later(
            delay_ms / 1000, lambda: self._runtime.run_in_thread(logs.remove_folder, folder)
        )

    def checkpoint_soon(self) -> None:
        """There is a new log."""
        if not self._stopped and "new logs" not in self._timers:
            delay_s = max(NEW_LOGS_S, self._planning_s / NEW_LOGS_SHARE)
            self._timers["new logs"] = self._runtime.loop.call_later(delay_s, self._checkpoint_new)

    def _checkpoint_new(self) -> None:
        del self._timers["new logs"]
        self._broker.spawn(self._checkpoint())

    async def _checkpoint(self) -> None:
        began = self._runtime.perf_counter()
        plan = self._broker.logs.checkpoint_plan(self._broker.node.high_watermarks())
        self._planning_s = self._runtime.perf_counter() - began
        try:
            await self._runtime.run_in_thread(plan.run)
        except OSError as error:
            # Only a hint for the next start is missing; the logs themselves say when a disk is gone.
            logger.warning("cannot write checkpoints: %s", error)

    async def _flush(self) -> None:
        """flush.ms: where acks do not wait for the disk, records still reach it in time."""
        if self._broker.environment.durable_acks:
            return
        now_ms = self._runtime.clock.wall_ms()
        for partition in self._broker.replicas:
            if partition.unflushed and now_ms - partition.unflushed_since_ms >= partition.log.config.flush_ms:
                partition.flush()

    async def _producers(self) -> None:
        now_ms = self._runtime.clock.wall_ms()
        expiration_ms = self._broker.config["producer.id.expiration.ms"]
        for partition in self._broker.replicas:
            partition.log.producers.expire(now_ms, expiration_ms)

    async def _idle(self) -> None:
        now = self._runtime.perf_counter()
        limit_ms = self._broker.config["connections.max.idle.ms"]
        for connection in list(self._broker.connections):
            idle_ms = (now - connection.last_active) * 1000
            if 0 <= limit_ms < idle_ms and not connection.waiting:
                self._broker.metrics.connections_idle_closed += 1
                connection.transport.abort()
            elif idle_ms > SHRINK_AFTER_MS:
                connection.shrink()
        limit_ms = self._broker.config["request.receive.timeout.ms"]
        if limit_ms >= 0:
            pressed = self._broker.budget.pressed
            for connection in self._stalled.found(self._broker.connections, now, limit_ms / 1000, pressed):
                logger.warning(
                    "closing connection from %s: %d bytes of a request, and no more for %d ms",
                    connection.peer_host, connection.unfinished, limit_ms,
                )  # fmt: skip
                self._broker.metrics.connections_stalled_closed += 1
                connection.transport.abort()

    def _idle_check_ms(self) -> int:
        limit_ms: int = self._broker.config["request.receive.timeout.ms"]
        return min(IDLE_CHECK_MS, max(100, limit_ms // 3)) if limit_ms >= 0 else IDLE_CHECK_MS

    # ---- the loop's own health

    def _watch_lag(self) -> None:
        if self._stopped:
            return
        now = self._runtime.perf_counter()
        if self._lag_expected:
            self._broker.metrics.loop_lag.observe(max(0.0, now - self._lag_expected))
        self._lag_expected = now + LAG_INTERVAL_MS / 1000
        self._timers["lag"] = self._runtime.loop.call_later(LAG_INTERVAL_MS / 1000, self._watch_lag)
