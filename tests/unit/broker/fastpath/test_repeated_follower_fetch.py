"""A follower that asks for what comes next in one partition is served by a shorter way, and cannot tell."""

import asyncio
import errno
from typing import Any

import pytest

from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.handlers.fetch.followers import FollowerWaiter, RepeatedFollowerFetch
from headrace.broker.net.request import FETCH
from headrace.client.errors import err_of
from headrace.errors import Err
from tests.unit.broker.replicated import TOPIC_ID, Brokers, T, run
from tests.unit.broker.sim import Wire, alive, fetch, no_collector

FOLLOWER, OTHER = 2, 3


def recognised(brokers: Brokers, node_id: int = 1) -> int:
    """On how many connections of a leader the Fetches of a follower are."""
    fasts = [c.fast for c in brokers.broker(node_id).connections]
    known = [fast.knows(FETCH) for fast in fasts if isinstance(fast, FastPath)]
    return sum(isinstance(getattr(serve, "__self__", None), RepeatedFollowerFetch) for serve in known)


class ByHand:
    """A follower whose requests a test words itself: 2, whose broker is dead."""

    def __init__(self, brokers: Brokers, wire: Wire) -> None:
        self.brokers = brokers
        self.wire = wire
        self.replica_epoch = brokers.dictator.image.brokers[FOLLOWER].epoch
        self.session = (0, 0)
        self.leader_epoch = brokers.partition(1).leader_epoch

    async def ask(self, offset: int, **more: Any) -> Any:
        session_id, session_epoch = self.session
        query = fetch(
            TOPIC_ID, offset, session_id=session_id, session_epoch=session_epoch,
            replica_state={"replica_id": FOLLOWER, "replica_epoch": self.replica_epoch}, **more,
        )  # fmt: skip
        query["topics"][0]["partitions"][0] |= {
            "current_leader_epoch": self.leader_epoch, "last_fetched_epoch": self.leader_epoch, "log_start_offset": 0,
        }  # fmt: skip
        answer = await self.wire.ask("Fetch", 18, query)
        if answer.error_code == 0:
            self.session = answer.session_id, session_epoch + 1
        return answer

    async def learn(self) -> None:
        """Say the same until it is recognised."""
        before = recognised(self.brokers)
        for _ in range(4):
            await self.ask(0)
        assert recognised(self.brokers) == before + 1

    @property
    def known_offset(self) -> int:
        leader = self.brokers.partition(1).leader
        assert leader is not None
        return leader.followers[FOLLOWER].end_offset


def row(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


async def by_hand(brokers: Brokers) -> ByHand:
    """Records 0 to 9 are in the log of 1, which leads; 2 is dead, and played by the test."""
    brokers.dictator.create([1, 2, 3])
    assert await brokers.produce(1, 1) == "NONE"
    brokers.kill(FOLLOWER)
    for _ in range(9):
        assert await brokers.produce(1, 1, acks=1) == "NONE"
    await brokers.until(lambda: brokers.ends()[OTHER][1] == 10)
    return ByHand(brokers, await brokers.wire(1))


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_followers_of_a_busy_partition_take_it_and_copy_byte_for_byte(durability: str) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], 2)
        for number in range(30):
            assert await brokers.produce(1, 1 + number % 3) == "NONE"
        assert recognised(brokers) == 2
        assert await brokers.produce(1, index=1) == "NONE", "another partition of the same session"
        for _ in range(5):
            assert await brokers.produce(1) == "NONE"
        await brokers.in_step([1, 2, 3])
        await brokers.in_step([1, 2, 3], 1)

    run(scenario, durability=durability)


def test_what_it_has_counts_and_what_it_lacks_is_sent() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        for offset in (4, 7, 7):
            answer = await follower.ask(offset)
            assert row(answer).error_code == 0 and len(row(answer).records) > 0
            assert follower.known_offset == offset
        # All of it, and then some: it waits, is woken by the next record, and its progress has committed the rest.
        await follower.ask(10, max_wait_ms=100)
        assert follower.known_offset == 10 and brokers.partition(1).high_watermark == 10

    run(scenario)


def test_a_session_epoch_that_does_not_come_next_is_refused() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        session_id, epoch = follower.session
        for wrong in (epoch - 1, epoch + 1):
            follower.session = session_id, wrong
            assert err_of((await follower.ask(5)).error_code) is Err.INVALID_FETCH_SESSION_EPOCH
        assert follower.known_offset == 0
        follower.session = session_id, epoch
        assert row(await follower.ask(5)).error_code == 0 and follower.known_offset == 5

    run(scenario)


