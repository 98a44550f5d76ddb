"""Produce: what an acknowledgement means, what a refusal leaves behind, and what failing disks may not do to others."""

import asyncio
import errno
from typing import Any

import pytest

from headrace.errors import Err
from tests.compat.raw import batch
from tests.unit.broker.answers import T, codes, end_offset, errors, offsets, rows, sizes
from tests.unit.broker.sim import HeldSyncs, Sim, fetch, produce, records, run

pytestmark = pytest.mark.usefixtures("both_ways")

# ---- acknowledgements


def test_acks_all_waits_for_the_disk_and_acks_one_does_not() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        syncs = HeldSyncs(sim)
        async with await sim.wire() as all_, await sim.wire() as one:
            all_.send("Produce", 9, produce(T, records(2)))
            await sim.quiet()
            assert offsets(await one.ask("Produce", 9, produce(T, records(), acks=1))) == [2]
            waiting = asyncio.ensure_future(all_.receive())
            await asyncio.sleep(5)
            assert not waiting.done() and syncs.held
            syncs.let_go()
            assert offsets(await waiting) == [0] and codes(waiting.result()) == ["NONE"]

    run(scenario)


def test_many_produces_in_flight_are_answered_in_order_by_few_syncs() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        syncs = HeldSyncs(sim)
        async with await sim.wire() as wire:
            for number in range(20):
                acks = (-1, -1, 1, 0)[number % 4]
                wire.send("Produce", 9, produce(T, records(), acks=acks, first=number % 2))
                if acks == 0:
                    wire.unanswered()
            await sim.quiet()
            assert syncs.held and len(syncs.held) <= 2, "all were appended at once"
            syncs.let_go()
            got = [offsets(await wire.receive())[0] for _ in range(15)]
            assert got == [number // 2 for number in range(20) if number % 4 != 3]

    run(scenario)


def test_an_acknowledgement_that_does_not_come_in_time_is_a_timeout() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        syncs = HeldSyncs(sim)
        async with await sim.wire() as wire:
            before_ms = sim.now_ms()
            answer = await wire.ask("Produce", 9, produce(T, records(), timeout_ms=700))
            assert codes(answer) == ["REQUEST_TIMED_OUT"] and 700 <= sim.now_ms() - before_ms < 900
            syncs.let_go()
            await sim.quiet()
            assert codes(await wire.ask("Produce", 9, produce(T, records(), acks=1))) == ["NONE"]
            assert await end_offset(sim, wire) >= 1

    run(scenario)


def test_acks_zero_has_no_answer_and_an_error_closes() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            wire.send("Produce", 9, produce(T, records(), acks=0))
            wire.unanswered()
            await sim.quiet()
            assert await end_offset(sim, wire) == 1
            wire.send("Produce", 9, produce(T, batch(b"x", crc_error=1), acks=0))
            assert await wire.reader.read() == b""

    run(scenario)


def test_a_refused_partition_leaves_the_others_their_records() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 3)
        async with await sim.wire() as wire:
            answer = await wire.ask("Produce", 9, produce(T, records(), batch(b"x", crc_error=1), records()))
            assert codes(answer) == ["NONE", "CORRUPT_MESSAGE", "NONE"]
            assert [await end_offset(sim, wire, index) for index in range(3)] == [1, 0, 1]

    run(scenario)


def test_too_high_a_minimum_on_one_replica_is_as_if_it_were_one() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, min_insync_replicas="3")
        async with await sim.wire() as wire:
            assert codes(await wire.ask("Produce", 9, produce(T, records()))) == ["NONE"]
            assert sizes(await wire.ask("Fetch", 12, fetch(T, 0)))[0] > 0

    run(scenario)


# ---- topics that go


def test_a_topic_deleted_under_a_waiting_produce_ends_its_wait() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        syncs = HeldSyncs(sim)
        async with await sim.wire() as wire:
            wire.send("Produce", 9, produce(T, records(), timeout_ms=600_000))
            await sim.quiet()
            before_ms = sim.now_ms()
            await sim.delete(T)
            assert codes(await wire.receive()) != ["NONE"]
            assert sim.now_ms() - before_ms < 1000
            syncs.let_go()

    run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_topics_deleted_right_after_a_write_hurt_nobody(seed: int) -> None:
    """A sync that is under way looks for files whose folder has just been renamed."""

    async def scenario(sim: Sim) -> None:
        dice = sim.world.dice("deletions")
        await sim.create("stays")
        async with await sim.wire() as wire, await sim.wire() as steady:
            for number in range(12):
                await sim.create(T)
                wire.send("Produce", 9, produce(T, records()))
                await asyncio.sleep(dice.random() * 0.006)
                await sim.delete(T)
                await wire.receive()
                answer = await steady.ask("Produce", 9, produce("stays", records()))
                assert codes(answer) == ["NONE"] and offsets(answer) == [number]
        assert all(log_dir.failed is None for log_dir in sim.broker.logs.dirs)

    run(scenario, seed=seed)


