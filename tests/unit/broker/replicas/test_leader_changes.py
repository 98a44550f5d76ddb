"""Replication through changes of leaders: epochs, truncation, and the scenarios of KIP-101, 279 and 320."""

import asyncio
from typing import Any

import pytest

from headrace.broker.replicas import deltas
from headrace.client.errors import err_of
from headrace.errors import Err
from headrace.testing.simulator.network import Conditions
from tests.unit.broker.replicated import TOPIC_ID, Brokers, run
from tests.unit.broker.sim import fetch


def test_a_new_leader_is_followed_and_the_old_one_gives_way() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 10) == "NONE"
        brokers.dictator.change(leader=2)
        assert await brokers.produce(1) == "NOT_LEADER_OR_FOLLOWER"
        assert await brokers.produce(2, 5) == "NONE"
        await brokers.in_step([1, 2, 3])
        assert brokers.partition(3).log.epochs.entries == [(0, 0), (1, 10)]

    run(scenario)


def test_metadata_that_waits_to_be_applied_takes_nobody_back_to_an_older_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just been unfenced leads by the latest image, though it has not come so far delta by delta."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([2, 1])
        assert await brokers.produce(2, 1) == "NONE"
        await brokers.in_step([1, 2])
        monkeypatch.setattr(deltas, "PORTION_CHANGES", 1)
        dictator.change(leader=2)
        dictator.change(leader=1)
        partition = brokers.partition(1)
        assert partition.leader_epoch == 0, "nothing was applied yet"
        brokers.broker(1).replica_manager.lead_all(dictator.image)
        seen = []
        for _ in range(10):
            seen.append((partition.leader is not None, partition.leader_epoch))
            await asyncio.sleep(0)
        assert set(seen) == {(True, 2)}
        assert await brokers.produce(1, 1) == "NONE"

    run(scenario, 2)


def test_whoever_waits_for_an_ack_hears_that_the_leader_is_another_now() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        assert await brokers.produce(1) == "NONE"
        brokers.world.network.block("b1", "b2")
        waiting = asyncio.create_task(brokers.produce(1, timeout_ms=60_000))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        brokers.dictator.change(leader=2)
        assert await waiting == "NOT_LEADER_OR_FOLLOWER"

    run(scenario, 2)


def test_whoever_waits_goes_on_waiting_when_only_the_epoch_changes() -> None:
    """A reassignment raises the epoch of a leader that stays: its log is the same, and so is the promise."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        brokers.world.network.block("b1", "b2")
        waiting = asyncio.create_task(brokers.produce(1, timeout_ms=60_000))
        await asyncio.sleep(0.5)
        brokers.dictator.change(leader=1)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        brokers.world.network.heal()
        assert await waiting == "NONE"

    run(scenario, 2)


def test_a_deposed_leader_that_hears_nothing_commits_nothing() -> None:
    """Stopped past its timeout, then continued."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2, 3])
        assert await brokers.produce(1, 10) == "NONE"
        await brokers.in_step([1, 2, 3])
        dictator.in_the_dark.add(1)
        dictator.change(leader=2, isr=[2, 3])
        assert await brokers.produce(2, 5) == "NONE"
        assert await brokers.produce(1, 3, timeout_ms=2000) == "REQUEST_TIMED_OUT"
        assert brokers.ends()[1] == (10, 13), "its reads end at what was committed"
        await asyncio.sleep(20)
        assert dictator.alterations == [], "it may not change the ISR: another leads"
        assert brokers.ends()[1] == (10, 13)
        dictator.in_the_dark.clear()
        dictator.enlighten(1, brokers.broker(1))
        await brokers.in_step([1, 2, 3])
        assert brokers.partition(1).log.end_offset == 15
        await brokers.until(lambda: set(dictator.assigned().isr) == {1, 2, 3})

    run(scenario)


