"""Transactions left open whose coordinators are other brokers: who is asked, and what is done without an answer."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.transactions import left_open
from headrace.broker.transactions.left_open import LeftOpen, Shards
from headrace.coordinator.transactions.shard import Markers
from headrace.coordinator.transactions.transaction import Errors, TopicPartition
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.codec import CODECS
from headrace.protocol.private_fields.left_open import Known, Place, Standing, answer_tag, places_in
from headrace.replication.producers import ProducerStates

HERE, THERE, APACHE = 1, 2, 3
PRODUCER = 7, 4


class Cluster:
    """A partition led here with an open transaction, and two shards of coordinators."""

    def __init__(self) -> None:
        self.producers = ProducerStates(verify_transactions=False)
        self.producers.record(*PRODUCER, 0, 10, 0, 0, True)
        log = SimpleNamespace(producers=self.producers)
        self.partition: Any = SimpleNamespace(topic="t", index=3, leader=object(), leader_epoch=1, log=log)
        self.leaders: Shards = {0: (HERE, 5), 1: (THERE, 9)}
        self.standing = {HERE: Standing.UNKNOWN, THERE: Standing.UNKNOWN}
        self.down: set[int] = set()
        self.asked: list[int] = []
        self.ended: list[Markers] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while a coordinator thinks about its answer."""

    def shards(self) -> Shards:
        return self.leaders

    def known_of(self, places: list[Place], broker_id: int = HERE) -> Known:
        assert places == [Place("t", 3, *PRODUCER)]
        epochs = {shard: epoch for shard, (leader, epoch) in self.leaders.items() if leader == broker_id}
        return Known(epochs, [self.standing[broker_id]])

    async def ask(self, broker_id: int, request: m.ListTransactionsRequest) -> m.ListTransactionsResponse:
        self.asked.append(broker_id)
        if broker_id in self.down:
            raise KafkaError(Err.NETWORK_EXCEPTION)
        codec = CODECS["ListTransactionsRequest"]
        places = places_in(codec.decode(codec.encode(request, 0), 0, 0).unknown_tags)  # by the wire, in the oldest
        assert places is not None
        answer = m.ListTransactionsResponse()
        if broker_id != APACHE:
            answer = m.ListTransactionsResponse(unknown_tags=answer_tag(self.known_of(places, broker_id)))
        self.meanwhile()
        codec = CODECS["ListTransactionsResponse"]
        found: m.ListTransactionsResponse = codec.decode(codec.encode(answer, 0), 0, 0)
        return found

    def write_here(
        self,
        markers: Markers,
        coordinator_epoch: int,
        partitions: Iterable[TopicPartition],
        tell: Callable[[Errors], None],
    ) -> None:
        self.ended.append(markers)
        self.partition.leader = None  # nothing is looked at any more
        tell(dict.fromkeys(partitions, Err.NONE))

    def play(self, looks: int) -> None:
        """Begin to lead, and look so often."""

        async def main() -> None:
            tasks: set[asyncio.Task[None]] = set()
            loop = asyncio.get_running_loop()
            watch = LeftOpen(HERE, self, self.ask, self, lambda work: tasks.add(loop.create_task(work)))
            watch.led(self.partition)
            for _ in range(looks):
                await watch._look()
            for task in tasks:
                task.cancel()

        asyncio.run(main())


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_open, "FIRST_LOOK_S", 3600.0)


@pytest.mark.parametrize(("there", "committed", "epoch"), [(Standing.UNKNOWN, False, 4), (Standing.COMMITTED, True, 5)])
def test_it_is_ended_once_all_coordinators_have_answered(there: Standing, committed: bool, epoch: int) -> None:
    cluster = Cluster()
    cluster.standing[THERE] = there
    cluster.down = {THERE}
    cluster.play(2)
    assert cluster.asked == [THERE, THERE] and not cluster.ended, "one has not answered"
    cluster.down = set()
    cluster.play(2)
    (markers,) = cluster.ended
    assert (markers.producer_id, markers.producer_epoch, markers.committed) == (7, epoch, committed)
    assert markers.partitions == {("t", 3)}


def test_it_is_left_to_a_coordinator_that_has_it() -> None:
    cluster = Cluster()
    cluster.standing[THERE] = Standing.OPEN
    cluster.play(3)
    assert cluster.asked == [THERE] and not cluster.ended, "and not asked about again"


def test_it_is_not_ended_where_a_coordinator_cannot_say_for_what_it_answers() -> None:
    cluster = Cluster()
    cluster.leaders[1] = APACHE, 9
    cluster.play(2)
    assert cluster.asked == [APACHE, APACHE] and not cluster.ended
    cluster.leaders[1] = -1, 9
    cluster.play(1)
    assert len(cluster.asked) == 2 and not cluster.ended, "nor while a shard has no leader"


def test_one_that_ends_meanwhile_is_not_asked_about() -> None:
    cluster = Cluster()
    cluster.partition.leader = None
    cluster.play(1)
    assert not cluster.asked


def test_it_is_asked_about_again_where_its_producer_has_written_meanwhile() -> None:
    """By the classic protocol: that was the next transaction of the same epoch, which joined the one left open."""
    cluster = Cluster()
    cluster.meanwhile = lambda: cluster.producers.record(*PRODUCER, 1, 11, 0, 0, True)
    cluster.play(1)
    assert cluster.asked == [THERE] and not cluster.ended, "it would take that record from its transaction"
    cluster.meanwhile = lambda: None
    cluster.standing[THERE] = Standing.OPEN
    cluster.play(1)
    assert cluster.asked == [THERE, THERE] and not cluster.ended


def test_it_is_asked_about_again_where_another_has_led_meanwhile() -> None:
    """The log may have been cut, and be written again up to the same offsets."""
    cluster = Cluster()
    cluster.meanwhile = lambda: setattr(cluster.partition, "leader_epoch", 3)
    cluster.play(1)
    assert cluster.asked == [THERE] and not cluster.ended
    cluster.meanwhile = lambda: None
    cluster.play(1)
    assert len(cluster.ended) == 1
