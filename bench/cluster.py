"""Three nodes against three: replicated writes, their latency and memory, and how long writes stop when a leader is
lost."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.reference.apache import SERVER_JVM, ApacheCluster

from bench import load, wire
from bench.measure import cpu_s, median, memory_mb, percentile
from bench.report import Part
from headrace.testing.cluster import TestCluster

NODES = 3
SMALL, SINGLE = (150, 100), (1, 100)
HEADRACE = {"headrace": {"durability": "replicated"}, "headrace-fsync": {"durability": "fsync"}}
APACHE = "apache"
SETTLE_S = 60.0
BEFORE_S, AFTER_S = 3.0, 15.0
"""Of load before and after a leader is lost."""
SIZES = (100, 10_000)
IDLE_S = 10.0
WARM_TURNS_MAX, WARM_GAIN, WARM_PATIENCE = 20, 1.1, 4
IMPATIENT = {"socket.timeout.ms": 1_000, "request.timeout.ms": 500, "topic.metadata.refresh.interval.ms": 200}
"""A frozen broker keeps its connections. librdkafka waits a minute for answers on them, whatever the cluster does; a
client that is to notice must ask."""


class Bench(Protocol):
    folder: Path
    seconds: float
    rounds: int
    warm_seconds: float
    brokers: Any


@dataclass
class Cluster:
    """Three running nodes of one kind."""

    name: str
    bootstrap: str
    pids: Callable[[], dict[int, int]]
    end: Callable[[int, int], None]
    """(node, signal)"""
    revive: Callable[[int], None]

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @contextmanager
    def topic(self, name: str, **configs: str) -> Iterator[str]:
        admin = self.admin
        settings = {"min.insync.replicas": "2", **configs}
        admin.create_topics([NewTopic(name, 1, NODES, config=settings)])[name].result(60)
        self.wait_in_sync(name)
        try:
            yield name
        finally:
            admin.delete_topics([name])[name].result(60)
            time.sleep(1.5)

    def leader(self, topic: str) -> tuple[int, int]:
        """(node, port)."""
        found = self.admin.list_topics(topic, timeout=30)
        node: int = found.topics[topic].partitions[0].leader
        return node, found.brokers[node].port

    def wait_in_sync(self, topic: str) -> None:
        deadline = time.monotonic() + SETTLE_S
        admin = self.admin
        while True:
            found = admin.list_topics(topic, timeout=30).topics[topic].partitions
            if found and all(p.leader >= 0 and len(p.isrs) == NODES for p in found.values()):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {topic} is not in sync on {NODES} nodes")
            time.sleep(0.1)


@contextmanager
def headrace(name: str, folder: Path) -> Iterator[Cluster]:
    with TestCluster(NODES, folder=folder, settings=HEADRACE[name]) as running:

        def end(node: int, how: int) -> None:
            running.kill(node) if how == signal.SIGKILL else running.freeze(node)

        def revive(node: int) -> None:
            running.thaw(node) if running[node].is_running else running.start(node)

        yield Cluster(name, running.bootstrap, lambda: {n.id: n.pid for n in running.running}, end, revive)


@contextmanager
def apache(folder: Path, properties: Mapping[str, object] | None = None) -> Iterator[Cluster]:
    with ApacheCluster(folder, NODES, properties=properties, jvm=SERVER_JVM) as running:

        def end(node: int, how: int) -> None:
            running.nodes[node].kill9() if how == signal.SIGKILL else os.kill(running.nodes[node].pid, how)

        def revive(node: int) -> None:
            kafka = running.nodes[node]
            kafka.start() if kafka.process is None else os.kill(kafka.pid, signal.SIGCONT)

        yield Cluster(APACHE, running.bootstrap, lambda: running.pids, end, revive)


@contextmanager
def clusters(bench: Bench, *names: str) -> Iterator[list[Cluster]]:
    with ExitStack() as stack:
        found = []
        for name in names:
            folder = Path(mkdtemp(prefix=f"cluster-{name}-", dir=bench.folder))
            if name != APACHE:
                found.append(stack.enter_context(headrace(name, folder)))
            elif bench.brokers.with_apache:
                found.append(stack.enter_context(apache(folder)))
        yield found


# -- replicated writes


def _produce(cluster: Cluster, seconds: float) -> dict[str, float]:
    records = wire.random_batch(*SMALL)
    with cluster.topic("bench-cluster") as topic:
        _, port = cluster.leader(topic)
        pids = list(cluster.pids().values())
        done = load.produce(port, pids, topic, [wire.produce(topic, [0], records)], len(records), seconds=seconds)
    return {"MB/s": done.mb_per_s, "CPU s/GB": done.cpu_s_per_gb, "generator busy": done.generator_share}


def _latency(cluster: Cluster, seconds: float) -> dict[str, float]:
    with cluster.topic("bench-cluster-latency") as topic:
        _, port = cluster.leader(topic)
        taken = load.latency(port, topic, wire.produce(topic, [0], wire.random_batch(*SINGLE)), seconds=seconds)
    return {"p50 µs": percentile(taken, 0.5), "p99 µs": percentile(taken, 0.99)}


def _warm(cluster: Cluster, seconds: float) -> None:
    """Until it gets no faster, several turns in a row: three JVMs on two cores take minutes to compile what they
    run."""
    best, waited = 0.0, 0
    for _ in range(WARM_TURNS_MAX):
        speed = _produce(cluster, seconds)["MB/s"]
        waited = 0 if speed > WARM_GAIN * best else waited + 1
        best = max(best, speed)
        if waited == WARM_PATIENCE:
            break
    _latency(cluster, seconds / 2)


def replicated(bench: Bench) -> Part:
    part = Part(
        "cluster",
        f"{NODES} nodes, replication factor {NODES}, acks=all, min.insync.replicas=2: 150 x 100 B, and one record at a"
        " time",
    )
    with clusters(bench, "headrace", APACHE, "headrace-fsync") as running:
        turns: dict[str, list[dict[str, float]]] = {cluster.name: [] for cluster in running}
        for cluster in running:
            _warm(cluster, bench.warm_seconds)
        for _ in range(bench.rounds):
            for cluster in running:
                turns[cluster.name].append(_produce(cluster, bench.seconds) | _latency(cluster, bench.seconds))
        for cluster in running:
            row = {
                measure: median([turn[measure] for turn in turns[cluster.name]]) for measure in turns[cluster.name][0]
            }
            row["PSS MB"] = sum(memory_mb(pid)["PSS MB"] for pid in cluster.pids().values())
            part.rows[cluster.name] = row
    part.goal("RF 3, 150 x 100 B: MB/s", "MB/s", at_least=3)
    part.goal("RF 3, 150 x 100 B: CPU per GB over all nodes", "CPU s/GB", at_most=0.35)
    part.goal("RF 3, one record: p50", "p50 µs", at_most=0.5)
    part.goal("RF 3, one record: p99", "p99 µs", at_most=0.5)
    part.goal("memory of three nodes (PSS)", "PSS MB", at_most=0.25)
    part.notes.append(
        "CPU and memory are of all three nodes together. `headrace-fsync` syncs on every in-sync replica before it"
        " answers."
    )
    return part


# -- a lost leader


def outage(cluster: Cluster, how: int) -> tuple[float, int]:
    """The longest time without an acknowledgement when the leader is lost under load, and the records that failed."""
    name = f"bench-failover-{int(time.time() * 1000)}"
    times: list[float] = []
    failed = 0

    def delivered(error: object, message: object) -> None:
        nonlocal failed
        if error is None:
            times.append(time.monotonic())
        else:
            failed += 1

    with cluster.topic(name) as topic:
        _, port = cluster.leader(topic)
        others = ",".join(address for address in cluster.bootstrap.split(",") if not address.endswith(f":{port}"))
        producer = Producer(
            {"bootstrap.servers": others, "acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0,
             **(IMPATIENT if how == signal.SIGSTOP else {})}
        )  # fmt: skip
        lost = -1
        begin = time.monotonic()
        number = 0
        while (now := time.monotonic()) < begin + BEFORE_S + AFTER_S:
            producer.produce(topic, b"%d" % number, on_delivery=delivered)
            number += 1
            producer.poll(0.005)
            if lost < 0 and now > begin + BEFORE_S:
                lost, _ = cluster.leader(topic)
                cluster.end(lost, how)
        producer.flush(60)
        cluster.revive(lost)
        cluster.wait_in_sync(topic)
    return max(b - a for a, b in pairwise(times)), failed


def failover(bench: Bench) -> Part:
    part = Part("failover", "The leader is lost under load (idempotent, acks=all): seconds without an acknowledgement")
    for name in ("headrace", APACHE):
        with clusters(bench, name) as running:
            for cluster in running:
                killed = [outage(cluster, signal.SIGKILL) for _ in range(bench.rounds)]
                frozen = [outage(cluster, signal.SIGSTOP) for _ in range(bench.rounds)]
                part.rows[name] = {
                    "kill -9 s": median([gap for gap, _ in killed]),
                    "worst kill -9 s": max(gap for gap, _ in killed),
                    "SIGSTOP s": median([gap for gap, _ in frozen]),
                    "worst SIGSTOP s": max(gap for gap, _ in frozen),
                    "records failed": float(sum(count for _, count in (*killed, *frozen))),
                }
    part.goal("kill -9 of the leader: writes stop", "kill -9 s", at_most=0.1)
    part.rows["goal"] = {"worst kill -9 s": 0.5, "worst SIGSTOP s": 4.0}
    part.goal("kill -9: the worst of all turns against half a second", "worst kill -9 s", at_most=1, against="goal")
    part.goal("SIGSTOP: the worst against session timeout + 1 s", "worst SIGSTOP s", at_most=1, against="goal")
    part.notes.append(
        "Both with their defaults: Headrace sees a dead process by its closed socket, and silence after 3 s; Kafka"
        " waits 9 s for both. With SIGSTOP the producer is set to notice: `socket.timeout.ms` 1000,"
        " `request.timeout.ms` 500, `topic.metadata.refresh.interval.ms` 200. The producer is bootstrapped from brokers"
        " that do not lead: where the lost leader was its only connection, librdkafka itself waits for a second before"
        " it asks anybody else."
    )
    return part


# -- many partitions


def sized(bench: Bench) -> Part:
    part = Part("cluster-size", f"{NODES} nodes, each with a replica of every partition: what their number costs")
    for count in SIZES:
        with clusters(bench, "headrace") as running:
            for cluster in running:
                part.rows[f"{cluster.name}, {count:,}"] = _sized(cluster, count)
    few, many = (f"headrace, {count:,}" for count in SIZES)
    part.goal(f"{SIZES[1]:,} partitions against {SIZES[0]:,}: kill -9", "kill -9 s", at_most=10, of=many, against=few)
    part.notes.append(
        "`kill -9` is the time without an acknowledgement when a broker that leads a third of the partitions is killed;"
        " `ready again` is from the start of its process to its first answer, `in sync again` until it has caught up"
        " with all."
    )
    return part


def _sized(cluster: Cluster, count: int) -> dict[str, float]:
    per_topic = min(count, 1000)
    topics = [f"bench-size-{number}" for number in range(count // per_topic)]
    admin, begin = cluster.admin, time.monotonic()
    for topic in topics:
        admin.create_topics([NewTopic(topic, per_topic, NODES)], request_timeout=300)[topic].result(300)
    for topic in topics:
        cluster.wait_in_sync(topic)
    row = {"created s": time.monotonic() - begin}
    time.sleep(IDLE_S / 2)
    pids = cluster.pids()
    before = sum(map(cpu_s, pids.values()))
    time.sleep(IDLE_S)
    row["idle CPU %, all nodes"] = (sum(map(cpu_s, pids.values())) - before) / IDLE_S * 100
    row["PSS MB"] = sum(memory_mb(pid)["PSS MB"] for pid in pids.values())
    row["kill -9 s"], _ = outage(cluster, signal.SIGKILL)
    for topic in topics:
        cluster.wait_in_sync(topic)
    node, _ = cluster.leader(topics[0])
    cluster.end(node, signal.SIGKILL)
    begin = time.monotonic()
    cluster.revive(node)
    row["ready again s"] = time.monotonic() - begin
    for topic in topics:
        cluster.wait_in_sync(topic)
    row["in sync again s"] = time.monotonic() - begin
    return row


PARTS = {"cluster": replicated, "failover": failover, "cluster-size": sized}
