"""Batches on their way behind one that was refused: an idempotent producer sends the refused one again, and nothing may
be judged, let alone appended, before it. Frames on one connection, around changes of leaders."""

import asyncio
from typing import Any

import pytest

from headrace.broker.replicas.partition import DOUBT_MS
from headrace.errors import Err
from headrace.replication.refused_batches import BATCHES_BEHIND, PARTITIONS_MAX, RefusedBatches
from tests.compat.raw import FIXED_MS, batch
from tests.unit.broker.answers import T, codes, offsets
from tests.unit.broker.replicated import TOPIC_ID, Brokers, run as run_several
from tests.unit.broker.sim import HeldSyncs, Sim, Wire, produce, run

VERSIONS = (9, 12, 13)
PRODUCER, EPOCH = 4711, 0
OK, NOT_LED, GAP = "NONE", "NOT_LEADER_OR_FOLLOWER", "OUT_OF_ORDER_SEQUENCE_NUMBER"


def numbered(
    sequence: int, epoch: int = EPOCH, count: int = 1, producer: int = PRODUCER, now_ms: int = FIXED_MS
) -> bytes:
    values = [b"v%d" % (sequence + at) for at in range(count)]
    return batch(*values, producer=(producer, epoch, sequence), base_timestamp=now_ms)


class Client:
    """One connection of an idempotent producer."""

    def __init__(self, wire: Wire, version: int = 12) -> None:
        self.wire = wire
        self.version = version

    def send(self, *batches: bytes, first: int = 0, timeout_ms: int = 30_000) -> None:
        request = produce(T, *batches, first=first, timeout_ms=timeout_ms)
        if self.version >= 13:
            del request["topic_data"][0]["name"]
            request["topic_data"][0]["topic_id"] = TOPIC_ID
        self.wire.send("Produce", self.version, request)

    async def told(self) -> list[str]:
        return codes(await self.wire.receive())

    async def ask(self, *batches: bytes, first: int = 0) -> list[str]:
        self.send(*batches, first=first)
        return await self.told()


