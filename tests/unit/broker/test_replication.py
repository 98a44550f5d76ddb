"""Leaders and followers: what is copied, what is committed, who is in sync, and what a change of leaders leaves."""

import asyncio
from typing import Any

import pytest

from headrace.broker import replicas
from headrace.client.errors import err_of
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.replication.selector import RACK_AWARE_SELECTOR
from headrace.storage.segment import file_name
from headrace.testing.simulator.disk import CrashMode
from headrace.testing.simulator.network import Conditions
from tests.unit.broker.replicated import DATA, TOPIC_ID, Brokers, T, contents, run
from tests.unit.broker.sim import HeldSyncs, Sim, fetch


def test_followers_copy_byte_for_byte_and_acks_all_waits_for_them() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        for count in (1, 5, 100):
            assert await brokers.produce(1, count) == "NONE"
            assert brokers.partition(1).high_watermark == brokers.partition(1).log.end_offset
        await brokers.in_step([1, 2, 3])
        assert brokers.partition(2).log.end_offset == 106
        await brokers.until(lambda: brokers.ends() == dict.fromkeys([1, 2, 3], (106, 106)), "followers learn what is committed")

    run(scenario)


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_many_partitions_over_two_leaders(durability: str) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], 20)
        for index in range(0, 20, 2):
            brokers.dictator.change(index, leader=2)
        for turn in range(3):
            done = await asyncio.gather(*(brokers.produce(2 - index % 2, 1 + index, index=index) for index in range(20)))
            assert set(done) == {"NONE"}, turn
        for index in range(20):
            await brokers.in_step([1, 2, 3], index)
            assert brokers.partition(3, index).log.end_offset == 3 * (1 + index)

    run(scenario, durability=durability)


def test_a_follower_that_cannot_be_reached_holds_acks_up_until_it_is_out_of_the_isr() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1) == "NONE"
        brokers.world.network.partition(["b3"], ["b1", "b2"])
        before_s = brokers.world.loop.time()
        assert await brokers.produce(1, timeout_ms=1000) == "REQUEST_TIMED_OUT"
        assert brokers.partition(1).high_watermark == 1, "it is not committed, so it is not shown"
        assert await brokers.produce(1, timeout_ms=60_000) == "NONE"
        took_s = brokers.world.loop.time() - before_s
        assert 9 < took_s < 16, "after replica.lag.time.max.ms, and half of it for the check"
        assert brokers.dictator.assigned().isr == (1, 2)
        brokers.world.network.heal()
        await brokers.until(lambda: set(brokers.dictator.assigned().isr) == {1, 2, 3}, "it comes back by itself", 60)
        await brokers.in_step([1, 2, 3])

    run(scenario)


def test_a_follower_that_comes_back_under_load_gets_in() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], isr=[1])
        brokers.world.network.partition(["b2"], ["b1"])
        done = False

        async def load() -> None:
            while not done:
                assert await brokers.produce(1, 3) == "NONE"

        tasks = [asyncio.create_task(load()) for _ in range(3)]
        await asyncio.sleep(2)
        brokers.world.network.heal()
        await brokers.until(lambda: brokers.dictator.assigned().isr == (1, 2), timeout_s=60)
        done = True
        await asyncio.gather(*tasks)
        await brokers.in_step([1, 2])

    run(scenario, 2)


def test_too_few_in_sync_is_refused_before_anything_is_written() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], isr=[1], min_insync_replicas="2")
        brokers.dictator.refuse = Err.INELIGIBLE_REPLICA
        assert await brokers.produce(1) == "NOT_ENOUGH_REPLICAS"
        assert brokers.partition(1).log.end_offset == 0
        assert await brokers.produce(1, acks=1) == "NONE"
        assert brokers.partition(1).high_watermark == 0, "one replica alone commits nothing"
        brokers.dictator.refuse = None
        await brokers.until(lambda: len(brokers.dictator.assigned().isr) == 3, "proposed again though nothing happens")
        assert await brokers.produce(1) == "NONE"
        assert brokers.partition(1).high_watermark == 2

    run(scenario)


