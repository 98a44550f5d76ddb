"""What the broker counts. Plain integers on the hot path; `prometheus.py` shows them when somebody scrapes."""

import gc
from collections.abc import Callable
from typing import Any

LATENCY_BUCKETS = 32
"""Bucket n counts what took less than 2^n microseconds; the last one everything else."""


class Latency:
    """A histogram with one bucket per power of two of microseconds."""

    __slots__ = ("counts", "total_seconds")

    def __init__(self) -> None:
        self.counts = [0] * LATENCY_BUCKETS
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.total_seconds += seconds
        # Above 2^31 µs (half an hour) nothing needs telling apart.
        self.counts[min(int(seconds * 1e6).bit_length(), LATENCY_BUCKETS - 1)] += 1

    def observe_many(self, count: int, seconds: float) -> None:
        """Several that took the same time."""
        self.total_seconds += count * seconds
        self.counts[min(int(seconds * 1e6).bit_length(), LATENCY_BUCKETS - 1)] += count

    def cumulative(self) -> tuple[list[tuple[str, float]], int]:
        """Prometheus' shape: (upper bound in seconds, how many at most that), and how many in all."""
        buckets: list[tuple[str, float]] = []
        count = 0
        for power, here in enumerate(self.counts):
            count += here
            bound = "+Inf" if power == LATENCY_BUCKETS - 1 else f"{2**power / 1e6:g}"
            buckets.append((bound, count))
        return buckets, count


class Metrics:
    """One broker's counters."""

    def __init__(self) -> None:
        self.requests: dict[int, Latency] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.truncations = 0
        self.replicas_lost = 0
        self.protocol_errors = 0
        self.requests_failed = 0
        self.connections_refused = 0
        self.connections_idle_closed = 0
        self.connections_stalled_closed = 0
        self.produce_errors = 0
        self.loop_lag = Latency()
        self.gc_pauses = Latency()
        self.sync_seconds = Latency()
        self.compactions = 0
        self.holes_mended = 0
        self.segments_damaged = 0
        self.scrub_bytes = 0

    def request_latency(self, api_key: int) -> Latency:
        latency = self.requests.get(api_key)
        if latency is None:
            latency = self.requests[api_key] = Latency()
        return latency


class GcWatch:
    """Times the garbage collector's pauses."""

    def __init__(self, metrics: Metrics, perf_counter: Callable[[], float]) -> None:
        self._metrics = metrics
        self._perf_counter = perf_counter
        self._started = 0.0

    def _callback(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = self._perf_counter()
        else:
            self._metrics.gc_pauses.observe(self._perf_counter() - self._started)

    def start(self) -> None:
        gc.callbacks.append(self._callback)

    def stop(self) -> None:
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