async def arrived(brokers: Brokers) -> None:
    """What was sent has been handled."""
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("repeating", [False, True], ids=["read", "recognised"])
def test_what_comes_behind_a_refused_batch_is_refused_alike_and_not_out_of_order(version: int, repeating: bool) -> None:
    """1. Batches 265 to 267 reach a broker that does not lead. 2. It becomes the leader. 3. It finds 268, which was on
    its way behind them. The producer will send 265 first."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1), version)
        for sequence in range(5) if repeating else (0,):
            assert await client.ask(numbered(sequence, count=1)) == [OK]
        at = 5 if repeating else 1
        brokers.dictator.change(leader=2)
        for sequence in (at, at + 1, at + 2):
            client.send(numbered(sequence))
        await arrived(brokers)
        brokers.dictator.change(leader=1)
        client.send(numbered(at + 3))
        assert [await client.told() for _ in range(4)] == [[NOT_LED]] * 4
        for sequence in range(at, at + 4):
            assert await client.ask(numbered(sequence)) == [OK]
        assert brokers.partition(1).log.end_offset == at + 4
        assert all(connection.refused is None for connection in brokers.broker(1).connections), "kept for nothing"

    run_several(scenario, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_second_batch_of_an_unknown_producer_does_not_overtake_the_first(version: int) -> None:
    """A broker takes any sequence of a producer that it knows nothing of. Behind a refused batch that would lose the
    batch: librdkafka takes an answer to the second as one to the first, too."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([2, 1])
        client = Client(await brokers.wire(1), version)
        await brokers.until(lambda: brokers.partition(1).leader_id == 2)
        client.send(numbered(0, count=5))
        await arrived(brokers)
        brokers.dictator.change(leader=1)
        client.send(numbered(5, count=5))
        assert [await client.told() for _ in range(2)] == [[NOT_LED]] * 2
        assert brokers.partition(1).log.end_offset == 0
        assert await client.ask(numbered(0, count=5)) == [OK]
        assert await client.ask(numbered(5, count=5)) == [OK]

    run_several(scenario, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_does_not_overtake_one_that_went_to_the_last_leader_either(version: int) -> None:
    """1. Java sends its first batch to the leader. 2. It hears of a new one. 3. It sends the second there, before the
    first has an answer. 4. The first is refused, and sent again."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(2), version)
        brokers.dictator.change(leader=2)
        await brokers.until(lambda: brokers.partition(2).leader is not None)
        assert await client.ask(numbered(5, count=5)) == [NOT_LED]
        assert await Client(await brokers.wire(2), version).ask(numbered(5, count=5)) == [NOT_LED]
        assert await client.ask(numbered(0, count=5)) == [OK]
        assert await client.ask(numbered(5, count=5)) == [OK]
        assert await client.ask(numbered(7, producer=8)) == [NOT_LED]
        await asyncio.sleep(DOUBT_MS / 1000)
        assert await client.ask(numbered(7, producer=8)) == [OK], "its first batches will not come any more"
        assert await client.ask(numbered(9, producer=9)) == [OK]
        brokers.dictator.change(leader=2)
        assert await client.ask(numbered(9, producer=10)) == [OK], "nobody else has led"

    run_several(scenario, 2)


def test_a_partition_that_is_not_here_yet_refuses_alike() -> None:
    """Metadata may reach a client before it reaches the broker that is to lead."""

    async def scenario(brokers: Brokers) -> None:
        client = Client(await brokers.wire(1))
        client.send(numbered(0))
        await arrived(brokers)
        brokers.dictator.create([1, 2])
        client.send(numbered(1))
        assert [await client.told() for _ in range(2)] == [["UNKNOWN_TOPIC_OR_PARTITION"], [NOT_LED]]
        assert await client.ask(numbered(0)) == [OK]

    run_several(scenario, 2)


def test_a_batch_that_was_appended_and_cut_again_counts_as_refused() -> None:
    """1. The leader appends 1 and waits for its follower. 2. The follower is elected, without it; 1 is answered.
    3. The old leader cuts its log. 4. It leads again. 5. It finds 2."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1))
        assert await client.ask(numbered(0)) == [OK]
        await brokers.in_step([1, 2])
        brokers.world.network.block("b1", "b2")
        client.send(numbered(1))
        await arrived(brokers)
        assert brokers.partition(1).log.end_offset == 2
        brokers.dictator.change(leader=2)
        brokers.world.network.heal()
        await brokers.until(lambda: brokers.partition(1).log.end_offset == 1, "it was not cut")
        brokers.dictator.change(leader=1)
        client.send(numbered(2))
        assert [await client.told() for _ in range(2)] == [[NOT_LED]] * 2
        assert await client.ask(numbered(1)) == [OK]
        assert await client.ask(numbered(2)) == [OK]
        assert brokers.partition(1).log.end_offset == 3

    run_several(scenario, 2)


def test_a_request_that_still_waits_for_another_partition_counts_too() -> None:
    """As above, but the first batch shares its request with another, whose acknowledgement takes longer than all of
    that."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 2)
        brokers.dictator.change(1, replicas=[1, 3], isr=[1, 3])
        client = Client(await brokers.wire(1))
        assert await client.ask(numbered(0)) == [OK]
        await brokers.in_step([1, 2])
        network = brokers.world.network
        network.block("b1", "b2")
        brokers.kill(3)
        client.send(numbered(1), batch(b"other"))
        await arrived(brokers)
        assert brokers.partition(1).log.end_offset == 2
        brokers.dictator.change(leader=2)
        network.heal()
        await brokers.until(lambda: brokers.partition(1).log.end_offset == 1, "it was not cut")
        brokers.dictator.change(leader=1)
        client.send(numbered(2))
        await arrived(brokers)
        assert brokers.partition(1).log.end_offset == 1
        brokers.dictator.change(1, isr=[1])
        assert [await client.told() for _ in range(2)] == [[NOT_LED, OK], [NOT_LED]]
        assert await client.ask(numbered(1)) == [OK]
        assert await client.ask(numbered(2)) == [OK]

    run_several(scenario, 3)


def test_what_the_log_has_meanwhile_is_no_gap() -> None:
    """Refused here, appended by the other leader, copied: the next batch is in order, on the same connection, too."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1))
        assert await client.ask(numbered(0)) == [OK]
        brokers.dictator.change(leader=2)
        assert await client.ask(numbered(1)) == [NOT_LED]
        other = Client(await brokers.wire(2))
        for sequence in (1, 2, 3):
            assert await other.ask(numbered(sequence)) == [OK]
        await brokers.in_step([1, 2])
        brokers.dictator.change(leader=1)
        assert await client.ask(numbered(4)) == [OK]
        assert await client.ask(numbered(5)) == [OK]

    run_several(scenario, 2)


def test_too_few_in_sync_hold_back_what_comes_behind() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], min_insync_replicas="2")
        client = Client(await brokers.wire(1))
        assert await client.ask(numbered(0)) == [OK]
        brokers.dictator.change(isr=[1])
        client.send(numbered(1))
        await arrived(brokers)
        brokers.dictator.change(isr=[1, 2])
        client.send(numbered(2))
        assert [await client.told() for _ in range(2)] == [["NOT_ENOUGH_REPLICAS"], [NOT_LED]]
        assert await client.ask(numbered(1)) == [OK]
        assert await client.ask(numbered(2)) == [OK]

    run_several(scenario, 2)


@pytest.mark.parametrize("known", [False, True])
def test_a_full_disk_holds_back_what_comes_behind(known: bool) -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            client = Client(wire)
            at = 0
            while known and at < 4:
                assert await client.ask(numbered(at)) == [OK]
                at += 1
            sim.disk.capacity_bytes = sim.disk.used_bytes()
            large = batch(bytes(50_000), producer=(PRODUCER, EPOCH, at))
            client.send(large)
            await sim.quiet()
            sim.disk.capacity_bytes = None
            client.send(numbered(at + 1))
            assert [await client.told() for _ in range(2)] == [["KAFKA_STORAGE_ERROR"], [NOT_LED]]
            while (told := await client.ask(large)) == ["KAFKA_STORAGE_ERROR"]:
                await asyncio.sleep(0.1)  # until the broker has seen that there is room again
            assert told == [OK]
            assert await client.ask(numbered(at + 1)) == [OK]

    run(scenario)


def test_other_partitions_of_the_request_and_other_producers_go_on() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], 2)
        client = Client(await brokers.wire(1))
        assert await client.ask(numbered(0), numbered(0)) == [OK, OK]
        brokers.dictator.change(0, leader=2)
        assert await client.ask(numbered(1), numbered(1)) == [NOT_LED, OK]
        brokers.dictator.change(0, leader=1)
        assert await client.ask(numbered(2), numbered(2)) == [NOT_LED, OK]
        assert await client.ask(numbered(0, producer=5)) == [OK], "one that begins has nothing before it"
        assert await client.ask(numbered(0, epoch=1), numbered(3)) == [OK, OK], "nor has a new epoch"
        stranger = Client(await brokers.wire(1))
        assert await stranger.ask(numbered(9, epoch=1)) == [GAP], "nothing was refused on this connection"

    run_several(scenario, 2)


def test_a_true_gap_is_said_soon() -> None:
    """A producer has at most five batches on their way. What still has a gap behind those will not be filled: its
    client has given the batch up, and has to be told, or it would try until its own time is up."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1))
        assert await client.ask(numbered(0)) == [OK]
        brokers.dictator.change(leader=2)
        assert await client.ask(numbered(1)) == [NOT_LED]
        brokers.dictator.change(leader=1)
        got = [(await client.ask(numbered(2)))[0] for _ in range(BATCHES_BEHIND + 2)]
        assert got == [NOT_LED] * BATCHES_BEHIND + [GAP] * 2

    run_several(scenario, 2)


def test_a_refused_batch_itself_is_judged_when_it_comes_again_whatever_its_number() -> None:
    """A producer that retention has forgotten goes on at any sequence."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([2, 1])
        client = Client(await brokers.wire(1))
        await brokers.until(lambda: brokers.partition(1).leader_id == 2)
        assert await client.ask(numbered(57)) == [NOT_LED]
        assert await client.ask(numbered(58)) == [NOT_LED]
        brokers.dictator.change(leader=1)
        await asyncio.sleep(DOUBT_MS / 1000)
        assert await client.ask(numbered(58)) == [NOT_LED]
        assert await client.ask(numbered(57)) == [OK]
        assert await client.ask(numbered(58)) == [OK]

    run_several(scenario, 2)


def test_a_duplicate_behind_a_refused_batch_gets_the_answer_of_the_first_time() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1))
        for sequence in range(3):
            assert await client.ask(numbered(sequence)) == [OK]
        brokers.dictator.change(leader=2)
        assert await client.ask(numbered(1)) == [NOT_LED]
        brokers.dictator.change(leader=1)
        client.send(numbered(2))
        answer = await client.wire.receive()
        assert (codes(answer), offsets(answer)) == ([OK], [2])

    run_several(scenario, 2)


