"""A leader learns from the coordinator whether a batch belongs to a transaction, and its producer what that means."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from headrace.broker.transactions.membership import Ability, Membership, told
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

A, B = ("a", 0), ("b", 3)


HERE = 9
"""This broker."""


class Coordinator:
    def __init__(self, errors: dict[TopicPartition, Err] | None = None, whole: Err = Err.NONE) -> None:
        self.errors = errors or {}
        self.whole = whole
        self.asked: list[tuple[int, m.AddPartitionsToTxnRequest]] = []
        self.down = False
        self.asked_here: list[bool] = []
        """Whether to add, of each question by a call."""
        self.is_slow = False

    def ask_here(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        adds: bool,
        tell: Callable[[Errors], None],
    ) -> Errors | None:
        assert (transactional_id, producer_id, epoch) == ("id", 7, 1)
        self.asked_here.append(adds)
        errors = {one: self.errors.get(one, Err.NONE) for one in partitions}
        if not self.is_slow:
            return errors
        asyncio.get_running_loop().call_later(0.01, tell, errors)
        asyncio.get_running_loop().call_later(0.01, tell, {})  # again: nobody listens
        return None

    async def ask(self, broker_id: int, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse:
        self.asked.append((broker_id, request))
        await asyncio.sleep(0)
        if self.down:
            raise KafkaError(Err.NETWORK_EXCEPTION)
        R = m.AddPartitionsToTxnResponse
        return R(
            error_code=self.whole,
            results_by_transaction=[
                R.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=[
                        R.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                R.AddPartitionsToTxnPartitionResult(
                                    partition_index=index,
                                    partition_error_code=self.errors.get((topic.name, index), Err.NONE),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in request.transactions
            ],
        )


def run(coordinator: Coordinator, work: Callable[[Membership], Awaitable[object]], coordinator_id: int = 2) -> object:
    async def main() -> object:
        tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        spawn = lambda work: tasks.add(loop.create_task(work))  # noqa: E731
        membership = Membership(HERE, lambda _: coordinator_id, coordinator.ask_here, coordinator.ask, spawn, loop)
        return await work(membership)

    return asyncio.run(main())


def ask(coordinator: Coordinator, ability: Ability = Ability.ADDS, coordinator_id: int = 2) -> object:
    return run(coordinator, lambda it: it.errors("id", 7, 1, [A, B], ability), coordinator_id)


@pytest.mark.parametrize("ability", list(Ability))
def test_what_is_in_the_transaction_may_be_appended(ability: Ability) -> None:
    coordinator = Coordinator()
    assert ask(coordinator, ability) == {}
    ((broker_id, request),) = coordinator.asked
    (one,) = request.transactions
    assert (broker_id, one.transactional_id, one.producer_id, one.producer_epoch) == (2, "id", 7, 1)
    assert one.verify_only is (ability is not Ability.ADDS)
    assert {(topic.name, *topic.partitions) for topic in one.topics} == {A, B}


def test_only_partitions_that_are_not_in_it_are_refused() -> None:
    errors: Errors = {B: Err.TRANSACTION_ABORTABLE}
    assert ask(Coordinator(errors), Ability.ABORTABLE) == {B: Err.TRANSACTION_ABORTABLE}
    assert ask(Coordinator(errors), Ability.PLAIN) == {B: Err.INVALID_TXN_STATE}


@pytest.mark.parametrize(
    ("error", "plain", "adds"),
    [
        (Err.PRODUCER_FENCED, Err.INVALID_PRODUCER_EPOCH, Err.INVALID_PRODUCER_EPOCH),
        (Err.CONCURRENT_TRANSACTIONS, Err.NOT_ENOUGH_REPLICAS, Err.CONCURRENT_TRANSACTIONS),
        (Err.NOT_COORDINATOR, Err.NOT_ENOUGH_REPLICAS, Err.NOT_ENOUGH_REPLICAS),
        (Err.INVALID_PRODUCER_ID_MAPPING, Err.INVALID_PRODUCER_ID_MAPPING, Err.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_are_told_as_producers_of_each_age_understand_them(error: Err, plain: Err, adds: Err) -> None:
    assert told(error, Ability.PLAIN) is plain
    assert told(error, Ability.ADDS) is adds


def test_a_coordinator_that_is_gone_or_unknown_is_something_to_try_again() -> None:
    down = Coordinator()
    down.down = True
    assert ask(down) == dict.fromkeys((A, B), Err.NOT_ENOUGH_REPLICAS)
    assert ask(Coordinator(), coordinator_id=-1) == dict.fromkeys((A, B), Err.NOT_ENOUGH_REPLICAS)
    refusing = Coordinator(whole=Err.CLUSTER_AUTHORIZATION_FAILED)
    assert ask(refusing) == dict.fromkeys((A, B), Err.INVALID_TXN_STATE)


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_coordinator_of_this_broker_is_asked_by_a_call(is_slow: bool) -> None:
    coordinator = Coordinator({B: Err.PRODUCER_FENCED})
    coordinator.is_slow = is_slow
    assert ask(coordinator, Ability.ADDS, HERE) == {B: Err.INVALID_PRODUCER_EPOCH}
    assert ask(coordinator, Ability.PLAIN, HERE) == {B: Err.INVALID_PRODUCER_EPOCH}
    assert coordinator.asked_here == [True, False] and not coordinator.asked


def test_several_transactions_share_a_request_and_the_same_one_waits_for_the_next() -> None:
    coordinator = Coordinator()

    async def work(membership: Membership) -> object:
        return await asyncio.gather(
            *(membership.errors(id, 7, 1, [A], Ability.ADDS) for id in ("x", "y", "x", "z")),
        )

    assert run(coordinator, work) == [{}, {}, {}, {}]
    asked = [[one.transactional_id for one in request.transactions] for _, request in coordinator.asked]
    assert asked == [["x", "y", "z"], ["x"]]
