"""Shows to Prometheus what the broker counts, when somebody scrapes."""

import logging
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.broker.controller import metrics as controller_metrics
from headrace.broker.controller.metrics import ControllerCounters
from headrace.broker.coordinators import transaction_metrics
from headrace.broker.coordinators.lag import LagWatch
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.health import Health
from headrace.broker.maintenance.scrubber import Scrubber
from headrace.broker.metrics import Metrics
from headrace.broker.net.connections import Connections
from headrace.broker.net.limits import MemoryBudget
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.runtime import StartupError, os_reason
from headrace.config import BrokerConfig
from headrace.protocol.api import API
from headrace.protocol.private_fields.disk_space import seconds_to_full
from headrace.quorum import Quorum
from headrace.replication.fetch_sessions import SessionCache
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.server")


class MetricsServer:
    """Serves `/metrics`, `/health` and `/ready` in threads of its own, where `metrics.port` asks for it."""

    def __init__(self, config: BrokerConfig) -> None:
        self._host: str = config["metrics.host"]
        self._port: int | None = config["metrics.port"]
        self._server: Any = None

    def check_port(self) -> None:
        """What the metrics show exists only later, but whether their port is free should be known before."""
        if self._port is not None and self._port > 0:
            try:
                socket.create_server((self._host, self._port)).close()
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> StartupError:
        where = f"{self._host}:{self._port}"
        return StartupError(f"cannot serve metrics on {where}: {os_reason(error)}; choose another with --metrics-port")

    def start(self, collector: "Collector", health: Health) -> None:
        if self._port is None or self._port < 0:
            return
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, _ = start_http_server(self._port, self._host, registry)
        except OSError as error:
            raise self._failed(error) from error
        self._server.set_app(health.beside(self._server.get_app()))
        logger.info("metrics on http://%s:%d/metrics", self._host, self._server.server_port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()


class Counted(NamedTuple):
    """Whatever has something to show."""

    metrics: Metrics
    connections: Connections
    wheel: TimerWheel
    budget: MemoryBudget
    sessions: SessionCache
    logs: LogManager
    disk_space: DiskSpace
    replicas: Replicas
    fetchers: Fetchers
    scrubber: Scrubber
    lag: LagWatch
    transactions: TransactionCoordinator
    quorum: Quorum
    controller_counters: ControllerCounters | None


class Collector:
    """Turns a broker's counters into Prometheus metric families at scrape time."""

    def __init__(self, parts: Counted) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        metrics, parts = self._parts.metrics, self._parts
        latency = HistogramMetricFamily(
            "headrace_request_seconds", "Time from a request's last byte to its answer", labels=["api"]
        )
        for api_key, histogram in sorted(metrics.requests.items()):
            buckets, _ = histogram.cumulative()
            latency.add_metric([API[api_key].name], buckets, histogram.total_seconds)
        yield latency
        for name, doc, one in (
            ("headrace_loop_lag_seconds", "How late the event loop ran a timer", metrics.loop_lag),
            ("headrace_gc_pause_seconds", "Pauses of the garbage collector", metrics.gc_pauses),
            ("headrace_sync_seconds", "Time of one round of fsyncs", metrics.sync_seconds),
        ):
            family = HistogramMetricFamily(name, doc)
            family.add_metric([], one.cumulative()[0], one.total_seconds)
            yield family
        for name, doc, value in (
            ("headrace_protocol_errors", "Connections closed for bytes that were not Kafka's", metrics.protocol_errors),
            ("headrace_requests_failed", "Requests that failed inside the broker", metrics.requests_failed),
            ("headrace_connections_refused", "Connections over a limit", metrics.connections_refused),
            ("headrace_connections_idle_closed", "Connections closed for silence", metrics.connections_idle_closed),
            (
                "headrace_connections_stalled_closed",
                "Connections closed over a half-sent request",
                metrics.connections_stalled_closed,
            ),
            ("headrace_produce_errors", "Partitions of Produce requests that were refused", metrics.produce_errors),
            ("headrace_compactions", "Compactions that finished", metrics.compactions),
            ("headrace_scrub_bytes", "Bytes of segments that were checked for damage", metrics.scrub_bytes),
            ("headrace_segments_damaged", "Segments that a check found damaged", metrics.segments_damaged),
            ("headrace_holes_mended", "Damaged ranges fetched again and put in place", metrics.holes_mended),
            ("headrace_fetch_session_evictions", "Fetch sessions evicted", parts.sessions.evictions),
            ("headrace_replication_bytes_in", "Bytes copied from leaders", metrics.replication_bytes_in),
            ("headrace_replication_bytes_out", "Bytes sent to followers", metrics.replication_bytes_out),
            ("headrace_isr_shrinks", "Replicas that leaders here found out of sync", metrics.isr_shrinks),
            ("headrace_isr_expands", "Replicas that leaders here found in sync again", metrics.isr_expands),
            ("headrace_truncations", "Logs cut to match their leader's", metrics.truncations),
            ("headrace_replicas_lost", "Replicas found without the records that they had", metrics.replicas_lost),
        ):
            counter = CounterMetricFamily(name, doc)
            counter.add_metric([], value)
            yield counter
        for name, doc, value in (
            ("headrace_connections", "Open connections", len(parts.connections)),
            ("headrace_parked_requests", "Requests that wait", len(parts.wheel)),
            ("headrace_receive_buffer_bytes", "Receive buffers beyond the smallest", parts.budget.used_bytes),
            ("headrace_fetch_sessions", "Fetch sessions", len(parts.sessions)),
            ("headrace_partitions", "Partitions on this node", len(parts.replicas)),
            (
                "headrace_offline_log_dirs",
                "Log directories that failed",
                sum(d.failed is not None for d in parts.logs.dirs),
            ),
        ):
            gauge = GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge
        yield from self._log_dirs()
        yield from self._replication()
        yield from self._scrub()
        yield from controller_metrics.collect(parts.quorum, parts.controller_counters)
        yield from self._topics()
        yield from self._groups()
        members = [one for topic in list(parts.replicas.by_id.values()) for one in list(topic.values())]
        yield from transaction_metrics.collect(parts.transactions, members)

    def _log_dirs(self) -> Iterator[Any]:
        """Of each log dir, as it was last looked at."""
        from prometheus_client.core import GaugeMetricFamily

        disk_space = self._parts.disk_space
        rows = [(path, space, disk_space.space(path)) for path, space in list(disk_space.dirs.items())]
        for name, doc, values in (
            ("headrace_log_dir_total_bytes", "Size of the file system", [space.total_bytes for _, space, _ in rows]),
            ("headrace_log_dir_free_bytes", "Free space that this broker may use", [space.usable_bytes for _, space,
             _ in rows]),
            ("headrace_log_dir_reserve_bytes", "Free space below which records are refused", [space.reserve_bytes for _,
             space, _ in rows]),
            ("headrace_log_dir_full", "1: no room for records, 2: for nothing", [space.level for _, space, _ in rows]),
            ("headrace_log_dir_full_in_seconds",
             "Time to full by the rate of the last hour; none where it does not fill",
             [seconds_to_full(space.usable_bytes, told) for _, space, told in rows]),
        ):  # fmt: skip
            gauge = GaugeMetricFamily(name, doc, labels=["dir"])
            for (path, _, _), value in zip(rows, values):
                if value is not None:
                    gauge.add_metric([path], value)
            yield gauge

    def _replication(self) -> Iterator[Any]:
        """What this node leads, and how well that is copied."""
        from prometheus_client.core import GaugeMetricFamily

        # A scrape is another thread's: it looks at copies, and a leader may be deposed between two looks.
        topics = [list(partitions.values()) for partitions in list(self._parts.replicas.by_id.values())]
        led = [leader for topic in topics for partition in topic if (leader := partition.leader) is not None]
        for name, doc, value in (
            ("headrace_leaders", "Partitions led by this node", len(led)),
            (
                "headrace_under_replicated",
                "Led here, with replicas out of sync",
                sum(len(x.isr) < len(x.replicas) for x in led),
            ),
            ("headrace_under_min_isr", "Led here, with too few in sync for acks=all", sum(x.too_few for x in led)),
            ("headrace_at_min_isr", "Led here, with just enough in sync", sum(len(x.isr) == x.min_isr for x in led)),
            (
                "headrace_offline_replicas",
                "Replicas whose disk failed",
                sum(p.failed for topic in topics for p in topic),
            ),
            ("headrace_fetchers", "Connections over which leaders are copied", len(self._parts.fetchers)),
        ):
            gauge = GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge

    def _scrub(self) -> Iterator[Any]:
        """How much of the files is checked for damage, and what is missing."""
        from prometheus_client.core import GaugeMetricFamily

        status = self._parts.scrubber.status()
        progress = status.bytes_done / status.bytes_total if status.bytes_total else 0.0
        for name, doc, value in (
            (
                "headrace_scrub_last_pass_timestamp_seconds",
                "When all segments were last checked",
                status.last_pass_ms / 1000,
            ),
            (
                "headrace_scrub_progress_ratio",
                "How much of the pass under way is done",
                progress if status.is_running else 1.0,
            ),
            ("headrace_holes", "Ranges of offsets that are damaged and not repaired", status.missing),
        ):
            gauge = GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge

    def _topics(self) -> Iterator[Any]:
        """Per topic rather than per partition: ten thousand partitions must stay scrapable."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        messages = CounterMetricFamily("headrace_topic_messages_in", "Records appended", labels=["topic"])
        received = CounterMetricFamily("headrace_topic_bytes_in", "Bytes appended", labels=["topic"])
        sizes = GaugeMetricFamily("headrace_topic_log_bytes", "Bytes kept on disk", labels=["topic"])
        # A scrape is another thread's: it looks at copies, made in one step each.
        for topic, partitions in list(self._parts.replicas.by_name.items()):
            members = list(partitions.values())
            messages.add_metric([topic], sum(partition.messages_in for partition in members))
            received.add_metric([topic], sum(partition.bytes_in for partition in members))
            sizes.add_metric([topic], sum(partition.log.size for partition in members))
        yield messages
        yield received
        yield sizes

    def _groups(self) -> Iterator[Any]:
        """Lag as of the last round; of very many groups, those that are furthest behind."""
        from prometheus_client.core import GaugeMetricFamily

        latest = self._parts.lag.latest
        labels = ["group", "topic"]
        records = GaugeMetricFamily("headrace_group_lag_records", "Records not consumed", labels=labels)
        seconds = GaugeMetricFamily(
            "headrace_group_lag_seconds", "Age of the oldest record not consumed", labels=labels
        )
        unknown = GaugeMetricFamily(
            "headrace_group_lag_unknown_partitions",
            "Partitions whose leader did not answer, where there are any: they count as last known, or not at all",
            labels=labels,
        )
        for lag in latest.shown:
            for gauge, value in ((records, lag.records), (seconds, lag.seconds), (unknown, lag.unknown or None)):
                if value is not None:
                    gauge.add_metric([lag.group, lag.topic], value)
        yield records
        yield seconds
        yield unknown
        for name, doc, value in (
            ("headrace_groups", "Groups coordinated here", latest.groups),
            ("headrace_group_offsets", "Committed offsets kept here", latest.offsets),
            ("headrace_group_lags_hidden", "Pairs of group and topic that are too many to show", latest.hidden),
            ("headrace_group_lags_unknown", "Pairs of group and topic with partitions of unknown lag", latest.unknown),
        ):
            gauge = GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge
