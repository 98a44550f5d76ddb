"""Closes connections that are silent for too long, and takes back what a burst has left them with."""

import logging

from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metrics import Metrics
from headrace.broker.net.connection import Connection
from headrace.broker.net.connections import Connections
from headrace.broker.net.limits import MemoryBudget
from headrace.broker.net.stalled_frames import StalledFrames
from headrace.broker.runtime import Runtime

logger = logging.getLogger("headrace.maintenance")

CHECK_MS = 10_000
SHRINK_AFTER_MS = 30_000
"""Idle this long, a connection gives back the buffer that a burst needed."""


class IdleConnections:
    """Looks at all connections of the broker."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        metrics: Metrics,
        budget: MemoryBudget,
        connections: Connections,
    ) -> None:
        self._perf_counter = runtime.perf_counter
        self._config = config
        self._metrics = metrics
        self._budget = budget
        self._connections = connections
        self._stalled: StalledFrames[Connection] = StalledFrames()

    def interval_ms(self) -> int:
        """How soon to look again."""
        limit_ms: int = self._config["request.receive.timeout.ms"]
        return min(CHECK_MS, max(100, limit_ms // 3)) if limit_ms >= 0 else CHECK_MS

    async def check(self) -> None:
        """One look at each."""
        now = self._perf_counter()
        limit_ms = self._config["connections.max.idle.ms"]
        for connection in list(self._connections):
            idle_ms = (now - connection.last_active) * 1000
            if 0 <= limit_ms < idle_ms and not connection.waiting:
                self._metrics.connections_idle_closed += 1
                connection.transport.abort()
            elif idle_ms > SHRINK_AFTER_MS:
                connection.shrink()
        limit_ms = self._config["request.receive.timeout.ms"]
        if limit_ms >= 0:
            for connection in self._stalled.found(self._connections, now, limit_ms / 1000, self._budget.pressed):
                logger.warning(
                    "closing connection from %s: %d bytes of a request, and no more for %d ms",
                    connection.peer_host, connection.unfinished, limit_ms,
                )  # fmt: skip
                self._metrics.connections_stalled_closed += 1
                connection.transport.abort()
