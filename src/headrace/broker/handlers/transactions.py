"""Transactions, as their coordinator and as the leaders of their partitions.

AddPartitionsToTxn v0-5. v2: PRODUCER_FENCED. v4: several transactions, from brokers only, which may just verify.
v5: TRANSACTION_ABORTABLE (KIP-890). AddOffsetsToTxn v0-4. v2: PRODUCER_FENCED. v4: TRANSACTION_ABORTABLE.
EndTxn v0-5. v2: PRODUCER_FENCED. v4: TRANSACTION_ABORTABLE. v5: the next producer id and epoch in the answer (KIP-890).
WriteTxnMarkers v1-2. v2: the transaction version. DescribeTransactions v0.
ListTransactions v0-2. v1: by duration (KIP-994). v2: by a pattern (KIP-1152). Leaders ask by it about what is open in
their partitions (`protocol/private_fields/left_open.py`).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.coordinators.transaction_partitions import TransactionPartitions
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.net.request import Request
from headrace.broker.transactions.id_pattern import id_pattern
from headrace.broker.transactions.marker_writer import MarkerWriter
from headrace.coordinator.outcome import Outcome
from headrace.coordinator.shard_requests import LOG_ERRORS
from headrace.coordinator.transactions.records import by_topic
from headrace.coordinator.transactions.shard import Producer, TransactionShard
from headrace.coordinator.transactions.transaction import Transaction, TransactionState
from headrace.errors import Err, KafkaError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.private_fields.left_open import answer_tag, places_in

T = TypeVar("T")

FENCED_SINCE = 2
"""Versions from which clients know PRODUCER_FENCED, of every API here."""
BUMP_SINCE = 5
"""Of EndTxn: a new epoch with each end."""
V2 = 2
STATES = {state.shown: state for state in TransactionState}


class Asked(Generic[T]):
    """Who waits for a decision about one transactional id."""

    __slots__ = ("_message", "_request", "_value")

    def __init__(self, request: Request, value: Callable[[Err], T], message: Callable[[T], Any]) -> None:
        self._request = request
        self._value = value
        self._message = message

    def answer(self, response: T) -> None:
        self._request.respond(self._message(response))

    def refusal(self, error: Err) -> T:
        return self._value(LOG_ERRORS.get(error, error))


class TransactionHandlers:
    """What producers, leaders and administrators ask about transactions."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        partitions: TransactionPartitions,
        groups: GroupCoordinator,
        markers: MarkerWriter,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._transactions = transactions
        self._partitions = partitions
        self._groups = groups
        self._markers = markers
        self._run_in_thread = run_in_thread

    # ---- producers

    def add_partitions(self, request: Request, message: m.AddPartitionsToTxnRequest) -> Any:
        return self._partitions.serve(message, request.version, request.respond)

    def add_offsets(self, request: Request, message: m.AddOffsetsToTxnRequest) -> Any:
        place = OFFSETS_TOPIC, self._groups.partition_of(message.group_id)

        def answer(error: Err) -> m.AddOffsetsToTxnResponse:
            return m.AddOffsetsToTxnResponse(error_code=_known(error, request.version))

        def decide(shard: TransactionShard, now_ms: int) -> Outcome:
            return shard.add_partitions(
                message.transactional_id, message.producer_id, message.producer_epoch, [place], 0, now_ms
            )

        return self._ask(request, message.transactional_id, decide, _error, answer)

    def end(self, request: Request, message: m.EndTxnRequest) -> Any:
        client_version = V2 if request.version >= BUMP_SINCE else 0

        def answer(ended: Producer) -> m.EndTxnResponse:
            return m.EndTxnResponse(
                error_code=_known(ended.error, request.version),
                producer_id=ended.producer_id,
                producer_epoch=ended.producer_epoch,
            )

        def decide(shard: TransactionShard, now_ms: int) -> Outcome:
            return shard.end(
                message.transactional_id, message.producer_id, message.producer_epoch, message.committed,
                client_version, now_ms,
            )  # fmt: skip

        return self._ask(request, message.transactional_id, decide, Producer, answer)

    def _ask(
        self,
        request: Request,
        transactional_id: str,
        decide: Callable[[TransactionShard, int], Outcome],
        value: Callable[[Err], T],
        answer: Callable[[T], Any],
    ) -> Any:
        """A request about one transactional id: answered now, or None and answered once it is committed."""
        if not transactional_id:
            return answer(value(Err.INVALID_REQUEST))
        asker = Asked(request, value, answer)
        try:
            host = self._transactions.host(transactional_id)
        except KafkaError as error:
            return answer(asker.refusal(error.error))
        found = host.ask(partial(decide, host.shard), asker)
        return None if found is None else answer(found)

    # ---- brokers

    def write_markers(
        self, request: Request, message: m.WriteTxnMarkersRequest
    ) -> Awaitable[m.WriteTxnMarkersResponse]:
        return self._markers.write(message)

    # ---- administrators

    def describe(self, request: Request, message: m.DescribeTransactionsRequest) -> m.DescribeTransactionsResponse:
        return m.DescribeTransactionsResponse(
            transaction_states=[self._described(id) for id in message.transactional_ids]
        )

    def _described(self, id: str) -> m.DescribeTransactionsResponse.TransactionState:
        R = m.DescribeTransactionsResponse
        if not id:
            return R.TransactionState(transactional_id=id, error_code=Err.INVALID_REQUEST)
        try:
            found = self._transactions.host(id).shard.describe(id)
            if found is None:
                raise KafkaError(Err.TRANSACTIONAL_ID_NOT_FOUND)
        except KafkaError as error:
            return R.TransactionState(transactional_id=id, error_code=error.error)
        return R.TransactionState(
            transactional_id=id,
            transaction_state=found.state.shown,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[
                R.TopicData(topic=topic, partitions=indexes) for topic, indexes in by_topic(found.partitions).items()
            ],
        )

    def list_transactions(
        self, request: Request, message: m.ListTransactionsRequest
    ) -> m.ListTransactionsResponse | Awaitable[m.ListTransactionsResponse]:
        if self._transactions.is_loading:
            return m.ListTransactionsResponse(error_code=Err.COORDINATOR_LOAD_IN_PROGRESS)
        if (places := places_in(message.unknown_tags)) is not None:
            return m.ListTransactionsResponse(unknown_tags=answer_tag(self._transactions.known_of(places)))
        # A thread may not look at what shards hold: it changes meanwhile.
        known = [one for host in self._transactions.active() for one in host.shard.list()]
        if message.transactional_id_pattern:
            # It is the client's, and may take long.
            return self._run_in_thread(self._listed, message, known)
        return self._listed(message, known)

    def _listed(self, message: m.ListTransactionsRequest, known: list[Transaction]) -> m.ListTransactionsResponse:
        R = m.ListTransactionsResponse
        unknown = [name for name in message.state_filters if name not in STATES]
        states = {STATES[name] for name in message.state_filters if name in STATES}
        try:
            matches = id_pattern(message.transactional_id_pattern)
        except KafkaError as error:
            return R(error_code=error.error)
        now_ms = self._transactions.wall_ms()

        def wanted(one: Transaction) -> bool:
            return (
                (not message.producer_id_filters or one.producer_id in message.producer_id_filters)
                and (not message.state_filters or one.state in states)
                and (message.duration_filter < 0 or now_ms - one.start_ms > message.duration_filter)
                and matches(one.transactional_id)
            )

        try:
            found = [one for one in known if wanted(one)]
        except KafkaError as error:
            return R(error_code=error.error)
        return R(
            unknown_state_filters=unknown,
            transaction_states=[
                R.TransactionState(
                    transactional_id=one.transactional_id,
                    producer_id=one.producer_id,
                    transaction_state=one.state.shown,
                )
                for one in found
            ],
        )


def _known(error: Err, version: int) -> Err:
    """An error as clients of this version know it."""
    return Err.INVALID_PRODUCER_EPOCH if version < FENCED_SINCE and error is Err.PRODUCER_FENCED else error


def _error(error: Err) -> Err:
    return error
