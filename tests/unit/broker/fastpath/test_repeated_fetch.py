"""A consumer that reads on in one partition is served by a shorter way, and cannot tell."""

import errno
from typing import Any

import pytest

from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.handlers.fetch.consumers import RepeatedFetch
from headrace.broker.net.request import FETCH
from headrace.errors import Err
from headrace.records.builder import build_batch
from headrace.records.control import Marker, encode_marker
from headrace.records.layout import iter_headers
from headrace.records.reader import Record
from tests.unit.broker.sim import Sim, Wire, fetch, produce, records, run

T = "t"


def row(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def known(sim: Sim) -> Any:
    """What serves the only connection whose Fetches are recognised."""
    fasts = [c.fast for c in sim.broker.connections]
    (found,) = [fast.knows(FETCH) for fast in fasts if isinstance(fast, FastPath) and fast.knows(FETCH) is not None]
    assert isinstance(getattr(found, "__self__", None), RepeatedFetch)
    return found


async def fill(wire: Wire, count: int = 3) -> None:
    for _ in range(count):
        answer = await wire.ask("Produce", 9, produce(T, records(2)))
        assert row_error(answer) == 0


def row_error(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("version", [11, 12, 13, 18])
@pytest.mark.parametrize("isolation", [0, 1])
def test_reading_on_without_a_session(version: int, isolation: int) -> None:
    async def scenario(sim: Sim) -> None:
        topic_id = await sim.create(T)
        topic = T if version < 13 else topic_id
        async with await sim.wire() as wire:
            await fill(wire)
            await wire.ask("Fetch", version, fetch(topic, 0, isolation_level=isolation))
            learnt = known(sim)
            for offset in (0, 1, 2, 5, 6, 7):
                query = fetch(topic, offset, isolation_level=isolation)
                before = sim.broker.metrics.bytes_out
                short = await wire.ask("Fetch", version, query)
                assert known(sim) is learnt, "it was recognised"
                counted = sim.broker.metrics.bytes_out - before
                assert counted == len(row(short).records or b"")
                async with await sim.wire() as another:
                    assert await another.ask("Fetch", version, query) == short
                await sim.quiet()
                assert sim.broker.metrics.bytes_out == before + 2 * counted
            assert row(short).error_code == Err.OFFSET_OUT_OF_RANGE

    run(scenario)


def test_an_aborted_transaction_is_told() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire, 2)
            query = fetch(T, 0, isolation_level=1)
            assert row(await wire.ask("Fetch", 12, query)).aborted_transactions == []
            partition, now_ms = sim.partition(T), sim.broker.runtime.clock.wall_ms()
            data = build_batch(
                [Record(4, 1, None, b"in vain")], base_offset=4, leader_epoch=0, producer_id=7, producer_epoch=0,
                base_sequence=0, transactional=True,
            )  # fmt: skip
            partition.log.append_batches(data, now_ms)
            sim.broker.syncer.dirty(partition)
            await sim.quiet()
            learnt = known(sim)
            open_ = row(await wire.ask("Fetch", 12, query))
            assert (open_.high_watermark, open_.last_stable_offset, open_.aborted_transactions) == (5, 4, [])
            assert [header.end_offset for _, header in iter_headers(open_.records)] == [2, 4]
            end = encode_marker(
                Marker(False, 0), producer_id=7, producer_epoch=0, timestamp=now_ms, base_offset=5, leader_epoch=0
            )
            partition.log.append_batches(end, now_ms)
            sim.broker.syncer.dirty(partition)
            await sim.quiet()
            aborted = row(await wire.ask("Fetch", 12, query))
            assert aborted.last_stable_offset == 6
            assert [(a.producer_id, a.first_offset) for a in aborted.aborted_transactions] == [(7, 4)]
            assert known(sim) is learnt

    run(scenario)


def test_a_session_goes_on_as_by_the_long_way() -> None:
    async def scenario(sim: Sim) -> None:
        topic_id = await sim.create(T, 2)
        async with await sim.wire() as wire:
            await fill(wire)
            query = fetch(topic_id, 0, session_epoch=0)
            session_id = (await wire.ask("Fetch", 17, query)).session_id
            for epoch in range(1, 6):
                answer = await wire.ask(
                    "Fetch", 17, fetch(topic_id, epoch % 3, session_id=session_id, session_epoch=epoch)
                )
                assert answer.session_id == session_id and row(answer).records
            learnt = known(sim)
            for wrong in (5, 7, 0x7FFFFFFF):
                refused = await wire.ask("Fetch", 17, fetch(topic_id, 0, session_id=session_id, session_epoch=wrong))
                assert (refused.error_code, refused.responses) == (Err.INVALID_FETCH_SESSION_EPOCH, [])
            assert known(sim) is learnt
            # Nothing is new, so nothing is told; what is named beside it is read as well from then on.
            told = await wire.ask("Fetch", 17, fetch(topic_id, 6, session_id=session_id, session_epoch=6))
            assert (told.error_code, told.responses) == (0, [])
            both = await wire.ask("Fetch", 17, fetch(topic_id, 6, 0, session_id=session_id, session_epoch=7))
            assert [r.partition_index for r in both.responses[0].partitions] == [1]
            await fill(wire, 1)
            first = await wire.ask("Fetch", 17, fetch(topic_id, 0, session_id=session_id, session_epoch=8))
            assert [r.partition_index for r in first.responses[0].partitions] == [0] and row(first).records
            assert known(sim) is learnt
            sim.broker.sessions._sessions.clear()
            gone = await wire.ask("Fetch", 17, fetch(topic_id, 0, session_id=session_id, session_epoch=9))
            assert gone.error_code == Err.FETCH_SESSION_ID_NOT_FOUND

    run(scenario)


def test_at_the_end_it_waits_for_what_comes_next() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire, await sim.wire() as writer:
            await fill(writer)
            for _ in range(2):
                await wire.ask("Fetch", 12, fetch(T, 0, max_wait_ms=60_000))
            learnt = known(sim)
            wire.send("Fetch", 12, fetch(T, 6, max_wait_ms=60_000))
            await sim.quiet()
            assert sim.parked()
            await fill(writer, 1)
            answer = await wire.receive()
            assert row(answer).high_watermark == 8 and row(answer).records
            assert known(sim) is learnt and not sim.parked()
            # A connection that goes while its request waits leaves nothing behind.
            wire.send("Fetch", 12, fetch(T, 8, max_wait_ms=60_000))
            await sim.quiet()
            assert sim.parked()
        await sim.quiet()
        assert not sim.parked()

    run(scenario)


def test_a_topic_that_is_gone_is_not_read_by_its_name() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire)
            await wire.ask("Fetch", 12, fetch(T, 0))
            learnt = known(sim)
            await sim.delete(T)
            await sim.quiet()
            assert row(await wire.ask("Fetch", 12, fetch(T, 0))).error_code == Err.UNKNOWN_TOPIC_OR_PARTITION
            await sim.create(T)
            await fill(wire, 1)
            assert row(await wire.ask("Fetch", 12, fetch(T, 0))).high_watermark == 2
            assert known(sim) is learnt

    run(scenario)


def test_answers_of_one_turn_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire)
            first, second = [await wire.ask("Fetch", 12, fetch(T, offset)) for offset in (0, 2)]
            served = await wire.ask("ApiVersions", 2, {})
            asked = [served, first, served, served, second, first, served]
            frames: list[bytes] = []
            with monkeypatch.context() as together:
                together.setattr(wire.writer, "write", frames.append)
                for answer in asked:
                    if answer is served:
                        wire.send("ApiVersions", 2, {})
                    else:
                        wire.send("Fetch", 12, fetch(T, 0 if answer is first else 2))
            wire.writer.write(b"".join(frames))
            assert [await wire.receive() for _ in asked] == asked
            await sim.quiet()
            assert sim.pins() == 0

    run(scenario)


def test_a_disk_that_fails_is_told_and_leaves_nothing_pinned() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire)
            good = await wire.ask("Fetch", 12, fetch(T, 0))
            learnt = known(sim)
            sim.partition(T).log.active.forget_tail(1 << 62)
            sim.disk.fail("read", errno.EIO, path="*/t-0/*.log", times=2)  # once for each way
            assert row(await wire.ask("Fetch", 12, fetch(T, 0))).error_code == Err.KAFKA_STORAGE_ERROR
            assert await wire.ask("Fetch", 12, fetch(T, 0)) == good
            assert known(sim) is learnt
            await sim.quiet()
            assert sim.pins() == 0

    run(scenario)


def test_the_brokers_own_limit_counts() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await fill(wire, 40)
            sizes = {len(row(await wire.ask("Fetch", 12, fetch(T, 0))).records) for _ in range(3)}
            assert sizes == {1024} and known(sim)

    run(scenario, fetch_max_bytes="1024")
