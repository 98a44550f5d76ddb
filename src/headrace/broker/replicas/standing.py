"""Whether replicas here may lead, and be counted on: not those that lack records that they once had.

A replica that gives up tells the controller that its disk is lost, so that another is elected. Once it has everything
that is committed again, it takes that back.
"""

from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.replicas.assignments import AssignmentsManager
from headrace.broker.replicas.partition import Partition
from headrace.metadata.image import LOST_DIRECTORY, Partition as Assignment
from headrace.metadata.versions import DIRECTORIES_LEVEL


class Standing:
    """Of the replicas of one node."""

    def __init__(self, node_id: int, metadata: MetadataCache, assignments: AssignmentsManager) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._assignments = assignments

    def eligible(self, replica: int, broker_epoch: int) -> bool:
        """May a broker stand in an ISR? Only the incarnation that is registered, and not while it is on its way out."""
        known = self._metadata.image.brokers.get(replica)
        return known is not None and known.active and broker_epoch in (-1, known.epoch)

    def is_unfit(self, partition: Partition, assigned: Assignment) -> bool:
        """Whether a replica lacks records that it once had, and another one should lead."""
        if partition.incomplete and len(assigned.replicas) > 1:
            return True
        if not partition.log.holes:
            return False
        # Older controllers cannot be told, and would leave it without a leader. One that has given up itself does not
        # lead, either: the last one does, with what it has, and the others copy it.
        others = [
            replica
            for replica in (*assigned.isr, *assigned.elr)
            if replica != self._node_id
            and self.eligible(replica, -1)
            and assigned.directory_of(replica) != LOST_DIRECTORY
        ]
        return bool(others) and self._metadata.image.metadata_version >= DIRECTORIES_LEVEL

    def is_counted_on(self, partition: Partition) -> bool:
        """Whether it may be elected as it is, so that nothing of it may be dropped."""
        known = self._metadata.image.partition(partition.topic_id, partition.index)
        node_id = self._node_id
        if known is None or node_id not in (*known.isr, *known.elr):
            return False
        return node_id in known.isr or known.directory_of(node_id) != LOST_DIRECTORY

    def renounce(self, partition: Partition) -> None:
        """It is damaged and out of the ISR, but eligible: let the controller not count on it at all."""
        image = self._metadata.image
        known = image.partition(partition.topic_id, partition.index)
        if known is not None and self._node_id not in known.isr and image.metadata_version >= DIRECTORIES_LEVEL:
            self.give_up(partition)

    def give_up(self, partition: Partition) -> None:
        """Have the controller elect another: to it, this replica is on a disk that is lost."""
        self._assignments.lost(partition.topic_id, partition.index)
        self._assignments.send()

    def whole_again(self, partition: Partition) -> None:
        """It has everything that is committed."""
        partition.incomplete = False
        known = self._metadata.image.partition(partition.topic_id, partition.index)
        if known is not None:
            self.take_back(partition, known)
            self._assignments.send()

    def take_back(self, partition: Partition, assigned: Assignment) -> None:
        """If the controller was told that this replica is lost: it is to be told, with what is sent next, that it is
        here."""
        if self._node_id in assigned.replicas and assigned.directory_of(self._node_id) == LOST_DIRECTORY:
            self._assignments.found(partition)
