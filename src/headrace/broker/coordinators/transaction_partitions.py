"""AddPartitionsToTxn as its coordinator serves it, to clients, to other brokers, and to this broker's own leaders."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from headrace.broker.coordinators.gathering import Gathering
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.metadata_cache import MetadataCache
from headrace.coordinator.shard_requests import LOG_ERRORS
from headrace.coordinator.transactions.shard import LEADER_WAIT_MS, WAIT_MS
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

FENCED_SINCE, BATCHED_SINCE, BUMP_SINCE = 2, 4, 5
"""Versions from which it knows PRODUCER_FENCED, asks about several transactions, and comes for version 2."""
V2 = 2


class TransactionPartitions:
    """Which partitions belong to a transaction: added, or only looked up."""

    def __init__(self, metadata: MetadataCache, transactions: TransactionCoordinator) -> None:
        self._metadata = metadata
        self._transactions = transactions

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        adds: bool,
        tell: Callable[[Errors], None],
    ) -> Errors | None:
        """For a leader on this broker. None: `tell` is called once the answer rests on what is committed."""
        asked = _Asked(transactional_id, producer_id, epoch, list(partitions), not adds, V2 if adds else 0)
        return self._decide(asked, tell, LEADER_WAIT_MS)

    def serve(self, message: m.AddPartitionsToTxnRequest, version: int, respond: Callable[[Any], None]) -> Any:
        """The answer, or None, and `respond` is called with it once what it rests on is committed."""
        kind, R = m.AddPartitionsToTxnRequest, m.AddPartitionsToTxnResponse
        asked = message.transactions
        if version < BATCHED_SINCE:
            asked = [
                kind.AddPartitionsToTxnTransaction(
                    transactional_id=message.v3_and_below_transactional_id,
                    producer_id=message.v3_and_below_producer_id,
                    producer_epoch=message.v3_and_below_producer_epoch,
                    topics=message.v3_and_below_topics,
                )
            ]

        def finish(results: list[Any]) -> m.AddPartitionsToTxnResponse:
            if version < BATCHED_SINCE:
                return R(results_by_topic_v3_and_below=results[0].topic_results)
            return R(results_by_transaction=results)

        gathering: Gathering[Any] = Gathering(len(asked), finish, respond)
        for at, one in enumerate(asked):
            gathering.take(at, self._add(gathering, at, one, version))
        return gathering.result()

    def _add(self, gathering: "Gathering[Any]", at: int, asked: Any, version: int) -> Any:
        """What becomes of one transaction of the request; None: that is told later."""
        id = asked.transactional_id
        partitions = [(topic.name, index) for topic in asked.topics for index in topic.partitions]

        def result(errors: Errors) -> Any:
            return _results(id, {one: _known(error, version) for one, error in errors.items()})

        found = self._decide(
            _Asked(
                id, asked.producer_id, asked.producer_epoch, partitions, asked.verify_only,
                V2 if version >= BUMP_SINCE else 0,
            ),
            lambda errors: gathering.put(at, result(errors)),
            LEADER_WAIT_MS if version >= BATCHED_SINCE else WAIT_MS,
        )  # fmt: skip
        return None if found is None else result(found)

    def _decide(self, asked: "_Asked", tell: Callable[[Errors], None], wait_ms: int) -> Errors | None:
        id, producer_id, epoch, partitions = asked[:4]
        missing = self._missing(partitions)
        if missing:
            errors = dict.fromkeys(partitions, Err.OPERATION_NOT_ATTEMPTED)
            return errors | dict.fromkeys(missing, Err.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            host = self._transactions.host(id)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.error)
        asker = _Asker(partitions, tell)
        if asked.verify_only:
            verified = host.shard.verify_partitions(id, producer_id, epoch, partitions)
            found: Errors | None = host.when_committed(verified, asker)
            return found
        decision = partial(
            host.shard.add_partitions, id, producer_id, epoch, partitions, asked.client_version, wait_ms=wait_ms
        )
        added: Err | None = host.ask(decision, asker)
        return None if added is None else dict.fromkeys(partitions, added)

    def _missing(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        topic_named = self._metadata.image.topic_named
        missing = []
        for one in partitions:
            found = topic_named(one[0])
            if found is None or one[1] not in found.partitions:
                missing.append(one)
        return missing


class _Asked(NamedTuple):
    """What is asked about one transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    verify_only: bool
    client_version: int


class _Asker:
    """Who is told later: of each partition, or the same of all."""

    __slots__ = ("_partitions", "_tell")

    def __init__(self, partitions: list[TopicPartition], tell: Callable[[Errors], None]) -> None:
        self._partitions = partitions
        self._tell = tell

    def answer(self, response: Err | Errors) -> None:
        self._tell(response if isinstance(response, dict) else dict.fromkeys(self._partitions, response))

    def refusal(self, error: Err) -> Err:
        return LOG_ERRORS.get(error, error)


def _results(id: str, errors: Errors) -> m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
    R = m.AddPartitionsToTxnResponse
    topics: dict[str, list[Any]] = {}
    for (topic, index), error in errors.items():
        row = R.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
        topics.setdefault(topic, []).append(row)
    return R.AddPartitionsToTxnResult(
        transactional_id=id,
        topic_results=[
            R.AddPartitionsToTxnTopicResult(name=topic, results_by_partition=rows) for topic, rows in topics.items()
        ],
    )


def _known(error: Err, version: int) -> Err:
    """An error as clients of this version know it."""
    return Err.INVALID_PRODUCER_EPOCH if version < FENCED_SINCE and error is Err.PRODUCER_FENCED else error