# ---- disks that fail

TWO_DIRS: dict[str, Any] = {"log_dirs": "/d1,/d2", "metadata_log_dir": "/d1"}


def partition_in(sim: Sim, folder: str) -> int:
    found = [index for index in (0, 1) if sim.partition(T, index).log.path.startswith(folder)]
    assert len(found) == 1, "one partition in each dir"
    return found[0]


@pytest.mark.parametrize("operation", ["sync", "append"])
def test_a_failed_disk_is_never_an_acknowledgement_and_takes_only_its_own_partitions(operation: str) -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        bad = partition_in(sim, "/d2")
        good = 1 - bad
        async with await sim.wire() as wire, await sim.wire() as reader:
            assert codes(await wire.ask("Produce", 9, produce(T, records(), records()))) == ["NONE", "NONE"]
            reader.send("Fetch", 12, fetch(T, 1, 1, max_wait_ms=600_000))
            await sim.quiet()
            # Once: a second sync would succeed, and mean nothing.
            sim.disk.fail(operation, errno.EIO, path="/d2/t-*/*.log")
            before_ms = sim.now_ms()
            answer = await wire.ask("Produce", 9, produce(T, records(), records(), timeout_ms=600_000))
            assert codes(answer)[bad] == "KAFKA_STORAGE_ERROR" and codes(answer)[good] == "NONE"
            woken = await reader.receive()
            assert errors(woken)[bad] == "KAFKA_STORAGE_ERROR" or sizes(woken)[good]
            assert sim.now_ms() - before_ms < 1000, "nobody waits for a disk that is gone"
            for _ in range(3):
                answer = await wire.ask("Produce", 9, produce(T, records(), records()))
                assert codes(answer)[bad] == "KAFKA_STORAGE_ERROR" and codes(answer)[good] == "NONE"
            read = await wire.ask("Fetch", 12, fetch(T, 0, 0))
            assert errors(read)[bad] == "KAFKA_STORAGE_ERROR" and errors(read)[good] == "NONE"
            dirs = await wire.ask("DescribeLogDirs", 4, {"topics": None})
            assert {d.log_dir: Err(d.error_code).name for d in dirs.results} == {
                "/d1": "NONE",
                "/d2": "KAFKA_STORAGE_ERROR",
            }
        assert not sim.broker.tasks.stopping.is_set()

    run(scenario, **TWO_DIRS)


