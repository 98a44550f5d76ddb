"""What one partition remembers of one producer: its epoch, its last batches, and its transaction."""

from typing import NamedTuple

from headrace.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

NO_OFFSET = -1


class BatchMark(NamedTuple):
    """A batch already in the log; what a duplicate of it is answered with."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class MarkerMark(NamedTuple):
    """The last marker that this partition's leader was asked for by a coordinator that says by which decision."""

    leader_epoch: int
    coordinator_epoch: int
    decision: int
    end_offset: int


class Producer:
    """See `ProducerStates`, which alone changes it."""

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "known_from", "marked", "next_sequence", "timestamp",
        "txn_first_offset",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.timestamp = NO_TIMESTAMP
        self.txn_first_offset = NO_OFFSET
        self.next_sequence = 0
        self.known_from = 0
        """Every sequence of the present epoch from here to `next_sequence` is in the log, or was."""
        self.batches: list[BatchMark] = []
        """At most five, oldest first, all of the present epoch."""
        self.marked: MarkerMark | None = None
        """Known to the leader that wrote it, and to nobody after a restart."""

    def enter_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
            self.next_sequence = self.known_from = 0

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET
