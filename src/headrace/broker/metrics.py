"""What the broker counts. Plain integers on the hot path; Prometheus sees them only when it scrapes."""

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.protocol.api import API
from headrace.protocol.room_tag import seconds_to_full

if TYPE_CHECKING:
    from headrace.broker.server import Broker

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


class Collector:
    """Turns a broker's counters into Prometheus metric families at scrape time."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        from headrace.broker import controller_metrics

        broker, metrics = self._broker, self._broker.metrics
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
            ("headrace_connections_stalled_closed", "Connections closed over a half-sent request", metrics.connections_stalled_closed),
            ("headrace_produce_errors", "Partitions of Produce requests that were refused", metrics.produce_errors),
            ("headrace_compactions", "Compactions that finished", metrics.compactions),
            ("headrace_scrub_bytes", "Bytes of segments that were checked for damage", metrics.scrub_bytes),
            ("headrace_segments_damaged", "Segments that a check found damaged", metrics.segments_damaged),
            ("headrace_holes_mended", "Damaged ranges fetched again and put in place", metrics.holes_mended),
            ("headrace_fetch_session_evictions", "Fetch sessions evicted", broker.sessions.evictions),
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
            ("headrace_connections", "Open connections", len(broker.connections)),
            ("headrace_parked_requests", "Requests that wait", len(broker.wheel)),
            ("headrace_receive_buffer_bytes", "Receive buffers beyond the smallest", broker.budget.used_bytes),
            ("headrace_fetch_sessions", "Fetch sessions", len(broker.sessions)),
            ("headrace_partitions", "Partitions on this node", len(broker.replicas)),
            ("headrace_offline_log_dirs", "Log directories that failed", sum(d.failed is not None for d in broker.logs.dirs)),
        ):
            gauge = GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge
        yield from self._room()
        yield from self._replication()
        yield from self._scrub()
        yield from controller_metrics.collect(broker)
        yield from self._topics()
        yield from self._groups()

    def _room(self) -> Iterator[Any]:
        """Of each log dir, as it was last looked at."""
        from prometheus_client.core import GaugeMetricFamily

        rows = [(path, room, self._broker.room.space(path)) for path, room in list(self._broker.room.dirs.items())]
        for name, doc, values in (
            ("headrace_log_dir_total_bytes", "Size of the file system", [room.total_bytes for _, room, _ in rows]),
            ("headrace_log_dir_free_bytes", "Free space that this broker may use", [room.usable_bytes for _, room, _ in rows]),
            ("headrace_log_dir_reserve_bytes", "Free space below which records are refused", [room.reserve_bytes for _, room, _ in rows]),
            ("headrace_log_dir_full", "1: no room for records, 2: for nothing", [room.level for _, room, _ in rows]),
            ("headrace_log_dir_full_in_seconds", "Time to full by the rate of the last hour; none where it does not fill",
             [seconds_to_full(room.usable_bytes, space) for _, room, space in rows]),
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
        topics = [list(partitions.values()) for partitions in list(self._broker.replicas.by_id.values())]
        led = [leader for topic in topics for partition in topic if (leader := partition.leader) is not None]
        for name, doc, value in (
            ("headrace_leaders", "Partitions led by this node", len(led)),
            ("headrace_under_replicated", "Led here, with replicas out of sync", sum(len(x.isr) < len(x.replicas) for x in led)),
            ("headrace_under_min_isr", "Led here, with too few in sync for acks=all", sum(x.too_few for x in led)),
            ("headrace_at_min_isr", "Led here, with just enough in sync", sum(len(x.isr) == x.min_isr for x in led)),
            ("headrace_offline_replicas", "Replicas whose disk failed", sum(p.failed for topic in topics for p in topic)),
            ("headrace_fetchers", "Connections over which leaders are copied", len(self._broker.replicas.fetchers)),
        ):
            gauge = GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge

    def _scrub(self) -> Iterator[Any]:
        """How much of the files is checked for damage, and what is missing."""
        from prometheus_client.core import GaugeMetricFamily

        status = self._broker.maintenance.scrubber.status()
        progress = status.bytes_done / status.bytes_total if status.bytes_total else 0.0
        for name, doc, value in (
            ("headrace_scrub_last_pass_timestamp_seconds", "When all segments were last checked", status.last_pass_ms / 1000),
            ("headrace_scrub_progress_ratio", "How much of the pass under way is done", progress if status.is_running else 1.0),
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
        for topic, partitions in list(self._broker.replicas.by_name.items()):
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

        latest = self._broker.lag.latest
        labels = ["group", "topic"]
        records = GaugeMetricFamily("headrace_group_lag_records", "Records not consumed", labels=labels)
        seconds = GaugeMetricFamily("headrace_group_lag_seconds", "Age of the oldest record not consumed", labels=labels)
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
