"""Markers reach every partition of a transaction, whoever leads it and however often it takes."""

import asyncio
from collections.abc import Callable, Iterable

from headrace.broker.transactions.markers import PORTION, RETRY_S, TURN_S, MarkerSender
from headrace.coordinator.transactions.shard import Markers
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.codec import CODECS
from headrace.protocol.private_fields.marker_origin import decision_in, leader_epochs_in

HERE = 9
"""This broker."""


class Shard:
    """The decision that markers belong to."""

    coordinator_epoch = 3

    def __init__(self) -> None:
        self.is_served = True
        self.done: list[TopicPartition] = []

    def marked(self, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        self.done += partitions


class Brokers:
    """Leaders by partition, what each was sent, and what it answers for a partition."""

    def __init__(self, leaders: dict[TopicPartition, int]) -> None:
        self.leaders = leaders
        self.sent: list[tuple[int, m.WriteTxnMarkersRequest]] = []
        self.errors: dict[TopicPartition, list[Err]] = {}
        self.unreachable: list[int] = []
        self.broken: list[int] = []
        self.written: list[list[TopicPartition]] = []
        """Here, by calls."""
        self.now = 0.0

    def write_here(
        self,
        markers: Markers,
        coordinator_epoch: int,
        partitions: Iterable[TopicPartition],
        tell: Callable[[Errors], None],
    ) -> None:
        self.written.append(sorted(partitions))
        self.now += 0.6 * TURN_S
        if HERE in self.broken:
            self.broken.remove(HERE)
            raise OSError("its disk")
        tell({one: self._error(*one) for one in self.written[-1]})

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.leaders.get((topic, partition))

    def leader_epoch_of(self, topic: str, partition: int) -> int:
        return 10 + partition

    async def write(self, broker_id: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        self.sent.append((broker_id, request))
        await asyncio.sleep(0)
        if broker_id in self.unreachable:
            self.unreachable.remove(broker_id)
            raise KafkaError(Err.NETWORK_EXCEPTION)
        if broker_id in self.broken:
            self.broken.remove(broker_id)
            raise OSError("its disk")
        R = m.WriteTxnMarkersResponse
        return R(
            markers=[
                R.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        R.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                R.WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=self._error(topic.name, index)
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in reversed(request.markers)  # Kafka's come in any order
            ]
        )

    def _error(self, topic: str, index: int) -> Err:
        errors = self.errors.get((topic, index))
        return errors.pop(0) if errors else Err.NONE

    def told(self) -> list[tuple[int, int, TopicPartition]]:
        return [
            (broker_id, marker.producer_id, (topic.name, index))
            for broker_id, request in self.sent
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]


def run(brokers: Brokers, *transactions: tuple[Shard, Markers], seconds: float = 0.0) -> None:
    async def main() -> None:
        tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        spawn = lambda work: tasks.add(loop.create_task(work))  # noqa: E731
        sender = MarkerSender(HERE, brokers, brokers, brokers.write, spawn, loop, lambda: brokers.now)
        for shard, markers in transactions:
            sender.send(shard, markers)
        for _ in range(20):
            await asyncio.sleep(0)
        if seconds:
            await asyncio.sleep(seconds)
        for task in tasks:
            task.result()

    asyncio.run(main())


def markers(*partitions: TopicPartition, producer_id: int = 7, committed: bool = True) -> Markers:
    return Markers(f"id-{producer_id}", producer_id, 4, committed, frozenset(partitions), 2)


def test_each_leader_is_told_once_of_all_its_partitions() -> None:
    brokers, shard = Brokers({("a", 0): 1, ("a", 1): 2, ("b", 0): 1}), Shard()
    run(brokers, (shard, markers(("a", 0), ("a", 1), ("b", 0))))
    assert sorted(brokers.told()) == [(1, 7, ("a", 0)), (1, 7, ("b", 0)), (2, 7, ("a", 1))]
    assert len(brokers.sent) == 2
    (_, request), *_ = brokers.sent
    marker = request.markers[0]
    assert (marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch) == (4, True, 3)
    assert marker.transaction_version == 2
    assert sorted(shard.done) == [("a", 0), ("a", 1), ("b", 0)]


def test_leaders_are_told_by_which_decision_and_in_which_epoch_they_are_asked() -> None:
    brokers, shard = Brokers({("a", 0): 1, ("a", 1): 1}), Shard()
    run(brokers, (shard, markers(("a", 0), ("a", 1))._replace(decision=47)))
    ((_, request),) = brokers.sent
    codec = CODECS["WriteTxnMarkersRequest"]
    sent = codec.decode(codec.encode(request, 1), 1, 0)  # by the wire, also in the older version
    assert decision_in(sent.markers[0].unknown_tags) == 47
    assert leader_epochs_in(sent.markers[0].topics[0].unknown_tags, 2) == (10, 11)
    assert leader_epochs_in(sent.markers[0].topics[0].unknown_tags, 3) == (-1, -1, -1)


def test_what_comes_while_a_request_is_under_way_goes_with_the_next() -> None:
    brokers, shards = Brokers({("a", 0): 1}), [Shard() for _ in range(5)]
    run(brokers, *((shard, markers(("a", 0), producer_id=at)) for at, shard in enumerate(shards)))
    assert [len(request.markers) for _, request in brokers.sent] == [5]
    assert all(shard.done == [("a", 0)] for shard in shards)


def test_a_partition_whose_leader_has_moved_is_told_again_and_others_are_not() -> None:
    brokers, shard = Brokers({("a", 0): 1, ("a", 1): 1}), Shard()
    brokers.errors[("a", 1)] = [Err.NOT_LEADER_OR_FOLLOWER]
    run(brokers, (shard, markers(("a", 0), ("a", 1))), seconds=2 * RETRY_S)
    assert sorted(brokers.told()) == [(1, 7, ("a", 0)), (1, 7, ("a", 1)), (1, 7, ("a", 1))]
    assert sorted(shard.done) == [("a", 0), ("a", 1)]


def test_a_broker_that_does_not_answer_is_told_again() -> None:
    brokers, shard = Brokers({("a", 0): 1}), Shard()
    brokers.unreachable = [1]
    run(brokers, (shard, markers(("a", 0))), seconds=2 * RETRY_S)
    assert len(brokers.sent) == 2 and shard.done == [("a", 0)]


def test_a_partition_that_was_deleted_needs_no_marker_and_one_without_a_leader_waits_for_it() -> None:
    brokers, shard = Brokers({("a", 0): -1}), Shard()
    run(brokers, (shard, markers(("a", 0), ("gone", 0))))
    assert shard.done == [("gone", 0)] and not brokers.sent
    brokers.leaders[("a", 0)] = 2
    run(brokers, (shard, markers(("a", 0))))
    assert brokers.told() == [(2, 7, ("a", 0))]


def test_a_coordinator_that_was_replaced_stops_telling() -> None:
    brokers, shard = Brokers({("a", 0): 1, ("a", 1): 1}), Shard()
    brokers.errors[("a", 0)] = [Err.TRANSACTION_COORDINATOR_FENCED]
    run(brokers, (shard, markers(("a", 0), ("a", 1))), seconds=2 * RETRY_S)
    assert len(brokers.sent) == 1 and not shard.done
    shard.is_served = False
    run(brokers, (shard, markers(("a", 0))))
    assert len(brokers.sent) == 1


def test_a_mistake_in_a_broker_does_not_leave_partitions_without_their_marker() -> None:
    brokers, shard = Brokers({("a", 0): 1}), Shard()
    brokers.broken = [1]
    run(brokers, (shard, markers(("a", 0))), seconds=2 * RETRY_S)
    assert len(brokers.sent) == 2 and shard.done == [("a", 0)]


def test_what_is_led_here_is_written_without_a_request() -> None:
    brokers, shard = Brokers({("a", 0): HERE, ("a", 1): HERE, ("b", 0): 1}), Shard()
    brokers.errors[("a", 1)] = [Err.NOT_LEADER_OR_FOLLOWER]
    run(brokers, (shard, markers(("a", 0), ("a", 1), ("b", 0))), seconds=2 * RETRY_S)
    assert brokers.written == [[("a", 0), ("a", 1)], [("a", 1)]], "the second was refused once"
    assert brokers.told() == [(1, 7, ("b", 0))]
    assert sorted(shard.done) == [("a", 0), ("a", 1), ("b", 0)]


def test_a_mistake_here_is_made_good_and_holds_up_no_other_transaction() -> None:
    brokers, shards = Brokers({("a", 0): HERE, ("a", 1): HERE}), [Shard(), Shard()]
    brokers.broken = [HERE]
    transactions = [(shard, markers(("a", at), producer_id=at)) for at, shard in enumerate(shards)]
    run(brokers, *transactions, seconds=2 * RETRY_S)
    assert brokers.written == [[("a", 0)], [("a", 1)], [("a", 0)]]
    assert [shard.done for shard in shards] == [[("a", 0)], [("a", 1)]]


def test_many_partitions_here_leave_others_their_turn() -> None:
    places = [("a", index) for index in range(5 * PORTION)]
    brokers, shard = Brokers(dict.fromkeys(places, HERE)), Shard()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sender = MarkerSender(HERE, brokers, brokers, brokers.write, lambda work: None, loop, lambda: brokers.now)
        sender.send(shard, markers(*places))
        counts = []
        while len(shard.done) < len(places):
            await asyncio.sleep(0)
            counts.append(len(brokers.written))
        assert counts == [2, 4, 5], "two portions have used up a turn"

    asyncio.run(main())


def test_a_transaction_over_many_partitions_of_another_broker_is_divided_and_ends_all_the_same() -> None:
    """A broker refuses requests of which one portion names too much, and these would be sent again for ever."""
    places = [("a", index) for index in range(4 * PORTION + 1)]
    brokers, shard = Brokers(dict.fromkeys(places, 1)), Shard()
    brokers.errors["a", 7] = [Err.NOT_LEADER_OR_FOLLOWER]
    run(brokers, (shard, markers(*places)), seconds=2 * RETRY_S)
    sizes = [len(topic.partition_indexes) for _, sent in brokers.sent for one in sent.markers for topic in one.topics]
    assert sizes == [PORTION] * 4 + [1, 1], "the last one for the partition that had moved"
    assert sorted(shard.done) == places
