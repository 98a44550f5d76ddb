"""A producer's transactions from its own side: which step may come next, what an error means, and the requests to the
coordinator of its transactional id.

`TransactionSteps` is pure: it has the rules of KIP-98, KIP-360 and KIP-890. `ProducerTransactions` asks the coordinator
by them, and `end_transaction` ends one that another process has written. Works against Apache Kafka as well, in the
classic protocol and in version 2.
"""

from collections.abc import Iterable
from enum import Enum

from headrace.client.errors import ClientError, RequestFailed, check
from headrace.client.net.cluster import Cluster, may_pass
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import TRANSACTION, Coordinators
from headrace.client.produce.partition_queue import NO_PRODUCER, ProducerId
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

TopicPartition = tuple[str, int]

TIMEOUT_MS = 60_000
FEATURE, VERSION_2 = "transaction.version", 2
"""The cluster's feature, and its level from which partitions join by the first Produce and each end has an epoch."""
CLASSIC_PRODUCE_MAX, CLASSIC_END_MAX, CLASSIC_ADD_MAX = 11, 4, 3
"""The last versions of Produce, EndTxn and AddPartitionsToTxn by which clients of the classic protocol are known."""
TWO_PHASE_INIT = 6
"""The version of InitProducerId that asks for two-phase commit (KIP-939). Brokers list it only if it is switched on."""


class Severity(Enum):
    """What an error leaves to do."""

    RETRIABLE = "send the same request again"
    ABORTABLE = "abort the transaction, then begin another"
    FATAL = "give the producer up: its transactional id has another owner, or may not be used"


FATAL = frozenset(
    {
        Err.PRODUCER_FENCED,
        Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Err.CLUSTER_AUTHORIZATION_FAILED,
        Err.UNSUPPORTED_VERSION,
    }
)
FATAL_BY_COORDINATOR = FATAL | {Err.INVALID_PRODUCER_EPOCH, Err.INVALID_TXN_STATE, Err.INVALID_TRANSACTION_TIMEOUT}
"""An old epoch means another owner when the coordinator says so. A partition's leader may only have lost sight of the
producer."""


def severity_of(error: ClientError, *, by_coordinator: bool) -> Severity:
    """What an answer means for the transaction: of the coordinator, or of the leader of a partition."""
    if not isinstance(error, RequestFailed):
        return Severity.RETRIABLE if may_pass(error) else Severity.FATAL
    if error.error.retriable:
        return Severity.RETRIABLE
    return Severity.FATAL if error.error in (FATAL_BY_COORDINATOR if by_coordinator else FATAL) else Severity.ABORTABLE


class Step(Enum):
    """Where a producer stands."""

    NEW = "it has no producer id yet"
    READY = "no transaction is open"
    OPEN = "a transaction is open"
    ENDING = "it is being committed or aborted"
    ABORTABLE = "an error has spoilt the transaction: it can only be aborted"
    FATAL = "the producer has come to its end"


class WrongStep(ClientError):
    """A call that does not fit where the producer stands."""