def test_a_session_that_was_closed_is_not_found() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        session = follower.session
        follower.session = session[0], -1
        await follower.ask(0)
        follower.session = session
        assert err_of((await follower.ask(5)).error_code) is Err.FETCH_SESSION_ID_NOT_FOUND
        assert follower.known_offset == 0

    run(scenario)


def test_a_new_leader_epoch_fences_it() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        brokers.dictator.change(0, leader=1)
        await brokers.until(lambda: brokers.partition(1).leader_epoch > follower.leader_epoch)
        before = follower.known_offset
        assert err_of(row(await follower.ask(5)).error_code) is Err.FENCED_LEADER_EPOCH
        brokers.dictator.change(0, leader=OTHER)
        await brokers.until(lambda: brokers.partition(1).leader is None)
        assert err_of(row(await follower.ask(5)).error_code) is Err.FENCED_LEADER_EPOCH
        assert before < 5

    run(scenario)


def test_it_is_fenced_in_an_epoch_that_it_has_left() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        brokers.dictator.change(0, leader=1)
        await brokers.until(lambda: brokers.partition(1).leader_epoch > follower.leader_epoch)
        follower.leader_epoch += 1
        # Worded so that nothing can be learnt from it.
        answer = await follower.ask(4, forgotten_topics_data=[{"topic_id": TOPIC_ID, "partitions": [9]}])
        assert row(answer).error_code == 0 and follower.known_offset == 4
        follower.leader_epoch -= 1
        assert err_of(row(await follower.ask(5)).error_code) is Err.FENCED_LEADER_EPOCH
        assert follower.known_offset == 4

    run(scenario)


def test_a_topic_may_be_named_without_partitions() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        replica = {"replica_id": FOLLOWER, "replica_epoch": follower.replica_epoch}
        answer = await follower.wire.ask("Fetch", 18, fetch(TOPIC_ID, session_epoch=0, replica_state=replica))
        assert answer.error_code == 0 and answer.session_id and not answer.responses

    run(scenario)


def test_an_earlier_incarnation_counts_for_nothing() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        brokers.dictator.register(FOLLOWER, "b2", follower.replica_epoch + 100)
        assert err_of(row(await follower.ask(5)).error_code) is Err.NOT_LEADER_OR_FOLLOWER
        assert follower.known_offset == 0

    run(scenario)


def test_what_it_has_counts_once_and_not_again_when_its_fetch_is_woken() -> None:
    """Whether an earlier incarnation speaks is asked when a Fetch comes, so nothing may count later."""

    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        leader = brokers.partition(1).leader
        assert leader is not None
        known = leader.followers[FOLLOWER]
        answer = asyncio.create_task(follower.ask(10, max_wait_ms=1000))
        await brokers.until(lambda: known.end_offset == 10)
        fetched_ms = known.fetched_ms
        brokers.dictator.register(FOLLOWER, "b2", follower.replica_epoch + 100)
        await asyncio.sleep(0.1)
        assert await brokers.produce(1, acks=1) == "NONE"
        assert len(row(await answer).records) > 0
        assert (known.fetched_ms, known.broker_epoch) == (fetched_ms, follower.replica_epoch)

    run(scenario)


def test_waits_that_are_over_leave_no_circles_for_the_collector() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        with no_collector():
            before = alive(FollowerWaiter)
            for _ in range(5):
                await follower.ask(10, max_wait_ms=20)
            assert alive(FollowerWaiter) <= before

    run(scenario)


def test_a_leader_whose_disk_fails_says_so() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        broker = brokers.broker(1)
        broker.failures.failed(broker.replicas.by_name[T][0].log, OSError(errno.EIO, "the disk is gone"))
        broker.tasks.failure = None  # it had one log dir only
        assert err_of(row(await follower.ask(5)).error_code) is Err.KAFKA_STORAGE_ERROR

    run(scenario)


def test_what_it_has_counts_for_the_registration_that_said_so() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        leader = brokers.partition(1).leader
        assert leader is not None
        first = follower.replica_epoch
        for epoch, more in (
            (first + 1, {"forgotten_topics_data": [{"topic_id": TOPIC_ID, "partitions": [9]}]}),
            (first, {}),
        ):
            follower.replica_epoch = epoch
            await follower.ask(5, **more)
            assert leader.followers[FOLLOWER].broker_epoch == epoch

    run(scenario)


def test_offsets_that_are_not_there_are_refused() -> None:
    async def scenario(brokers: Brokers) -> None:
        follower = await by_hand(brokers)
        await follower.learn()
        answer = await follower.ask(500)
        assert row(answer).error_code or row(answer).diverging_epoch.end_offset == 10
        assert follower.known_offset == 0

    run(scenario)
