"""A connection that repeats itself is served by a shorter way, and cannot tell."""

import asyncio
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.handlers.produce.handler import ADMIN_CLIENT_ID
from headrace.broker.net.connection import Connection
from headrace.broker.net.request import PRODUCE
from headrace.errors import Err
from headrace.protocol import messages as m
from tests.compat.raw import Rec, batch, decode_response, encode_request, request_header
from tests.unit.broker.answers import T, codes, end_offset, offsets, rows, sizes
from tests.unit.broker.replicated import TOPIC_ID, Brokers, run as run_several
from tests.unit.broker.sim import HeldSyncs, Sim, Wire, fetch, produce, records, run

VERSIONS = (7, 8, 9, 12, 13)
PARTITIONS = 2
TRANSACTIONAL = 0x10


def asked(version: int, topic: str, topic_id: bytes, data: bytes, **more: Any) -> dict[str, Any]:
    request = produce(topic, data, **more)
    if version >= 13:
        request["topic_data"][0]["topic_id"] = topic_id
        del request["topic_data"][0]["name"]
    return request


def connections(sim: Sim) -> list[Connection]:
    return list(sim.broker.connections)


def knows(connection: Connection) -> bool:
    """Whether its Produces are recognised."""
    return isinstance(connection.fast, FastPath) and connection.fast.knows(PRODUCE) is not None


def told(answer: Any) -> list[tuple[Any, ...]]:
    """All that an answer says of its partitions, but for the topic."""
    return [
        (row.index, Err(row.error_code).name, row.base_offset, row.log_append_time_ms, row.log_start_offset,
         row.error_message, [(error.batch_index, error.batch_index_error_message) for error in row.record_errors])
        for row in rows(answer)
    ]  # fmt: skip


def some_batch(rng: random.Random, sequences: list[int]) -> bytes:
    """Mostly good ones; now and then what clients get wrong."""
    kind = rng.randrange(12)
    value = bytes(rng.choice((1, 40, 60, 61, 200, 20_000)))
    if kind == 0:
        return batch(value, crc_error=1)
    if kind == 1:
        return batch(value, attributes=TRANSACTIONAL, producer=(77, 0, 0))
    if kind == 2:
        return batch(value, magic=1)
    if kind == 3:
        return batch(value, value, count=3)
    if kind == 4:
        return batch(bytes(90_000))
    if kind == 5:
        return batch(value)[:-1]
    if kind == 6:
        return batch(value, base_offset=9)
    if kind in (7, 8):
        sequence = sequences[-1] if kind == 7 else rng.choice(sequences)  # the next one, or one that was sent already
        if kind == 7:
            sequences.append(sequence + 1)
        return batch(value, producer=(1000, 0, sequence))
    return batch(*[value] * rng.randint(1, 4))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_answers_are_the_same_as_on_connections_that_say_it_once(version: int, durability: str) -> None:
    async def scenario(sim: Sim) -> None:
        names = "repeating", "once"
        ids = {name: await sim.create(name, PARTITIONS, max_message_bytes="80000") for name in names}
        rng = random.Random(version)
        sequences = [0]
        steps = []
        acks = -1
        for _ in range(250):
            acks = rng.choice((-1, 1)) if rng.random() < 0.1 else acks
            steps.append((some_batch(rng, sequences), acks, rng.choice((0, 0, 0, 1, 7))))
        seen: dict[str, list[Any]] = {}
        async with await sim.wire() as repeating:
            kinds: dict[str, Callable[[], Any]] = {"repeating": lambda: _kept(repeating), "once": sim.wire}
            for name, connect in kinds.items():
                answers = []
                for data, acks, index in steps:
                    wire = await connect()
                    request = asked(version, name, ids[name], data, acks=acks, first=index)
                    answers.append(told(await wire.ask("Produce", version, request)))
                    if name == "once":
                        wire.close()
                seen[name] = answers
            assert any(map(knows, connections(sim))), "it was never taken"
        assert seen["repeating"] == seen["once"]
        assert {row[1] for answer in seen["once"] for row in answer} >= {"NONE", "CORRUPT_MESSAGE", "MESSAGE_TOO_LARGE"}
        logs = [[bytes_of(sim, name, index) for index in range(PARTITIONS)] for name in names]
        assert logs[0] == logs[1]

    run(scenario, durability=durability)


async def _kept(wire: Wire) -> Wire:
    return wire


def bytes_of(sim: Sim, topic: str, index: int) -> bytes:
    """All of a partition's log."""
    log = sim.partition(topic, index).log
    return b"".join(segment.handle.open().read(segment.size, 0) for segment in log.segments)


def test_pipelined_requests_are_answered_in_order_whichever_way_they_went() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, PARTITIONS)
        await sim.create("other")
        async with await sim.wire() as wire:
            for _ in range(3):
                await wire.ask("Produce", 9, produce(T, records()))
            syncs = HeldSyncs(sim)
            expected = []
            counts = {0: 3, 1: 0}
            for number in range(40):
                index = number % PARTITIONS
                bad = number % 7 == 3
                data = batch(b"x", crc_error=1) if bad else records()
                wire.send("Produce", 9, produce(T, data, acks=(-1, 1)[number % 3 == 2], first=index))
                expected.append(("CORRUPT_MESSAGE", -1) if bad else ("NONE", counts[index]))
                counts[index] += not bad
                if number % 10 == 9:
                    wire.send("Produce", 9, produce("other", records(), acks=1))
                    expected.append(("NONE", number // 10))
            await sim.quiet()
            syncs.let_go()
            got = []
            for _ in expected:
                answer = await wire.receive()
                got.append((codes(answer)[0], offsets(answer)[0]))
            assert got == expected

    run(scenario)


def test_the_wait_of_one_that_was_recognised_ends_in_time() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            for _ in range(3):
                await wire.ask("Produce", 9, produce(T, records(), timeout_ms=700))
            syncs = HeldSyncs(sim)
            before_ms = sim.now_ms()
            answer = await wire.ask("Produce", 9, produce(T, records(), timeout_ms=700))
            assert codes(answer) == ["REQUEST_TIMED_OUT"] and 700 <= sim.now_ms() - before_ms < 900
            syncs.let_go()

    run(scenario)


def test_a_topic_created_anew_under_the_same_name_gets_what_follows() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire, await sim.wire() as reader:
            for _ in range(5):
                await wire.ask("Produce", 9, produce(T, records()))
            await sim.delete(T)
            assert codes(await wire.ask("Produce", 9, produce(T, records()))) == ["UNKNOWN_TOPIC_OR_PARTITION"]
            await sim.create(T)
            for number in range(4):
                answer = await wire.ask("Produce", 9, produce(T, records()))
                assert codes(answer) == ["NONE"] and offsets(answer) == [number]
            assert await end_offset(sim, reader) == 4
            assert sizes(await reader.ask("Fetch", 12, fetch(T, 0)))[0] > 0

    run(scenario)


def test_nothing_is_written_to_a_topic_that_is_being_deleted() -> None:
    """Partition 0 stops first, which answers who waits for it, and what comes next on that connection is for partition
    1."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], PARTITIONS)
        brokers.kill(2)
        brokers.dictator.change(1, isr=[1])
        wire = await brokers.wire(1)
        for _ in range(3):
            assert codes(await wire.ask("Produce", 12, produce(T, records(), first=1))) == ["NONE"]
        wire.send("Produce", 12, produce(T, records()))
        wire.send("Metadata", 12, {"topics": []})
        wire.send("Produce", 12, produce(T, records(), first=1))
        await brokers.until(lambda: len(brokers.partition(1).ack_waiters) == 1)
        brokers.dictator.decide(m.RemoveTopicRecord(topic_id=TOPIC_ID))
        assert codes(await wire.receive()) == ["NOT_LEADER_OR_FOLLOWER"]
        await wire.receive()
        assert codes(await wire.receive()) == ["UNKNOWN_TOPIC_OR_PARTITION"]

    run_several(scenario, 2, durability="replicated")


def test_too_few_in_sync_is_refused_before_anything_is_written() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2], min_insync_replicas="2")
        wire = await brokers.wire(1)
        for _ in range(3):
            assert codes(await wire.ask("Produce", 12, produce(T, records()))) == ["NONE"]
        brokers.kill(2)
        brokers.dictator.change(isr=[1])
        assert codes(await wire.ask("Produce", 12, produce(T, records()))) == ["NOT_ENOUGH_REPLICAS"]
        assert brokers.partition(1).log.end_offset == 3

    run_several(scenario, 2)


def test_a_full_disk_refuses_by_either_way_and_nothing_is_half_written() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            for _ in range(5):
                await wire.ask("Produce", 9, produce(T, records()))
            sim.disk.capacity_bytes = sim.disk.used_bytes()
            for _ in range(2):
                assert codes(await wire.ask("Produce", 9, produce(T, batch(bytes(50_000))))) == ["KAFKA_STORAGE_ERROR"]
            sim.disk.capacity_bytes = None
            while codes(answer := await wire.ask("Produce", 9, produce(T, records()))) == ["KAFKA_STORAGE_ERROR"]:
                await asyncio.sleep(0.1)  # until the broker has seen that there is room again
            assert offsets(answer) == [5]

    run(scenario)


def test_new_settings_of_a_topic_count_at_once() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire, await sim.wire() as admin:
            for _ in range(5):
                await wire.ask("Produce", 9, produce(T, batch(bytes(500))))
            change = {"name": "max.message.bytes", "config_operation": 0, "value": "200"}
            resource = {"resource_type": 2, "resource_name": T, "configs": [change]}
            answer = await admin.ask("IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False})
            assert answer.responses[0].error_code == 0
            assert codes(await wire.ask("Produce", 9, produce(T, batch(bytes(500))))) == ["MESSAGE_TOO_LARGE"]
            assert codes(await wire.ask("Produce", 9, produce(T, batch(bytes(5))))) == ["NONE"]

    run(scenario)


def test_internal_topics_stay_with_those_who_may_write_to_them() -> None:
    async def scenario(sim: Sim) -> None:
        async with await sim.wire() as wire:
            await wire.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]})

            async def write(client_id: str) -> list[str]:
                frame = encode_request("Produce", 9, produce("__consumer_offsets", batch(Rec(b"v", key=b"k"))))
                head, renamed = (
                    request_header(0, 9, flexible=True),
                    request_header(0, 9, flexible=True, client_id=client_id),
                )
                frame = renamed + frame.removeprefix(head)
                wire.writer.write(struct.pack(">i", len(frame)) + frame)
                (length,) = struct.unpack(">i", await wire.reader.readexactly(4))
                return codes(decode_response("Produce", 9, await wire.reader.readexactly(length)))

            for client_id, code in (("raw", "INVALID_TOPIC_EXCEPTION"), (ADMIN_CLIENT_ID, "NONE")) * 2:
                for _ in range(3):
                    assert await write(client_id) == [code]

    run(scenario)


def test_connections_that_alternate_between_topics_learn_nothing() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        await sim.create("other")
        async with await sim.wire() as wire:
            for _ in range(3):
                for topic in (T, "other"):
                    assert codes(await wire.ask("Produce", 9, produce(topic, records()))) == ["NONE"]
            assert not any(map(knows, connections(sim)))

    run(scenario)
