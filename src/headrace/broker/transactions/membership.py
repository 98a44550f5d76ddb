"""Leaders ask the coordinator whether a partition belongs to a transaction before they append the first batch of it.

Without that a batch that was delayed could come after the end of its transaction, and open one that nobody ever ends
(KIP-890). Clients of the classic protocol have added their partitions themselves, and the coordinator only verifies;
for those of transaction version 2 the leader adds the partition in the same step.

A coordinator on this broker is asked by a call. Others are asked by requests, one at a time to each.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from enum import Enum
from typing import Any, NamedTuple

from headrace.broker.transactions.calls import BatchedCalls
from headrace.client.errors import err_of
from headrace.coordinator.transactions.records import by_topic
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

logger = logging.getLogger("headrace.transactions")


class Ability(Enum):
    """What the client behind a request understands."""

    PLAIN = "no error that is about a transaction alone"
    ABORTABLE = "TRANSACTION_ABORTABLE"
    ADDS = "partitions that are added with what is written to them"

    @staticmethod
    def of_produce(version: int) -> "Ability":
        return Ability.ADDS if version >= 12 else Ability.ABORTABLE if version >= 11 else Ability.PLAIN

    @staticmethod
    def of_offset_commit(version: int) -> "Ability":
        return Ability.ADDS if version >= 5 else Ability.ABORTABLE if version >= 4 else Ability.PLAIN


class _Question(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: frozenset[TopicPartition]
    ability: Ability
    answer: "asyncio.Future[Errors]"


AskHere = Callable[[str, int, int, Iterable[TopicPartition], bool, Callable[[Errors], None]], Errors | None]
"""Asks this broker's own coordinator: (transactional id, producer id, epoch, partitions, whether to add them, whom to
tell). What it says of each partition; None: that is told later."""
Ask = Callable[[int, m.AddPartitionsToTxnRequest], Awaitable[m.AddPartitionsToTxnResponse]]
"""Sends a request to another broker. Raises KafkaError when there is no answer."""


class Membership:
    """What this broker, as a leader, wants to know of transactions."""

    def __init__(
        self,
        node_id: int,
        coordinator_of: Callable[[str], int],
        ask_here: AskHere,
        ask: Ask,
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._node_id = node_id
        self._ask_here = ask_here
        self._coordinator_of = coordinator_of
        """The broker that coordinates a transactional id, or -1."""
        self._ask = ask
        self._loop = loop
        self._calls: BatchedCalls[_Question] = BatchedCalls(self._send, spawn)

    async def errors(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        ability: Ability,
    ) -> Errors:
        """Why a batch may not be appended to some of the partitions, as its producer is to be told; none: it may."""
        wanted = frozenset(partitions)
        coordinator = self._coordinator_of(transactional_id)
        if coordinator < 0:
            return dict.fromkeys(wanted, told(Err.COORDINATOR_NOT_AVAILABLE, ability))
        answer: asyncio.Future[Errors] = self._loop.create_future()
        if coordinator == self._node_id:
            adds = ability is Ability.ADDS

            def tell(errors: Errors) -> None:
                if not answer.done():
                    answer.set_result(errors)

            found = self._ask_here(transactional_id, producer_id, epoch, wanted, adds, tell)
            return _refused(await answer if found is None else found, ability)
        self._calls.add(coordinator, _Question(transactional_id, producer_id, epoch, wanted, ability, answer))
        return await answer

    async def _send(self, broker_id: int, questions: list[_Question]) -> None:
        # A request names each transactional id once: who asks about the same one again has to wait for the next.
        first: dict[str, _Question] = {}
        for question in questions:
            if first.setdefault(question.transactional_id, question) is not question:
                self._calls.add(broker_id, question)
        try:
            response = await self._ask(broker_id, _request(list(first.values())))
            if response.error_code:
                # Of a broker that does not take this one for a broker: nothing that a producer could do about it.
                raise KafkaError(
                    Err.INVALID_TXN_STATE
                    if response.error_code == Err.CLUSTER_AUTHORIZATION_FAILED
                    else err_of(response.error_code)
                )
        except KafkaError as error:
            for question in first.values():
                _answer(question, dict.fromkeys(question.partitions, error.error))
            return
        except Exception:
            logger.exception("broker %d could not be asked about transactions", broker_id)
            for question in first.values():
                _answer(question, dict.fromkeys(question.partitions, Err.UNKNOWN_SERVER_ERROR))
            return
        results = {
            result.transactional_id: {
                (topic.name, row.partition_index): err_of(row.partition_error_code)
                for topic in result.topic_results
                for row in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }
        for question in first.values():
            found = results.get(question.transactional_id, {})
            _answer(question, {one: found.get(one, Err.UNKNOWN_SERVER_ERROR) for one in question.partitions})


def _answer(question: _Question, errors: Errors) -> None:
    if not question.answer.done():
        question.answer.set_result(_refused(errors, question.ability))


def _refused(errors: Errors, ability: Ability) -> Errors:
    return {one: told(error, ability) for one, error in errors.items() if error is not Err.NONE}


def told(error: Err, ability: Ability) -> Err:
    """The coordinator's error as a producer knows it. NOT_ENOUGH_REPLICAS is tried again without new metadata."""
    if error is Err.PRODUCER_FENCED:
        return Err.INVALID_PRODUCER_EPOCH
    if error is Err.TRANSACTION_ABORTABLE and ability is Ability.PLAIN:
        return Err.INVALID_TXN_STATE
    if error in _TRY_AGAIN or (error is Err.CONCURRENT_TRANSACTIONS and ability is not Ability.ADDS):
        return Err.NOT_ENOUGH_REPLICAS
    return error


_TRY_AGAIN = frozenset(
    {
        Err.NETWORK_EXCEPTION,
        Err.COORDINATOR_LOAD_IN_PROGRESS,
        Err.COORDINATOR_NOT_AVAILABLE,
        Err.NOT_COORDINATOR,
        Err.REQUEST_TIMED_OUT,
    }
)


def _request(questions: list[_Question]) -> m.AddPartitionsToTxnRequest:
    kind = m.AddPartitionsToTxnRequest
    return kind(
        transactions=[
            kind.AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.epoch,
                verify_only=question.ability is not Ability.ADDS,
                topics=[
                    kind.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                    for topic, indexes in by_topic(question.partitions).items()
                ],
            )
            for question in questions
        ]
    )
