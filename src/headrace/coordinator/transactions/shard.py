"""One partition of `__transaction_state` as a state machine: a handler for each request, replayed from its log.

Handlers decide on everything written so far and return an `Outcome`; `apply` and `replay` alone change what is durable.
How a runtime drives it is in coordinator/outcome.py. What is new here are markers: once the decision to commit or abort
is below the high watermark, `markers_due` names the partitions that have to be told, and the runtime reports each one
by `marker_written`. The last one ends the transaction.

Kafka answers CONCURRENT_TRANSACTIONS to whoever comes while markers are being written, and clients try again after a
pause. Here they wait for the end of the transaction, a moment later, and are decided on then: `_Waiting`.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import msgspec

from headrace.coordinator.outcome import Cancel, Outcome, Promise, Record, Timer
from headrace.coordinator.shard_state import Timeline
from headrace.coordinator.transactions.records import decode, tombstone, transaction_record
from headrace.coordinator.transactions.transaction import (
    EPOCH_BUMP_FROM,
    NEVER_MS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    State,
    TopicPartition,
    Transaction,
)
from headrace.errors import Err, KafkaError
from headrace.protocol.primitives import ProtocolError
from headrace.records.layout import PRODUCER_EPOCH_MAX

TIMEOUT = "transaction timeout"
WAIT = "transaction wait"
RESUME = "transaction resume"
WAIT_MS = 2_000
"""How long a request waits for the markers of the transaction before. Longer, and its client may as well ask again."""
LEADER_WAIT_MS = 100
"""The same for a leader's: what it asks about the transactions of others waits behind it."""
RETRY_MS = 1_000
WAITING_MAX = 8
"""Requests that wait for one transaction: a producer has one under way, a partition's leader a few."""
EXPIRY_STEP = 2_000
"""Transactional ids looked at in one turn of expiry."""


class TransactionConfig(msgspec.Struct, frozen=True):
    """Options of the coordinator; the names are Kafka's with underscores."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    two_phase_commit_enable: bool = False

    def refusal(self, transactional_id: str, timeout_ms: int, two_phase: bool) -> Err:
        """What is wrong with an InitProducerId, whatever its coordinator knows."""
        if not transactional_id:
            return Err.INVALID_REQUEST
        if two_phase:
            return Err.NONE if self.two_phase_commit_enable else Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Err.NONE if 0 < timeout_ms <= self.transaction_max_timeout_ms else Err.INVALID_TRANSACTION_TIMEOUT


class Producer(NamedTuple):
    """What InitProducerId and EndTxn answer."""

    error: Err = Err.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    """Of the prepared transaction that a producer has come back to; it knows by them whether it is its own."""
    ongoing_producer_epoch: int = NO_PRODUCER_EPOCH


class Markers(NamedTuple):
    """What the partitions of one transaction have to be told."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int
    decision: int = -1
    """The offset of the record that says so: later decisions about the same producer have higher ones."""


NewProducerId = Callable[[], int]
"""A producer id that nobody has; raises KafkaError when there is none at hand, and it has to be tried again."""
Decide = Callable[[int, Outcome], object]
"""A request, decided on what is true when it is called: (now_ms, outcome) -> response. May raise `_Wait`."""
Answer = Callable[[Err], object]
"""The response that says why a request was refused."""


class _Wait(Exception):
    """The transaction before has not ended."""


class _Waiting(NamedTuple):
    promise: Promise
    decide: Decide
    answer: Answer


