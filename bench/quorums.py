"""The two quorums beside each other: topics made, a broker's partitions led by others, another controller."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import NODES, Bench
from bench.measure import median
from bench.report import Part
from headrace.client.admin.admin import Admin
from headrace.local_cluster.ensemble import Ensemble
from headrace.local_cluster.layout import free_ports
from headrace.testing.cluster import TestCluster

SERVERS = 3
LED = 1_000
TOPICS = 1_000
LIMIT_S = 300.0
KRAFT, ZOOKEEPER = "kraft", "zookeeper"


@contextmanager
def cluster_of(name: str, folder: Path) -> Iterator[TestCluster]:
    """Three nodes with their metadata in KRaft, or in three ZooKeeper servers beside them."""
    with ExitStack() as stack:
        settings = {"durability": "replicated"}
        if name == ZOOKEEPER:
            ensemble = Ensemble(folder / "zookeeper", list(free_ports(3 * SERVERS)))
            ensemble.start()
            stack.callback(ensemble.kill)
            settings["zookeeper.connect"] = f"{ensemble.connect}/bench"
        yield stack.enter_context(TestCluster(NODES, folder=folder / "cluster", settings=settings))


def create(cluster: TestCluster, topics: list[NewTopic]) -> float:
    """Seconds until all are there and every replica is in sync."""
    admin, begin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}), time.monotonic()
    for answer in admin.create_topics(topics, request_timeout=LIMIT_S).values():
        answer.result(LIMIT_S)
    cluster.wait_in_sync(limit_s=LIMIT_S)
    return time.monotonic() - begin


def led_by_others(cluster: TestCluster, topic: str) -> float:
    """Seconds from the `kill -9` of the broker that leads all of `topic` until others lead all of it."""
    victim = cluster.leader_of(topic)
    others = ",".join(node.address for node in cluster.nodes.values() if node.id != victim)

    async def wait() -> float:
        async with Admin(others) as admin:
            begin = time.monotonic()
            cluster.kill(victim)
            while True:
                await admin.cluster.refresh([topic])
                found = await admin.cluster.topic(topic)
                if all(p.leader not in (-1, victim) for p in found.partitions.values()):
                    return time.monotonic() - begin

    spent = asyncio.run(wait())
    cluster.start(victim)
    cluster.wait_in_sync(limit_s=LIMIT_S)
    return spent


def other_controller(cluster: TestCluster, number: int) -> float:
    """Seconds from the `kill -9` of the controller until another has made a topic."""
    victim = cluster.quorum_leader()
    begin = time.monotonic()
    cluster.kill(victim)
    cluster.create_topic(f"bench-after-{number}", 1, 2)
    spent = time.monotonic() - begin
    cluster.start(victim)
    cluster.wait_in_sync(limit_s=LIMIT_S)
    return spent


def quorums(bench: Bench) -> Part:
    part = Part("quorums", f"{NODES} nodes, metadata in KRaft or in {SERVERS} ZooKeeper servers on the same machine")
    for name in (KRAFT, ZOOKEEPER):
        folder = Path(mkdtemp(prefix=f"quorum-{name}-", dir=bench.folder))
        with cluster_of(name, folder) as cluster:
            row = part.rows[name] = {}
            row[f"create {TOPICS:,} topics s"] = create(
                cluster, [NewTopic(f"bench-{number}", 1, NODES) for number in range(TOPICS)]
            )
            row[f"create 1 topic of {LED:,} s"] = create(cluster, [NewTopic("bench-large", LED, NODES)])
            cluster.create_topic("bench-led", assignments={n: [1, 2, 3] for n in range(LED)})
            cluster.wait_in_sync(limit_s=LIMIT_S)
            lost = [led_by_others(cluster, "bench-led") for _ in range(bench.rounds)]
            row[f"{LED:,} led partitions s"] = median(lost)
            row["another controller s"] = median([other_controller(cluster, n) for n in range(bench.rounds)])
    part.goal(f"{LED:,} led partitions fail over", f"{LED:,} led partitions s", at_most=3, of=ZOOKEEPER, against=KRAFT)
    part.notes.append(
        "`led partitions`: from the `kill -9` of the broker that leads all of them until others do. `another"
        " controller`: from the `kill -9` of the controller until another has made a topic. ZooKeeper's servers sync to"
        " the same disk."
    )
    return part


PARTS = {"quorums": quorums}