def test_what_a_follower_has_not_synced_does_not_count() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        assert await brokers.produce(1) == "NONE"
        held = HeldSyncs(Sim(brokers.world, brokers.node(2), brokers.broker(2)))
        waiting = asyncio.create_task(brokers.produce(1, 4))
        await asyncio.sleep(1)
        assert brokers.partition(2).log.end_offset == 5 and brokers.partition(1).log.durable_end == 5
        assert brokers.partition(1).high_watermark == 1 and not waiting.done()
        held.let_go()
        assert await waiting == "NONE"

    run(scenario, 2)


def test_what_the_leader_has_not_synced_does_not_count_either() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        assert await brokers.produce(1) == "NONE"
        held = HeldSyncs(Sim(brokers.world, brokers.node(1), brokers.broker(1)))
        waiting = asyncio.create_task(brokers.produce(1, 4))
        await brokers.until(lambda: brokers.partition(2).log.durable_end == 5)
        await asyncio.sleep(0.1)
        assert brokers.partition(1).high_watermark == 1 and not waiting.done()
        held.let_go()
        assert await waiting == "NONE"

    run(scenario, 2)


def test_who_waits_for_a_sync_that_is_no_longer_asked_for_waits_no_longer() -> None:
    """A topic's flush.messages=1 is taken back while a record waits for the disk, and nothing more is written."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1], flush_messages="1")
        assert await brokers.produce(1) == "NONE"
        held = HeldSyncs(Sim(brokers.world, brokers.node(1), brokers.broker(1)))
        waiting = asyncio.create_task(brokers.produce(1, 4, timeout_ms=60_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        brokers.dictator.configure(flush_messages="1000")
        held.let_go()
        async with asyncio.timeout(5):
            assert await waiting == "NONE"

    run(scenario, 1, durability="replicated")


def test_a_new_topic_is_copied_at_once_though_the_last_fetch_is_parked() -> None:
    """A Fetch waits up to half a second at the leader; what is new does not wait for it."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 2)
        assert await brokers.produce(1) == "NONE"
        await asyncio.sleep(0.3)  # its Fetch is parked now
        brokers.dictator.change(1, leader=2)
        brokers.dictator.change(1, leader=1)
        before_s = brokers.world.loop.time()
        assert await brokers.produce(1, index=1) == "NONE"
        assert brokers.world.loop.time() - before_s < 0.1

    run(scenario, 2, replica_fetch_wait_max_ms="5000")


def test_idle_partitions_are_not_looked_at() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 300)
        assert await brokers.produce(1, index=7) == "NONE"
        await asyncio.sleep(2)
        followers = brokers.broker(1).listeners[0].router._hot[1].followers  # type: ignore[attr-defined]
        looked: list[int] = []
        inner = followers._look

        def look(session: Any, row: Any, *rest: Any) -> int:
            looked.append(row.index)
            return int(inner(session, row, *rest))

        followers._look = look
        await asyncio.sleep(5)
        assert looked == []
        for _ in range(10):
            assert await brokers.produce(1, index=7) == "NONE"
        assert set(looked) == {7} and len(looked) < 60

    run(scenario, 2)


# ---- changes of leaders


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
        monkeypatch.setattr(replicas, "PORTION_CHANGES", 1)
        dictator.change(leader=2)
        dictator.change(leader=1)
        partition = brokers.partition(1)
        assert partition.leader_epoch == 0, "nothing was applied yet"
        brokers.broker(1).replicas.lead_all(dictator.image)
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
    """FAULTS 14: stopped past its timeout, then continued."""

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
    """The controller has raised min.insync.replicas, and then let the leader go on alone: whoever left stays eligible. The
    leader must not commit by the minimum that it knows of before it has heard of both."""

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


# ---- lost, damaged, late