class TransactionSteps:
    """The state of one transactional producer. Pure; raises WrongStep or the error that came before."""

    def __init__(self) -> None:
        self.step = Step.NEW
        self.producer = NO_PRODUCER
        self.is_version_2 = False
        self.error: ClientError | None = None
        """Why it stands at ABORTABLE or FATAL."""
        self.partitions: set[TopicPartition] = set()
        """Of the open transaction: in the classic protocol, those the coordinator knows of."""

    def began(self, producer: ProducerId, is_version_2: bool) -> None:
        """InitProducerId was answered."""
        assert self.step is not Step.FATAL
        self.producer, self.is_version_2 = producer, is_version_2
        self._ready()

    def begin(self) -> None:
        self._check(Step.READY, "begin a transaction")
        self.step = Step.OPEN

    def to_add(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that the coordinator has to be told of before anything is written to them; version 2 needs none."""
        self._check(Step.OPEN, "write in a transaction")
        return [] if self.is_version_2 else sorted({*partitions} - self.partitions)

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """They belong to the transaction, or will with the Produce about to be sent."""
        self.partitions.update(partitions)

    @property
    def is_empty(self) -> bool:
        """Nothing was sent: there is nothing to end, and a coordinator would refuse to commit it."""
        return not self.partitions

    def end(self, committed: bool) -> None:
        """Before EndTxn is sent; what has not been acknowledged by then is not in the transaction."""
        if self.step is Step.ABORTABLE and not committed:
            self.step = Step.ENDING
            return
        self._check(Step.OPEN, "commit a transaction" if committed else "abort a transaction")
        self.step = Step.ENDING

    def ended(self, producer: ProducerId | None) -> None:
        """EndTxn was answered. In version 2 it brings the producer's next epoch, with which sequences begin at 0."""
        assert self.step is Step.ENDING
        if producer is not None:
            self.producer = producer
        self._ready()

    def failed(self, error: ClientError, *, by_coordinator: bool) -> Severity:
        """Note what an answer means; the caller repeats what is retriable."""
        severity = severity_of(error, by_coordinator=by_coordinator)
        if severity is Severity.FATAL:
            self.step, self.error = Step.FATAL, error
        elif severity is Severity.ABORTABLE and self.step is not Step.FATAL:
            self.step, self.error = Step.ABORTABLE, error
        return severity

    def spoil(self, error: ClientError) -> None:
        """A record of the open transaction is not written: it may not be committed without it."""
        if self.step is Step.OPEN:
            self.step, self.error = Step.ABORTABLE, error

    def check_open(self) -> None:
        """Raise unless records may be sent."""
        self._check(Step.OPEN, "send with a transactional id outside of `async with producer.transaction()`")

    def _ready(self) -> None:
        self.step, self.error = Step.READY, None
        self.partitions.clear()

    def _check(self, wanted: Step, what: str) -> None:
        if self.step is wanted:
            return
        if self.error is not None:
            raise self.error
        raise WrongStep(f"cannot {what}: {self.step.value}")


async def end_transaction(
    coordinators: Coordinators, transactional_id: str, producer: ProducerId, *, committed: bool, is_version_2: bool
) -> ProducerId | None:
    """EndTxn, by whoever knows the transaction's id, producer and epoch. Repeated until the coordinator has answered:
    a commit that is committed already is answered as the first one was. Raises RequestFailed for all else.

    Returns the producer to go on with; None in the classic protocol, where it stays the same.
    """
    request = m.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=committed,
    )

    async def ask(connection: Connection) -> ProducerId | None:
        answer: m.EndTxnResponse = await connection.request(
            ApiKey.END_TXN,
            request,
            version_max=None if is_version_2 else CLASSIC_END_MAX,
            timeout_s=coordinators.request_timeout_s,
        )
        word = "committed" if committed else "aborted"
        check(answer.error_code, f"the transaction of {transactional_id!r} was not {word}")
        if is_version_2 and answer.producer_id >= 0:
            return ProducerId(answer.producer_id, answer.producer_epoch)
        return None

    return await coordinators.ask(transactional_id, ask, can_retry=may_pass)


