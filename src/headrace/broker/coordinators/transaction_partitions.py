"""AddPartitionsToTxn as its coordinator serves it, to clients, to other brokers, and to this broker's own leaders."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.broker.coordinators.gathering import Gathering, Part
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.metadata_cache import MetadataCache
from headrace.coordinator.shard_requests import LOG_ERRORS
from headrace.coordinator.transactions.shard import LEADER_WAIT_MS, WAIT_MS
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

    async def here(self, message: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse:
        """For a leader on this broker."""
        answer: asyncio.Future[m.AddPartitionsToTxnResponse] = asyncio.get_running_loop().create_future()

        def respond(response: m.AddPartitionsToTxnResponse) -> None:
            if not answer.done():
                answer.set_result(response)

        response: m.AddPartitionsToTxnResponse | None = self.serve(message, BUMP_SINCE, respond)
        return response if response is not None else await answer

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

        def result(error: Err) -> Any:
            return _results(id, dict.fromkeys(partitions, _known(error, version)))

        missing = self._missing(asked.topics)
        if missing:
            errors = dict.fromkeys(partitions, Err.OPERATION_NOT_ATTEMPTED)
            return _results(id, errors | dict.fromkeys(missing, Err.UNKNOWN_TOPIC_OR_PARTITION))
        part: Part[Any] = Part(gathering, at, lambda error: result(LOG_ERRORS.get(error) or error))
        try:
            host = self._transactions.host(id)
        except KafkaError as error:
            return result(error.error)
        if asked.verify_only:
            verified = host.shard.verify_partitions(id, asked.producer_id, asked.producer_epoch, partitions)
            return host.when_committed(_results(id, verified), part)
        client_version = V2 if version >= BUMP_SINCE else 0
        decision = partial(
            host.shard.add_partitions, id, asked.producer_id, asked.producer_epoch, partitions, client_version,
            wait_ms=LEADER_WAIT_MS if version >= BATCHED_SINCE else WAIT_MS,
        )  # fmt: skip
        found: Err | None = host.ask(decision, _Mapped(part, result))
        return None if found is None else result(found)

    def _missing(self, topics: list[Any]) -> list[tuple[str, int]]:
        missing: list[tuple[str, int]] = []
        for topic in topics:
            found = self._metadata.image.topic_named(topic.name)
            known = () if found is None else found.partitions
            missing += [(topic.name, index) for index in topic.partitions if index not in known]
        return missing


class _Mapped:
    """A part of an answer that the shard decides as an error alone."""

    __slots__ = ("_part", "_result")

    def __init__(self, part: "Part[Any]", result: Callable[[Err], Any]) -> None:
        self._part = part
        self._result = result

    def answer(self, response: Err) -> None:
        self._part.answer(self._result(response))

    def refusal(self, error: Err) -> Err:
        return LOG_ERRORS.get(error, error)


def _results(id: str, errors: dict[tuple[str, int], Err]) -> m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult:
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
