"""A move to the other quorum that is killed by SIGKILL before each of its changes, and finished by the same command."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.local_cluster.ensemble import Ensemble
from headrace.storage.checkpoints import LOCK
from headrace.testing.cluster import TestCluster
from tests.cluster.history import ConfluentWriter, Writer, assert_replicas_identical, judge, read_log
from tests.cluster.moves import (
    PARTITIONS,
    SETTINGS,
    SOME,
    TOPIC,
    State,
    assert_same_cluster,
    commit,
    migrate,
    state,
)
from tests.cluster.possessions import add_limits, add_user, assert_has_all
from tests.cluster.zookeeper import ensemble

pytestmark = [pytest.mark.reference, pytest.mark.soak, pytest.mark.timeout(1_800)]

LIMIT_S = 60
VOTERS = 2
"""The third node is a broker only in KRaft, and may be the controller in ZooKeeper: its listeners change, too."""
TO_KRAFT = ("kraft", "--voters", "1,2", "--yes")


class Stopped(NamedTuple):
    """A cluster that was stopped in order, and its folder kept aside."""

    folder: Path
    kept: Path
    state: State
    writer: Writer

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.kept, self.folder)

    def assert_whole(self) -> None:
        with TestCluster(3, folder=self.folder) as cluster:
            assert_same_cluster(self.state, state(cluster))
            assert_has_all(cluster)
            judge(read_log(cluster.bootstrap, TOPIC), self.writer.book)
            assert_replicas_identical(cluster, TOPIC)
            cluster.create_topic("afterwards", 1, 3)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with ensemble(tmp_path_factory.mktemp("zookeeper")) as found:
        yield found


@pytest.fixture
def in_kraft(tmp_path: Path) -> Stopped:
    folder = tmp_path / "cluster"
    new = TestCluster(3, folder=folder, settings=SETTINGS, voters=VOTERS)
    add_user(new)
    with new as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3, {"retention.ms": "86400000"})
        add_limits(cluster)
        with ConfluentWriter(cluster.bootstrap, TOPIC, PARTITIONS) as writer:
            writer.wait_acked(SOME)
            writer.stop()
        commit(cluster.bootstrap, 7)
        cluster.kill(3)  # which has no vote
        cluster.create_topic("without-one", 40, 2)
        cluster.start(3)
        found = state(cluster)
        cluster.stop()
    shutil.copytree(folder, tmp_path / "kept")
    return Stopped(folder, tmp_path / "kept", found, writer)


@pytest.fixture
def in_zookeeper(in_kraft: Stopped, zookeeper: Ensemble, tmp_path: Path) -> Stopped:
    """One that has no trace of KRaft any more."""
    migrate(in_kraft.folder, "zookeeper", "--zookeeper", f"{zookeeper.connect}/moved", "--yes")
    for node in (1, 2, 3):
        shutil.rmtree(in_kraft.folder / f"node-{node}" / "__cluster_metadata-0", ignore_errors=True)
    with TestCluster(3, folder=in_kraft.folder) as cluster:
        found = state(cluster)
        cluster.stop()
    kept = tmp_path / "kept-in-zookeeper"
    shutil.copytree(in_kraft.folder, kept)
    return in_kraft._replace(kept=kept, state=found)


def struck(step: int, folder: Path, *words: str) -> str | None:
    """What it did not come to any more; None: it had come to its end before."""
    command = [sys.executable, "-m", "tests.cluster.struck", str(step), str(folder)]
    command += ["cluster", "migrate", "--data", str(folder), "--to", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (0, -signal.SIGKILL), (done.stdout, done.stderr)
    return None if not done.returncode else done.stderr.strip()


def contents(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_to_zookeeper_killed_before_each_change(in_kraft: Stopped, zookeeper: Ensemble) -> None:
    before, missed = contents(in_kraft.kept), []
    for step in count(1):
        in_kraft.restore()
        words = ("zookeeper", "--zookeeper", f"{zookeeper.connect}/killed-{step}", "--yes")
        what = struck(step, in_kraft.folder, *words)
        if what is None:
            break
        missed.append(what)
        print(step, what)
        if what.startswith("multi"):
            assert contents(in_kraft.folder) == before, "the old quorum was touched"
        migrate(in_kraft.folder, *words)
        in_kraft.assert_whole()
    for part in ("/headrace/migration", "/cluster/id", "node-1/meta.properties", "node-3/meta.properties", "node-2.p"):
        assert any(part in what for what in missed), (part, missed)
    in_kraft.assert_whole()


def test_to_kraft_killed_before_each_change(in_zookeeper: Stopped, zookeeper: Ensemble) -> None:
    missed = []
    for step in count(1):
        in_zookeeper.restore()
        what = struck(step, in_zookeeper.folder, *TO_KRAFT)
        if what is None:
            break
        missed.append(what)
        print(step, what)
        migrate(in_zookeeper.folder, *TO_KRAFT)
        in_zookeeper.assert_whole()
    for part in (".headrace_migration", "checkpoint", "node-1/meta.properties", "node-3/meta.properties", "node-2.p"):
        assert any(part in what for what in missed), (part, missed)
    in_zookeeper.assert_whole()
