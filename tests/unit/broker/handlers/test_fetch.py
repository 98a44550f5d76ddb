"""Fetch: how much, how long, up to where; what ends a wait; and that no file stays pinned whatever happens."""

import asyncio
import errno
from typing import Any

import pytest

from headrace.broker.handlers.fetch.consumers import FetchHandler, WaitingFetch
from headrace.errors import Err
from tests.unit.broker.answers import errors, fetched, sizes
from tests.unit.broker.sim import HeldSyncs, Sim, Wire, alive, fetch, no_collector, produce, records, run

pytestmark = pytest.mark.usefixtures("both_ways")

T = "t"


async def fill(wire: Wire, *batches: bytes, first: int = 0) -> None:
    answer = await wire.ask("Produce", 9, produce(T, *batches, first=first))
    assert all(row.error_code == 0 for row in answer.responses[0].partition_responses), answer


# ---- how long


def test_waits_for_min_bytes_and_no_longer() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        writer, reader = await sim.wire(), await sim.wire()
        data = records(size=100)
        reader.send("Fetch", 12, fetch(T, 0, min_bytes=2 * len(data), max_wait_ms=60_000))
        await sim.quiet()
        await fill(writer, data)
        await asyncio.sleep(1)
        assert sim.parked(), "one batch is not enough"
        before_ms = sim.now_ms()
        await fill(writer, data)
        answer = await reader.receive()
        assert sizes(answer) == [2 * len(data)] and sim.now_ms() - before_ms < 100
        assert not sim.parked()

    run(scenario)


def test_gives_what_there_is_when_time_is_up() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        writer, reader = await sim.wire(), await sim.wire()
        data = records()
        await fill(writer, data)
        before_ms = sim.now_ms()
        answer = await reader.ask("Fetch", 12, fetch(T, 0, min_bytes=1000, max_wait_ms=700))
        assert sizes(answer) == [len(data)]
        assert 700 <= sim.now_ms() - before_ms < 800
        answer = await reader.ask("Fetch", 12, fetch(T, 1, min_bytes=1, max_wait_ms=700))
        assert sizes(answer) == [0] and errors(answer) == ["NONE"]
        assert 1400 <= sim.now_ms() - before_ms < 1600

    run(scenario)


@pytest.mark.parametrize("wait_ms, min_bytes", [(0, 1000), (-5, 1000), (60_000, 0), (60_000, -1)])
def test_does_not_wait_when_not_asked_to(wait_ms: int, min_bytes: int) -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as reader:
            before_ms = sim.now_ms()
            await reader.ask("Fetch", 12, fetch(T, 0, min_bytes=min_bytes, max_wait_ms=wait_ms))
            assert sim.now_ms() - before_ms < 100

    run(scenario)


def test_min_bytes_above_max_bytes_means_max_bytes() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        writer, reader = await sim.wire(), await sim.wire()
        data = records(size=1000)
        await fill(writer, data)
        before_ms = sim.now_ms()
        answer = await reader.ask("Fetch", 12, fetch(T, 0, min_bytes=10_000, max_bytes=500, max_wait_ms=60_000))
        assert sizes(answer) == [len(data)]
        reader.send("Fetch", 12, fetch(T, 1, min_bytes=10_000, max_bytes=500, max_wait_ms=60_000))
        await sim.quiet()
        await fill(writer, data)
        assert sizes(await reader.receive()) == [len(data)]
        assert sim.now_ms() - before_ms < 1000

    run(scenario)


def test_one_of_many_partitions_ends_the_wait() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 5)
        writer, reader = await sim.wire(), await sim.wire()
        reader.send("Fetch", 12, fetch(T, 0, 0, 0, 0, 0, max_wait_ms=60_000))
        await sim.quiet()
        data = records()
        await fill(writer, data, first=3)
        answer = await reader.receive()
        assert sizes(answer) == [0, 0, 0, len(data), 0] and not sim.parked()

    run(scenario)