def test_a_wiped_disk_copies_everything_and_is_out_of_the_isr_until_then() -> None:
    """FAULTS 10."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        for _ in range(5):
            assert await brokers.produce(1, 100) == "NONE"
        brokers.kill(3)
        brokers.node(3).disk.remove_tree(DATA)
        seen: list[tuple[int, ...]] = []
        await brokers.start(3)
        await brokers.until(lambda: seen.append(brokers.dictator.assigned().isr) or (1, 2) in seen)  # type: ignore[func-returns-value]
        await brokers.until(lambda: set(brokers.dictator.assigned().isr) == {1, 2, 3})
        await brokers.in_step([1, 2, 3])
        assert brokers.dictator.alterations == [(1, 2), (1, 2, 3)]

    run(scenario)


def test_a_follower_behind_the_start_of_its_leaders_log_begins_there() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 10) == "NONE"
        brokers.kill(3)
        brokers.dictator.fence(3)
        brokers.dictator.change(isr=[1, 2])
        assert await brokers.produce(1, 10) == "NONE"
        brokers.partition(1).log.roll(0)
        assert await brokers.produce(1, 10) == "NONE"
        partition = brokers.partition(1)
        partition.delete_up_to(20)
        partition.log.delete_segments(1, 0)
        await brokers.start(3)
        await brokers.until(lambda: brokers.partition(3).log.end_offset == 30)
        assert brokers.partition(3).log.log_start_offset == 20
        assert contents(brokers.partition(3)) == contents(partition)
        await brokers.until(lambda: set(brokers.dictator.assigned().isr) == {1, 2, 3})

    run(scenario)


def test_deleted_records_are_deleted_everywhere_before_the_answer() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 10) == "NONE"
        await asyncio.sleep(1)
        wire = await brokers.wire(1)
        asked = {"topics": [{"name": T, "partitions": [{"partition_index": 0, "offset": 7}]}], "timeout_ms": 3000}
        answer = await wire.ask("DeleteRecords", 2, asked)
        row = answer.topics[0].partitions[0]
        assert (row.error_code, row.low_watermark) == (0, 7)
        assert [brokers.partition(n).log.log_start_offset for n in (1, 2, 3)] == [7, 7, 7]
        brokers.world.network.block("b1", "b3")
        asked["topics"][0]["partitions"][0]["offset"] = 9  # type: ignore[index]
        answer = await wire.ask("DeleteRecords", 2, asked)
        row = answer.topics[0].partitions[0]
        assert (err_of(row.error_code), row.low_watermark) == (Err.REQUEST_TIMED_OUT, 7)
        wire.close()

    run(scenario)


def test_damaged_bytes_from_a_leader_are_refused_and_asked_for_again() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 5) == "NONE"
        brokers.world.network.partition(["b3"], ["b1"])
        brokers.world.network.reset("b1", "b3")
        assert await brokers.produce(1, 5, acks=1) == "NONE"
        path = f"{DATA}/{T}-0/{file_name(0, '.log')}"
        size = brokers.partition(1).log.active.size
        brokers.node(1).disk.flip(path, size - 10)
        await asyncio.sleep(0.5)
        brokers.world.network.heal()
        await asyncio.sleep(5)
        assert brokers.partition(3).log.end_offset == 5, "not a byte of it"
        brokers.node(1).disk.flip(path, size - 10)
        await brokers.until(lambda: brokers.partition(3).log.end_offset == 10)
        await brokers.in_step([1, 3])

    run(scenario)


def test_a_damaged_segment_of_a_follower_is_copied_again() -> None:
    """FAULTS 4: set aside, copied anew, and out of the ISR before anything is dropped."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        for _ in range(3):
            for _ in range(3):
                assert await brokers.produce(1, 10) == "NONE"
            for node_id in (1, 2, 3):
                await brokers.in_step([1, node_id])
                brokers.partition(node_id).log.roll(0)
        await brokers.node(3).stop()
        brokers.node(3).disk.flip(f"{DATA}/{T}-0/{file_name(30, '.log')}", 100)
        brokers.node(3).disk.remove(f"{DATA}/.kafka_cleanshutdown")
        brokers.node(3).disk.replace_bytes(f"{DATA}/recovery-point-offset-checkpoint", b"0\n0\n")
        await brokers.start(3)
        assert brokers.partition(3).log.holes, "the damage was found"
        await brokers.until(lambda: brokers.dictator.alterations == [(1, 2), (1, 2, 3)], timeout_s=60)
        assert not brokers.partition(3).log.holes
        assert contents(brokers.partition(3)) == contents(brokers.partition(1))

    run(scenario)


