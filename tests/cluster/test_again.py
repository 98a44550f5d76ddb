"""A cluster for tests in a folder that is kept."""

from pathlib import Path

from headrace.testing.cluster import TestCluster
from tests.cluster.conftest import QUICK


def test_a_cluster_is_found_again_in_its_folder(tmp_path: Path) -> None:
    with TestCluster(3, folder=tmp_path, settings=QUICK) as cluster:
        cluster.create_topic("t", 2, 3)
        first = cluster.cluster_id, cluster.bootstrap
    with TestCluster(3, folder=tmp_path, settings=QUICK) as cluster:
        assert (cluster.cluster_id, cluster.bootstrap) == first
        cluster.wait_in_sync("t")
