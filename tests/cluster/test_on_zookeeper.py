"""Some of the cluster tests once more, with the metadata in one ZooKeeper server; `test_soak_zookeeper` has more, on
three."""

from collections.abc import Iterator

import pytest

from tests.cluster import conftest, test_availability as availability, test_failover as failover
from tests.cluster.zookeeper import OnZooKeeper, ensemble

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[conftest.Shared]:
    with ensemble(tmp_path_factory.mktemp("zookeeper")) as found:
        made = OnZooKeeper(found)
        yield made
        made.cluster.close()


test_a_rolling_restart_shows_no_error = failover.test_a_rolling_restart_shows_no_error_to_any_client
test_a_slow_follower = failover.test_a_slow_follower_leaves_the_in_sync_replicas_and_comes_back
test_too_few_in_sync_replicas = availability.test_too_few_in_sync_replicas_refuse_acks_all_and_take_acks_1
test_all_nodes_killed_at_once = availability.test_all_nodes_killed_at_once_come_back_with_everything
