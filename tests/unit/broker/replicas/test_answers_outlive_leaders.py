"""Produces with acks=all that were appended and not committed when another node took over: each hears what became of
its records. A client without idempotence sends again what was refused, so a refusal of what is committed is a record
twice."""

import asyncio
import random
from collections import Counter, deque
from functools import partial

import pytest

from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.replica_manager import DECISION_SECONDS
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.records.layout import iter_headers
from headrace.records.reader import read_records
from headrace.replication.partition import UNKNOWN
from tests.compat.raw import FIXED_MS, batch
from tests.unit.broker.answers import codes
from tests.unit.broker.replicated import TOPIC_ID, Brokers, T, contents, run
from tests.unit.broker.sim import Wire, produce

OK, NOT_LED = "NONE", "NOT_LEADER_OR_FOLLOWER"


def values(brokers: Brokers, node_id: int, index: int = 0) -> list[bytes]:
    data = memoryview(contents(brokers.partition(node_id, index)))
    return [
        bytes(record.value or b"") for at, header in iter_headers(data) for record in read_records(data, at, header)
    ]


class Client:
    """A connection of a producer without idempotence."""

    def __init__(self, wire: Wire, version: int = 12) -> None:
        self.wire = wire
        self.version = version

    def send(self, *values: bytes, timeout_ms: int = 30_000, first: int = 0) -> None:
        """One batch of one record for each partition from `first` on."""
        request = produce(
            T, *[batch(value, base_timestamp=FIXED_MS) for value in values], first=first, timeout_ms=timeout_ms
        )
        if self.version >= 13:
            del request["topic_data"][0]["name"]
            request["topic_data"][0]["topic_id"] = TOPIC_ID
        self.wire.send("Produce", self.version, request)

    async def told(self) -> list[str]:
        return codes(await self.wire.receive())


async def one_who_waits(brokers: Brokers, *fields: bytes, timeout_ms: int = 30_000) -> Client:
    """Broker 1 leads; what was sent has reached broker 2 and not broker 3, so that it is not committed."""
    client = Client(await brokers.wire(1))
    brokers.world.network.block("b1", "b3")
    client.send(*fields, timeout_ms=timeout_ms)
    await brokers.until(
        lambda: all(brokers.partition(2, index).countable_end == 1 for index in range(len(fields))),
        "it did not get there",
    )
    return client


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("isr", [[1, 2, 3], [2, 3]], ids=["by command", "in an orderly stop"])
def test_what_the_next_leader_has_is_acknowledged_once_it_is_committed_there(version: int, isr: list[int]) -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], min_insync_replicas="2")
        client = await one_who_waits(brokers, b"a")
        client.version = version
        began = brokers.world.loop.time()
        brokers.dictator.change(leader=2, isr=isr)
        client.send(b"b")
        assert [await client.told(), await client.told()] == [[OK], [NOT_LED]], "the second was not appended"
        assert brokers.world.loop.time() - began < 0.1, "soon, although nobody writes on"
        assert brokers.partition(2).high_watermark == 1
        assert values(brokers, 2) == [b"a"]

    run(scenario)


def test_what_the_next_leader_lacks_is_refused_when_it_is_cut_off() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], min_insync_replicas="2")
        brokers.world.network.block("b1", "b2")
        client = Client(await brokers.wire(1))
        client.send(b"a")
        await brokers.until(lambda: brokers.partition(3).log.end_offset == 1)
        brokers.dictator.change(leader=2)
        brokers.world.network.heal()
        assert await client.told() == [NOT_LED]
        await brokers.in_step([1, 2, 3])
        assert values(brokers, 2) == []

    run(scenario)