def test_an_isr_counts_with_the_metadata_and_not_with_the_controllers_answer() -> None:
    """The controller has raised min.insync.replicas, and then let the leader go on alone: whoever left stays eligible.
    The leader must not commit by the minimum that it knows of before it has heard of both."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2], min_insync_replicas="1")
        assert await brokers.produce(1, 10) == "NONE"
        await brokers.in_step([1, 2])
        brokers.kill(2)
        dictator.in_the_dark.add(1)
        dictator.configure(min_insync_replicas="2")
        waiting = asyncio.create_task(brokers.produce(1, 5, timeout_ms=60_000))
        await brokers.until(lambda: dictator.alterations == [(1,)])
        await asyncio.sleep(5)
        assert brokers.ends()[1] == (10, 15), "before it has heard"
        dictator.in_the_dark.clear()
        dictator.enlighten(1, brokers.broker(1))
        await asyncio.sleep(5)
        assert brokers.ends()[1] == (10, 15) and not waiting.done(), "after it has"
        dictator.configure(min_insync_replicas="1")
        assert await waiting == "NONE"

    run(scenario, 2)


def test_kip_101_scenario_1_the_high_watermark_is_not_where_a_follower_cuts() -> None:
    """B has a committed record but has not heard that it is; it restarts, and A dies at once. Cutting B's log to its
    own high watermark would lose the record."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2])
        assert await brokers.produce(1, 1) == "NONE"
        assert await brokers.produce(1, 1) == "NONE"
        behind = brokers.partition(2)
        assert behind.high_watermark < behind.log.end_offset == 2, "the last commit goes along with the next Fetch"
        await brokers.node(2).stop()
        await brokers.start(2)
        assert brokers.partition(2).log.end_offset == 2
        brokers.kill(1)
        dictator.change(leader=2, isr=[2])
        assert brokers.partition(2).high_watermark == 2
        await brokers.start(1)
        await brokers.in_step([1, 2])
        assert brokers.partition(1).log.end_offset == 2

    run(scenario, 2)


def test_kip_101_scenario_2_replicas_that_lost_their_tails_end_with_the_same_log() -> None:
    """Both lose power; B, which has less, comes back first and leads; A's tail of another history is cut by epoch,
    although both logs then have the same length."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2], min_insync_replicas="1")
        assert await brokers.produce(1, 5) == "NONE"
        await brokers.in_step([1, 2])
        brokers.world.network.block("b1", "b2")
        assert await brokers.produce(1, 3, acks=1) == "NONE"
        brokers.kill(1)
        brokers.world.network.heal()
        dictator.change(leader=2, isr=[2])
        assert await brokers.produce(2, 2) == "NONE"
        assert await brokers.produce(2, 1) == "NONE"
        await brokers.start(1)
        await brokers.in_step([1, 2])
        assert brokers.partition(1).log.epochs.entries == [(0, 0), (1, 5)]
        assert brokers.partition(1).log.end_offset == 8

    run(scenario, 2)


def test_kip_279_fast_failovers_leave_no_two_histories() -> None:
    """1 and 2 lead by turns and each writes what the other never sees: one question about epochs is not enough."""

    async def scenario(brokers: Brokers) -> None:
        dictator, network = brokers.dictator, brokers.world.network
        dictator.create([1, 2], min_insync_replicas="1")
        assert await brokers.produce(1, 4) == "NONE"
        await brokers.in_step([1, 2])
        network.block("b1", "b2")
        network.block("b2", "b1")
        await asyncio.sleep(1)
        for leader, count in ((1, 3), (2, 2), (1, 1), (2, 4), (1, 2)):
            # As after unclean elections: each has only itself.
            dictator.change(leader=leader, isr=[leader])
            for _ in range(count):
                assert await brokers.produce(leader, 1, acks=1) == "NONE"
        assert brokers.partition(1).log.epochs.entries != brokers.partition(2).log.epochs.entries
        network.heal()
        await brokers.in_step([1, 2])
        assert brokers.partition(1).log.epochs.entries == brokers.partition(2).log.epochs.entries

    run(scenario, 2)


def test_being_told_twice_where_histories_part_cuts_no_more_than_once() -> None:
    """A second Fetch is under way when the first is answered: its answer is about a log that has been cut since."""

    async def scenario(brokers: Brokers) -> None:
        dictator, network = brokers.dictator, brokers.world.network
        dictator.create([1, 2], 2, min_insync_replicas="1")
        assert await brokers.produce(1, 4) == "NONE"
        await brokers.in_step([1, 2])
        network.block("b1", "b2")
        network.block("b2", "b1")
        await asyncio.sleep(1)
        for leader, count in ((1, 3), (2, 2), (1, 1), (2, 4), (1, 7)):
            dictator.change(leader=leader, isr=[leader])
            for _ in range(count):
                assert await brokers.produce(leader, 1, acks=1) == "NONE"
        dictator.change(leader=-1)
        network.heal()
        network.set_conditions(Conditions(delay_s=(0.005, 0.005), spike_chance=0.0))
        assert await brokers.produce(1, 1, index=1) == "NONE"  # the session of the other partition
        await asyncio.sleep(1)
        logs: Any = brokers.broker(2).logs
        cuts: list[int] = []
        truncate_to = logs.truncate_to

        def noting(offsets: dict[Any, int]) -> Any:
            cuts.extend(offsets.values())
            return truncate_to(offsets)

        logs.truncate_to = noting
        dictator.change(leader=1, isr=[1])
        await asyncio.sleep(0.004)
        dictator.change(1, leader=1)  # has to be named before the Fetch with the first is answered
        await brokers.in_step([1, 2])
        assert cuts[:2] == [6, 6] and min(cuts) == 4, "never what both have"

    run(scenario, 2)


def test_an_epoch_in_which_nothing_was_written_does_not_confuse_the_next_leader() -> None:
    """A leader notes its epoch at the end of its log. Deposed before it wrote anything, it must forget it."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2])
        assert await brokers.produce(1, 4) == "NONE"
        await brokers.in_step([1, 2])
        dictator.in_the_dark.add(1)
        dictator.change(leader=2, isr=[2, 1])  # 1 does not hear of it
        dictator.change(leader=1)  # nor that it leads again: two epochs of nothing
        dictator.in_the_dark.clear()
        dictator.change(leader=2)
        assert await brokers.produce(2, 1) == "NONE"
        await brokers.in_step([1, 2])
        assert brokers.partition(1).log.epochs.entries == brokers.partition(2).log.epochs.entries

    run(scenario, 2)


