"""A real cluster before and after its metadata has moved to ZooKeeper and back: what it was, it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.local_cluster.ensemble import Ensemble
from headrace.records.layout import iter_headers
from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK
from tests.cluster.history import ConfluentWriter, Writer, assert_replicas_identical, judge, read_log
from tests.cluster.moves import (
    PARTITIONS,
    SETTINGS,
    SOME,
    TOPIC,
    assert_same_cluster,
    commit,
    migrate,
    state,
)
from tests.cluster.possessions import (
    LEDGER,
    LONE,
    LONE_NODE,
    OpenTransaction,
    PreparedTransaction,
    add_limits,
    add_user,
    assert_has_all,
    committed_values,
    state_of,
)
from tests.cluster.zookeeper import CHROOT, ensemble

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with ensemble(tmp_path_factory.mktemp("zookeeper")) as found:
        yield found


def producer_ids(node: Path) -> set[int]:
    found = set()
    for path in node.glob(f"{TOPIC}-*/*.log"):
        found |= {header.producer_id for _, header in iter_headers(memoryview(path.read_bytes()))}
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a node but its records."""
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.parent.name != "orders-0"}


def files_left_behind(folder: Path, name: str, before: dict[str, bytes]) -> None:
    """As if the move had been killed before it changed this file."""
    (folder / name).write_bytes(before[str(folder / name)])


def decide_without_saying_so(cluster: TestCluster) -> None:
    """A transaction whose commit is in the coordinator's log, and whose partition is not to be reached for it."""
    decided = OpenTransaction(cluster.bootstrap, "decided")
    decided.write(LONE, b"decided")
    cluster.kill(LONE_NODE)
    cluster.wait("it has no leader", lambda: cluster.topic(LONE).partitions[0].leader == -1)
    decided.commit()
    assert state_of(cluster, "decided") == "PrepareCommit"


def test_there_and_back_again(zookeeper: Ensemble, tmp_path: Path) -> None:
    at = zookeeper.connect + CHROOT
    writers: list[Writer] = []

    def write(cluster: TestCluster) -> None:
        with ConfluentWriter(cluster.bootstrap, TOPIC, PARTITIONS, name=f"w{len(writers)}") as writer:
            writer.wait_acked(SOME)
            writer.stop()
        writers.append(writer)

    new = TestCluster(3, folder=tmp_path, settings=SETTINGS)
    add_user(new)
    with new as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3, {"retention.ms": "86400000"})
        cluster.create_topic(LEDGER, 1, 3)
        cluster.create_topic(LONE, assignments={0: [LONE_NODE]})
        add_limits(cluster)
        write(cluster)
        commit(cluster.bootstrap, 7)
        cluster.kill(cluster.leader_of(TOPIC))
        write(cluster)
        cluster.start(*(node.id for node in cluster.nodes.values() if not node.is_running))
        before = state(cluster)
        assert_has_all(cluster)
        under_way, prepared = OpenTransaction(cluster.bootstrap), PreparedTransaction(cluster)
        under_way.write(LEDGER, b"in KRaft")
        prepared.write(cluster, b"prepared in KRaft")
        decide_without_saying_so(cluster)
        assert "is running" in migrate(tmp_path, "zookeeper", "--zookeeper", at, "--yes", code=1)
        cluster.stop()

    untouched = contents(tmp_path)
    said = migrate(tmp_path, "zookeeper", "--zookeeper", at, "--dry-run")
    assert "1. copy the metadata to ZooKeeper" in said and "nothing was changed" in said
    assert contents(tmp_path) == untouched
    assert "headrace up --brokers 3" in migrate(tmp_path, "zookeeper", "--zookeeper", at, "--yes")
    assert "in ZooKeeper already" in migrate(tmp_path, "zookeeper", "--zookeeper", at, "--yes", code=1)

    files_left_behind(tmp_path, "node-2.properties", untouched)
    assert "headrace up --brokers 3" in migrate(tmp_path, "zookeeper", "--zookeeper", at, "--yes")
    for left in ("node-2/meta.properties", "node-3/meta.properties", *(f"node-{n}.properties" for n in (1, 2, 3))):
        files_left_behind(tmp_path, left, untouched)
    said = migrate(tmp_path, "zookeeper", "--zookeeper", at, "--yes")
    assert "1. mark the folders of node 2\n" in said, "resumed between the marks of nodes 1 and 2"

    with TestCluster(3, folder=tmp_path) as cluster:
        there = state(cluster)
        assert_same_cluster(before, there)
        assert_has_all(cluster)
        cluster.wait("the commit's markers", lambda: state_of(cluster, "decided") == "CompleteCommit")
        assert committed_values(cluster.bootstrap, LONE) == [b"decided"]
        assert (state_of(cluster, "open"), state_of(cluster, "prepared")) == ("Ongoing", "Ongoing")
        assert committed_values(cluster.bootstrap, LEDGER) == []
        under_way.write(LEDGER, b"in ZooKeeper")
        assert at in headrace("cluster", "status", "-b", cluster.bootstrap)
        write(cluster)
        commit(cluster.bootstrap, 11)
        cluster.create_topic("later", 1, 3)
        there = state(cluster)
        assert "is running" in migrate(tmp_path, "kraft", "--yes", code=1)
        cluster.stop()

    assert "--replace" in migrate(tmp_path, "kraft", "--yes", code=1)
    assert "write the metadata to node 2" in migrate(tmp_path, "kraft", "--replace", "--dry-run")
    migrate(tmp_path, "kraft", "--replace", "--yes")
    with TestCluster(3, folder=tmp_path) as cluster:
        assert_same_cluster(there, state(cluster))
        assert_has_all(cluster)
        under_way.write(LEDGER, b"in KRaft again")
        under_way.commit()
        prepared.decide(cluster)
        cluster.wait("both committed", lambda: len(committed_values(cluster.bootstrap, LEDGER)) == 4)
        assert committed_values(cluster.bootstrap, LEDGER) == [
            b"in KRaft", b"prepared in KRaft", b"in ZooKeeper", b"in KRaft again",
        ]  # fmt: skip
        assert "voters 1" in headrace("cluster", "status", "-b", cluster.bootstrap)
        assert cluster.topic("later").partitions[0].leader > 0
        write(cluster)
        log = read_log(cluster.bootstrap, TOPIC)
        for writer in writers:
            judge(log, writer.book)
        assert_replicas_identical(cluster, TOPIC)
        # One that was given before must not be given again: its sequences would be taken for another's.
        assert len(producer_ids(tmp_path / "node-1")) == len(writers)
        cluster.stop()
    said = migrate(tmp_path, "zookeeper", "--zookeeper", at, "--yes", code=1)
    assert "from an earlier time: --replace" in said