DUPLICATE = "DUPLICATE_SEQUENCE_NUMBER"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("restart", [False, True])
def test_a_batch_further_back_than_the_last_five_is_known_to_be_there(version: int, restart: bool) -> None:
    """Java's producer may have five batches on their way to each broker that has led. Clients take the code for
    success."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1), version)
        now_ms = brokers.broker(1).runtime.clock.wall_ms()  # a restart forgets producers of long ago
        for sequence in range(0, 24, 2):
            assert await client.ask(numbered(sequence, count=2, now_ms=now_ms)) == [OK]
        await brokers.in_step([1, 2])
        if restart:
            await brokers.node(1).stop()
            await brokers.start(1)
        brokers.dictator.change(leader=2)
        for node in (2, 1):
            brokers.dictator.change(leader=node)
            client = Client(await brokers.wire(node), version)
            await brokers.until(lambda node=node: brokers.partition(node).leader is not None)  # type: ignore[misc]
            assert await client.ask(numbered(22, count=2, now_ms=now_ms)) == [OK]
            for sequence in (12, 0, 4):
                assert await client.ask(numbered(sequence, count=2, now_ms=now_ms)) == [DUPLICATE]
            assert await client.ask(numbered(13, count=2)) == [GAP], "it never came like that"
        assert await client.ask(numbered(24)) == [OK]
        assert brokers.partition(1).log.end_offset == 25

    run_several(scenario, 2)


def test_a_duplicate_of_long_ago_waits_for_its_commit_too() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire, await sim.wire() as again:
            syncs = HeldSyncs(sim)
            client, retry = Client(wire), Client(again)
            for sequence in range(8):
                client.send(numbered(sequence))
            await sim.quiet()
            retry.send(numbered(0))
            answer = asyncio.ensure_future(retry.told())
            await sim.quiet()
            assert not answer.done()
            syncs.let_go()
            assert await answer == [DUPLICATE]

    run(scenario)


def test_what_a_producer_may_never_have_sent_here_is_no_duplicate() -> None:
    """Its first batch here has any number, since it was unknown. What comes before that may have been lost."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            client = Client(wire)
            for sequence in range(57, 70):
                assert await client.ask(numbered(sequence)) == [OK]
            assert await client.ask(numbered(56)) == [GAP]
            assert await client.ask(numbered(56, count=2)) == [GAP]
            assert await client.ask(numbered(57)) == [DUPLICATE]
            assert await client.ask(numbered(0, epoch=1)) == [OK]
            assert await client.ask(numbered(57, epoch=1)) == [GAP]

    run(scenario)


def test_a_time_out_behind_which_all_is_well_costs_nothing() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            client = Client(wire)
            assert await client.ask(numbered(0)) == [OK]
            syncs = HeldSyncs(sim)
            client.send(numbered(1), timeout_ms=500)
            assert await client.told() == ["REQUEST_TIMED_OUT"]
            syncs.let_go()
            assert await client.ask(numbered(2)) == [OK]
            assert await client.ask(numbered(1)) == [OK]
            assert sim.partition(T).log.end_offset == 3

    run(scenario)


def test_batches_without_a_producer_id_are_none_of_its_business() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2])
        client = Client(await brokers.wire(1))
        brokers.dictator.change(leader=2)
        assert await client.ask(batch(b"plain")) == [NOT_LED]
        brokers.dictator.change(leader=1)
        assert all(connection.refused is None for connection in brokers.broker(1).connections)
        assert await client.ask(batch(b"plain")) == [OK]

    run_several(scenario, 2)


def test_what_a_connection_remembers_is_bounded() -> None:
    refused = RefusedBatches()
    for index in range(PARTITIONS_MAX + 100):
        refused.note(("t", index), Err.NOT_LEADER_OR_FOLLOWER, numbered(7), 0, len(numbered(7)))
    assert len(refused) == PARTITIONS_MAX
    short: Any = numbered(7)[:40]
    refused.note(("short", 0), Err.NOT_LEADER_OR_FOLLOWER, short, 0, len(short))
    assert ("short", 0) not in refused
