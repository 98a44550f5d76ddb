"""The cluster tests once more, with the metadata in an ensemble of three ZooKeeper servers."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client.errors import ClientError
from headrace.testing.cluster import TestCluster
from tests.cluster import test_availability as availability, test_failover as failover
from tests.cluster.history import ConfluentWriter, Reader, assert_replicas_identical, judge, read_log
from tests.cluster.zookeeper import SOME, OnZooKeeper, ensemble, says_that_changes_wait

pytestmark = [pytest.mark.reference, pytest.mark.soak]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnZooKeeper]:
    with ensemble(tmp_path_factory.mktemp("zookeeper"), servers=3) as found:
        made = OnZooKeeper(found)
        yield made
        made.cluster.close()


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


def test_a_majority_of_zookeeper_is_lost_and_comes_back(shared: OnZooKeeper, cluster: TestCluster) -> None:
    cluster.create_topic("minority", 2, 3)
    assert shared.is_reachable()
    with (
        Reader(cluster.bootstrap, "minority", 2) as reader,
        ConfluentWriter(cluster.bootstrap, "minority", 2) as writer,
    ):
        writer.wait_acked(SOME)
        lost = shared.zookeeper.servers[:2]
        for server in lost:
            server.kill()
        cluster.wait("it is noticed", lambda: not shared.is_reachable())
        with pytest.raises(ClientError):
            cluster.ask(lambda admin: admin.create_topic("too-early", 1, 1), timeout_s=3.0)
        for _ in range(5):
            writer.wait_acked(SOME)
            time.sleep(2)
        reader.wait_for(lambda: set(writer.book.acked))
        assert says_that_changes_wait(cluster)
        for server in lost:
            server.start()
        for server in lost:
            server.wait_ready()
        cluster.quorum_leader()
        cluster.create_topic("in-time", 1, 3)
        cluster.wait("it is noticed", shared.is_reachable)
        cluster.wait_in_sync("minority")
        writer.stop()
        reader.wait_for(lambda: set(writer.book.acked))
    judge(read_log(cluster.bootstrap, "minority"), writer.book, reader=reader)
    assert_replicas_identical(cluster, "minority")


def test_zookeepers_leader_is_lost(shared: OnZooKeeper, cluster: TestCluster) -> None:
    cluster.create_topic("handover", 2, 3)
    with ConfluentWriter(cluster.bootstrap, "handover", 2) as writer:
        writer.wait_acked(SOME)
        for server in shared.zookeeper.servers:  # one of them leads
            server.kill()
            cluster.create_topic(f"without-{server.id}", 1, 3)
            writer.wait_acked(SOME)
            server.start()
            server.wait_ready()
        writer.stop()
    judge(read_log(cluster.bootstrap, "handover"), writer.book)


@pytest.mark.timeout(300)
def test_a_controller_that_sleeps_for_a_minute_changes_nothing(cluster: TestCluster) -> None:
    cluster.create_topic("minute", 1, 3)
    patience: dict[str, Any] = {"request.timeout.ms": 2_000, "socket.timeout.ms": 2_000}
    with ConfluentWriter(cluster.bootstrap, "minute", 1, **patience) as writer:
        writer.wait_acked(SOME)
        sleeper = cluster.quorum_leader()
        cluster.freeze(sleeper)
        other, ends = cluster.quorum_leader(other_than=sleeper), time.monotonic() + 60
        epoch = cluster.quorum().leader_epoch
        while time.monotonic() < ends:
            writer.wait_acked(SOME)
            time.sleep(1)
        cluster.thaw(sleeper)
        cluster.wait_in_sync("minute")
        assert (cluster.quorum_leader(), cluster.quorum().leader_epoch) == (other, epoch)
        writer.wait_acked(SOME)
        writer.stop()
    judge(read_log(cluster.bootstrap, "minute"), writer.book)
    assert_replicas_identical(cluster, "minute")
