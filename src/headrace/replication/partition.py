"""The leader's view of one partition: who is in sync, and up to where everything is committed.

Pure: it is told how far each replica has come and says whether the high watermark moved. What counts as "come" is
the caller's business (written, or fsynced); see `docs/architecture.md`, Durability.
"""

from headrace.errors import Err, KafkaError

NO_EPOCH = -1


class LeaderState:
    """Replication state while this node leads the partition, for one leader epoch."""

    __slots__ = (
        "_isr_ends", "_replica_count", "epoch_start_offset", "high_watermark", "leader_epoch", "min_isr", "node_id",
        "too_few",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        leader_epoch: int,
        epoch_start_offset: int,
        high_watermark: int,
        isr: list[int],
        min_isr: int,
        replica_count: int,
    ) -> None:
        if node_id not in isr:
            raise ValueError(f"leader {node_id} is not among its in-sync replicas {isr}")
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = high_watermark
        self._replica_count = replica_count
        self.min_isr = min(min_isr, replica_count)
        """As configured, but never more than there are replicas at all: such a topic could not be written to."""
        # End offset of each in-sync replica. A follower counts from nothing until it has fetched in this epoch.
        self._isr_ends = {replica: (high_watermark if replica == node_id else -1) for replica in isr}
        self.too_few = len(isr) < self.min_isr
        """Fewer replicas are in sync than the minimum: `require_min_isr` would refuse."""

    @property
    def isr(self) -> list[int]:
        return list(self._isr_ends)

    def require_min_isr(self) -> None:
        """An acks=all write is refused before it is appended when too few replicas could confirm it."""
        if len(self._isr_ends) < self.min_isr:
            raise KafkaError(
                Err.NOT_ENOUGH_REPLICAS,
                f"{len(self._isr_ends)} replicas are in sync, min.insync.replicas is {self.min_isr}",
            )

    def replica_reached(self, replica: int, end_offset: int) -> bool:
        """An in-sync replica has everything below `end_offset`. True when that commits more."""
        ends = self._isr_ends
        if replica not in ends:
            return False
        ends[replica] = end_offset
        return self._commit(end_offset if len(ends) == 1 else min(ends.values()))

    def configure(self, min_isr: int) -> bool:
        """`min.insync.replicas` has changed. True when that commits more."""
        self.min_isr = min(min_isr, self._replica_count)
        self.too_few = len(self._isr_ends) < self.min_isr
        return self._commit(min(self._isr_ends.values()))

    def _commit(self, committed: int) -> bool:
        # Below the minimum nothing commits: a record that one replica alone has must not be shown to anyone.
        if committed <= self.high_watermark or len(self._isr_ends) < self.min_isr:
            return False
        self.high_watermark = committed
        return True
