"""Replicas that are wiped, damaged, late or out of space, and what the others make of them."""

import asyncio

import pytest

from headrace.client.errors import err_of
from headrace.errors import Err
from headrace.records.layout import iter_headers
from headrace.storage.file_names import file_name
from headrace.storage.swap import Cleaned, begin_swap
from tests.unit.broker.replicated import DATA, TOPIC_ID, Brokers, T, contents, run
from tests.unit.broker.sim import records


def test_a_wiped_disk_copies_everything_and_is_out_of_the_isr_until_then() -> None:
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
    """Set aside, copied anew, and out of the ISR before anything is dropped."""

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


async def in_segments(brokers: Brokers, count: int = 3) -> None:
    """Closed segments of three batches with ten records each, the same on all nodes, and an empty active one."""
    for _ in range(count):
        for _ in range(3):
            assert await brokers.produce(1, 10) == "NONE"
        for node_id in (1, 2, 3):
            await brokers.in_step([1, node_id])
            brokers.partition(node_id).log.roll(0)


def flip(brokers: Brokers, node_id: int, base_offset: int, batch: int = 1) -> None:
    """Rot one bit in the records of a batch of a closed segment."""
    path = f"{DATA}/{T}-0/{file_name(base_offset, '.log')}"
    disk = brokers.node(node_id).disk
    position, header = list(iter_headers(disk.read_bytes(path)))[batch]
    disk.flip(path, position + header.size - 5)


def find(brokers: Brokers, node_id: int, base_offset: int) -> None:
    """What a scrub does that has found damage."""
    log = brokers.partition(node_id).log
    log.set_aside(next(one for one in log.segments if one.base_offset == base_offset), "found by the test")


def test_a_damaged_segment_is_repaired_in_place_and_the_rest_of_the_log_stays() -> None:
    """Out of the ISR while something is missing, and only what is missing is fetched."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        await in_segments(brokers)
        expected = contents(brokers.partition(1))
        for base, batch in ((0, 0), (30, 1), (60, 2)):
            flip(brokers, 3, base, batch)
            find(brokers, 3, base)
        end = brokers.partition(3).log.end_offset
        fetched = brokers.broker(3).metrics.replication_bytes_in
        await brokers.until(lambda: brokers.dictator.alterations == [(1, 2), (1, 2, 3)], timeout_s=60)
        log = brokers.partition(3).log
        assert not log.holes and log.end_offset == end and brokers.broker(3).metrics.truncations == 0
        assert brokers.broker(3).metrics.holes_mended == 3 and brokers.broker(3).metrics.replication_bytes_in == fetched
        assert contents(brokers.partition(3)) == expected
        assert await brokers.produce(1, 10) == "NONE"
        await brokers.in_step([1, 2, 3])
        await brokers.node(3).stop()
        await brokers.start(3)
        await brokers.until(lambda: set(brokers.dictator.assigned().isr) == {1, 2, 3})
        assert contents(brokers.partition(3)) == contents(brokers.partition(1))
        assert not brokers.partition(3).log.holes

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_records_on_their_way_when_damage_is_found_are_not_taken_for_what_is_missing(seed: int) -> None:
    """1. A follower asks for what comes behind its end, and the leader sends it. 2. The follower finds damage. 3. The
    answer comes. Were it taken for the answer about the hole, all of the log behind the hole would be cut off."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        await in_segments(brokers)
        wire = await brokers.wire(1)
        stopped = False

        async def write() -> None:
            while not stopped:
                row = {"index": 0, "records": records(1)}
                topic = {"topic_id": TOPIC_ID, "partition_data": [row]}
                await wire.ask("Produce", 13, {"acks": 1, "timeout_ms": 5000, "topic_data": [topic]})

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(0.1)
        brokers.dictator.change(isr=[1, 2])
        for base in (0, 30, 60):
            flip(brokers, 3, base)
            find(brokers, 3, base)
            await brokers.until(lambda: not brokers.partition(3).log.holes, timeout_s=60)
        stopped = True
        await writing
        wire.close()
        assert brokers.broker(3).metrics.truncations == 0 and brokers.broker(3).metrics.holes_mended == 3
        await brokers.in_step([1, 2, 3])

    run(scenario, seed=seed)


def test_what_the_leader_no_longer_has_is_forgotten() -> None:
    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        await in_segments(brokers)
        brokers.world.network.partition(["b3"], ["b1"])
        brokers.world.network.reset("b1", "b3")
        flip(brokers, 3, 30, 0)
        flip(brokers, 3, 30, 2)
        find(brokers, 3, 30)
        leader = brokers.partition(1)
        leader.delete_up_to(45)
        leader.log.delete_segments(1, 0)
        await asyncio.sleep(1)
        brokers.world.network.heal()
        await brokers.until(lambda: not brokers.partition(3).log.holes, timeout_s=60)
        await brokers.until(lambda: set(brokers.dictator.assigned().isr) == {1, 2, 3}, timeout_s=60)
        assert brokers.partition(3).log.log_start_offset == 45
        assert contents(brokers.partition(3)).endswith(contents(leader)[-1000:])

    run(scenario)


def test_a_compacted_log_whose_leader_has_cleaned_the_range_is_copied_from_its_start() -> None:
    """A tombstone may have been in the damaged batch: the leader has dropped it with what it deleted, which is still
    here."""

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        await in_segments(brokers)
        brokers.dictator.configure(cleanup_policy="compact")
        leader = brokers.partition(1).log
        disk = brokers.node(1).disk
        second = leader.segments[1]
        position, _ = list(iter_headers(disk.read_bytes(second.handle.path)))[1]
        data = disk.read_bytes(second.handle.path)
        rest = data[:position] + data[position + header_size(data, position) :]
        disk.replace_bytes(second.path(".log.cleaned"), rest)
        cleaned = Cleaned(30, ((30, second.size),), len(rest), 60, 30, 20)
        swap = begin_swap(leader, cleaned)
        assert swap is not None
        swap.run()
        swap.finish()
        flip(brokers, 3, 30, 1)
        find(brokers, 3, 30)
        await brokers.until(lambda: brokers.dictator.alterations == [(1, 2), (1, 2, 3)], timeout_s=60)
        assert contents(brokers.partition(3)) == contents(brokers.partition(1))

    run(scenario)


def header_size(data: bytes, position: int) -> int:
    return next(header.size for at, header in iter_headers(data) if at == position)


@pytest.mark.parametrize("who", [1, 3])
def test_a_failed_fsync_takes_the_replica_out(who: int) -> None:
    """Never taken for a success; the others go on."""

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
        brokers.broker(who).tasks.failure = None  # it had one log dir only
        await brokers.in_step([1, 2] if who == 3 else [2, 3])

    run(scenario)


@pytest.mark.parametrize("who", [1, 2])
def test_a_replica_there_was_no_room_for_is_created_when_there_is(who: int) -> None:
    """Nobody changes the partition meanwhile, so the metadata does not speak of it again."""

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
    """A Fetch answer is half sent when the leader is deposed and its log cut and rewritten."""

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