def test_kip_320_a_follower_of_an_old_epoch_is_fenced() -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2, 3])
        assert await brokers.produce(1, 4) == "NONE"
        await brokers.in_step([1, 2, 3])
        dictator.in_the_dark.add(3)
        dictator.change(leader=2)
        dictator.change(leader=1)
        waiting = asyncio.create_task(brokers.produce(1, 2, timeout_ms=60_000))
        await asyncio.sleep(2)
        assert not waiting.done() and brokers.partition(3).log.end_offset == 4, "it fetches in epoch 0, which is over"
        dictator.in_the_dark.clear()
        dictator.enlighten(3, brokers.broker(3))
        assert await waiting == "NONE"
        await brokers.in_step([1, 2, 3])

    run(scenario)


def test_a_follower_that_knows_more_than_its_leader_tries_again() -> None:
    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2, 3])
        assert await brokers.produce(1, 4) == "NONE"
        dictator.in_the_dark.add(2)
        dictator.change(leader=2)
        await asyncio.sleep(1)
        assert brokers.partition(3).leader_id == 2
        dictator.in_the_dark.clear()
        dictator.enlighten(2, brokers.broker(2))
        assert await brokers.produce(2, 4) == "NONE"
        await brokers.in_step([1, 2, 3])

    run(scenario)


def test_a_fetch_of_an_earlier_incarnation_counts_for_nothing() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], isr=[1, 2, 3])
        assert await brokers.produce(1, 4) == "NONE"
        brokers.kill(3)
        old_epoch = brokers.dictator.image.brokers[3].epoch
        brokers.dictator.register(3, "b3", old_epoch + 100)
        leader = brokers.partition(1).leader
        assert leader is not None
        before = leader.followers[3].end_offset
        wire = await brokers.wire(1)
        query = fetch(TOPIC_ID, 4, replica_state={"replica_id": 3, "replica_epoch": old_epoch})
        answer = await wire.ask("Fetch", 18, query)
        assert err_of(answer.responses[0].partitions[0].error_code) is Err.NOT_LEADER_OR_FOLLOWER
        assert leader.followers[3].end_offset == before
        wire.close()

    run(scenario)


def test_one_that_is_no_replica_is_no_follower() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        wire = await brokers.wire(1)
        for epoch, error in ((0, Err.UNKNOWN_LEADER_EPOCH), (-1, Err.NOT_LEADER_OR_FOLLOWER)):
            query = fetch(TOPIC_ID, 0, replica_state={"replica_id": 3, "replica_epoch": 3})
            query["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
            answer = await wire.ask("Fetch", 18, query)
            assert err_of(answer.responses[0].partitions[0].error_code) is error
        wire.close()

    run(scenario)
