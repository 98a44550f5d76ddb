"""Who is in sync, replicas that move, reading from followers, and brokers that stop and start."""

import asyncio
from typing import Any

import pytest

from headrace.client.errors import err_of
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.replication.selector import RACK_AWARE_SELECTOR
from headrace.testing.simulator.disk import CrashMode
from headrace.testing.simulator.network import Conditions
from tests.unit.broker.replicated import DATA, Brokers, T, run
from tests.unit.broker.sim import fetch


def test_an_answer_of_the_controller_that_never_comes() -> None:
    """The change may be done or not; until the metadata says so, both are respected."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2], isr=[1], min_insync_replicas="1")
        dictator.in_the_dark.add(1)
        dictator.silent = True
        await brokers.until(lambda: dictator.assigned().isr == (1, 2), "done, but the leader does not know")
        leader: Any = brokers.partition(1).leader
        assert leader.isr == (1,) and leader.pending is not None
        brokers.world.network.block("b1", "b2")
        assert await brokers.produce(1, 1, timeout_ms=1000) == "REQUEST_TIMED_OUT", "2 may be in the ISR"
        dictator.in_the_dark.clear()
        dictator.enlighten(1, brokers.broker(1))
        assert leader.isr == (1, 2) and leader.pending is None
        brokers.world.network.heal()
        assert await brokers.produce(1, 1) == "NONE"
        dictator.silent = False

    run(scenario, 2)


@pytest.mark.parametrize("error", [Err.INVALID_UPDATE_VERSION, Err.FENCED_LEADER_EPOCH, Err.NEW_LEADER_ELECTED])
def test_a_refusal_that_only_metadata_can_explain_is_not_repeated(error: Err) -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.refuse = error
        dictator.create([1, 2], isr=[1])
        leader = brokers.partition(1).leader
        assert leader is not None
        await brokers.until(lambda: leader.pending is not None)
        await asyncio.sleep(12)
        assert leader.pending is not None
        dictator.refuse = None
        dictator.change(isr=[1])  # anything: the partition epoch rises
        await brokers.until(lambda: dictator.assigned().isr == (1, 2))

    run(scenario, 2)


def test_what_one_incarnation_had_does_not_get_the_next_one_in() -> None:
    """A proposal that has to be sent again names whoever it was made for, not whoever has come in its place."""

    async def scenario(brokers: Brokers) -> None:
        dictator, network = brokers.dictator, brokers.world.network
        dictator.refuse = Err.UNKNOWN_SERVER_ERROR
        dictator.create([1, 2], isr=[1], min_insync_replicas="1")
        assert await brokers.produce(1, 10) == "NONE"
        leader: Any = brokers.partition(1).leader
        await brokers.until(lambda: leader.pending is not None and leader.high_watermark == 10)
        dictator.brokers.pop(2)
        brokers.node(2).crash(CrashMode.LOSE)
        network.set_conditions(Conditions(delay_s=(0.05, 0.05), spike_chance=0.0), "b1", "b2")
        await brokers.start(2)
        await brokers.until(lambda: leader.followers[2].end_offset == 0, "it has lost everything")
        network.block("b1", "b2")
        dictator.refuse = None
        await asyncio.sleep(5)
        assert dictator.alterations == []
        network.heal()
        await brokers.until(lambda: dictator.assigned().isr == (1, 2), "it gets in once it has everything")
        assert leader.followers[2].end_offset == 10

    run(scenario, 2, durability="replicated")


def test_a_fenced_follower_does_not_get_in() -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.fence(2)
        dictator.create([1, 2], isr=[1])
        assert await brokers.produce(1, 5) == "NONE"
        await asyncio.sleep(12)
        assert dictator.assigned().isr == (1,)
        dictator.decide(m.UnfenceBrokerRecord(id=2, epoch=dictator.image.brokers[2].epoch))
        await brokers.until(lambda: dictator.assigned().isr == (1, 2), "at once", 0.2)

    run(scenario, 2)


def test_an_idle_partition_gets_its_follower_back_though_others_keep_the_follower_busy() -> None:
    """1. A follower comes back and says how far it has an idle partition; it is still fenced.
    2. It is unfenced. Its Fetches are answered as they come, since other partitions always have something for it, so
       that none waits here at the moment when the leader looks.
    3. It never names the idle partition again: nothing there changes."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        slow = Conditions(delay_s=(0.05, 0.05), spike_chance=0.0)
        brokers.world.network.set_conditions(slow, "b1", "b2")
        brokers.world.network.set_conditions(slow, "b2", "b1")
        dictator.fence(2)
        dictator.create([1, 2], partitions=2, isr=[1], min_insync_replicas="1")

        async def busy() -> None:
            while True:
                assert await brokers.produce(1, 1, acks=1, index=0) == "NONE"

        writing = asyncio.create_task(busy())
        await asyncio.sleep(3)
        assert dictator.assigned(1).isr == (1,)
        dictator.decide(m.UnfenceBrokerRecord(id=2, epoch=dictator.image.brokers[2].epoch))
        await brokers.until(lambda: dictator.assigned(0).isr == (1, 2), "the busy one")
        await brokers.until(lambda: dictator.assigned(1).isr == (1, 2), "the idle one", 5)
        writing.cancel()

    run(scenario, 2)


