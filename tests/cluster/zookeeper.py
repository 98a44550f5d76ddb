"""Real ZooKeeper processes for clusters of tests, and a look at their znodes."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from headrace.local_cluster.ensemble import Ensemble, Unavailable
from headrace.local_cluster.layout import free_ports
from headrace.testing.cluster import ClusterFailed, TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK, Shared, mend

CHROOT = "/kafka"
SOME = 150
"""Records that a writer is to have acknowledged before something is done."""


@contextmanager
def ensemble(
    folder: Path, servers: int = 1, options: Sequence[str] = (), system_properties: Sequence[str] = ()
) -> Iterator[Ensemble]:
    """Running; skips the test where ZooKeeper cannot run."""
    pytest.importorskip("kazoo")
    ports = list(free_ports(servers if servers == 1 else 3 * servers))
    found = Ensemble(folder, ports, options, system_properties)
    try:
        found.start()
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        yield found
    finally:
        found.kill()


class OnZooKeeper(Shared):
    """The cluster of a module's tests, upon an ensemble that they can strike."""

    def __init__(self, zookeeper: Ensemble) -> None:
        self.zookeeper = zookeeper
        settings = {**QUICK, "zookeeper.connect": zookeeper.connect + CHROOT}
        self.cluster = TestCluster(3, settings=settings)
        (self.metrics_port,) = free_ports(1)
        with self.cluster[1].node.properties.open("a") as file:
            file.write(f"metrics.port={self.metrics_port}\n")
        self.cluster.start()

    def is_reachable(self) -> bool:
        """As node 1 tells Prometheus."""
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            return "headrace_metadata_reachable 1.0" in answer.read().decode()

    def mended(self) -> TestCluster:
        try:
            mend(self.cluster)
        except ClusterFailed as failed:
            pytest.fail(f"the cluster cannot be mended: {failed}")
        return self.cluster


class ZNodes:
    """A client of its own, as a person with ZooKeeper's shell is."""

    def __init__(self, connect: str) -> None:
        from kazoo.client import KazooClient

        self.client: Any = KazooClient(connect + CHROOT)
        self.client.start(timeout=30)

    def json(self, path: str) -> Any:
        return json.loads(self.client.get(path)[0])

    def version(self, path: str) -> int:
        return int(self.client.get(path)[1].version)

    def close(self) -> None:
        self.client.stop()
        self.client.close()


def says_that_changes_wait(cluster: TestCluster) -> bool:
    """To people who look, in the logs of all nodes, and to who asks the client's way."""
    said = headrace("cluster", "status", "-b", cluster.bootstrap)
    assert "no controller" in said and "quorum: ZooKeeper at" in said, said
    return all("changes of metadata wait, records go on" in node.output() for node in cluster.nodes.values())
