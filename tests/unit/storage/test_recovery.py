import random
from itertools import count

import pytest

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.control import Marker, encode_marker
from headrace.storage.checking import SHORTER, OldFormat, verify_file
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

from .helpers import FOLDER, append, batch, offsets, open_log, read_all

LOG0 = f"{FOLDER}/00000000000000000000.log"
SMALL = LogConfig(segment_bytes=700, index_interval_bytes=150)


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    return disk


def grown(
    disk: MemoryDisk, batches: int = 40, config: LogConfig = SMALL, *, close: bool = True
) -> tuple[Log, list[bytes]]:
    log = open_log(disk, config=config)
    written = [append(log, 1 + at % 3, timestamp=1000 + 7 * at, size=30) for at in range(batches)]
    if close:
        log.close()
    return log, written


@pytest.mark.parametrize("clean", [True, False])
def test_reopened_log_is_the_same(disk: MemoryDisk, clean: bool) -> None:
    log, written = grown(disk)
    again = open_log(disk, clean=clean, config=SMALL, recovery_point=log.recovery_point)
    assert (again.end_offset, again.log_start_offset) == (log.end_offset, 0)
    assert again.durable_end == log.end_offset
    assert read_all(again) == written
    assert again.epochs.entries == [(0, 0)]
    assert again.recovery.lines == []
    assert again.recovery.segments_checked == (0 if clean else 1)
    written.append(append(again))
    assert read_all(again) == written


def test_opening_after_a_clean_stop_writes_nothing(disk: MemoryDisk) -> None:
    grown(disk)
    before = disk.tree()
    open_log(disk, clean=True, config=SMALL).close()
    assert disk.tree() == before


@pytest.mark.parametrize("filler", ["cut", "zeros", "noise"])
def test_a_batch_torn_at_every_byte_is_cut_off(disk: MemoryDisk, filler: str) -> None:
    _, written = grown(disk, 5, LogConfig(), close=False)
    whole = disk.read_bytes(LOG0)
    last = len(written[-1])
    start = len(whole) - last
    noise = random.Random(1).randbytes(last)
    for kept in range(last):
        twin = disk.fork()
        file = twin.open(LOG0)
        file.truncate(start + kept)
        if filler != "cut":
            file.append(bytes(last - kept) if filler == "zeros" else noise[kept:])
        torn = twin.read_bytes(LOG0) != whole
        again = open_log(twin)
        if torn:
            assert read_all(again) == written[:-1], kept
            assert twin.size(LOG0) == start
            assert again.recovery.bytes_truncated == (kept if filler == "cut" else last)
            assert bool(again.recovery.lines) == bool(again.recovery.bytes_truncated)
        again.append(written[-1], again.end_offset, again.end_offset, 0, 1000, 1000)


def test_every_flipped_bit_of_a_batch_is_noticed(disk: MemoryDisk) -> None:
    _, written = grown(disk, 4, LogConfig(), close=False)
    start = len(written[0]) + len(written[1])
    for position in range(start, start + len(written[2])):
        twin = disk.fork()
        twin.flip(LOG0, position, position % 8)
        again = open_log(twin)
        # Base offset and leader epoch lie outside the CRC. An offset that goes back or leaves no room is noticed,
        # one that only opens a gap cannot be, and an epoch looks like any other.
        within = position - start
        if within >= 16:
            assert read_all(again) == written[:2], within
            # What followed the damage was whole: it is kept for a person to look at.
            assert any(name.endswith(".cut") for name in twin.list(FOLDER)), within
        else:
            assert read_all(again)[:2] == written[:2]