class TransactionShard:
    """Not thread-safe; time comes in as `now_ms`."""

    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: NewProducerId,
        *,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self.transaction_version = 0
        """The cluster's, as finalized: what to write, and how to fence."""
        self.transactions: Timeline[str, Transaction] = Timeline()
        self.skipped = 0
        """Records that this version does not know, or that cannot be read."""
        self._new_producer_id = new_producer_id
        self._note = note or (lambda text: None)
        self.open_since: dict[str, int] = {}
        """Transactions that have not ended -> when they began: few of many ids, also after a load."""
        self._prepared: deque[tuple[int, str]] = deque()
        """(offset, id) of decisions that are not below the high watermark yet, in order. Of an id that has gone on
        since then, an older one is left to be passed over."""
        self._decided_at: dict[str, int] = {}
        """Of each prepared transaction whose markers are not due yet."""
        self._marking: dict[str, set[TopicPartition]] = {}
        """Transactions whose markers are being written -> partitions that have none yet."""
        self._decision: dict[str, int] = {}
        """Of the same transactions: the offset of the record."""
        self._due: list[str] = []
        self._waiting: dict[str, list[_Waiting]] = {}
        self._to_expire: list[str] = []

    # ---- loading and replaying

    def advance(self, high_watermark: int) -> None:
        """All below is committed: call it before a load with what is known, and whenever it moves."""
        self.transactions.advance(high_watermark)
        prepared = self._prepared
        while prepared and prepared[0][0] < high_watermark:
            offset, transactional_id = prepared.popleft()
            if self._decided_at.get(transactional_id) == offset:
                del self._decided_at[transactional_id]
                self._due.append(transactional_id)

    def replay(self, offset: int, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        """One record of the log, during a load."""
        try:
            found = decode(key, value)
        except ProtocolError as error:
            # Serving without it could take a commit for an abort: the load fails, and says where.
            raise ProtocolError(f"record {offset} of the transaction log cannot be read: {error}") from error
        if found is None:
            self.skipped += 1
            self._note(f"record {offset} of the transaction log is left alone: its kind is unknown to this version")
        else:
            self._put(offset, *found)

    def replay_marker(self, offset: int, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Nobody writes transactions into the log of transactions."""

    def apply(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        """One record of an outcome, at the offset it will have in the log."""
        self._put(offset, record.key_message, record.value_message)

    def _put(self, offset: int, transactional_id: str, transaction: Transaction | None) -> None:
        if transaction is None:
            self.transactions.remove(transactional_id, offset)
        else:
            self.transactions.put(transactional_id, transaction, offset)
        self._decided_at.pop(transactional_id, None)
        self._marking.pop(transactional_id, None)
        self._decision.pop(transactional_id, None)
        if transaction is None or transaction.state.may_expire:
            self.open_since.pop(transactional_id, None)
            return
        self.open_since[transactional_id] = transaction.start_ms
        if transaction.state.is_prepared:
            self._marking[transactional_id] = set(transaction.partitions)
            self._decision[transactional_id] = offset
            if offset >= self.transactions.committed_end:  # else it is one of a load, and `loaded` sees to it
                self._decided_at[transactional_id] = offset
                self._prepared.append((offset, transactional_id))

    def loaded(self, now_ms: int) -> Outcome:
        """Once, when everything is replayed: open transactions have their time limit again."""
        out = Outcome()
        out.atomic = False
        for transactional_id in self.open_since:
            transaction = self.transactions.live[transactional_id]
            self._arm(transaction, now_ms, out)
            if not transaction.state.is_prepared:
                continue
            if not transaction.partitions:
                self._complete(transaction, now_ms, out)
            elif transactional_id not in self._decided_at:
                self._due.append(transactional_id)
        return out

    def unload(self) -> list[Promise]:
        """Promises that will never be kept; the runtime refuses them."""
        promises = [waiting.promise for several in self._waiting.values() for waiting in several]
        self._waiting.clear()
        return promises

    # ---- time

    def timeout(self, key: Hashable, now_ms: int) -> Outcome:
        """A timer of an earlier outcome is due."""
        assert isinstance(key, tuple)
        kind, transactional_id = key
        if kind == RESUME:
            return self._resume(transactional_id, now_ms)
        out = Outcome()
        if kind == WAIT:
            for waiting in self._waiting.pop(transactional_id, ()):
                out.complete(waiting.promise, waiting.answer(Err.CONCURRENT_TRANSACTIONS))
            return out
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.deadline_ms is None:
            return out
        # Whatever the clock says: it may have been set back since the timer was armed, and readers wait.
        try:
            self._abort(transaction, now_ms, out)
            self._note(f"the transaction of {transactional_id} is aborted after {transaction.timeout_ms} ms")
        except KafkaError:
            # No producer id is at hand for one whose epochs have run out.
            out.timers.append(Timer((TIMEOUT, transactional_id), RETRY_MS))
        return out

    def expire(self, now_ms: int) -> Outcome:
        """Forget ids unused for transactional.id.expiration.ms. `response` True: call again soon, there is more."""
        out = Outcome(response=False)
        out.atomic = False
        if not self._to_expire:
            self._to_expire = list(self.transactions.live)
        before_ms = now_ms - self.config.transactional_id_expiration_ms
        for _ in range(min(EXPIRY_STEP, len(self._to_expire))):
            transaction = self.transactions.get(self._to_expire.pop())
            if transaction is not None and transaction.state.may_expire and transaction.update_ms <= before_ms:
                out.records.append(tombstone(transaction.transactional_id))
        out.response = bool(self._to_expire)
        return out

    # ---- requests

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        now_ms: int,
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> Outcome:
        """A producer begins. Whoever had the id before is fenced, and what it left open is aborted.

        With `two_phase` its transactions never time out, and with `keep_prepared` it comes back to the one that it has
        left open, to end it one way or the other (KIP-939).
        """
        error = self.config.refusal(transactional_id, timeout_ms, two_phase)
        if error is Err.NONE and keep_prepared and (not two_phase or self.transaction_version < EPOCH_BUMP_FROM):
            error = Err.UNSUPPORTED_VERSION
        if error:
            return Outcome(Producer(error))
        given_ms = NEVER_MS if two_phase else timeout_ms

        def decide(now_ms: int, out: Outcome) -> Producer:
            transaction = self.transactions.get(transactional_id)
            if transaction is None:
                transaction = Transaction(
                    transactional_id, self._new_producer_id(), NO_PRODUCER_EPOCH, given_ms, State.EMPTY, now_ms
                )
            if transaction.state.is_prepared:
                raise _Wait
            _check_expected(transaction, expected)
            if transaction.state is State.ONGOING and keep_prepared:
                kept = transaction.keep(self._new_producer_id, given_ms, now_ms)
                self._write(kept, out)
                out.timers.append(Cancel((TIMEOUT, transactional_id)))
                return Producer(Err.NONE, *kept.client, transaction.producer_id, transaction.producer_epoch)
            if transaction.state is State.ONGOING:
                self._abort(transaction, now_ms, out)
                raise _Wait
            if transaction.is_epoch_exhausted and (expected is None or expected[1] == transaction.producer_epoch):
                began = transaction.next_id(self._new_producer_id(), given_ms, expected is not None, now_ms)
            else:
                began = transaction.next_epoch(given_ms, None if expected is None else expected[1], now_ms)
            self._write(began, out)
            return Producer(Err.NONE, began.producer_id, began.producer_epoch)

        return self._run(transactional_id, decide, now_ms, Producer)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: int,
        now_ms: int,
        *,
        wait_ms: int = WAIT_MS,
    ) -> Outcome:
        """`response`: an error for all of them."""
        wanted = frozenset(partitions)

        def decide(now_ms: int, out: Outcome) -> Err:
            transaction = self._of(transactional_id)
            if transaction.state.is_prepared:
                if client_version >= EPOCH_BUMP_FROM > transaction.client_version:
                    # Of a leader, whose question a classic marker voids: nothing that waits for it can be appended.
                    raise KafkaError(Err.CONCURRENT_TRANSACTIONS)
                raise _Wait
            _check_producer(transaction, producer_id, epoch)
            if transaction.is_kept:
                raise KafkaError(Err.INVALID_TXN_STATE)
            if transaction.state is not State.ONGOING or not wanted <= transaction.partitions:
                added = transaction.add(wanted, client_version, now_ms)
                self._write(added, out)
                if transaction.state is not State.ONGOING:
                    self._arm(added, now_ms, out)
            return Err.NONE

        if not transactional_id:
            return Outcome(Err.INVALID_REQUEST)
        return self._run(transactional_id, decide, now_ms, _error, wait_ms)

    def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Err]:
        """Whether a leader may append what claims to belong to the transaction.

        The answer waits, like an outcome without records, until all that was written is committed.
        """
        wanted = list(partitions)
        try:
            if not transactional_id:
                raise KafkaError(Err.INVALID_REQUEST)
            transaction = self._of(transactional_id)
            _check_producer(transaction, producer_id, epoch)
            if transaction.state.is_prepared:
                raise KafkaError(Err.CONCURRENT_TRANSACTIONS)
            if transaction.is_kept:
                raise KafkaError(Err.INVALID_TXN_STATE)
        except KafkaError as error:
            return dict.fromkeys(wanted, error.error)
        return {one: Err.NONE if one in transaction.partitions else Err.TRANSACTION_ABORTABLE for one in wanted}

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, committed: bool, client_version: int, now_ms: int
    ) -> Outcome:
        """EndTxn. `response`: a `Producer`, whose id and epoch clients of version 2 go on with."""

        def decide(now_ms: int, out: Outcome) -> Producer:
            if client_version < EPOCH_BUMP_FROM:
                return self._end_classic(transactional_id, producer_id, epoch, committed, now_ms, out)
            return self._end(transactional_id, producer_id, epoch, committed, client_version, now_ms, out)

        if not transactional_id:
            return Outcome(Producer(Err.INVALID_REQUEST))
        return self._run(transactional_id, decide, now_ms, Producer)

    def _end_classic(
        self, transactional_id: str, producer_id: int, epoch: int, committed: bool, now_ms: int, out: Outcome
    ) -> Producer:
        """The classic protocol: a repeated end is told from a new one by the state alone."""
        transaction = self._of(transactional_id)
        _check_producer(transaction, producer_id, epoch)
        state = transaction.state
        if state.is_prepared:
            if self._waiting.get(transactional_id):
                # 1. The producer has heard that its transaction is decided, and asks to begin the next: that waits.
                # 2. An EndTxn of the first comes late. Behind the other it would end the next transaction.
                raise KafkaError(Err.CONCURRENT_TRANSACTIONS)
            raise _Wait
        if state is State.ONGOING:
            self._prepare(transaction.prepare(committed, 0, NO_PRODUCER_ID, now_ms), now_ms, out)
        elif state is not (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT):
            raise KafkaError(Err.INVALID_TXN_STATE)
        return Producer()

    def _end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        committed: bool,
        client_version: int,
        now_ms: int,
        out: Outcome,
    ) -> Producer:
        """Version 2: every end has an epoch of its own, so a repeated one is known by the epoch before the present."""
        transaction = self._of(transactional_id)
        state = transaction.state
        if state.is_prepared:
            raise _Wait
        is_overflow = (
            transaction.previous_producer_id == producer_id
            and epoch == PRODUCER_EPOCH_MAX - 1
            and transaction.producer_epoch == 0
        )
        client_id, client_epoch = transaction.client
        is_repeated = client_epoch == epoch + 1
        is_current = client_epoch == epoch
        if client_id != producer_id and not is_overflow:
            raise KafkaError(Err.INVALID_PRODUCER_ID_MAPPING)
        if not is_current and (state in (State.EMPTY, State.ONGOING) or not (is_repeated or is_overflow)):
            raise KafkaError(Err.PRODUCER_FENCED)
        if state is not State.ONGOING:
            if is_repeated or is_overflow:
                if committed != (state is State.COMPLETE_COMMIT):
                    raise KafkaError(Err.INVALID_TXN_STATE)
                return Producer(Err.NONE, transaction.producer_id, transaction.producer_epoch)
            if committed:
                # Nothing was written, or a commit of what is committed already under another epoch.
                raise KafkaError(Err.INVALID_TXN_STATE)
        next_id = self._new_producer_id() if transaction.is_epoch_exhausted else NO_PRODUCER_ID
        prepared = transaction.prepare(committed, client_version, next_id, now_ms)
        self._prepare(prepared, now_ms, out)
        ended = prepared.complete(now_ms)
        return Producer(Err.NONE, ended.producer_id, ended.producer_epoch)

    # ---- markers

    def markers_due(self) -> list[Markers]:
        """Transactions whose decision has become certain since the last call."""
        due, self._due = self._due, []
        found = []
        for transactional_id in due:
            transaction = self.transactions.get(transactional_id)
            if transaction is None or transactional_id in self._decided_at:
                continue  # the next one has been decided on since, and is not certain yet
            if transaction.state.is_prepared:
                found.append(
                    Markers(
                        transactional_id,
                        transaction.producer_id,
                        transaction.producer_epoch,
                        transaction.state is State.PREPARE_COMMIT,
                        frozenset(self._marking[transactional_id]),
                        transaction.client_version,
                        self._decision[transactional_id],
                    )
                )
        return found

    def marker_written(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], now_ms: int
    ) -> Outcome:
        """Partitions have their marker, or are gone. With the last one the transaction has ended."""
        out = Outcome()
        transaction = self.transactions.get(transactional_id)
        if (
            transaction is None
            or not transaction.state.is_prepared
            or (transaction.producer_id, transaction.producer_epoch) != (producer_id, epoch)
        ):
            return out
        left = self._marking[transactional_id]
        left.difference_update(partitions)
        if not left:
            self._complete(transaction, now_ms, out)
            # Its producer was told of the decision. A coordinator that does not find this record sends markers again.
            out.urgent = False
        return out

    # ---- reads, of what is committed

    def describe(self, transactional_id: str) -> Transaction | None:
        return self.transactions.committed(transactional_id)

    def list(self) -> Iterable[Transaction]:
        return (transaction for _, transaction in self.transactions.committed_items())

    @property
    def waiting_count(self) -> int:
        """Asked by another thread, too."""
        return sum(map(len, list(self._waiting.values())))

    # ---- deciding

    def _of(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(Err.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    def _run(
        self, transactional_id: str, decide: Decide, now_ms: int, answer: Answer, wait_ms: int = WAIT_MS
    ) -> Outcome:
        """Decide now, or when the transaction before has ended."""
        out = Outcome()
        try:
            out.response = decide(now_ms, out)
        except KafkaError as error:
            out = Outcome(answer(error.error))
        except _Wait:
            waiting = self._waiting.setdefault(transactional_id, [])
            if len(waiting) >= WAITING_MAX:
                out.response = answer(Err.CONCURRENT_TRANSACTIONS)
            else:
                promise = Promise()
                if not waiting or wait_ms < WAIT_MS:
                    # Those who came before do not wait longer either: their clients ask again.
                    out.timers.append(Timer((WAIT, transactional_id), wait_ms))
                decided: Transaction | None = out.records[-1].value_message if out.records else None
                if decided is not None and not decided.state.is_prepared:
                    # It has ended with this decision, since no partition has to be told.
                    out.timers.append(Timer((RESUME, transactional_id), 0))
                waiting.append(_Waiting(promise, decide, answer))
                out.response = promise
                out.revocable = False
        return out

    def _abort(self, transaction: Transaction, now_ms: int, out: Outcome) -> None:
        """The coordinator's own decision, with an epoch that fences the producer."""
        if self.transaction_version >= EPOCH_BUMP_FROM:
            next_id = self._new_producer_id() if transaction.is_epoch_exhausted else NO_PRODUCER_ID
            prepared = transaction.prepare(False, self.transaction_version, next_id, now_ms)
        else:
            prepared = transaction.fence(now_ms)
        self._prepare(prepared, now_ms, out)

    def _prepare(self, prepared: Transaction, now_ms: int, out: Outcome) -> None:
        self._write(prepared, out)
        # However large it is: else the transaction could never end.
        out.revocable = False
        out.timers.append(Cancel((TIMEOUT, prepared.transactional_id)))
        if not prepared.partitions:
            # Nobody has to be told.
            self._complete(prepared, now_ms, out)

    def _complete(self, prepared: Transaction, now_ms: int, out: Outcome) -> None:
        self._write(prepared.complete(now_ms), out)
        if prepared.transactional_id in self._waiting:
            # Not here: they are to be decided on what this record says, once it is applied.
            out.timers.append(Timer((RESUME, prepared.transactional_id), 0))

    def _resume(self, transactional_id: str, now_ms: int) -> Outcome:
        """Decide on the first of those who waited for the end of the transaction; the others follow one by one."""
        out = Outcome()
        waiting = self._waiting.get(transactional_id)
        if not waiting:
            return out
        first = waiting.pop(0)
        try:
            out.complete(first.promise, first.decide(now_ms, out))
        except KafkaError as error:
            out = Outcome()
            out.complete(first.promise, first.answer(error.error))
        except _Wait:
            # The one before it has begun another transaction, and ended it: its client asks again.
            out.complete(first.promise, first.answer(Err.CONCURRENT_TRANSACTIONS))
        if waiting:
            out.timers.append(Timer((RESUME, transactional_id), 0))
        else:
            del self._waiting[transactional_id]
            out.timers.append(Cancel((WAIT, transactional_id)))
        out.revocable = False
        return out

    def _write(self, transaction: Transaction, out: Outcome) -> None:
        out.records.append(transaction_record(transaction, self.transaction_version))

    def _arm(self, transaction: Transaction, now_ms: int, out: Outcome) -> None:
        if transaction.deadline_ms is not None:
            # The clock of the coordinator that began it may have been ahead of this one, by whatever.
            delay_ms = min(max(0, transaction.deadline_ms - now_ms), transaction.timeout_ms)
            out.timers.append(Timer((TIMEOUT, transaction.transactional_id), delay_ms))


def _error(error: Err) -> Err:
    return error


def _check_producer(transaction: Transaction, producer_id: int, epoch: int) -> None:
    known_id, known_epoch = transaction.client
    if known_id != producer_id:
        raise KafkaError(Err.INVALID_PRODUCER_ID_MAPPING)
    if known_epoch != epoch:
        raise KafkaError(Err.PRODUCER_FENCED)


def _check_expected(transaction: Transaction, expected: tuple[int, int] | None) -> None:
    """A producer that goes on after an error must be the one that has the id, or had it until its epochs ran out."""
    if expected is None or transaction.producer_epoch == NO_PRODUCER_EPOCH:
        return
    producer_id, epoch = expected
    is_before = producer_id == transaction.previous_producer_id and epoch >= PRODUCER_EPOCH_MAX - 1
    if producer_id != transaction.producer_id and not is_before:
        raise KafkaError(Err.PRODUCER_FENCED)