def test_of_several_on_their_way_the_next_leader_has_the_first() -> None:
    """Nobody writes on, so nothing but the answers to the follower's own Fetches tells it what is committed."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], min_insync_replicas="2")
        client = await one_who_waits(brokers, b"a")
        brokers.world.network.block("b1", "b2")
        client.send(b"b")
        await brokers.until(lambda: brokers.partition(1).countable_end == 2)
        brokers.dictator.change(leader=2, isr=[2, 3])
        await brokers.until(lambda: brokers.partition(2).high_watermark == 1)
        began = brokers.world.loop.time()
        brokers.world.network.heal()
        assert [await client.told(), await client.told()] == [[OK], [NOT_LED]]
        assert brokers.world.loop.time() - began < DECISION_SECONDS / 2
        await brokers.in_step([1, 2, 3])
        assert values(brokers, 1) == [b"a"]

    run(scenario)


def test_other_records_at_its_offsets_are_no_proof() -> None:
    """1. Broker 1 appends a record at offset 0. 2. Broker 2, which lacks it, leads, and commits another one there. 3.
    Broker 1 hears from it: its high watermark is behind the record that somebody waits for here."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], min_insync_replicas="2")
        brokers.world.network.block("b1", "b2")
        brokers.world.network.block("b1", "b3")
        client = Client(await brokers.wire(1))
        client.send(b"a")
        await brokers.until(lambda: brokers.partition(1).countable_end == 1)
        brokers.dictator.change(leader=2, isr=[2, 3])
        other = Client(await brokers.wire(2))
        for value in (b"x", b"y", b"z"):
            other.send(value)
            assert await other.told() == [OK]
        brokers.world.network.heal()
        assert await client.told() == [NOT_LED]
        await brokers.in_step([1, 2, 3])
        assert values(brokers, 1) == [b"x", b"y", b"z"]

    run(scenario)


