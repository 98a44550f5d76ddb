"""All connections of one node, and what they share: limits, memory, turns of the loop, counters."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.idle_poll import IdlePoll
from headrace.broker.metrics import Metrics
from headrace.broker.net.frame_memory import FrameMemory
from headrace.broker.net.limits import ConnectionLimits, MemoryBudget
from headrace.broker.net.loop_time import LoopTime
from headrace.broker.net.request import Answer, Request
from headrace.broker.runtime import Runtime
from headrace.config import BrokerConfig
from headrace.protocol.templates import RequestTemplate

if TYPE_CHECKING:
    from headrace.broker.net.connection import Connection


class RequestLimits(NamedTuple):
    """What one connection may ask for. Connections made before a change keep what they were made with."""

    request_bytes_max: int
    control_bytes_max: int
    parked_requests_max: int

    @staticmethod
    def of(config: BrokerConfig) -> "RequestLimits":
        return RequestLimits(
            config["socket.request.max.bytes"],
            config["control.request.max.bytes"],
            config["max.parked.requests.per.connection"],
        )


class FastPath(Protocol):
    """What one connection is likely to say again (`broker/fastpath`)."""

    def repeats(self, api_key: int, key: object) -> bool: ...

    def learn(self, api_key: int, template: RequestTemplate, serve: Callable[..., Answer | Request | None]) -> None: ...

    def take(
        self, connection: "Connection", api_key: int, version: int, pos: int, end: int, correlation_id: int,
        started: float,
    ) -> Answer | Request | None: ...  # fmt: skip


def no_fast_path() -> None:
    """For listeners that read every request in full."""


class Disk(Protocol):
    """Who syncs what was appended."""

    @property
    def idle(self) -> bool:
        """Nothing is being synced, nor waits for it."""
        ...


class Connections:
    """Those that are open, in the order in which they came."""

    def __init__(
        self,
        runtime: Runtime,
        requests: RequestLimits,
        limits: ConnectionLimits,
        budget: MemoryBudget,
        metrics: Metrics,
        idle_poll: IdlePoll | None,
        disk: Disk,
        fast_path: Callable[[], FastPath | None] = no_fast_path,
    ) -> None:
        """`fast_path` makes one for each connection."""
        self.loop = runtime.loop
        self.perf_counter = runtime.perf_counter
        self.can_sendfile = runtime.can_sendfile
        self.requests = requests
        self.limits = limits
        self.budget = budget
        self.metrics = metrics
        self.idle_poll = idle_poll
        self.disk = disk
        self.fast_path = fast_path
        self.loop_time = LoopTime(runtime.loop)
        self.frame_memory = FrameMemory(runtime.loop, budget)
        self.draining = False
        """They are answered and closed, one after the other."""
        self._open: dict[Connection, None] = {}  # a set's order would not be repeatable

    def __iter__(self) -> "Iterator[Connection]":
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: "Connection") -> str | None:
        """Count one more; or say why not."""
        refusal = self.limits.admit(connection.peer_host)
        if refusal is None:
            self._open[connection] = None
        else:
            self.metrics.connections_refused += 1
        return refusal

    def release(self, connection: "Connection") -> None:
        """One that was admitted is gone."""
        del self._open[connection]
        self.limits.release(connection.peer_host)
