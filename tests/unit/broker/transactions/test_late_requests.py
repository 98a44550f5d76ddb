"""What was sent in one transaction and comes in the next, and a time-out that races a commit: refused, one outcome."""

import asyncio
from typing import Any

import pytest

from headrace.broker.transactions.membership import Membership
from headrace.coordinator.transactions.transaction import Errors
from headrace.errors import Err
from headrace.metadata.names import TRANSACTIONS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.layout import iter_headers
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import in_world, with_topic
from tests.unit.broker.transactions.world import TIMEOUT_MS, Client, read

SETTINGS = {"transaction.state.log.num.partitions": "1"}
BOTH = pytest.mark.parametrize("classic", [True, False], ids=["classic", "version 2"])


@BOTH
def test_a_late_end_of_version_2_does_not_end_the_next_transaction(classic: bool) -> None:
    """By the classic protocol two transactions of a producer look the same, here as in Kafka: the late one is heard.
    Once a new producer has the id, neither is."""

    async def main(world: World) -> None:
        await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=classic)
        assert await client.write(b"first") is Err.NONE
        late = client.ending(True)
        assert await client.end(True) is Err.NONE
        assert await client.write(b"second") is Err.NONE
        assert await client.end(True, late) is (Err.NONE if classic else Err.PRODUCER_FENCED)
        assert await client.end(False) is (Err.INVALID_TXN_STATE if classic else Err.NONE)
        assert await read() == ([b"first", b"second"] if classic else [b"first"], False)

        late = client.ending(True)
        await client.init()
        assert await client.write(b"third") is Err.NONE
        assert await client.end(True, late) is Err.PRODUCER_FENCED
        assert await client.end(False) is Err.NONE
        assert b"third" not in (await read())[0]

    in_world(main)


@BOTH
@pytest.mark.parametrize("committed", [True, False])
def test_a_late_batch_does_not_reach_the_next_transaction(classic: bool, committed: bool) -> None:
    async def main(world: World) -> None:
        await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=classic)
        assert await client.write(b"first") is Err.NONE
        if classic:
            assert await client.add(1) is Err.NONE
        late = client.produce(b"late", partition=1)
        assert await client.end(committed) is Err.NONE
        await asyncio.sleep(0.1)  # until then it is told to try again
        # Before the next transaction, and within one that has another partition.
        refused = {Err.TRANSACTION_ABORTABLE, Err.INVALID_TXN_STATE, Err.INVALID_PRODUCER_EPOCH}
        assert await client.send(late) in refused
        assert await client.write(b"second") is Err.NONE
        assert await client.send(late) in refused
        assert await client.end(True) is Err.NONE
        assert await read(1) == ([], False)
        assert await read() == ([b"first", b"second"] if committed else [b"second"], False)

    in_world(main)


@BOTH
def test_a_batch_that_comes_twice_is_in_one_transaction_only(classic: bool) -> None:
    async def main(world: World) -> None:
        await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=classic)
        if classic:
            await client.add(0)
        again = client.produce(b"first")
        assert await client.send(again) is Err.NONE
        assert await client.end(True) is Err.NONE
        assert await client.write(b"second") is Err.NONE
        # The classic one is known by its sequence, the other by its epoch.
        assert await client.send(again) is (Err.NONE if classic else Err.INVALID_PRODUCER_EPOCH)
        assert await client.end(True) is Err.NONE
        assert await read() == ([b"first", b"second"], False)

    in_world(main)


@BOTH
@pytest.mark.parametrize("before_ms", [5, 1, 0, -1, -5])
def test_a_commit_that_races_the_time_out_has_one_outcome(classic: bool, before_ms: int) -> None:
    async def main(world: World) -> tuple[Err, list[bytes]]:
        await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=classic)
        began = world.loop.time()
        assert await client.write(b"raced") is Err.NONE
        assert await client.write(b"raced", partition=1) is Err.NONE
        await asyncio.sleep(began + (TIMEOUT_MS - before_ms) / 1000 - world.loop.time())
        answers = await asyncio.gather(*(client.end(True, client.ending(True)) for _ in range(3)))
        await asyncio.sleep(1)
        found, is_open = await read()
        assert not is_open and (await read(1)) == (found, False), "both partitions, or none"
        if found:
            assert set(answers) == {Err.NONE}
        else:
            assert set(answers) <= {Err.PRODUCER_FENCED, Err.INVALID_PRODUCER_EPOCH, Err.INVALID_TXN_STATE}
        return answers[0], found

    error, found = in_world(main)
    assert (error is Err.NONE) == (found == [b"raced"])
    if abs(before_ms) == 5:
        assert bool(found) == (before_ms > 0), "a time-out comes neither early nor late"


def test_a_write_of_version_2_that_a_classic_end_has_overtaken_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that mixes the two: its marker comes between the coordinator's answer and the append."""
    held = asyncio.Event()
    errors = Membership.errors

    async def slowly(self: Membership, *arguments: Any) -> Errors:
        answer = await errors(self, *arguments)
        await held.wait()
        return answer

    async def main(world: World) -> None:
        await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=False)
        monkeypatch.setattr(Membership, "errors", slowly)
        writing = asyncio.create_task(client.send(client.produce(b"overtaken")))
        await asyncio.sleep(0.1)
        ending = await Client.begin(classic=True)
        ending.who = client.who
        await ending.init()  # fences, and so aborts by version 2
        client.who = ending.who
        held.set()
        assert await writing in (Err.INVALID_PRODUCER_EPOCH, Err.INVALID_TXN_STATE)

        held.clear()
        writing = asyncio.create_task(client.send(client.produce(b"overtaken")))
        await asyncio.sleep(0.1)
        assert await ending.end(False) is Err.NONE
        await asyncio.sleep(0.1)
        held.set()
        assert await writing is Err.INVALID_TXN_STATE
        assert await read() == ([], False)

    in_world(main)


@pytest.mark.parametrize("level", [0, 1])
def test_a_late_batch_does_not_outlive_a_lower_transaction_version(level: int) -> None:
    """The feature is lowered in mid-transaction; the client goes on, by its own protocol or by the classic one."""

    async def main(world: World) -> None:
        await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=False)
        assert await client.write(b"first") is Err.NONE
        late = client.produce(b"late", partition=1)
        await lower(client, level)
        assert await client.end(True) is Err.NONE
        assert await client.send(late) is Err.INVALID_PRODUCER_EPOCH
        client.classic = True
        assert await client.write(b"second") is Err.NONE
        assert await client.end(True) is Err.NONE
        await asyncio.sleep(0.1)
        client.classic = False
        assert await client.send(late) is Err.INVALID_PRODUCER_EPOCH

        # Timed out under the lower version, with a batch on its way that the coordinator has not heard of.
        late = client.produce(b"late", partition=1)
        assert await client.write(b"third") is Err.NONE
        await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
        assert await client.send(late) is Err.INVALID_PRODUCER_EPOCH
        assert await read() == ([b"first", b"second"], False)
        assert await read(1) == ([], False)

    in_world(main)


async def lower(client: Client, level: int) -> None:
    kind = m.UpdateFeaturesRequest
    update = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=2)
    answer = await client.connection.request(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update]))
    assert not answer.error_code, answer
    await asyncio.sleep(0.5)


def test_the_end_of_one_transaction_is_written_with_the_begin_of_the_next() -> None:
    """Each has three records in the log of transactions, and two batches, as each batch is a sync."""

    async def main(world: World) -> None:
        machine = await with_topic(world, **SETTINGS)
        client = await Client.begin(classic=False)
        log = machine.broker.replicas.by_name[TRANSACTIONS_TOPIC][0].log
        before = log.end_offset
        for number in range(5):
            assert await client.write(b"%d" % number) is Err.NONE
            assert await client.end(True) is Err.NONE
        counts = [header.count for _, header in headers(log, before)]
        assert counts == [1, 1] + [2, 1] * 4
        await asyncio.sleep(0.1)
        assert [header.count for _, header in headers(log, before)] == [*counts, 1], "the last one comes by itself"

    in_world(main)


def headers(log: Any, offset: int) -> Any:
    return list(iter_headers(log.read(offset, 1 << 20, log.end_offset).read()))