def test_a_damaged_old_segment_is_set_aside_and_its_offsets_are_an_error(disk: MemoryDisk) -> None:
    log, _ = grown(disk)
    victim = log.segments[2]
    after = log.segments[3].base_offset
    disk.flip(victim.handle.path, victim.size // 2)
    whole = disk.read_bytes(victim.handle.path)
    again = open_log(disk, config=SMALL)
    assert [(hole.start_offset, hole.end_offset) for hole in again.holes] == [(victim.base_offset, after)]
    assert "set aside" in again.recovery.lines[0] or "aside as" in again.recovery.lines[0]
    assert disk.read_bytes(victim.handle.path + ".corrupt") == whole
    assert again.end_offset == log.end_offset
    for offset in range(log.end_offset):
        if victim.base_offset <= offset < after:
            with pytest.raises(KafkaError) as caught:
                again.read(offset, 1 << 20, again.end_offset)
            assert caught.value.error is Err.KAFKA_STORAGE_ERROR
        else:
            part = again.read(offset, 1 << 20, again.end_offset)
            assert part is not None
            part.release()
    # It stays known after a clean stop, writes go on, and whoever accepts the loss moves the start.
    append(again)
    again.close()
    third = open_log(disk, clean=True, config=SMALL)
    assert [(hole.start_offset, hole.end_offset) for hole in third.holes] == [(victim.base_offset, after)]
    third.advance_log_start(after)
    assert offsets(read_all(third)) == list(range(after, third.end_offset))


@pytest.mark.parametrize("committed", [0, 1000])
def test_what_was_committed_decides_between_a_tear_and_damage(disk: MemoryDisk, committed: int) -> None:
    log, written = grown(disk)
    victim = log.segments[-2]
    disk.flip(victim.handle.path, victim.size // 2)
    again = open_log(disk, config=SMALL, committed=committed)
    if committed:
        assert [hole.start_offset for hole in again.holes] == [victim.base_offset]
        assert again.end_offset == log.end_offset
    else:
        kept = read_all(again)
        assert not again.holes and kept == written[: len(kept)]
        assert victim.base_offset <= again.end_offset < log.active.base_offset
        assert disk.exists(log.active.handle.path + ".cut")


def test_a_damaged_first_segment_keeps_the_start_of_the_log(disk: MemoryDisk) -> None:
    grown(disk)
    disk.flip(LOG0, 100)
    again = open_log(disk, config=SMALL)
    assert again.log_start_offset == 0
    with pytest.raises(KafkaError) as caught:
        again.read(0, 1 << 20, again.end_offset)
    assert caught.value.error is Err.KAFKA_STORAGE_ERROR


DAMAGE = {
    "missing": None,
    "empty": lambda data: b"",
    "short by a byte": lambda data: data[:-1],
    "half an entry": lambda data: data[: len(data) // 2 + 3],
    "zeroed": lambda data: bytes(len(data)),
    "zeroed at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "padded as Kafka preallocates": lambda data: data + bytes(24 * 100),
    "stale": lambda data: data[: len(data) // 24 * 12 // 12 * 12],
    "noise": lambda data: random.Random(3).randbytes(len(data)),
    "all ones": lambda data: b"\xff" * len(data),
    "of another segment": lambda data: bytes(reversed(data)),
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_indexes_change_no_answer(disk: MemoryDisk, kind: str, suffix: str, clean: bool) -> None:
    log, written = grown(disk, 60)
    for name in disk.list(FOLDER):
        if name.endswith(suffix):
            path = f"{FOLDER}/{name}"
            data = disk.read_bytes(path)
            disk.remove(path)
            change = DAMAGE[kind]
            if change is not None:
                disk.open(path, create=True).append(change(data))
    again = open_log(disk, clean=clean, config=SMALL, recovery_point=log.end_offset if clean else 0)
    for at, data in enumerate(written):
        for offset in offsets([data]):
            part = again.read(offset, 1, again.end_offset)
            assert part is not None and part.read() == data, offset
            part.release()
            assert again.read(offset, 1 << 20, offsets([data])[0]) is None
        found = again.offset_for_timestamp(1000 + 7 * at, again.end_offset)
        assert found is not None and found.offset == offsets([data])[0]
    assert [segment.max_timestamp for segment in again.segments] == [segment.max_timestamp for segment in log.segments]


def test_recovery_builds_the_indexes_a_clean_stop_would_have_written(disk: MemoryDisk) -> None:
    log, _ = grown(disk, close=False)
    twin = disk.fork()
    log.close()
    open_log(twin, config=SMALL).close()
    ours, theirs = disk.tree(), twin.tree()
    for path in ours:
        if path.endswith((".index", ".timeindex", ".log")):
            assert theirs[path] == ours[path], path


def test_leftovers_are_cleared_and_strangers_left_alone(disk: MemoryDisk) -> None:
    grown(disk, 3, LogConfig())
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000007.index",
        "00000000000000000007.timeindex",
        "00000000000000000007.txnindex",
        "notes.txt",
    ):
        disk.open(f"{FOLDER}/{name}", create=True).append(b"x" * 24)
    again = open_log(disk)
    assert offsets(read_all(again)) == [0, 1, 2, 3, 4, 5]
    names = disk.list(FOLDER)
    assert "notes.txt" in names
    assert not [name for name in names if name.endswith(".deleted") or name.startswith("00000000000000000007")]


def test_messages_from_before_kafka_0_11_are_never_cut_off(disk: MemoryDisk) -> None:
    grown(disk, 1, LogConfig(), close=False)
    old = bytes(8) + (40).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(60)
    disk.open(LOG0).write_at(old, 0)
    with pytest.raises(OldFormat):
        open_log(disk)
    assert disk.read_bytes(LOG0).startswith(old)


def test_a_start_above_the_end_begins_anew_there(disk: MemoryDisk) -> None:
    grown(disk, 3, LogConfig())
    again = open_log(disk, log_start=100)
    assert (again.log_start_offset, again.end_offset) == (100, 100)
    append(again)
    assert offsets(read_all(again)) == [100]


def test_a_log_closed_in_order_but_damaged_since_is_checked(disk: MemoryDisk) -> None:
    _, written = grown(disk, 5, LogConfig())
    disk.open(LOG0).truncate(disk.size(LOG0) - 1)
    again = open_log(disk, clean=True)
    assert read_all(again) == written[:-1]
    assert not again.recovery.clean
    assert "damaged" in again.recovery.lines[0]


def transaction(log: Log, producer_id: int, *, commit: bool, count: int = 2) -> None:
    """A transaction of `count` batches and its marker, as a follower gets them."""
    for at in range(count):
        data = batch(
            log.end_offset, 2, producer_id=producer_id, producer_epoch=0, base_sequence=2 * at, transactional=True
        )
        log.append_batches(data, 1000)
    log.append_batches(
        encode_marker(
            Marker(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=1000, base_offset=log.end_offset
        ),
        1000,
    )


@pytest.mark.parametrize("loss", ["none", "snapshots", "txnindex", "torn snapshots"])
def test_transactions_are_found_again(disk: MemoryDisk, loss: str) -> None:
    log = open_log(disk, config=SMALL)
    for producer_id in range(12):
        transaction(log, producer_id, commit=producer_id % 3 != 0)
    open_first = log.end_offset
    log.append_batches(batch(open_first, producer_id=99, producer_epoch=3, base_sequence=0, transactional=True), 1000)
    assert len(log.segments) > 3
    known = log.producers.describe()
    aborted = log.aborted_transactions(0, log.end_offset)
    assert [producer_id for producer_id, _ in aborted] == [0, 3, 6, 9]
    for name in disk.list(FOLDER):
        if loss == "snapshots" and name.endswith(".snapshot"):
            disk.remove(f"{FOLDER}/{name}")
        if loss == "torn snapshots" and name.endswith(".snapshot"):
            disk.open(f"{FOLDER}/{name}").truncate(disk.size(f"{FOLDER}/{name}") // 2)
        if loss == "txnindex" and name.endswith(".txnindex"):
            disk.remove(f"{FOLDER}/{name}")
    again = open_log(disk, config=SMALL)
    assert again.aborted_transactions(0, log.end_offset) == aborted
    assert again.producers.describe() == known
    assert again.producers.first_undecided_offset == open_first
    again.close()
    third = open_log(disk, config=SMALL, clean=True)
    assert third.producers.describe() == known
    assert third.aborted_transactions(aborted[1][1], aborted[2][1]) == [aborted[1]]


def test_a_damaged_transaction_index_is_built_again(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for producer_id in range(12):
        transaction(log, producer_id, commit=False)
    aborted = log.aborted_transactions(0, log.end_offset)
    log.close()
    for name in disk.list(FOLDER):
        if name.endswith(".txnindex"):
            size = disk.size(f"{FOLDER}/{name}")
            disk.open(f"{FOLDER}/{name}").write_at(b"\xff" * size, 0)
    again = open_log(disk, config=SMALL, clean=True)
    assert again.aborted_transactions(0, log.end_offset) == aborted


def test_truncation_takes_back_what_producers_did(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    states = []
    for producer_id in range(8):
        states.append((log.end_offset, log.producers.describe(), log.aborted_transactions(0, log.end_offset)))
        transaction(log, producer_id, commit=False)
    for end_offset, known, aborted in reversed(states):
        log.truncate_to(end_offset)
        assert log.end_offset == end_offset
        assert log.producers.describe() == known
        assert log.aborted_transactions(0, 10_000) == aborted


def test_a_scrub_finds_what_readers_would_not(disk: MemoryDisk) -> None:
    log, _ = grown(disk)
    victim = log.segments[1]
    assert all(verify_file(disk, s.handle.path, s.base_offset, s.size) is None for s in log.segments)
    disk.flip(victim.handle.path, victim.size - 1)
    again = open_log(disk, clean=True, config=SMALL)
    victim = again.segments[1]
    after = again.segments[2].base_offset
    assert again.read(victim.base_offset, 1 << 20, again.end_offset) is not None
    reason = verify_file(disk, victim.handle.path, victim.base_offset, victim.size)
    assert reason is not None and "CRC" in reason
    again.set_aside(victim, reason)
    with pytest.raises(KafkaError) as caught:
        again.read(victim.base_offset, 1 << 20, again.end_offset)
    assert caught.value.error is Err.KAFKA_STORAGE_ERROR
    assert disk.exists(again.holes[0].path)
    # A follower refetches from the hole on; the old file is kept, but no longer as a part of the log.
    again.truncate_to(victim.base_offset)
    assert again.holes == [] and again.end_offset == victim.base_offset
    while again.end_offset < after + 20:
        append(again, size=40)
    again.close()
    third = open_log(disk, clean=True, config=SMALL)
    assert third.holes == [] and offsets(read_all(third)) == list(range(third.end_offset))
    assert [name for name in disk.list(FOLDER) if name.endswith(".log.cut")]


def test_a_file_that_has_become_shorter_at_a_batch_is_told_and_not_read_for_ever() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log)
    kept = log.segments[-1].size
    append(log)
    segment = log.segments[-1]
    segment.handle.open().truncate(kept)
    assert verify_file(disk, segment.handle.path, segment.base_offset, segment.size) == f"{SHORTER} at byte {kept}"


def test_a_reader_that_meets_garbage_sets_the_segment_aside(disk: MemoryDisk) -> None:
    log, _ = grown(disk)
    victim = log.segments[1]
    disk.open(victim.handle.path).write_at(b"\xff" * 40, 0)
    again = open_log(disk, clean=True, config=SMALL)
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            again.read(victim.base_offset, 1 << 20, again.end_offset)
        assert caught.value.error is Err.KAFKA_STORAGE_ERROR
    assert [hole.start_offset for hole in again.holes] == [victim.base_offset]
    assert disk.exists(victim.handle.path + ".corrupt")
    again.apply_retention(again.end_offset, 1000)


def test_a_segment_whose_predecessor_lost_its_end_is_cut_off(disk: MemoryDisk) -> None:
    log, written = grown(disk, close=False)
    before = log.segments[-2]
    last = before.last_batch()
    assert last is not None
    position, header = last
    disk.open(before.handle.path).truncate(position)
    again = open_log(disk, config=SMALL, recovery_point=before.base_offset)
    assert again.end_offset == header.base_offset and not again.holes
    kept = read_all(again)
    assert kept == written[: len(kept)]
    assert disk.exists(log.active.handle.path + ".cut")


def test_a_clean_open_touches_only_the_last_segment_and_the_manifest() -> None:
    disk = MemoryDisk(now_ms=count().__next__)
    log, _ = grown(disk, 200)
    assert len(log.segments) > 40
    touched: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            method = getattr(disk, name)

            def call(path: str, *args: object, **options: object) -> object:
                if name in ("open", "read_bytes", "exists", "remove", "rename", "replace_bytes"):
                    touched.append(path)
                return method(path, *args, **options)

            return call

    again = open_log(Watched(), clean=True, config=SMALL, manifest_trusted=True)  # type: ignore[arg-type]
    active = f"{again.active.base_offset:020d}"
    end = f"{again.end_offset:020d}.snapshot"
    small = ("leader-epoch-checkpoint", "partition.metadata", ".headrace_segments", end)
    assert [path for path in touched if active not in path and not path.endswith(small) and path != FOLDER] == []
    assert len(touched) < 12