def test_a_wait_sees_nothing_before_it_is_committed() -> None:
    """Written is not yet readable: the reader wakes with the high watermark, not with the append."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        syncs = HeldSyncs(sim)
        writer, reader = await sim.wire(), await sim.wire()
        reader.send("Fetch", 12, fetch(T, 0, max_wait_ms=60_000))
        writer.send("Produce", 9, produce(T, records(), acks=1))
        assert (await writer.receive()).responses[0].partition_responses[0].error_code == 0
        await asyncio.sleep(5)
        assert syncs.held and sim.parked()
        assert sizes(await writer.ask("Fetch", 12, fetch(T, 0))) == [0]
        syncs.let_go()
        assert sizes(await reader.receive())[0] > 0

    run(scenario)


# ---- how much


def test_the_first_batch_comes_even_if_it_is_too_large() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 3)
        data = records(size=5000)
        async with await sim.wire() as wire:
            await fill(wire, data, data, data)
            for limits in ({"max_bytes": 10}, {"partition_bytes": 10}, {"max_bytes": 0}, {"partition_bytes": 0}):
                answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0, **limits))
                assert sizes(answer) == [len(data), 0, 0], limits
                assert [row.high_watermark for row in fetched(answer)] == [1, 1, 1]

    run(scenario)


def test_an_empty_partition_passes_the_privilege_on() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 3)
        data = records(size=5000)
        async with await sim.wire() as wire:
            await fill(wire, data, data, first=1)
            answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0, max_bytes=10))
            assert sizes(answer) == [0, len(data), 0]

    run(scenario)


def test_max_bytes_is_shared_by_all_partitions() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 4)
        data = records(size=1000)
        async with await sim.wire() as wire:
            for _ in range(5):
                await fill(wire, data, data, data, data)
            size = len(data)
            answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0, 0, max_bytes=8 * size))
            assert sizes(answer) == [5 * size, 3 * size, 0, 0]
            answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0, 0, partition_bytes=2 * size))
            assert sizes(answer) == [2 * size] * 4

    run(scenario, fetch_max_bytes=str(10 << 20))


def test_the_brokers_own_limit_counts_too() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 4)
        data = records(size=600)
        async with await sim.wire() as wire:
            await fill(wire, data, data, data, data)
            answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0, 0))
            assert sum(map(bool, sizes(answer))) == 1

    run(scenario, fetch_max_bytes="1024")


# ---- which records


def test_offsets_outside_the_log() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire, records(3))
            for offset, error in ((-1, "OFFSET_OUT_OF_RANGE"), (4, "OFFSET_OUT_OF_RANGE"), (3, "NONE"), (2, "NONE")):
                before_ms = sim.now_ms()
                answer = await wire.ask("Fetch", 12, fetch(T, offset, max_wait_ms=300))
                assert errors(answer) == [error], offset
                waited = sim.now_ms() - before_ms
                assert waited >= 300 if offset == 3 else waited < 100, "an error or records come at once"

    run(scenario)


def test_deleted_records_are_out_of_range() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            for _ in range(4):
                await fill(wire, records(5))
            answer = await wire.ask(
                "DeleteRecords", 2,
                {"topics": [{"name": T, "partitions": [{"partition_index": 0, "offset": 7}]}], "timeout_ms": 1000},
            )  # fmt: skip
            assert answer.topics[0].partitions[0].low_watermark == 7
            answer = await wire.ask("Fetch", 12, fetch(T, 6))
            assert errors(answer) == ["OFFSET_OUT_OF_RANGE"]
            (row,) = fetched(await wire.ask("Fetch", 12, fetch(T, 7)))
            assert row.log_start_offset == 7 and row.high_watermark == 20 and row.records
            answer = await wire.ask(
                "DeleteRecords", 2,
                {"topics": [{"name": T, "partitions": [{"partition_index": 0, "offset": -1}]}], "timeout_ms": 1000},
            )  # fmt: skip
            assert answer.topics[0].partitions[0].low_watermark == 20
            answer = await wire.ask("Fetch", 12, fetch(T, 20))
            assert errors(answer) == ["NONE"] and sizes(answer) == [0]

    run(scenario)


def test_readers_of_committed_records_stop_at_open_transactions() -> None:
    from headrace.records.builder import build_batch
    from headrace.records.reader import Record

    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire, records(2))
            partition = sim.partition(T)
            data = build_batch(
                [Record(2, 1, None, b"in a transaction")], base_offset=2, leader_epoch=0, producer_id=7,
                producer_epoch=0, base_sequence=0, transactional=True,
            )  # fmt: skip
            partition.log.append_batches(data, sim.broker.runtime.clock.wall_ms())
            sim.broker.syncer.dirty(partition)
            await sim.quiet()
            await fill(wire, records(1))
            loose = fetched(await wire.ask("Fetch", 12, fetch(T, 0)))[0]
            strict = fetched(await wire.ask("Fetch", 12, fetch(T, 0, isolation_level=1)))[0]
            assert (loose.high_watermark, loose.last_stable_offset) == (4, 2)
            assert strict.last_stable_offset == 2 and strict.aborted_transactions == []
            assert len(strict.records) < len(loose.records)
            answer = await wire.ask("Fetch", 12, fetch(T, 2, isolation_level=1, max_wait_ms=300))
            assert sizes(answer) == [0] and errors(answer) == ["NONE"]

    run(scenario)


# ---- what ends a wait


@pytest.mark.parametrize("version, error", [(12, "UNKNOWN_TOPIC_OR_PARTITION"), (13, "UNKNOWN_TOPIC_ID")])
def test_a_deleted_topic_wakes_its_readers(version: int, error: str) -> None:
    async def scenario(sim: Sim) -> None:
        topic_id = await sim.create(T, 2)
        reader = await sim.wire()
        reader.send("Fetch", version, fetch(T if version < 13 else topic_id, 0, 0, max_wait_ms=86_400_000))
        await sim.quiet()
        before_ms = sim.now_ms()
        await sim.delete(T)
        answer = await reader.receive()
        assert errors(answer) == [error, error] and sim.now_ms() - before_ms < 1000
        assert not sim.parked()

    run(scenario)


def test_a_topic_of_the_same_name_is_another_one() -> None:
    async def scenario(sim: Sim) -> None:
        old = await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire, records(5))
            await sim.delete(T)
            new = await sim.create(T)
            assert old != new
            assert errors(await wire.ask("Fetch", 13, fetch(old, 0))) == ["UNKNOWN_TOPIC_ID"]
            answer = await wire.ask("Fetch", 13, fetch(new, 0))
            assert errors(answer) == ["NONE"] and fetched(answer)[0].high_watermark == 0

    run(scenario)


def test_a_reader_that_goes_away_leaves_nothing_behind() -> None:
    """A wait of a day on a partition that nobody writes to: only the connection's end can end it."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T, 3)
        for _ in range(20):
            reader = await sim.wire()
            reader.send("Fetch", 12, fetch(T, 0, 0, 0, max_wait_ms=86_400_000))
            await sim.quiet()
            assert sim.parked() == 4
            reader.close()
            await sim.quiet()
            assert sim.parked() == 0 and not sim.broker.connections

    run(scenario)


