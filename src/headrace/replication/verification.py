"""The question of a partition's leader whether a write belongs to its producer's transaction, while it is being asked.

Which markers leave the question open, and which void it, is decided here; who asks is in `broker/transactions`.
"""

EPOCH_BUMP_FROM = 2
"""The transaction version whose markers have the epoch of the producer's next transaction."""


class Verification:
    """A transaction's first write to this partition, while the coordinator is asked whether it knows of it (KIP-890).

    The object itself is the guard: a write that comes back with another than the present one missed the end of its
    transaction. `lowest_sequence` keeps later batches from overtaking one that must be sent again.
    """

    __slots__ = ("epoch", "lowest_sequence", "started_ms", "supports_epoch_bump")

    def __init__(self, started_ms: int, sequence: int, epoch: int, supports_epoch_bump: bool) -> None:
        self.started_ms = started_ms
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump

    def is_of_next(self, marker_epoch: int, transaction_version: int) -> bool:
        """Whether this write belongs to the transaction after the one that a marker ends.

        Where each transaction has an epoch of its own, the end of one and the writes of the next have the same:
        1. The producer has ended its transaction, and writes with the epoch that came with the answer.
        2. The coordinator is asked about the write. It answers when all partitions have the marker.
        3. This partition gets the marker, and then the answer: the write may be appended.

        A classic marker has the epoch of its own transaction, also where the producer wrote by the newer protocol:
        1. The coordinator adds this partition to the transaction, and its answer is on its way here.
        2. The producer gives the transaction up by an old EndTxn. This partition gets the marker, and then the answer.
        The write is not of the next transaction but of the one that is over, and nobody would end it again.
        """
        return transaction_version >= EPOCH_BUMP_FROM and self.supports_epoch_bump and self.epoch >= marker_epoch

    def seen(self, sequence: int, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence
