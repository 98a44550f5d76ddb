"""What a broker does by the clock: retention, compaction, scrubbing, checkpoints, idle connections, freed memory,
watching its own lag."""

from collections.abc import Awaitable, Callable

from headrace.broker.coordinators.lag import LagWatch
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.maintenance.active_indexes import LOOK_MS as INDEXES_MS, ActiveIndexes
from headrace.broker.maintenance.cleaner import Cleaner
from headrace.broker.maintenance.freed_memory import LOOK_MS, FreedMemory
from headrace.broker.maintenance.idle_connections import IdleConnections
from headrace.broker.maintenance.retention import Retention
from headrace.broker.maintenance.scrubber import Scrubber
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.environment import Environment
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.clock import Cancellable
from headrace.quorum import Quorum

LAG_INTERVAL_MS = 250
FLUSH_CHECK_MS = 500
METADATA_CHECK_MS = 10_000
SCRUB_CHECK_MS = 60_000


class Maintenance:
    """Runs each chore again and again, never twice at the same time."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metrics: Metrics,
        environment: Environment,
        replicas: Replicas,
        quorum: Quorum,
        retention: Retention,
        checkpoints: Checkpoints,
        cleaner: Cleaner,
        scrubber: Scrubber,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        lag: LagWatch,
        idle_connections: IdleConnections,
        freed_memory: FreedMemory,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._config = config
        self._metrics = metrics
        self._environment = environment
        self._replicas = replicas
        self._quorum = quorum
        self._retention = retention
        self._checkpoints = checkpoints
        self._cleaner = cleaner
        self._scrubber = scrubber
        self._groups = groups
        self._transactions = transactions
        self._lag = lag
        self._idle_connections = idle_connections
        self._freed_memory = freed_memory
        self._active_indexes = ActiveIndexes(replicas)
        self._timers: dict[str, Cancellable] = {}
        self._stopped = False
        self._lag_expected = 0.0

    def start(self) -> None:
        config = self._config.current
        first_ms = config["log.initial.task.delay.ms"]
        self._retention.start()
        self._freed_memory.start()
        self._every("retention", lambda: config["log.retention.check.interval.ms"], self._retention.run, first_ms)
        watermarks_ms = config["replica.high.watermark.checkpoint.interval.ms"]
        self._every("watermarks", lambda: watermarks_ms, self._checkpoints.run)
        self._every("compaction", lambda: self._config["log.cleaner.backoff.ms"], self._cleaner.run)
        self._every("scrub", lambda: SCRUB_CHECK_MS, self._scrubber.run, first_ms)
        self._every("flush", lambda: FLUSH_CHECK_MS, self._flush)
        self._every("metadata", lambda: METADATA_CHECK_MS, self._quorum.maintain)
        self._every("idle", self._idle_connections.interval_ms, self._idle_connections.check)
        self._every("freed memory", lambda: LOOK_MS, self._freed_memory.run)
        self._every("active indexes", lambda: INDEXES_MS, self._active_indexes.run)
        self._every("producers", lambda: config["producer.id.expiration.check.interval.ms"], self._producers)
        self._every("offsets", lambda: config["offsets.retention.check.interval.ms"], self._groups.expire)
        ids_ms = config["transaction.remove.expired.transaction.cleanup.interval.ms"]
        self._every("transactional ids", lambda: ids_ms, self._transactions.expire)
        if config["metrics.port"] is not None and config["metrics.port"] >= 0:  # nobody else asks
            self._every("lag of groups", self._lag.rest_ms, self._lag.refresh)
        self._watch_lag()

    def stop(self) -> None:
        self._stopped = True
        self._retention.stop()
        self._checkpoints.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _every(
        self,
        name: str,
        interval_ms: Callable[[], int],
        chore: Callable[[], Awaitable[None]],
        first_ms: int | None = None,
    ) -> None:
        async def run() -> None:
            await chore()
            again(interval_ms())

        def again(delay_ms: int) -> None:
            if not self._stopped:
                later = self._runtime.schedule.call_later
                self._timers[name] = later(delay_ms / 1000, lambda: self._tasks.spawn(run()))

        again(interval_ms() if first_ms is None else first_ms)

    # ---- chores

    async def _flush(self) -> None:
        """flush.ms: where acks do not wait for the disk, records still reach it in time."""
        if self._environment.durable_acks:
            return
        now_ms = self._runtime.clock.wall_ms()
        for partition in self._replicas:
            if partition.unflushed and now_ms - partition.unflushed_since_ms >= partition.log.config.flush_ms:
                partition.flush()

    async def _producers(self) -> None:
        now_ms = self._runtime.clock.wall_ms()
        expiration_ms = self._config["producer.id.expiration.ms"]
        for partition in self._replicas:
            partition.log.producers.expire(now_ms, expiration_ms)

    # ---- the loop's own health

    def _watch_lag(self) -> None:
        if self._stopped:
            return
        now = self._runtime.perf_counter()
        if self._lag_expected:
            self._metrics.loop_lag.observe(max(0.0, now - self._lag_expected))
        self._lag_expected = now + LAG_INTERVAL_MS / 1000
        self._timers["lag"] = self._runtime.loop.call_later(LAG_INTERVAL_MS / 1000, self._watch_lag)
