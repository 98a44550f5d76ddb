"""The cluster tests once more, with the metadata in an ensemble of three ZooKeeper servers."""

from collections.abc import Iterator

import pytest

from headrace.testing.cluster import ClusterFailed, TestCluster
from tests.cluster import conftest, test_availability as availability, test_failover as failover
from tests.cluster.conftest import QUICK, mend
from tests.cluster.zookeeper import CHROOT, ensemble

pytestmark = [pytest.mark.reference, pytest.mark.soak]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Shared"]:
    with ensemble(tmp_path_factory.mktemp("zookeeper"), servers=3) as found:
        made = Shared({**QUICK, "zookeeper.connect": found.connect + CHROOT})
        yield made
        made.cluster.close()


class Shared(conftest.Shared):
    def __init__(self, settings: dict[str, str]) -> None:
        self.cluster = TestCluster(3, settings=settings).start()

    def mended(self) -> TestCluster:
        try:
            mend(self.cluster)
        except ClusterFailed as failed:
            pytest.fail(f"the cluster cannot be mended: {failed}")
        return self.cluster


test_kill_9_of_the_leader_under_load = failover.test_kill_9_of_the_leader_under_load
test_kill_9_of_the_controller_under_load = failover.test_kill_9_of_the_controller_under_load
test_a_frozen_leader_is_replaced = failover.test_a_frozen_leader_is_replaced_and_follows_when_it_wakes
test_a_rolling_restart_shows_no_error = failover.test_a_rolling_restart_shows_no_error_to_any_client
test_a_slow_follower = failover.test_a_slow_follower_leaves_the_in_sync_replicas_and_comes_back
test_two_leaders_lost_one_after_the_other = failover.test_two_leaders_lost_one_after_the_other
test_a_group_keeps_its_offsets = failover.test_a_group_keeps_its_offsets_when_its_coordinator_dies
test_too_few_in_sync_replicas = availability.test_too_few_in_sync_replicas_refuse_acks_all_and_take_acks_1
test_all_nodes_killed_at_once = availability.test_all_nodes_killed_at_once_come_back_with_everything
test_all_nodes_stopped_in_order = availability.test_all_nodes_stopped_in_order_come_back_clean
