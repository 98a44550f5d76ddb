"""Shows to Prometheus what listeners count, and to load balancers whether they run: `/metrics`, `/health`, `/ready`."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.errors import ClientError
from headrace.listeners.counters import SECONDS, Counters
from headrace.listeners.health import Health

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("headrace.listeners")

ANSWER_LIMIT_S = 5.0

COUNTED = {
    "received": "Records read.",
    "processed": "Records whose handler has returned.",
    "failures": "Calls of a handler that failed.",
    "retries": "Times that a failed record was tried again after a while.",
    "sent_to_retry_topics": "Records sent to a retry topic.",
    "dead_letters": "Records sent to the dead letters.",
    "skipped": "Failed records that the listener went on without.",
    "duplicates": "Records left out because they had been handled before.",
    "commits": "Commits of offsets.",
    "commit_failures": "Commits that failed and were tried again.",
    "restarts": "Times that the listener was started again.",
}


class Row(NamedTuple):
    """What is shown of one listener. Gathered in a thread of the metrics server, so that it asks no event loop."""

    listener: str
    counters: Counters
    waiting: int
    running: int
    is_up: bool


GAUGES: tuple[tuple[str, str, Callable[[Row], float]], ...] = (
    ("waiting_records", "Records read and not done with.", lambda row: row.waiting),
    ("running_handlers", "Calls of the handler that run.", lambda row: row.running),
    ("up", "1 while the listener runs.", lambda row: row.is_up),
)


class Collector:
    """Counters of listeners as Prometheus wants them; nothing is done until somebody asks."""

    def __init__(self, app: str, rows: Callable[[], list[Row]]) -> None:
        self._app = app
        self._rows = rows

    def collect(self) -> "Iterator[Metric]":
        """Every metric of every listener."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ["app", "listener"]
        rows = self._rows()
        for name, text in COUNTED.items():
            counter = CounterMetricFamily(f"headrace_listener_{name}", text, labels=labels)
            for row in rows:
                counter.add_metric([self._app, row.listener], getattr(row.counters, name))
            yield counter
        for name, text, value in GAUGES:
            gauge = GaugeMetricFamily(f"headrace_listener_{name}", text, labels=labels)
            for row in rows:
                gauge.add_metric([self._app, row.listener], value(row))
            yield gauge
        seconds = HistogramMetricFamily("headrace_listener_handler_seconds", "How long calls took.", labels=labels)
        for row in rows:
            buckets = _buckets(row.counters)
            seconds.add_metric([self._app, row.listener], buckets, sum_value=row.counters.seconds)
        yield seconds


def _buckets(counters: Counters) -> list[tuple[str, float]]:
    found, total = [], 0
    for bound, count in zip(SECONDS, counters.buckets):
        total += count
        found.append((str(bound), float(total)))
    return [*found, ("+Inf", float(counters.calls))]


class MetricsServer:
    """`/metrics`, `/health` and `/ready`, in threads of its own."""

    def __init__(self, host: str, port: int, collector: Collector, health: Callable[[], Health]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ClientError(f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another port") from None
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._metrics: Any = self._server.get_app()
        self._server.set_app(self._answer)
        self.port: int = self._server.server_port
        log.info("metrics on http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") not in ("/health", "/ready"):
            found: Iterable[bytes] = self._metrics(environ, start_response)
            return found
        ok, body = self._ask()
        status = "200 OK" if ok else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    def _ask(self) -> tuple[bool, bytes]:
        """On the event loop, so that an answer shows that it turns."""

        async def look() -> Health:
            return self._health()

        try:
            found = asyncio.run_coroutine_threadsafe(look(), self._loop).result(ANSWER_LIMIT_S)
        except TimeoutError:
            return False, b'{"ok": false, "error": "the event loop does not turn"}'
        return found.ok, json.dumps({"ok": found.ok, "listeners": [asdict(one) for one in found.listeners]}).encode()