# ---- moving replicas


def test_a_replica_that_is_moved_away_is_deleted() -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2])
        assert await brokers.produce(1, 5) == "NONE"
        dictator.change(replicas=[1, 2, 3], adding_replicas=[3])
        await brokers.until(lambda: set(dictator.assigned().isr) == {1, 2, 3})
        dictator.change(replicas=[3, 1], isr=[3, 1], leader=3, adding_replicas=[])
        assert await brokers.produce(3, 5) == "NONE"
        await brokers.in_step([1, 3])
        assert 0 not in brokers.broker(2).replicas.by_name[T]
        await asyncio.sleep(70)
        assert not [name for name in brokers.node(2).disk.list(DATA) if name.startswith(T)]

    run(scenario)


def test_throttled_replicas_are_copied_slowly_and_others_are_not() -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create(
            [1, 2], leader_replication_throttled_replicas="0:1", follower_replication_throttled_replicas="0:3"
        )
        for _ in range(20):
            assert await brokers.produce(1, 1000) == "NONE"
        size = brokers.partition(1).log.size
        assert size > 200_000
        before_s = brokers.world.loop.time()
        dictator.change(replicas=[1, 2, 3], adding_replicas=[3])
        await brokers.until(lambda: 3 in dictator.assigned().isr, timeout_s=120)
        took_s = brokers.world.loop.time() - before_s
        assert size / 50_000 * 0.5 < took_s < size / 50_000 * 3, took_s
        assert await brokers.produce(1, 1000) == "NONE"

    run(
        scenario,
        leader_replication_throttled_rate="50000",
        follower_replication_throttled_rate="50000",
        replica_fetch_max_bytes="20000",
    )


# ---- reading from followers