class ProducerTransactions:
    """One transactional id and its coordinator: `init`, then `begin`, `add` before each write, and `commit` or `abort`.

    With `two_phase`, transactions never time out where brokers grant that; `is_two_phase` says whether they did.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, two_phase: bool = False
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.steps = TransactionSteps()
        self.is_two_phase = False
        self._wants_two_phase = two_phase
        self._coordinators = Coordinators(cluster, TRANSACTION, "transactional id")

    @property
    def producer(self) -> ProducerId:
        return self.steps.producer

    @property
    def produce_version_max(self) -> int | None:
        """The highest version of Produce that speaks this producer's protocol."""
        return None if self.steps.is_version_2 else CLASSIC_PRODUCE_MAX

    async def init(self) -> ProducerId:
        """Take the transactional id: whoever had it is fenced, and what it left open is aborted."""
        await self._init(NO_PRODUCER)
        return self.producer

    def begin(self) -> None:
        self.steps.begin()

    async def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Before anything is written to them; asks nobody in version 2, and about each partition once in the classic
        protocol."""
        wanted = list(partitions)
        new = self.steps.to_add(wanted)
        if new:
            try:
                await self._coordinators.ask(
                    self.transactional_id, lambda connection: self._add(connection, new), can_retry=may_pass
                )
            except ClientError as error:
                self.steps.failed(error, by_coordinator=True)
                raise
        self.steps.added(wanted)

    async def commit(self) -> ProducerId:
        return await self._end(True)

    async def abort(self) -> ProducerId:
        """Also after an error that is abortable. The producer has another epoch afterwards, so sequences begin at 0."""
        return await self._end(False)

    async def _end(self, committed: bool) -> ProducerId:
        self.steps.end(committed)
        if self.steps.is_empty:
            self.steps.ended(None)
            return self.producer
        before = self.producer
        try:
            ended = await end_transaction(
                self._coordinators,
                self.transactional_id,
                before,
                committed=committed,
                is_version_2=self.steps.is_version_2,
            )
            self.steps.ended(ended)
            if not committed and not self.steps.is_version_2:
                # Batches of the aborted transaction may be under way still, and their sequences are lost count of.
                await self._init(before)
        except ClientError as error:
            self.steps.failed(error, by_coordinator=True)
            raise
        return self.producer

    async def _init(self, expected: ProducerId) -> None:
        try:
            await self._coordinators.ask(
                self.transactional_id,
                lambda connection: self._ask_init(connection, expected),
                can_retry=may_pass,
            )
        except ClientError as error:
            self.steps.failed(error, by_coordinator=True)
            raise

    async def _ask_init(self, connection: Connection, expected: ProducerId) -> None:
        served = connection.version_of(ApiKey.INIT_PRODUCER_ID, TWO_PHASE_INIT)
        two_phase = self._wants_two_phase and served >= TWO_PHASE_INIT
        answer = await self._send_init(connection, expected, two_phase)
        if two_phase and answer.error_code == Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            # Known to the broker, and not granted: an ordinary transaction, which times out.
            two_phase = False
            answer = await self._send_init(connection, expected, two_phase)
        message = None
        if answer.error_code == Err.INVALID_TRANSACTION_TIMEOUT:
            message = (
                f"brokers allow no transaction of {self.timeout_ms} ms: set transaction.timeout.ms to less, "
                "or raise their transaction.max.timeout.ms"
            )
        check(answer.error_code, f"transactional id {self.transactional_id!r}", message)
        self.is_two_phase = two_phase
        is_version_2 = connection.features.get(FEATURE, 0) >= VERSION_2
        self.steps.began(ProducerId(answer.producer_id, answer.producer_epoch), is_version_2)

    async def _send_init(
        self, connection: Connection, expected: ProducerId, two_phase: bool
    ) -> m.InitProducerIdResponse:
        request = m.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=expected.id,
            producer_epoch=expected.epoch,
            enable2_pc=two_phase,
        )
        answer: m.InitProducerIdResponse = await connection.request(
            ApiKey.INIT_PRODUCER_ID,
            request,
            version_max=TWO_PHASE_INIT if two_phase else None,
            timeout_s=self._coordinators.request_timeout_s,
        )
        return answer

    async def _add(self, connection: Connection, partitions: list[TopicPartition]) -> None:
        kind = m.AddPartitionsToTxnRequest
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        request = kind(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[
                kind.AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in by_topic.items()
            ],
        )
        answer: m.AddPartitionsToTxnResponse = await connection.request(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            request,
            version_max=CLASSIC_ADD_MAX,
            timeout_s=self._coordinators.request_timeout_s,
        )
        rows = [
            (one.partition_error_code, f"{topic.name}-{one.partition_index} of {self.transactional_id!r}")
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]
        # All are refused together: the reason is that of the partition which has one of its own.
        for code, what in sorted(rows, key=lambda row: row[0] == Err.OPERATION_NOT_ATTEMPTED):
            check(code, f"adding {what} to the transaction")
