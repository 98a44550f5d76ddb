"""What Prometheus is shown of the controller and the cluster."""

from typing import Any

from headrace.broker.controller.metrics import ControllerCounters
from headrace.client.admin.admin import Admin
from headrace.errors import Err
from headrace.metadata.image import RECOVERING
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import BOOTSTRAP, Machine, in_world
from tests.unit.metadata.cases import create, new_topic
from tests.unit.metadata.paper_cluster import Cluster, alter, move, the_partition


def shown(machine: Machine) -> dict[tuple[str, ...], float]:
    samples = (sample for family in machine.broker.collector().collect() for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_the_only_node_shows_its_cluster() -> None:
    async def main(world: World) -> None:
        machine = Machine(world)
        await machine.start()
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("t", 3)
        seen = shown(machine)
        expected: dict[tuple[str, ...], Any] = {
            ("headrace_active_controller",): 1,
            ("headrace_quorum_leader",): 1,
            ("headrace_quorum_epoch",): 1,
            ("headrace_metadata_lag_records",): 0,
            ("headrace_metadata_offset",): machine.broker.image.offset,
            ("headrace_cluster_topics",): 1,
            ("headrace_cluster_partitions",): 3,
            ("headrace_cluster_offline_partitions",): 0,
            ("headrace_cluster_imbalanced_partitions",): 0,
            ("headrace_cluster_moving_partitions",): 0,
            ("headrace_cluster_brokers", "active"): 1,
            ("headrace_cluster_brokers", "fenced"): 0,
            ("headrace_leaders",): 3,
            ("headrace_at_min_isr",): 3,
            ("headrace_under_min_isr",): 0,
            ("headrace_under_replicated",): 0,
            ("headrace_offline_replicas",): 0,
        }
        assert {name: seen[name] for name in expected} == expected
        assert seen["headrace_controller_decision_seconds_bucket", "+Inf"] >= 3, "registrations, and the topic"
        assert seen["headrace_controller_commit_seconds_bucket", "+Inf"] >= 3
        # Killed, it finds its own partitions without a leader, and elects itself: from those eligible.
        machine.node.kill()
        await machine.start()
        seen = shown(machine)
        kinds = {kind: seen["headrace_elections_total", kind] for kind in ("in sync", "eligible", "unclean")}
        assert kinds == {"in sync": 0, "eligible": 3, "unclean": 0}

    in_world(main)


def test_elections_are_told_apart() -> None:
    cluster, counters = Cluster(3), ControllerCounters()
    cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
    cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", "2")], [(0, [1, 2, 3])])))

    def done(records: list[Any]) -> list[int]:
        unclean = counters.note_elections(cluster.image, records)
        cluster.commit(records)
        return [record.leader for record in unclean]

    for broker in (1, 2, 3):
        assert done(cluster.controller.fence_broker(cluster.image, broker)) == []
    assert counters.elections == {"in sync": 2, "eligible": 0, "unclean": 0}
    assert done(cluster.controller.unfence_broker(cluster.image, 2)) == []
    assert counters.elections == {"in sync": 2, "eligible": 1, "unclean": 0}
    record = m.PartitionChangeRecord(
        topic_id=cluster.image.topic_ids["t"], partition_id=0, leader=1, isr=[1], leader_recovery_state=RECOVERING
    )
    assert done([(record, 2)]) == [1]
    assert counters.elections == {"in sync": 2, "eligible": 1, "unclean": 1}


class Counted(Cluster):
    counters = ControllerCounters()

    def commit(self, records: list[Any]) -> None:
        changed = [record for record in records if isinstance(record[0], m.PartitionChangeRecord)]
        assert self.counters.note_elections(self.image, changed) == []
        super().commit(records)


def test_a_replica_that_a_move_has_brought_in_sync_is_elected_from_those_in_sync() -> None:
    cluster = Counted(4)
    cluster.answer(create(new_topic("t", -1, -1, (), [(0, [1, 2])])))
    assert move(cluster, [3, 4]) == 0
    assert alter(cluster, [1, 2, 3, 4]).error_code == Err.NEW_LEADER_ELECTED
    assert the_partition(cluster).leader == 3
    assert cluster.counters.elections == {"in sync": 1, "eligible": 0, "unclean": 0}
