"""A cluster whose replicas the controller moves by itself."""

from collections import Counter
from random import Random

from headrace.metadata.balance.auto import Standing, next_moves
from headrace.metadata.balance.plans import Replicas, TopicPartition
from headrace.metadata.image import Partition
from headrace.protocol import messages as m
from tests.unit.metadata.paper_cluster import Cluster

MOVES_MAX = 3


class World(Cluster):
    """A cluster on paper whose followers catch up when told, and with a note of every copy that was begun."""

    def __init__(self, brokers: int, partitions: int, factor: int) -> None:
        super().__init__(brokers)
        row = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=partitions, replication_factor=factor)
        self.do(self.controller.create_topics(self.image, m.CreateTopicsRequest(topics=[row])))
        self.factor = factor
        self.lost: set[int] = set()
        self.copied: list[tuple[TopicPartition, int]] = []

    @property
    def partitions(self) -> dict[int, Partition]:
        topic = self.image.topic_named("t")
        assert topic is not None
        return dict(topic.partitions.items())

    def turn(self, standing: Standing | None = None) -> dict[TopicPartition, Replicas]:
        """What the controller does at one look."""
        standing = standing or Standing(self.lost, (), ())
        moves = next_moves(self.image, standing, MOVES_MAX)
        kind = m.AlterPartitionReassignmentsRequest
        rows = [kind.ReassignablePartition(partition_index=n, replicas=list(to)) for (_, n), to in moves.items()]
        for (name, n), to in moves.items():
            assert len(set(to)) == len(to) == self.factor
            self.copied += [((name, n), node) for node in to if node not in self.partitions[n].replicas]
        request = kind(topics=[kind.ReassignableTopic(name="t", partitions=rows)])
        answer = self.do(self.controller.alter_reassignments(self.image, request))
        assert all(p.error_code == 0 for topic in answer.responses for p in topic.partitions)
        return moves

    def catch_up(self, dice: Random) -> None:
        """Some followers that are up are found to be in sync."""
        for number, partition in self.partitions.items():
            alive = [b for b in partition.replicas if self.image.brokers[b].active]
            if partition.leader < 0 or dice.random() < 0.3 or set(alive) <= set(partition.isr):
                continue
            kind = m.AlterPartitionRequest
            row = kind.PartitionData(
                partition_index=number,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                new_isr_with_epochs=[
                    kind.BrokerState(broker_id=b, broker_epoch=self.image.brokers[b].epoch) for b in alive
                ],
            )
            topic = self.image.topic_named("t")
            assert topic is not None
            leader = self.image.brokers[partition.leader]
            request = kind(
                broker_id=leader.id,
                broker_epoch=leader.epoch,
                topics=[kind.TopicData(topic_id=topic.id, partitions=[row])],
            )
            self.do(self.controller.alter_partition(self.image, request, 3))

    def settle(self, dice: Random, limit: int = 400) -> None:
        """Until nothing moves any more."""
        for _ in range(limit):
            if not self.turn() and not self.image.reassigning:
                return
            self.catch_up(dice)
        raise AssertionError(f"still moving: {dict(self.image.reassigning)}")

    def check_even(self) -> None:
        up = [b.id for b in self.image.brokers.values() if b.active]
        for counts in (
            Counter(b for p in self.partitions.values() for b in p.replicas),
            Counter(p.replicas[0] for p in self.partitions.values()),
        ):
            assert max(counts[b] for b in up) - min(counts[b] for b in up) <= 1, counts
