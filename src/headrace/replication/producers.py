"""What one partition remembers of its idempotent and transactional producers.

The rules are those of Kafka 4.3: epochs fence, sequences have no gaps, the last five batches of each producer are
recognised when sent again, and the first offset of each open transaction holds back the last stable offset.
`check` decides before an append and changes nothing; `record`, `end_transaction` and `replay` tell what was appended.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from headrace.errors import Err, KafkaError
from headrace.records.control import Marker, decode_marker
from headrace.records.layout import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_MAX,
    SEQUENCE_MAX,
    BatchHeader,
    Buffer,
)
from headrace.replication.producer import NO_OFFSET, BatchMark, MarkerMark, Producer
from headrace.replication.producer_snapshot import decode_rows, encode_rows, pack_row
from headrace.replication.verification import EPOCH_BUMP_FROM, Verification

BATCHES_REMEMBERED = 5
SEQUENCES_BEFORE_MAX = 1 << 20
"""A batch so far back is not one that is sent again: sequences wrap around."""


class AbortedTransaction(NamedTuple):
    """An entry for the transaction index, in its field order. `last_offset` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerView(NamedTuple):
    """One producer as DescribeProducers shows it; -1 for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Unheard(KafkaError):
    """A producer that is unknown here does not begin with its first batch, and that may still be on its way."""

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(
            Err.NOT_LEADER_OR_FOLLOWER,
            f"nothing was heard of producer {producer_id} before sequence {sequence}: send it again",
        )


class ProducerStates:
    """See the module. Offsets given to it only grow, but for `clear`."""

    __slots__ = (
        "_entries",
        "_ongoing",
        "_unreplicated",
        "_verifications",
        "doubt_until_ms",
        "first_unstable_offset",
        "verify_transactions",
    )

    def __init__(self, *, verify_transactions: bool = True) -> None:
        self.verify_transactions = verify_transactions
        """Whether a transactional write needs a `Verification` unless its transaction is open here already."""
        self.doubt_until_ms = 0
        """Of this partition's monotonic clock. Another node led until a moment ago, and may hold the first batches of
        producers that are unknown here: until then such a producer has to begin with its first."""
        self.first_unstable_offset: int | None = None
        """First offset of the earliest transaction that is open, or whose end is not yet below the high watermark."""
        self._entries: dict[int, Producer] = {}
        self._ongoing: dict[int, int] = {}
        """First offset of each open transaction -> its producer, in the order of offsets."""
        self._unreplicated: deque[tuple[int, int]] = deque()
        """(marker's offset, first offset) of ended transactions, both growing: one that began later but ended earlier
        than another can never decide the first unstable offset, and is left out."""
        self._verifications: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._entries

    # -- deciding

    def check(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        last_delta: int,
        transactional: bool = False,
        guard: Verification | None = None,
    ) -> BatchMark | None:
        """May a client's batch be appended? None: yes. A mark: it is in the log already. Else raises."""
        entry = self._entries.get(producer_id)
        if (
            entry is not None
            and sequence == entry.next_sequence
            and epoch == entry.epoch
            and transactional == (entry.txn_first_offset >= 0)
            and not self._verifications
        ):
            return None
        if entry is not None and epoch == entry.epoch:
            last_sequence = (sequence + last_delta) & SEQUENCE_MAX
            for mark in entry.batches:
                if mark.base_sequence == sequence and mark.last_sequence == last_sequence:
                    return mark
        if transactional:
            self._check_transaction(entry, producer_id, epoch, guard)
        self._check_epoch(entry, producer_id, epoch)
        self._check_sequence(entry, producer_id, epoch, sequence)
        if not transactional and entry is not None and entry.txn_first_offset >= 0:
            raise KafkaError(Err.INVALID_TXN_STATE, f"producer {producer_id} has a transaction open here")
        return None

    def look_again(
        self,
        error: KafkaError,
        producer_id: int,
        epoch: int,
        sequence: int,
        last_delta: int,
        now_ms: int,
        transactional: bool = False,
        guard: Verification | None = None,
    ) -> BatchMark | None:
        """`check` has raised: may the batch be appended all the same, or was it sent long ago? Else raises."""
        if isinstance(error, Unheard) and now_ms >= self.doubt_until_ms:
            self.doubt_until_ms = 0
            return self.check(producer_id, epoch, sequence, last_delta, transactional, guard)
        mark = self.appended_before(producer_id, epoch, sequence, last_delta)
        if mark is None:
            raise error
        return mark

    def appended_before(self, producer_id: int, epoch: int, sequence: int, last_delta: int) -> BatchMark | None:
        """The mark of a batch that is in the log, but further back than the batches that are remembered; it has no
        offset.

        Java's producer has up to five batches on their way to each broker. When the leader changes from one to the next
        faster than they answer, that is more than five for one partition. `last_offset` is as far as it may reach.
        """
        entry = self._entries.get(producer_id)
        if entry is None or epoch != entry.epoch or sequence < 0 or not entry.batches:
            return None
        oldest = entry.batches[0]
        before = (oldest.base_sequence - sequence) & SEQUENCE_MAX
        known = (oldest.base_sequence - entry.known_from) & SEQUENCE_MAX
        if oldest.base_sequence < 0 or not last_delta < before <= min(known, SEQUENCES_BEFORE_MAX):
            return None
        return BatchMark(
            sequence, (sequence + last_delta) & SEQUENCE_MAX, NO_OFFSET, oldest.base_offset - 1, NO_TIMESTAMP
        )

    def leaves_gap(self, producer_id: int, epoch: int, sequence: int) -> bool:
        """Whether a batch would come before others that the log does not have. Of an unknown producer the log has none:
        only its very first batch leaves no gap."""
        entry = self._entries.get(producer_id)
        if entry is None or epoch != entry.epoch:
            return sequence != 0 and (entry is None or epoch > entry.epoch)
        return 0 < (sequence - entry.next_sequence) & SEQUENCE_MAX <= SEQUENCE_MAX >> 1

    def check_coordinator(self, producer_id: int, epoch: int, guard: Verification | None = None) -> None:
        """May a transactional batch be appended that a coordinator wrote for a producer? It has no sequence."""
        entry = self._entries.get(producer_id)
        self._check_transaction(entry, producer_id, epoch, guard)
        self._check_epoch(entry, producer_id, epoch)

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int = 0) -> None:
        """May a marker be appended? From transaction version 2 on its epoch is one above the transaction's own."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        strict = transaction_version >= EPOCH_BUMP_FROM
        if epoch < entry.epoch or (strict and epoch == entry.epoch):
            # A marker sent again after its answer was lost, or one of a producer that has no higher epoch left.
            again = entry.txn_first_offset < 0 or epoch == PRODUCER_EPOCH_MAX
            if not (strict and epoch == entry.epoch and again):
                raise KafkaError(
                    Err.INVALID_PRODUCER_EPOCH,
                    f"marker of producer {producer_id} with epoch {epoch}, its last was {entry.epoch}",
                )
        if entry.coordinator_epoch > coordinator_epoch:
            raise KafkaError(
                Err.TRANSACTION_COORDINATOR_FENCED,
                f"marker of producer {producer_id} by coordinator epoch {coordinator_epoch},"
                f" the last came from {entry.coordinator_epoch}",
            )

    def marker_written(self, producer_id: int, leader_epoch: int, coordinator_epoch: int, decision: int) -> int | None:
        """The end offset of a marker that this leader has written for the same decision or a later one; None: for none.

        Where transactions of a producer have one epoch, a marker may reach the next of them:
        1. A coordinator's request is not answered in time. It asks again, and the second request is answered.
        2. The transaction is complete, and the producer writes the next one to this partition.
        3. The first request arrives. As a marker of its own it would end what is open now.
        A request that was meant for an earlier epoch of the leader is refused before it comes here.
        """
        entry = self._entries.get(producer_id)
        mark = None if entry is None else entry.marked
        if mark is None or decision > mark.decision:
            return None
        return mark.end_offset if mark[:2] == (leader_epoch, coordinator_epoch) else None

    def note_marker(self, producer_id: int, mark: MarkerMark) -> None:
        entry = self._entries.get(producer_id)
        if entry is not None:
            entry.marked = mark

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> Verification | None:
        """The guard to hold while the coordinator is asked; None when the transaction is open here already."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch <= entry.epoch:
            if epoch < entry.epoch:
                # The coordinator will say that it is over. A guard that nobody else sees keeps no newer batch waiting.
                return Verification(now_ms, sequence, epoch, supports_epoch_bump)
            if entry.txn_first_offset >= 0:
                return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = Verification(now_ms, sequence, epoch, supports_epoch_bump)
            self._verifications[producer_id] = verification
        else:
            verification.seen(sequence, epoch)
        return verification

    def verification(self, producer_id: int) -> Verification | None:
        """The guard that is out."""
        return self._verifications.get(producer_id)

    def resume(self, producer_id: int, verification: Verification | None) -> None:
        """It is still good, whatever was written meanwhile."""
        if verification is not None:
            self._verifications[producer_id] = verification

    def left_open(self, producer_id: int, epoch: int) -> ProducerView | None:
        """A producer whose open transaction here is of an epoch before this one."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.txn_first_offset < 0 or entry.epoch >= epoch:
            return None
        return self._view(producer_id, entry)

    def _check_transaction(
        self, entry: Producer | None, producer_id: int, epoch: int, guard: Verification | None
    ) -> None:
        if entry is not None and entry.epoch == epoch and entry.txn_first_offset >= 0:
            return
        self._check_epoch(entry, producer_id, epoch)
        if self.verify_transactions and (guard is None or guard is not self._verifications.get(producer_id)):
            raise KafkaError(Err.INVALID_TXN_STATE, f"producer {producer_id} has no transaction open here")

    def _check_epoch(self, entry: Producer | None, producer_id: int, epoch: int) -> None:
        if entry is not None and epoch < entry.epoch:
            raise KafkaError(
                Err.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} with epoch {epoch}, its last was {entry.epoch}",
            )

    def _check_sequence(self, entry: Producer | None, producer_id: int, epoch: int, sequence: int) -> None:
        verification = self._verifications.get(producer_id)
        if verification is not None:
            expected = verification.lowest_sequence
            if verification.supports_epoch_bump and sequence != 0 and (entry is None or not entry.batches):
                raise _out_of_order(producer_id, sequence, 0)
            if sequence > expected:
                raise _out_of_order(producer_id, sequence, expected)
        if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
            # Nothing is known, perhaps since retention took all the producer wrote: any sequence may come.
            if self.doubt_until_ms and sequence > 0:
                raise Unheard(producer_id, sequence)
            return
        expected = entry.next_sequence if epoch == entry.epoch else 0
        if sequence != expected:
            raise _out_of_order(producer_id, sequence, expected)

    # -- recording

    def record(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        base_offset: int,
        last_delta: int,
        timestamp: int,
        transactional: bool = False,
    ) -> None:
        """A batch was appended. `sequence` is -1 for those that coordinators write."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = Producer()
        if epoch != entry.epoch:
            entry.enter_epoch(epoch)
        if sequence != entry.next_sequence:
            entry.known_from = sequence
        last_sequence = NO_SEQUENCE if sequence < 0 else (sequence + last_delta) & SEQUENCE_MAX
        batches = entry.batches
        batches.append(BatchMark(sequence, last_sequence, base_offset, base_offset + last_delta, timestamp))
        if len(batches) > BATCHES_REMEMBERED:
            del batches[0]
        entry.next_sequence = (last_sequence + 1) & SEQUENCE_MAX
        entry.timestamp = timestamp
        if transactional:
            self._verifications.pop(producer_id, None)
            if entry.txn_first_offset < 0:
                entry.txn_first_offset = base_offset
                self._ongoing[base_offset] = producer_id
                if self.first_unstable_offset is None:
                    self.first_unstable_offset = base_offset

    def recall(self, header: BatchHeader) -> None:
        """A batch that is older than what a snapshot told of its producer; oldest first. A snapshot holds the last
        batch of each only, and a producer that got no answers sends up to five again."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch or not entry.batches:
            return
        if header.last_offset >= entry.batches[-1].base_offset:
            return
        last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MAX
        mark = BatchMark(
            header.base_sequence, last_sequence, header.base_offset, header.last_offset, header.max_timestamp
        )
        if len(entry.batches) == 1 or (entry.batches[-2].last_sequence + 1) & SEQUENCE_MAX != mark.base_sequence:
            entry.known_from = mark.base_sequence
        entry.batches.insert(-1, mark)
        if len(entry.batches) > BATCHES_REMEMBERED:
            del entry.batches[0]

    def has_seen(self, header: BatchHeader) -> bool:
        """Whether what is known of a producer includes this batch of it, or what came after it."""
        entry = self._entries.get(header.producer_id)
        return entry is not None and (
            header.producer_epoch < entry.epoch
            or (header.producer_epoch == entry.epoch and header.last_offset <= entry.last_data_offset)
        )

    def is_before(self, offset: int) -> bool:
        """Whether all that is known happened below an offset."""
        return all(
            entry.last_data_offset < offset and entry.txn_first_offset < offset for entry in self._entries.values()
        )

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        marker: Marker,
        offset: int,
        timestamp: int,
        transaction_version: int = 0,
    ) -> AbortedTransaction | None:
        """A marker was appended at `offset`. Returns the entry for the transaction index when it aborted something."""
        verification = self._verifications.get(producer_id)
        if verification is not None and not verification.is_of_next(epoch, transaction_version):
            del self._verifications[producer_id]
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = Producer()
        entry.enter_epoch(epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.timestamp = timestamp
        first_offset, entry.txn_first_offset = entry.txn_first_offset, NO_OFFSET
        if first_offset < 0:
            return None
        self._ongoing.pop(first_offset, None)
        last_stable_offset = next(iter(self._ongoing), offset + 1)
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[-1][1] > first_offset:
            unreplicated.pop()
        unreplicated.append((offset, first_offset))
        self._update_first_unstable()
        if marker.committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, last_stable_offset)

    def replay(self, buf: Buffer, pos: int, header: BatchHeader) -> AbortedTransaction | None:
        """A batch from the leader or from the log at start-up: taken as it is, since it was checked when it came."""
        if not header.has_producer_id:
            return None
        if not header.is_control:
            self.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                header.last_offset_delta,
                header.max_timestamp,
                header.is_transactional,
            )
            return None
        if not header.count:
            # Compaction kept the batch for its epoch alone, since nothing of the transaction is left.
            entry = self._entries.setdefault(header.producer_id, Producer())
            if header.producer_epoch > entry.epoch:
                entry.enter_epoch(header.producer_epoch)
                entry.timestamp = header.max_timestamp
            return None
        marker = decode_marker(buf, pos, header)
        if marker is None:
            return None
        return self.end_transaction(
            header.producer_id, header.producer_epoch, marker, header.base_offset, header.max_timestamp
        )

    def committed(self, high_watermark: int) -> None:
        """Transactions whose end lies below the high watermark no longer hold back the last stable offset."""
        unreplicated = self._unreplicated
        if unreplicated and unreplicated[0][0] < high_watermark:
            while unreplicated and unreplicated[0][0] < high_watermark:
                unreplicated.popleft()
            self._update_first_unstable()

    def advance_log_start(self, log_start_offset: int) -> None:
        """Ended transactions that lie below the log's start are done with; producers stay known until they expire."""
        self.committed(log_start_offset)

    def _update_first_unstable(self) -> None:
        first = next(iter(self._ongoing), None)
        if self._unreplicated and (first is None or self._unreplicated[0][1] < first):
            first = self._unreplicated[0][1]
        self.first_unstable_offset = first

    # -- forgetting

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers idle for `producer.id.expiration.ms`, but for open transactions; returns how many."""
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.txn_first_offset < 0 and now_ms - entry.timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.started_ms >= expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Forget everything: the log was truncated, and a snapshot and the batches after it will be read again."""
        self._entries.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._verifications.clear()
        self.first_unstable_offset = None

    # -- seeing

    def describe(self) -> list[ProducerView]:
        return list(self._views())

    def _views(self) -> Iterator[ProducerView]:
        for producer_id, entry in self._entries.items():
            yield self._view(producer_id, entry)

    @staticmethod
    def _view(producer_id: int, entry: Producer) -> ProducerView:
        return ProducerView(
            producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )

    def ends_behind(self, offset: int) -> set[int]:
        """Where the remembered batches end that go beyond `offset`."""
        ends = (mark.last_offset + 1 for entry in self._entries.values() for mark in entry.batches)
        return {end for end in ends if end > offset}

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Producer -> (offset of its last record or -1, epoch): what compaction must not remove the batch of."""
        return {pid: (entry.last_data_offset, entry.epoch) for pid, entry in self._entries.items()}

    def open_transactions(self) -> list[ProducerView]:
        """Earliest first."""
        return [self._view(producer_id, self._entries[producer_id]) for producer_id in self._ongoing.values()]

    def open_since(self, producer_id: int) -> int:
        """First offset of a producer's open transaction, or -1."""
        entry = self._entries.get(producer_id)
        return NO_OFFSET if entry is None else entry.txn_first_offset

    def last_offset_of(self, producer_id: int) -> int:
        """Of a producer's last record, or -1."""
        entry = self._entries.get(producer_id)
        return NO_OFFSET if entry is None else entry.last_data_offset

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the earliest transaction that has not ended."""
        return next(iter(self._ongoing), None)

    @property
    def oldest_transaction_timestamp(self) -> int:
        """When the earliest open transaction last wrote, or -1: one that is too old was left hanging."""
        for producer_id in self._ongoing.values():
            return self._entries[producer_id].timestamp
        return NO_TIMESTAMP

    # -- snapshots

    def snapshot(self) -> bytes:
        """The content of a `.snapshot` file. Of each producer's batches it keeps only the last, as Kafka does."""
        rows = []
        for producer_id, entry in self._entries.items():
            last = entry.batches[-1] if entry.batches else None
            rows.append(
                pack_row(
                    producer_id,
                    entry.epoch,
                    entry.last_sequence,
                    entry.last_data_offset,
                    last.last_offset - last.base_offset if last is not None else 0,
                    entry.timestamp,
                    entry.coordinator_epoch,
                    entry.txn_first_offset,
                )
            )
        return encode_rows(rows)

    def load(self, data: bytes, now_ms: int, expiration_ms: int) -> None:
        """Replace everything by a snapshot's content, but for what has expired. CORRUPT_MESSAGE leaves all as it
        was."""
        rows = decode_rows(data)
        self.clear()
        ongoing = []
        for producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first in rows:
            if first < 0 and now_ms - timestamp >= expiration_ms:
                continue
            entry = self._entries[producer_id] = Producer()
            entry.epoch = epoch
            entry.coordinator_epoch = coordinator_epoch
            entry.timestamp = timestamp
            entry.txn_first_offset = first
            if last_offset >= 0:
                base_sequence = NO_SEQUENCE if last_sequence < 0 else (last_sequence - offset_delta) & SEQUENCE_MAX
                mark = BatchMark(base_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp)
                entry.batches.append(mark)
                entry.next_sequence = (last_sequence + 1) & SEQUENCE_MAX
                entry.known_from = base_sequence
            if first >= 0:
                ongoing.append((first, producer_id))
        self._ongoing.update(sorted(ongoing))
        self._update_first_unstable()


def _out_of_order(producer_id: int, sequence: int, expected: int) -> KafkaError:
    return KafkaError(
        Err.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} sent sequence {sequence} where {expected} was due",
    )