def test_what_is_refused(zookeeper: Ensemble, tmp_path: Path) -> None:
    at = f"{zookeeper.connect}/refused"
    with TestCluster(1, folder=tmp_path / "here", settings=QUICK) as cluster:
        cluster.create_topic("a", 1, 1)
        cluster.stop()
    with TestCluster(1, folder=tmp_path / "there", settings={**QUICK, "zookeeper.connect": at}) as cluster:
        said = migrate(tmp_path / "here", "zookeeper", "--zookeeper", at, "--yes", code=1)
        assert "a cluster uses this ZooKeeper: /brokers/ids/1" in said
        cluster.create_topic("b", 1, 1)
        cluster.stop()
    said = migrate(tmp_path / "here", "zookeeper", "--zookeeper", at, "--yes", "--replace", code=1)
    assert "holds another cluster" in said
    assert "in KRaft already" in migrate(tmp_path / "here", "kraft", "--zookeeper", at, "--yes", code=1)
    assert "--zookeeper HOST:PORT/PATH is missing" in migrate(tmp_path / "here", "zookeeper", "--yes", code=1)
    assert "it is empty" in migrate(tmp_path / "here", "zookeeper", "--zookeeper", "", "--yes", code=1)
    voters = ("--zookeeper", at, "--yes", "--voters")
    assert "goes with --to kraft only" in migrate(tmp_path / "here", "zookeeper", *voters, "1", code=1)
    assert "names a node twice" in migrate(tmp_path / "here", "kraft", *voters, "1,1", code=1)
    assert "no broker and no cluster" in migrate(tmp_path / "nowhere", "kraft", "--yes", code=1)
    said = migrate(tmp_path / "here", "zookeeper", "--zookeeper", "127.0.0.1:1/x", "--yes", "--set",
                   "zookeeper.connection.timeout.ms=500", code=1)  # fmt: skip
    assert "no ZooKeeper answers" in said