def test_a_failed_disk_answers_earlier_partitions_of_the_same_request_at_once() -> None:
    """The first partition is written and waits; then the disk of both fails under the second."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T, 4)
        mine = [index for index in range(4) if sim.partition(T, index).log.path.startswith("/d2")]
        async with await sim.wire() as wire:
            sim.disk.fail("append", errno.EIO, path=f"/d2/t-{mine[1]}/*.log")
            request = produce(T, timeout_ms=600_000)
            request["topic_data"][0]["partition_data"] = [{"index": index, "records": records()} for index in mine]
            before_ms = sim.now_ms()
            assert codes(await wire.ask("Produce", 9, request)) == ["KAFKA_STORAGE_ERROR"] * 2
            assert sim.now_ms() - before_ms < 1000

    run(scenario, **TWO_DIRS)


def test_many_partitions_of_a_failed_disk_stop_without_harm() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 40)
        async with await sim.wire() as wire:
            sim.disk.fail("sync", errno.EIO, path="/d2/t-*/*.log", skip=3)
            answer = await wire.ask("Produce", 9, produce(T, *[records()] * 40, timeout_ms=600_000))
            for row in rows(answer):
                on_bad = sim.partition(T, row.index).log.path.startswith("/d2")
                assert not on_bad or row.error_code == Err.KAFKA_STORAGE_ERROR or row.error_code == 0
                assert on_bad or row.error_code == 0
            assert "KAFKA_STORAGE_ERROR" in codes(answer)
            await sim.quiet()
            answer = await wire.ask("Produce", 9, produce(T, *[records()] * 40, timeout_ms=600_000))
            for row in rows(answer):
                on_bad = sim.partition(T, row.index).log.path.startswith("/d2")
                assert Err(row.error_code).name == ("KAFKA_STORAGE_ERROR" if on_bad else "NONE")
        assert not sim.broker.tasks.stopping.is_set()

    run(scenario, **TWO_DIRS)


def test_what_a_failed_disk_had_acknowledged_is_there_after_a_restart() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        bad = partition_in(sim, "/d2")
        async with await sim.wire() as wire:
            for _ in range(3):
                await wire.ask("Produce", 9, produce(T, records(), first=bad))
            sim.disk.fail("sync", errno.EIO, path="/d2/t-*/*.log")
            assert codes(await wire.ask("Produce", 9, produce(T, records(), first=bad))) == ["KAFKA_STORAGE_ERROR"]
        sim.node.kill()
        await sim.node.start()
        async with await sim.wire() as wire:
            assert await end_offset(sim, wire, bad) >= 3
        await sim.node.stop()

    run(scenario, **TWO_DIRS)


def test_a_full_disk_refuses_whole_batches_and_recovers_with_its_space() -> None:
    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        async with await sim.wire() as wire:
            await wire.ask("Produce", 9, produce(T, records(), records()))
            sim.disk.capacity_bytes = sim.disk.used_bytes() + 5000
            taken = 1
            for _ in range(10):
                answer = await wire.ask("Produce", 9, produce(T, records(size=1500)))
                if codes(answer) == ["NONE"]:
                    taken += 1
                else:
                    assert codes(answer) == ["KAFKA_STORAGE_ERROR"]
            assert 2 <= taken <= 5 and await end_offset(sim, wire) == taken
            assert sizes(await wire.ask("Fetch", 12, fetch(T, 0, 0)))[1] > 0, "reading goes on"
            sim.disk.capacity_bytes = None
            await asyncio.sleep(1)  # it looks by itself
            answer = await wire.ask("Produce", 9, produce(T, records(size=1500), records(size=1500)))
            assert codes(answer) == ["NONE", "NONE"] and offsets(answer) == [taken, 1]
        assert not sim.broker.tasks.stopping.is_set()

    run(scenario)


def test_deleting_records_on_a_full_disk_is_an_error_and_not_an_end() -> None:
    """It is what one does on a full disk: the connection must survive to try again."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T)
        async with await sim.wire() as wire:
            await wire.ask("Produce", 9, produce(T, records(10)))
            fields = {"topics": [{"name": T, "partitions": [{"partition_index": 0, "offset": 5}]}], "timeout_ms": 1000}
            sim.disk.capacity_bytes = sim.disk.used_bytes()
            (row,) = (await wire.ask("DeleteRecords", 2, fields)).topics[0].partitions
            assert (row.error_code, row.low_watermark) == (Err.KAFKA_STORAGE_ERROR, -1)
            sim.disk.capacity_bytes = None
            (row,) = (await wire.ask("DeleteRecords", 2, fields)).topics[0].partitions
            assert (row.error_code, row.low_watermark) == (0, 5)
        sim.node.crash()
        await sim.node.start()
        async with await sim.wire() as wire:
            assert errors(await wire.ask("Fetch", 12, fetch(T, 4))) == ["OFFSET_OUT_OF_RANGE"]
        await sim.node.stop()

    run(scenario)


def test_retention_on_a_full_disk_frees_what_it_can_and_fails_nothing() -> None:
    """All segments are too old, so the log wants a new one first, for which there is no room."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T, internal_segment_bytes="1000")
        async with await sim.wire() as wire:
            for _ in range(10):
                await wire.ask("Produce", 9, produce(T, records(size=400)))
            log = sim.partition(T).log
            assert len(log.segments) == 5
            sim.disk.capacity_bytes = sim.disk.used_bytes()
            await sim.broker.retention.run()
            assert all(log_dir.failed is None for log_dir in sim.broker.logs.dirs)
            assert len(log.segments) == 1 and log.log_start_offset == 8
            sim.disk.capacity_bytes = None
            await sim.broker.retention.run()
            assert log.log_start_offset == 10
            await asyncio.sleep(1)
            assert offsets(await wire.ask("Produce", 9, produce(T, records()))) == [10]

    run(scenario)


def test_a_write_that_cannot_be_undone_takes_the_disk_out_of_service() -> None:
    """Half a batch at the end of a log: nothing may be appended behind it."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2)
        bad = partition_in(sim, "/d2")
        async with await sim.wire() as wire:
            await wire.ask("Produce", 9, produce(T, records(), first=bad))
            log = sim.partition(T, bad).log
            file = log.active.handle.file
            assert file is not None

            def torn(data: Any) -> None:
                type(file).append(file, bytes(data)[:30])
                raise OSError(errno.ENOSPC, "no space, and none to put it back")

            log.active.handle.file = Wrapped(file, torn)
            assert codes(await wire.ask("Produce", 9, produce(T, records(), first=bad))) == ["KAFKA_STORAGE_ERROR"]
            log.active.handle.file = file
            for acks in (1, -1):
                answer = await wire.ask("Produce", 9, produce(T, records(), first=bad, acks=acks))
                assert codes(answer) == ["KAFKA_STORAGE_ERROR"], (
                    "behind a torn batch it would be lost at the next start"
                )

    run(scenario, **TWO_DIRS)


class Wrapped:
    """A file whose append is another."""

    def __init__(self, file: Any, append: Any) -> None:
        self._file = file
        self.append = append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