def test_consumers_are_sent_to_a_replica_in_their_rack_and_read_only_what_is_committed() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 10) == "NONE"
        await brokers.until(lambda: brokers.ends()[2] == (10, 10), "the high watermark is told at once", 1)
        leader = await brokers.wire(1)
        answer = await leader.ask("Fetch", 12, fetch(T, 0, rack_id="rack-2"))
        row = answer.responses[0].partitions[0]
        assert row.preferred_read_replica == 2 and not row.records
        for rack in ("rack-1", "", "elsewhere"):
            answer = await leader.ask("Fetch", 12, fetch(T, 0, rack_id=rack))
            row = answer.responses[0].partitions[0]
            assert row.preferred_read_replica == -1 and row.records
        follower = await brokers.wire(2)
        answer = await follower.ask("Fetch", 12, fetch(T, 0, rack_id="rack-2"))
        row = answer.responses[0].partitions[0]
        assert row.records and row.high_watermark == 10
        answer = await follower.ask("Fetch", 10, fetch(T, 0))
        assert err_of(answer.responses[0].partitions[0].error_code) is Err.NOT_LEADER_OR_FOLLOWER, (
            "too old to be sent on"
        )
        # What the third lacks is not committed, though the second has it.
        brokers.world.network.block("b1", "b3")
        assert await brokers.produce(1, 10, acks=1) == "NONE"
        await brokers.until(lambda: brokers.partition(2).log.end_offset == 20)
        answer = await follower.ask("Fetch", 12, fetch(T, 10, max_wait_ms=100))
        row = answer.responses[0].partitions[0]
        assert row.high_watermark == 10 and not row.records
        waiting = asyncio.create_task(follower.ask("Fetch", 12, fetch(T, 10, max_wait_ms=30_000)))
        await asyncio.sleep(0.1)
        brokers.world.network.heal()
        answer = await waiting
        assert answer.responses[0].partitions[0].high_watermark == 20
        leader.close()
        follower.close()

    run(scenario, replica_selector_class=RACK_AWARE_SELECTOR, replica_fetch_wait_max_ms="5000")


# ---- stopping and starting


def test_a_broker_that_stops_does_not_wait_for_fetches_that_wait() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        assert await brokers.produce(1, 10) == "NONE"
        await asyncio.sleep(1)
        leader = brokers.broker(1)
        parked = [connection for connection in leader.connections if connection.waiting]
        assert len(parked) == 1, "the follower's"
        for connection in parked:
            connection.finish()
        assert parked[0].waiting == 0

    run(scenario, 2, replica_fetch_wait_max_ms="10000")


def test_an_emptied_disk_that_the_controller_still_counts_on_does_not_lead() -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2, 3])
        homes = [brokers.broker(n).logs.dirs[0].directory_id for n in (1, 2, 3)]
        dictator.change(directories=homes)
        assert await brokers.produce(1, 10) == "NONE"
        await brokers.in_step([1, 2, 3])
        brokers.kill(3)
        brokers.node(3).disk.remove_tree(DATA)
        brokers.world.network.partition(["b3"], ["b1", "b2"])
        await brokers.start(3)
        assert brokers.partition(3).log.end_offset == 0
        dictator.change(leader=3)
        assert brokers.partition(3).leader is None
        assert await brokers.produce(3) == "NOT_LEADER_OR_FOLLOWER"
        dictator.change(leader=2)
        brokers.world.network.heal()
        await brokers.in_step([1, 2, 3])
        await brokers.until(lambda: set(dictator.assigned().isr) == {1, 2, 3})
        dictator.change(leader=3)
        assert await brokers.produce(3) == "NONE"

    run(scenario)


def test_the_only_replica_of_an_emptied_disk_is_offline() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1])
        brokers.dictator.change(directories=[brokers.broker(1).logs.dirs[0].directory_id])
        assert await brokers.produce(1, 10) == "NONE"
        brokers.kill(1)
        brokers.node(1).disk.remove_tree(DATA)
        brokers.dictator.change(leader=-1)
        await brokers.start(1)
        brokers.dictator.change(leader=1)
        assert await brokers.produce(1) == "KAFKA_STORAGE_ERROR"

    run(scenario, 1)


def test_a_leader_that_stood_still_does_not_blame_its_followers() -> None:
    """After a pause it has heard nobody for a while."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        for _ in range(3):
            assert await brokers.produce(1, 10, acks=1) == "NONE"
            brokers.node(1).pause()
            await asyncio.sleep(17)
            brokers.node(1).resume()
            await asyncio.sleep(1)
        assert await brokers.produce(1, 10) == "NONE"
        assert brokers.dictator.alterations == []

    run(scenario)