def test_waits_that_are_over_leave_no_circles_for_the_collector() -> None:
    """It looks rarely, and each would keep its connection, its partition and all their files' indexes."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        reader = await sim.wire()
        with no_collector():
            for _ in range(5):
                await reader.ask("Fetch", 12, fetch(T, 0, max_wait_ms=20))
            reader.send("Fetch", 12, fetch(T, 0, max_wait_ms=86_400_000))
            await sim.quiet()
            assert alive(WaitingFetch) == 1
            reader.close()
            await sim.quiet()
            assert alive(WaitingFetch) == 0

    run(scenario)


def test_stopping_does_not_wait_for_long_polls() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        reader = await sim.wire()
        reader.send("Fetch", 12, fetch(T, 0, max_wait_ms=86_400_000))
        await sim.quiet()
        before_ms = sim.now_ms()
        await sim.node.stop()
        answer = await reader.receive()
        assert sizes(answer) == [0] and sim.now_ms() - before_ms < 1000

    run(scenario)


def test_a_request_behind_a_long_poll_waits_for_it() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        reader, writer = await sim.wire(), await sim.wire()
        reader.send("Fetch", 12, fetch(T, 0, max_wait_ms=60_000))
        reader.send("Produce", 9, produce(T, records()))
        await sim.quiet()
        assert sim.partition(T).log.end_offset == 0
        await fill(writer, records())
        assert sizes(await reader.receive())[0] > 0
        assert (await reader.receive()).responses[0].partition_responses[0].base_offset == 1

    run(scenario)


# ---- disks that fail


def test_a_partition_that_cannot_be_read_is_the_only_one_with_an_error() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 3, internal_segment_bytes="1000")
        data = records(size=700)
        async with await sim.wire() as wire:
            for _ in range(4):
                await fill(wire, data, data, data)
            for segment in sim.partition(T, 1).log.segments:
                segment.forget_tail(1 << 62)
                segment._offsets = segment._times = None
            sim.disk.fail("read", errno.EIO, path="*/t-1/00000000000000000000.*", times=None)
            answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0, max_wait_ms=1000))
            assert errors(answer) == ["NONE", "KAFKA_STORAGE_ERROR", "NONE"]
            assert sizes(answer)[0] and sizes(answer)[2]
            await sim.quiet()
            assert sim.pins() == 0
            sim.disk.faults.clear()
            assert errors(await wire.ask("Fetch", 12, fetch(T, 0, 0, 0))) == ["NONE"] * 3

    run(scenario)


def test_a_disk_that_fails_under_an_answer_closes_that_connection_only() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        async with await sim.wire() as wire, await sim.wire() as other:
            await fill(wire, records(size=200_000), records(size=200_000))
            sim.disk.fail("read", errno.EIO, path="*/t-0/*.log")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await wire.ask("Fetch", 12, fetch(T, 0, 0))
            await sim.quiet()
            assert sim.pins() == 0
            assert sizes(await other.ask("Fetch", 12, fetch(T, 0, 0))) != [0, 0]

    run(scenario)


# ---- cold data


class Cold:
    """A page cache that holds nothing."""

    supported = True

    def has(self, fd: int, position: int, length: int) -> bool:
        return False

    def holds(self, piece: Any, file_bytes: int) -> bool:
        return False


def go_cold(sim: Sim) -> None:
    handler = sim.broker.router._hot[1]
    assert isinstance(handler, FetchHandler)
    handler.reader.cache = Cold()  # type: ignore[assignment]


def test_cold_records_are_read_in_a_thread_first() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        go_cold(sim)
        async with await sim.wire() as wire:
            data = records(size=3000)
            await fill(wire, data, data)
            wire.send("Fetch", 12, fetch(T, 0, 0))
            wire.send("Metadata", 5, {"topics": []})
            assert sizes(await wire.receive()) == [len(data)] * 2
            await wire.receive()

    run(scenario)


def test_cold_records_of_one_who_reads_on_are_read_in_a_thread_as_well() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            data = records(size=3000)
            await fill(wire, data)
            go_cold(sim)
            for _ in range(3):
                assert sizes(await wire.ask("Fetch", 12, fetch(T, 0))) == [len(data)]
            assert sim.pins() == 0
            sim.disk.fail("read", errno.EIO, path="*/t-0/*.log")
            assert errors(await wire.ask("Fetch", 12, fetch(T, 0))) == ["KAFKA_STORAGE_ERROR"]

    run(scenario)


def test_a_reader_lost_while_its_records_are_read_lets_go_of_them() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        go_cold(sim)
        async with await sim.wire() as wire:
            await fill(wire, records(size=3000))
        for delay_s in (0, 0.0005, 0.001, 0.002):
            reader = await sim.wire()
            reader.send("Fetch", 12, fetch(T, 0))
            await asyncio.sleep(delay_s)
            reader.writer.transport.abort()
            await sim.quiet()
            assert sim.pins() == 0 and not sim.broker.connections
        assert not len(sim.broker.sessions)

    run(scenario)


def test_cold_records_that_the_disk_cannot_give_are_an_error_of_their_partition() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 3)
        go_cold(sim)
        async with await sim.wire() as wire:
            data = records(size=3000)
            await fill(wire, data, data, data)
            sim.disk.fail("read", errno.EIO, path="*/t-1/*.log")
            answer = await wire.ask("Fetch", 12, fetch(T, 0, 0, 0))
            assert errors(answer) == ["NONE", "KAFKA_STORAGE_ERROR", "NONE"]
            assert sizes(answer) == [len(data), 0, len(data)]
            assert sim.broker.tasks.failure is None and not sim.broker.tasks.stopping.is_set()

    run(scenario)


def test_stopping_while_cold_records_are_read() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        go_cold(sim)
        wire = await sim.wire()
        await fill(wire, records(size=3000))
        wire.send("Fetch", 12, fetch(T, 0))
        await asyncio.sleep(0.0005)
        await sim.node.stop()
        assert sim.pins() == 0

    run(scenario)


# ---- sessions on the wire


def test_a_session_tells_only_what_changed() -> None:
    async def scenario(sim: Sim) -> None:
        topic_id = await sim.create(T, 3)
        async with await sim.wire() as wire:
            data = records()
            await fill(wire, data, data, data)
            first = await wire.ask("Fetch", 13, fetch(topic_id, 1, 1, 1, session_epoch=0))
            assert len(fetched(first)) == 3 and first.session_id > 0
            more: dict[str, Any] = {"session_id": first.session_id, "max_wait_ms": 0}
            again = await wire.ask("Fetch", 13, {**fetch(topic_id, session_epoch=1, **more), "topics": []})
            assert fetched(again) == [] and again.session_id == first.session_id
            await fill(wire, data, first=1)
            changed = await wire.ask("Fetch", 13, {**fetch(topic_id, session_epoch=2, **more), "topics": []})
            assert [row.partition_index for row in fetched(changed)] == [1] and sizes(changed) == [len(data)]
            stale = await wire.ask("Fetch", 13, {**fetch(topic_id, session_epoch=2, **more), "topics": []})
            assert Err(stale.error_code) == Err.INVALID_FETCH_SESSION_EPOCH
            gone = await wire.ask(
                "Fetch", 13, {**fetch(topic_id, session_epoch=3, **more), "session_id": 12345, "topics": []}
            )
            assert Err(gone.error_code) == Err.FETCH_SESSION_ID_NOT_FOUND
            await wire.ask("Fetch", 13, fetch(topic_id, 1, session_epoch=-1, session_id=first.session_id))
            assert len(sim.broker.sessions) == 0

    run(scenario)


def test_a_wait_that_its_session_has_left_behind_is_refused() -> None:
    async def scenario(sim: Sim) -> None:
        topic_id = await sim.create(T)
        old, new = await sim.wire(), await sim.wire()
        first = await old.ask("Fetch", 13, fetch(topic_id, 0, session_epoch=0))
        more = {"session_id": first.session_id}
        old.send("Fetch", 13, fetch(topic_id, 0, session_epoch=1, max_wait_ms=5000, **more))
        await sim.quiet()
        new.send("Fetch", 13, fetch(topic_id, 0, session_epoch=2, max_wait_ms=60_000, **more))
        superseded = await old.receive()
        assert Err(superseded.error_code) == Err.INVALID_FETCH_SESSION_EPOCH and not superseded.responses
        await fill(old, records())
        assert sizes(await new.receive())[0] > 0

    run(scenario)


def test_a_session_hears_of_a_deleted_topic_and_recovers() -> None:
    async def scenario(sim: Sim) -> None:
        topic_id = await sim.create(T)
        async with await sim.wire() as wire:
            first = await wire.ask("Fetch", 13, fetch(topic_id, 0, session_epoch=0))
            more: dict[str, Any] = {"session_id": first.session_id, "max_wait_ms": 0}
            await sim.delete(T)
            for epoch in (1, 2):
                answer = await wire.ask("Fetch", 13, {**fetch(topic_id, session_epoch=epoch, **more), "topics": []})
                assert errors(answer) != ["NONE"] and len(fetched(answer)) == 1, "an error is told every time"

    run(scenario)