@pytest.mark.parametrize("who", [1, 3])
def test_a_failed_fsync_takes_the_replica_out(who: int) -> None:
    """FAULTS 8: never taken for a success; the others go on."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        assert await brokers.produce(1, 5) == "NONE"
        await brokers.in_step([1, 2, 3])
        brokers.node(who).disk.fail("sync", path=f"{DATA}/{T}-0/{file_name(0, '.log')}")
        answer = await brokers.produce(1, 5, timeout_ms=60_000)
        partition = brokers.partition(who)
        assert partition.failed and partition.leader is None and partition.copying is None
        if who == 1:
            assert answer == "KAFKA_STORAGE_ERROR"
            brokers.dictator.change(leader=1)
            assert await brokers.produce(1) == "KAFKA_STORAGE_ERROR", "whatever the controller says"
            brokers.dictator.change(leader=2, isr=[2, 3])
            assert await brokers.produce(2, 5) == "NONE"
        else:
            assert answer == "NONE" and brokers.dictator.assigned().isr == (1, 2)
        brokers.broker(who).failure = None  # it had one log dir only
        await brokers.in_step([1, 2] if who == 3 else [2, 3])

    run(scenario)


@pytest.mark.parametrize("who", [1, 2])
def test_a_replica_there_was_no_room_for_is_created_when_there_is(who: int) -> None:
    """FAULTS 6: nobody changes the partition meanwhile, so the metadata does not speak of it again."""

    async def scenario(brokers: Brokers) -> None:
        disk = brokers.node(who).disk
        disk.capacity_bytes = disk.used_bytes()
        brokers.dictator.create([1, 2], min_insync_replicas="1")
        await asyncio.sleep(2)
        assert T not in brokers.broker(who).replicas.by_name or not brokers.broker(who).replicas.by_name[T]
        disk.capacity_bytes = None
        await asyncio.sleep(2)
        assert await brokers.produce(1, 3) == "NONE"
        await brokers.in_step([1, 2])

    run(scenario, 2)


def test_what_was_sent_of_a_log_that_is_cut_is_not_mixed_with_what_replaces_it() -> None:
    """FAULTS 23: a Fetch answer is half sent when the leader is deposed and its log cut and rewritten."""

    async def scenario(brokers: Brokers) -> None:
        dictator = brokers.dictator
        dictator.create([1, 2, 3])
        assert await brokers.produce(1, 5) == "NONE"
        await brokers.in_step([1, 2, 3])
        log = brokers.partition(1).log
        brokers.world.network.partition(["b2", "b3"], ["b1"])
        assert await brokers.produce(1, 50, acks=1) == "NONE"
        piece = log.read(5, 1 << 20, log.end_offset)
        assert piece is not None and len(piece.read()) == piece.length
        dictator.change(leader=2)
        brokers.world.network.heal()
        assert await brokers.produce(2, 60) == "NONE"
        await brokers.in_step([1, 2, 3])
        with pytest.raises(OSError, match="cut while it was read"):
            piece.read()
        piece.release()
        assert log.active.handle.pins == 0

    run(scenario)


def test_resets_and_slow_networks_harm_nothing() -> None:
    """FAULTS 17."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], 3)
        for turn in range(40):
            index = turn % 3
            waiting = asyncio.create_task(brokers.produce(1, 1 + turn, index=index, timeout_ms=60_000))
            await asyncio.sleep(0.003 * (turn % 5))
            brokers.world.network.reset("b1", f"b{2 + turn % 2}")
            assert await waiting == "NONE"
        for index in range(3):
            await brokers.in_step([1, 2, 3], index)

    run(scenario)


# ---- who is in sync


def test_an_answer_of_the_controller_that_never_comes() -> None:
    """FAULTS 18: the change may be done or not; until the metadata says so, both are respected."""

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
        dictator.create([1, 2], leader_replication_throttled_replicas="0:1", follower_replication_throttled_replicas="0:3")
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
        assert err_of(answer.responses[0].partitions[0].error_code) is Err.NOT_LEADER_OR_FOLLOWER, "too old to be sent on"
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
    """FAULTS 32: after a pause it has heard nobody for a while."""

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
