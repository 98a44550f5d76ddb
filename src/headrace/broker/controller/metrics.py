"""What a controller counts, and what the metadata says of the cluster, for Prometheus."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from headrace.broker.metrics import Latency
from headrace.metadata.image import NO_LEADER, Image
from headrace.metadata.partitions import is_unclean
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.quorum import Quorum

ELECTION_KINDS = ("in sync", "eligible", "unclean")


class ControllerCounters:
    """Of the time in which this node was the active controller."""

    def __init__(self) -> None:
        self.elections = dict.fromkeys(ELECTION_KINDS, 0)
        self.fenced = 0
        self.decisions = Latency()
        """How long the core thought."""
        self.commits = Latency()
        """From a request to the commit that its answer waited for."""

    def note_elections(self, image: Image, records: list[Record]) -> list[m.PartitionChangeRecord]:
        """Count new leaders; returns the unclean ones."""
        unclean = []
        for record, _ in records:
            if not isinstance(record, m.PartitionChangeRecord) or record.leader < 0:
                continue
            partition = image.topics[record.topic_id].partitions[record.partition_id]
            if record.leader == partition.leader:
                continue
            if is_unclean(partition, record):
                unclean.append(record)
                self.elections["unclean"] += 1
            else:
                self.elections["eligible" if record.leader in partition.elr else "in sync"] += 1
        return unclean


def collect(quorum: Quorum, counters: ControllerCounters | None) -> Iterator[Any]:
    """`counters` are those of this node's controller, if it has one.

    In a scrape's thread: an image never changes, and counters are read one by one.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    image = quorum.image
    end_offset = quorum.next_offset
    gauges = [
        ("headrace_metadata_offset", "The last record of metadata that this node has applied", image.offset),
        ("headrace_metadata_lag_records", "Records of metadata that this node has and not yet applied",
         end_offset - 1 - image.offset),
        ("headrace_quorum_epoch", "The epoch of the metadata quorum", quorum.leader_epoch),
        ("headrace_quorum_leader", "Who leads the metadata quorum, as far as this node knows; -1: nobody",
         quorum.leader_id),
        ("headrace_metadata_reachable", "0 while ZooKeeper, where the metadata is, does not answer this node",
         int(quorum.hears_changes)),
    ]  # fmt: skip
    if counters is not None:
        gauges += [
            ("headrace_active_controller", "1 on the node that decides", int(quorum.is_active)),
            ("headrace_cluster_topics", "Topics of the cluster", len(image.topics)),
            ("headrace_cluster_partitions", "Partitions of the cluster",
             sum(len(t.partitions) for t in image.topics.values())),
            ("headrace_cluster_offline_partitions", "Partitions that nobody leads",
             len(image.broker_partitions.get(NO_LEADER, ()))),
            ("headrace_cluster_imbalanced_partitions", "Partitions that another than the preferred replica leads",
             len(image.imbalanced)),
            ("headrace_cluster_moving_partitions", "Partitions that are being moved", len(image.reassigning)),
        ]  # fmt: skip
    for name, doc, value in gauges:
        gauge = GaugeMetricFamily(name, doc)
        gauge.add_metric([], value)
        yield gauge
    if counters is None:
        return
    states = GaugeMetricFamily("headrace_cluster_brokers", "Registered brokers", labels=["state"])
    counts = Counter(
        "fenced" if known.fenced else "leaving" if known.in_controlled_shutdown else "active"
        for known in image.brokers.values()
    )
    for state in ("active", "leaving", "fenced"):
        states.add_metric([state], counts[state])
    yield states
    elections = CounterMetricFamily("headrace_elections", "Leaders that this controller has elected", labels=["kind"])
    for kind, count in counters.elections.items():
        elections.add_metric([kind], count)
    yield elections
    fenced = CounterMetricFamily("headrace_brokers_fenced", "Brokers that this controller found dead or silent")
    fenced.add_metric([], counters.fenced)
    yield fenced
    for name, doc, latency in (
        ("headrace_controller_decision_seconds", "Time to decide a request", counters.decisions),
        ("headrace_controller_commit_seconds", "Time until what a request has changed was committed", counters.commits),
    ):
        family = HistogramMetricFamily(name, doc)
        family.add_metric([], latency.cumulative()[0], latency.total_seconds)
        yield family
