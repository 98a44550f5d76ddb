"""One transactional id: its producer, its state, and the steps that Kafka allows from there.

A `Transaction` never changes: each step is a new one, which becomes true when its record is written. The rules are
those of Kafka 4.3, for clients of the classic protocol (KIP-98, KIP-360) and of transaction version 2 (KIP-890), where
every end of a transaction raises the producer's epoch, so that nothing sent late can reach the next one.
"""

from collections.abc import Callable
from enum import IntEnum

import msgspec

from headrace.errors import Err, KafkaError
from headrace.records.layout import PRODUCER_EPOCH_MAX

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME = -1
NEVER_MS = 0x7FFFFFFF
"""As a time-out: a two-phase commit (KIP-939), which its owner ends, however long that takes."""
EPOCH_BUMP_FROM = 2
"""The transaction version whose clients get a new epoch with the end of each transaction."""

TopicPartition = tuple[str, int]
Errors = dict[TopicPartition, Err]
"""What is told of each partition."""


class TransactionState(IntEnum):
    """As the records number them. Kafka's PrepareEpochFence and Dead are only ever in memory, and not needed here."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def shown(self) -> str:
        """As DescribeTransactions and ListTransactions show it: "CompleteCommit"."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """The decision stands; what is missing are markers."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


State = TransactionState


class Transaction(msgspec.Struct, frozen=True):
    """What `__transaction_state` says of one transactional id, and the epoch before the present one."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """What the producer gets with the end of this transaction, since its present id has no epoch left. With
    `next_producer_epoch`: what it has been given already."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """A producer has come back to a prepared transaction (KIP-939): it ends the transaction with the next id and epoch,
    while the partitions know the present ones."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch that the producer may name when it has not heard of the present one. Not in the record, as in Kafka."""
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    client_version: int = 0
    """The transaction version of the client that brought it into this state."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """The highest epoch is kept back, so that a producer can always be fenced."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX - 1

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NEVER_MS

    @property
    def deadline_ms(self) -> int | None:
        """When an open transaction is aborted."""
        return None if self.state is not State.ONGOING or self.is_two_phase else self.start_ms + self.timeout_ms

    def _to(self, state: TransactionState, now_ms: int, **changes: object) -> "Transaction":
        return msgspec.structs.replace(
            self, state=state, update_ms=now_ms, previous_producer_id=self.producer_id, **changes
        )

    # ---- a producer begins

    def next_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> "Transaction":
        """For a producer that begins, or goes on after an error and names the epoch it has (KIP-360)."""
        if self.is_epoch_exhausted:
            raise KafkaError(Err.UNKNOWN_SERVER_ERROR, f"producer {self.producer_id} has no epoch left")
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is None:
            pass
        elif self.producer_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
            last_epoch = self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:
            # Asked again, since the answer was lost. No other producer has begun, or there would be no last epoch.
            epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        else:
            raise KafkaError(Err.PRODUCER_FENCED)
        return self._begin(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def next_id(self, producer_id: int, timeout_ms: int, is_going_on: bool, now_ms: int) -> "Transaction":
        """The same, where the present id has no epoch left."""
        last_epoch = self.producer_epoch if is_going_on else NO_PRODUCER_EPOCH
        return self._begin(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def _begin(self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> "Transaction":
        assert self.state.may_expire, self
        return self._to(
            State.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def keep(self, new_producer_id: Callable[[], int], timeout_ms: int, now_ms: int) -> "Transaction":
        """For a producer that comes back to what it prepared: another epoch, and the transaction stays open."""
        assert self.state is State.ONGOING, self
        producer_id, epoch = self.client
        if epoch >= PRODUCER_EPOCH_MAX - 2:
            # One epoch is for the markers, and the highest is kept back.
            producer_id, epoch = new_producer_id(), NO_PRODUCER_EPOCH
        return self._to(
            State.ONGOING,
            now_ms,
            next_producer_id=producer_id,
            next_producer_epoch=epoch + 1,
            timeout_ms=timeout_ms,
        )

    @property
    def is_kept(self) -> bool:
        """Whether a producer has come back to it: it can be ended, and nothing added."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def client(self) -> tuple[int, int]:
        """The producer id and epoch that the client has."""
        if self.is_kept:
            return self.next_producer_id, self.next_producer_epoch
        return self.producer_id, self.producer_epoch

    # ---- it writes

    def add(self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int) -> "Transaction":
        assert not self.state.is_prepared, self
        return self._to(
            State.ONGOING,
            now_ms,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            client_version=client_version,
        )

    # ---- it ends

    def prepare(self, committed: bool, client_version: int, next_producer_id: int, now_ms: int) -> "Transaction":
        """The decision. With transaction version 2 the epoch of the next transaction comes with it."""
        assert self.state is State.ONGOING or (not committed and not self.state.is_prepared), self
        epoch, last_epoch, next_epoch = self.producer_epoch, self.last_producer_epoch, NO_PRODUCER_EPOCH
        if client_version >= EPOCH_BUMP_FROM:
            last_epoch = self.client[1]
            if self.is_kept:
                next_producer_id, next_epoch = self.next_producer_id, self.next_producer_epoch + 1
            # One that is at its end already can still be aborted, by the marker rules of its highest epoch.
            epoch = min(epoch + 1, PRODUCER_EPOCH_MAX)
        return self._to(
            State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
            now_ms,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            next_producer_epoch=next_epoch,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            client_version=client_version,
        )

    def fence(self, now_ms: int) -> "Transaction":
        """The decision to abort somebody else's transaction, before version 2: by an epoch that nobody was given."""
        assert self.state is State.ONGOING, self
        return self._to(
            State.PREPARE_ABORT,
            now_ms,
            producer_epoch=min(self.producer_epoch + 1, PRODUCER_EPOCH_MAX),
            last_producer_epoch=NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            client_version=0,
        )

    def complete(self, now_ms: int) -> "Transaction":
        """All markers are written."""
        assert self.state.is_prepared, self
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.client_version >= EPOCH_BUMP_FROM and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, max(self.next_producer_epoch, 0)
        return self._to(
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            partitions=frozenset(),
        )