def test_a_log_that_is_begun_anew_proves_nothing_either() -> None:
    """The leader's log starts behind all that is here: then the end of the empty log is behind whatever was in it."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], min_insync_replicas="2")
        client = await one_who_waits(brokers, b"a")
        brokers.world.network.block("b1", "b2")
        brokers.dictator.change(leader=2, isr=[2, 3])
        other = Client(await brokers.wire(2))
        for value in (b"x", b"y", b"z"):
            other.send(value)
            assert await other.told() == [OK]
        await brokers.until(lambda: brokers.partition(2).high_watermark == 4)
        brokers.partition(2).delete_up_to(3)
        brokers.world.network.heal()
        assert await client.told() == [NOT_LED]
        assert brokers.partition(1).log.log_start_offset == 3

    run(scenario)


def test_too_few_in_sync_is_no_commit() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], min_insync_replicas="2")
        client = await one_who_waits(brokers, b"a")
        brokers.dictator.change(leader=2, isr=[2])
        brokers.world.network.block("b2", "b3")
        brokers.dictator.refuse = Err.INELIGIBLE_REPLICA
        assert await client.told() == [NOT_LED]
        assert brokers.partition(2).high_watermark == 0

    run(scenario)


def test_one_who_cannot_hear_from_the_next_leader_is_refused_after_a_moment() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        client = await one_who_waits(brokers, b"a")
        brokers.world.network.block("b1", "b2")
        began = brokers.world.loop.time()
        brokers.dictator.change(leader=2)
        assert await client.told() == [NOT_LED]
        assert brokers.world.loop.time() - began == pytest.approx(DECISION_SECONDS, abs=0.1)

    run(scenario)


def test_an_idempotent_producer_is_sent_on_at_once() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        brokers.world.network.block("b1", "b3")
        wire = await brokers.wire(1)
        data = batch(b"a", base_timestamp=FIXED_MS, producer=(7, 0, 0))
        wire.send("Produce", 12, produce(T, data))
        await brokers.until(lambda: brokers.partition(2).countable_end == 1)
        brokers.world.network.block("b1", "b2")
        began = brokers.world.loop.time()
        brokers.dictator.change(leader=2, isr=[2, 3])
        assert codes(await wire.receive()) == [NOT_LED]
        assert brokers.world.loop.time() - began < 0.1
        other = await brokers.wire(2)
        assert codes(await other.ask("Produce", 12, produce(T, data))) == [OK]
        assert values(brokers, 2) == [b"a"]

    run(scenario)


def test_nobody_waits_longer_than_the_request_says() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        began = brokers.world.loop.time()
        client = await one_who_waits(brokers, b"a", timeout_ms=500)
        brokers.world.network.block("b1", "b2")
        brokers.dictator.change(leader=2)
        assert await client.told() == [NOT_LED]
        assert brokers.world.loop.time() - began < 0.6

    run(scenario)


def test_without_a_leader_nobody_waits() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        client = await one_who_waits(brokers, b"a")
        began = brokers.world.loop.time()
        brokers.dictator.change(leader=-1)
        assert await client.told() == [NOT_LED]
        assert brokers.world.loop.time() - began < 0.1

    run(scenario)


def test_a_leader_that_is_back_before_it_heard_from_the_other_goes_on() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        client = await one_who_waits(brokers, b"a")
        brokers.world.network.block("b1", "b2")
        brokers.dictator.change(leader=2)
        await asyncio.sleep(DECISION_SECONDS / 2)
        brokers.dictator.change(leader=1)
        await asyncio.sleep(DECISION_SECONDS)
        brokers.world.network.heal()
        assert await client.told() == [OK]
        await brokers.in_step([1, 2, 3])
        assert values(brokers, 3) == [b"a"]

    run(scenario)


def test_each_partition_of_a_request_has_its_own_fate() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3], partitions=3)
        client = await one_who_waits(brokers, b"a", b"b", b"c")
        brokers.dictator.change(0, leader=2)
        brokers.dictator.change(1, leader=3)
        await asyncio.sleep(0.5)
        brokers.world.network.heal()
        assert await client.told() == [OK, NOT_LED, OK], "had by the next leader, lacked by it, led on"
        await brokers.in_step([1, 2, 3], 1)
        assert [values(brokers, 3, index) for index in range(3)] == [[b"a"], [], [b"c"]]

    run(scenario)


def test_a_topic_that_is_deleted_meanwhile_is_waited_for_no_longer() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        client = await one_who_waits(brokers, b"a")
        brokers.world.network.block("b1", "b2")
        began = brokers.world.loop.time()
        brokers.dictator.change(leader=2)
        await asyncio.sleep(0.1)
        brokers.dictator.decide(m.RemoveTopicRecord(topic_id=TOPIC_ID))
        assert await client.told() == [NOT_LED]
        assert brokers.world.loop.time() - began < 0.2

    run(scenario)


def followed(partition: Partition) -> bool:
    """Whether all others have asked its leader for records in its epoch: then nothing else is in their logs."""
    leader = partition.leader
    return leader is not None and all(follower.end_offset != UNKNOWN for follower in leader.followers.values())


class Writer:
    """A producer without idempotence: up to `window` batches on their way to whom it takes for the leader; what is
    refused is sent again, elsewhere."""

    def __init__(self, brokers: Brokers, count: int, window: int) -> None:
        self.brokers = brokers
        self.todo = deque(b"%d" % number for number in range(count))
        self.window = window
        self.acked: list[bytes] = []
        self.refusals = 0

    async def run(self) -> None:
        while self.todo:
            client = Client(await self.brokers.wire(self.brokers.dictator.assigned().leader))
            sent: deque[bytes] = deque()
            again: list[bytes] = []
            while (self.todo and not again) or sent:
                while self.todo and not again and len(sent) < self.window:
                    sent.append(self.todo.popleft())
                    client.send(sent[-1])
                (told,) = await client.told()
                if told == OK:
                    self.acked.append(sent.popleft())
                else:
                    assert told == NOT_LED, told
                    self.refusals += 1
                    again.append(sent.popleft())
            client.wire.close()
            self.todo.extendleft(reversed(again))


@pytest.mark.parametrize("seed", range(6))
def test_elections_under_load_double_nothing_and_lose_nothing(seed: int) -> None:
    """Each broker hears of each election in its own time, as with real metadata. The next one comes when all have: one
    that is elected before it has heard of the last leader brings back what that leader had others cut off, and
    refuse."""

    async def scenario(brokers: Brokers) -> None:
        dice = random.Random(seed)
        dictator = brokers.dictator
        dictator.create([1, 2, 3], min_insync_replicas="2")
        writer = Writer(brokers, 400, window=8)
        writing = asyncio.create_task(writer.run())
        while not writing.done():
            await asyncio.sleep(dice.uniform(0.005, 0.06))
            dictator.in_the_dark = set(dice.sample(brokers.ids, dice.randrange(3)))
            dictator.change(leader=dice.choice(brokers.ids))
            for node_id in dice.sample(sorted(dictator.in_the_dark), len(dictator.in_the_dark)):
                await asyncio.sleep(dice.uniform(0, 0.02))
                dictator.in_the_dark.discard(node_id)
                dictator.enlighten(node_id, brokers.broker(node_id))
            await brokers.until(partial(followed, brokers.partition(dictator.assigned().leader)))
        await writing
        await brokers.in_step([1, 2, 3])
        assert writer.refusals > 20, "nothing was on its way when leaders changed"
        copies = Counter(values(brokers, 1))
        assert {value: n for value, n in copies.items() if n > 1} == {}
        assert set(copies) == set(writer.acked) and len(copies) == 400

    run(scenario, seed=seed)
