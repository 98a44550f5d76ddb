"""Segments that somebody removes, cuts, swaps or puts back from an older copy: noticed, reported, and never stepped
over."""

from collections.abc import Callable
from itertools import count

import pytest

from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.records.layout import iter_headers
from headrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, decode_offsets, encode_offsets
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.storage.manifest import MANIFEST, CorruptManifest, Entry, Manifest, entry_of
from headrace.testing.simulator.disk import MemoryDisk

from .helpers import append, offsets, read_all

TOPIC_ID = bytes(15) + b"\1"
FOLDER = "/data/t-0"
END = 24
PLAIN = LogConfig(segment_bytes=500, index_interval_bytes=120)
COMPACT = LogConfig(segment_bytes=500, index_interval_bytes=120, compact=True, delete=False)
Damage = Callable[[MemoryDisk], None]


def start(disk: MemoryDisk, config: LogConfig = PLAIN) -> LogManager:
    manager = LogManager(disk, ["/data"], node_id=1, config_of=lambda topic: config)
    manager.open()
    list(manager.load(1000))
    return manager


def log_of(manager: LogManager) -> Log:
    log = manager.get("t", 0)
    assert log is not None, (manager.offline, manager.missing)
    return log


def stop(manager: LogManager, *, clean: bool = True) -> None:
    marks = {(log.topic, log.partition): log.end_offset for log in manager.logs.values()}
    if clean:
        manager.close(high_watermarks=marks)
        return
    for log in manager.logs.values():
        log.flush()
    manager.checkpoint_plan(marks).run()
    assert isinstance(manager.disk, MemoryDisk)
    manager.disk.kill()


def written(config: LogConfig = PLAIN, *, clean: bool = True) -> MemoryDisk:
    """Two partitions of six segments each, four records in every one."""
    disk = MemoryDisk(now_ms=count().__next__)
    manager = start(disk, config)
    for partition in range(2):
        log = manager.create("t", partition, TOPIC_ID, 1000)
        while log.end_offset < END:
            append(log, 1, size=40, timestamp=1000 + 100 * partition)
        assert [segment.base_offset for segment in log.segments] == [0, 4, 8, 12, 16, 20]
    stop(manager, clean=clean)
    return disk


def path(base: int, suffix: str = ".log", partition: int = 0) -> str:
    return f"/data/t-{partition}/{base:020d}{suffix}"


def holes(log: Log) -> list[tuple[int, int]]:
    return sorted((hole.start_offset, hole.end_offset) for hole in log.holes)


def readable(log: Log) -> list[int]:
    """Every offset that can be read, each asked for by itself; where there is an error, there is none."""
    found = []
    for offset in range(log.log_start_offset, log.end_offset):
        try:
            piece = log.read(offset, 1 << 20, log.end_offset)
        except KafkaError as error:
            assert "STORAGE" in str(error)
            continue
        if piece is not None:
            _, header = next(iter_headers(piece.read()))
            piece.release()
            assert header.base_offset == offset, "a reader was led over a hole"
            found.append(offset)
    return found


def cut(base: int, keep: float) -> Damage:
    def damage(disk: MemoryDisk) -> None:
        disk.open(path(base)).truncate(int(disk.size(path(base)) * keep))

    return damage


def remove(*bases: int) -> Damage:
    def damage(disk: MemoryDisk) -> None:
        for base in bases:
            disk.remove(path(base))

    return damage


def exchange(disk: MemoryDisk) -> None:
    disk.rename(path(4), "/data/aside")
    disk.rename(path(8), path(4))
    disk.rename("/data/aside", path(8))


def from_another_partition(disk: MemoryDisk) -> None:
    put(disk, path(8), disk.read_bytes(path(8, partition=1)))


def put(disk: MemoryDisk, name: str, data: bytes) -> None:
    file = disk.open(name, create=True)
    file.truncate(0)
    file.append(data)


DAMAGES: dict[str, tuple[Damage, list[tuple[int, int]]]] = {
    "the second of six": (remove(4), [(4, 8)]),
    "two in the middle": (remove(8, 12), [(8, 12), (12, 16)]),
    "the first": (remove(0), [(0, 4)]),
    "the first two": (remove(0, 4), [(0, 4), (4, 8)]),
    "cut at a batch": (cut(8, 0.5), [(10, 12)]),
    "cut within a batch": (cut(8, 0.6), [(10, 12)]),
    "emptied": (cut(8, 0), [(8, 12)]),
    "exchanged names": (exchange, [(4, 8), (8, 12)]),
    "another partition's": (from_another_partition, [(8, 12)]),
}


@pytest.mark.parametrize("config", [PLAIN, COMPACT], ids=["plain", "compact"])
@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_missing_in_the_middle_is_a_hole(kind: str, clean: bool, config: LogConfig) -> None:
    damage, expected = DAMAGES[kind]
    disk = written(config, clean=clean)
    backup = disk.fork()
    damage(disk)
    missing = {offset for first, last in expected for offset in range(first, last)}
    for again in range(3):
        manager = start(disk, config)
        log = log_of(manager)
        assert holes(log) == expected, log.recovery.lines
        assert log.log_start_offset == 0 and log.end_offset == END
        assert readable(log) == [offset for offset in range(END) if offset not in missing]
        assert log.recovery.quarantined == (again == 0) and manager.whole_since() == -1
        assert ("restore" in " ".join(manager.notes)) == (again == 0)
        stop(manager, clean=again == 1)
    # Put back from a backup, it is whole again.
    for base in (0, 4, 8, 12):
        put(disk, path(base), backup.read_bytes(path(base)))
    log = log_of(start(disk, config))
    assert holes(log) == [] and offsets(read_all(log)) == list(range(END))
    assert not any(name.endswith(".corrupt") for name in disk.list(FOLDER))


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize(
    ("damage", "end"),
    [(remove(20), 20), (remove(12, 16, 20), 12), (cut(20, 0.5), 22), (cut(20, 0.3), 21), (cut(20, 0), 20)],
)
def test_a_log_that_lost_its_end_knows_where_it_was(damage: Damage, end: int, clean: bool) -> None:
    disk = written(clean=clean)
    damage(disk)
    manager = start(disk)
    log = log_of(manager)
    assert (log.end_offset, log.recovery.synced_end) == (end, END if clean else max(20, log.recovery.synced_end))
    assert offsets(read_all(log)) == list(range(end)) and manager.whole_since() == -1
    # Nobody else has it: it goes on behind, and offsets are not given twice.
    log.leave_end(END, 2000)
    append(log, 2)
    for again in range(3):
        assert holes(log) == [(end, END)] and log.end_offset == END + 2 + again
        with pytest.raises(KafkaError, match="STORAGE"):
            log.read(END - 1, 1000, log.end_offset)
        assert offsets(read_all(log, end)) == list(range(end))
        append(log)
        stop(manager, clean=again == 1)
        manager = start(disk)
        log = log_of(manager)


def test_an_end_that_is_put_back_is_part_of_the_log_again() -> None:
    disk = written()
    backup = disk.fork()
    remove(12, 16, 20)(disk)
    manager = start(disk)
    log_of(manager).leave_end(END, 2000)
    append(log_of(manager))
    stop(manager)
    put(disk, path(12), backup.read_bytes(path(12)))
    manager = start(disk)
    assert holes(log_of(manager)) == [(16, END)] and readable(log_of(manager)) == [*range(16), END]
    stop(manager)
    for base in (16, 20):
        put(disk, path(base), backup.read_bytes(path(base)))
    log = log_of(start(disk))
    assert holes(log) == [] and offsets(read_all(log)) == list(range(END + 1))


def test_all_that_is_gone_is_missed() -> None:
    disk = written()
    remove(0, 4, 8, 12, 16, 20)(disk)
    manager = start(disk)
    assert manager.get("t", 0) is None and manager.missing["t", 0].vouched_end == END


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_an_older_copy_of_the_folder_is_missed_what_came_later(clean: bool) -> None:
    disk = written(clean=clean)
    manager = start(disk)
    older = {name: disk.read_bytes(f"{FOLDER}/{name}") for name in disk.list(FOLDER)}
    log = log_of(manager)
    while log.end_offset < 40:
        append(log, 1, size=40)
    stop(manager, clean=clean)
    for name in disk.list(FOLDER):
        disk.remove(f"{FOLDER}/{name}")
    for name, data in older.items():
        put(disk, f"{FOLDER}/{name}", data)
    log = log_of(start(disk))
    assert (log.end_offset, log.recovery.synced_end) == (END, 40 if clean else max(36, log.recovery.synced_end))


def test_who_removes_the_place_gives_the_records_up() -> None:
    disk = written()
    remove(4)(disk)
    stop(start(disk))
    disk.remove(path(4, ".log.corrupt"))
    manager = start(disk)
    assert holes(log_of(manager)) == [] and "given up" in " ".join(manager.notes)
    stop(manager)
    manager = start(disk)
    assert offsets(read_all(log_of(manager))) == [*range(4), *range(8, END)] and not manager.notes


def test_records_deleted_up_to_a_hole_end_it() -> None:
    disk = written()
    remove(0, 4)(disk)
    manager = start(disk)
    log_of(manager).advance_log_start(8)
    assert holes(log_of(manager)) == []
    stop(manager, clean=False)
    log = log_of(start(disk))
    assert holes(log) == [] and log.log_start_offset == 8 and offsets(read_all(log)) == list(range(8, END))


def test_a_copy_under_another_name_is_no_segment() -> None:
    disk = written()
    put(disk, path(6), disk.read_bytes(path(4)))
    log = log_of(start(disk))
    assert offsets(read_all(log)) == list(range(END)) and holes(log) == []


def test_bytes_behind_a_closed_segment_do_not_count() -> None:
    disk = written()
    disk.open(path(8)).append(b"more")
    log = log_of(start(disk))
    assert offsets(read_all(log)) == list(range(END)) and holes(log) == []


# ---- without a manifest that can be believed


def touched_by_kafka(disk: MemoryDisk) -> None:
    """Apache Kafka writes checkpoints with blanks."""
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        put(disk, f"/data/{name}", encode_offsets(decode_offsets(disk.read_bytes(f"/data/{name}"))))


def without_manifest(disk: MemoryDisk) -> None:
    for partition in range(2):
        disk.remove(f"/data/t-{partition}/{MANIFEST}")


def with_a_rotten_manifest(disk: MemoryDisk) -> None:
    disk.flip(f"{FOLDER}/{MANIFEST}", 30)


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("unknown", [touched_by_kafka, without_manifest, with_a_rotten_manifest])
@pytest.mark.parametrize(
    "kind", [kind for kind in DAMAGES if kind not in ("the first", "the first two", "another partition's")]
)
def test_segments_have_to_join_all_the_same(kind: str, unknown: Damage, clean: bool) -> None:
    damage, expected = DAMAGES[kind]
    disk = written(clean=clean)
    unknown(disk)
    damage(disk)
    log = log_of(start(disk))
    missing = {offset for first, last in expected for offset in range(first, last)}
    if kind == "cut within a batch":
        missing |= {8, 9}  # the whole segment is set aside
    assert set(readable(log)) == set(range(END)) - missing, log.recovery.lines
    assert log.holes and log.recovery.quarantined


def test_what_kafka_has_deleted_and_compacted_since_is_not_missed() -> None:
    disk = written(COMPACT)
    touched_by_kafka(disk)
    remove(0, 8, 12)(disk)
    log = log_of(start(disk, COMPACT))
    assert holes(log) == [] and offsets(read_all(log)) == [*range(4, 8), *range(16, END)]
    # And from here on it is known.
    disk = written()
    touched_by_kafka(disk)
    remove(0, 4)(disk)
    manager = start(disk)
    assert holes(log_of(manager)) == [] and log_of(manager).log_start_offset == 8
    stop(manager)
    remove(12)(disk)
    assert holes(log_of(start(disk))) == [(12, 16)]


def test_a_manifest_of_before_kafka_ran_is_gone_before_anybody_believes_it() -> None:
    """Even where the log cannot be opened this time."""
    disk = written()
    touched_by_kafka(disk)
    remove(0, 4)(disk)
    broken = disk.fail("open", path="*/t-0/*20.log")
    manager = start(disk)
    assert ("t", 0) in manager.offline
    stop(manager, clean=False)
    broken.times = 0
    assert holes(log_of(start(disk))) == []


def test_gaps_of_a_log_that_was_compacted_once_are_no_holes() -> None:
    """A copy of such a log has gaps within its segments, too, and nothing else tells that it was compacted."""
    disk = MemoryDisk(now_ms=count().__next__)
    manager = start(disk)
    log = manager.create("t", 0, TOPIC_ID, 1000)
    for at in range(24):
        log.end_offset = 10 * at
        append(log, 1, size=40)
    stop(manager)
    without = [name for name in disk.list(FOLDER) if name == MANIFEST]
    for name in without:
        disk.remove(f"{FOLDER}/{name}")
    found = log_of(start(disk))
    assert holes(found) == [] and offsets(read_all(found)) == [10 * at for at in range(24)]


# ---- the file itself


def test_a_manifest_is_read_as_it_was_written() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/f")
    manifest = Manifest(5)
    entries = [Entry(5, 10, 100, 1, 2, 3), Entry(10, 12, 7, 4, 5, 6), Entry(12, 20, -1, 0, 0, 0, lost=True)]
    for entry in entries:
        manifest.add(entry)
        manifest.save(disk, "/f")
    manifest.begin_swap(Entry(5, 12, 50, 7, 8, 9))
    manifest.save(disk, "/f")
    found = Manifest.decode(disk.read_bytes(f"/f/{MANIFEST}"))
    assert (found.start, found.entries, found.swap) == (5, entries, Entry(5, 12, 50, 7, 8, 9)) and not found.is_dirty


def test_a_damaged_manifest_never_says_more_than_it_did() -> None:
    """Whatever byte is lost or turned: either it is refused, or it says a part of what it said."""
    disk = MemoryDisk()
    disk.make_dirs("/f")
    manifest = Manifest(0)
    for base in range(0, 60, 10):
        manifest.add(Entry(base, base + 10, 100, base, base, base))
        manifest.save(disk, "/f")
    data = disk.read_bytes(f"/f/{MANIFEST}")
    damaged = [data[:at] for at in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]
    refused = 0
    for changed in damaged:
        try:
            found = Manifest.decode(changed).entries
        except CorruptManifest:
            refused += 1
            continue
        assert found == manifest.entries[: len(found)]
    assert 0 < refused < len(damaged)


def test_a_full_disk_takes_the_manifest_and_not_the_log() -> None:
    disk = written()
    manager = start(disk)
    disk.capacity_bytes = disk.used_bytes()
    log_of(manager).truncate_to(9)
    disk.capacity_bytes = None
    assert not disk.exists(f"{FOLDER}/{MANIFEST}")
    append(log_of(manager), 1, size=300)
    append(log_of(manager), 1, size=300)
    stop(manager, clean=False)
    log = log_of(start(disk))
    assert holes(log) == [] and log.end_offset == 11 and disk.exists(f"{FOLDER}/{MANIFEST}")


def test_a_segment_that_is_put_back_at_its_place_needs_no_more() -> None:
    """As a repair does: the same bytes under the same name."""
    disk = written()
    manager = start(disk)
    log = log_of(manager)
    entry = log.manifest.get(8)
    log.set_aside(log.segments[2], "by a test")
    assert holes(log) == [(8, 12)]
    stop(manager)
    manager = start(disk)
    assert holes(log_of(manager)) == [(8, 12)]
    stop(manager)
    put(disk, path(8), disk.read_bytes(path(8, ".log.corrupt")))
    log = log_of(start(disk))
    assert holes(log) == [] and log.manifest.get(8) is not None and entry is not None
    again = entry_of(disk, path(8), 8, 12, entry.size)
    assert (again.head, again.tail) == (entry.head, entry.tail) and disk.exists(path(8, ".log.cut"))


def test_another_logs_segment_is_nothing_to_mend_from() -> None:
    """What is left of a `.corrupt` segment is read again: whole batches with fitting offsets, which those of another
    log are."""
    disk = written()
    foreign = disk.read_bytes(path(8, partition=1))
    disk.replace_bytes(path(8), foreign)
    log = log_of(start(disk))
    assert holes(log) == [(8, 12)]
    assert disk.read_bytes(path(8, ".log.corrupt")) == b"", "an empty file keeps the place"
    assert disk.read_bytes(path(8, ".log.cut")) == foreign


def test_a_segment_with_damage_in_it_is_mended_from() -> None:
    large = LogConfig(segment_bytes=9000, index_interval_bytes=120)
    disk = MemoryDisk(now_ms=count().__next__)
    manager = start(disk, large)
    log = manager.create("t", 0, TOPIC_ID, 1000)
    while len(log.segments) < 3:
        append(log, 1, size=400)
    second = log.segments[1].base_offset
    stop(manager)
    data = bytearray(disk.read_bytes(path(0)))
    data[20] ^= 1  # within what the manifest has a checksum of
    disk.replace_bytes(path(0), bytes(data))
    log = log_of(start(disk, large))
    assert holes(log) == [(0, second)]
    assert disk.read_bytes(path(0, ".log.corrupt")) == data


def test_what_a_compaction_has_replaced_says_nothing_about_what_is_in_its_place() -> None:
    """Its files stay under the same name with `.deleted` behind it for a minute, as those do that retention deletes."""
    disk = written(COMPACT)
    put(disk, path(0, ".log.deleted"), disk.read_bytes(path(0)) + disk.read_bytes(path(4)))
    disk.remove(path(0))
    log = log_of(start(disk, COMPACT))
    assert log.log_start_offset == 0 and holes(log) == [(0, 4)]


def test_a_deletion_that_was_interrupted_is_no_loss() -> None:
    disk = written()
    disk.rename(path(0), path(0, ".log.deleted"))
    log = log_of(start(disk))
    assert log.log_start_offset == 4 and holes(log) == [] and readable(log) == list(range(4, END))


def test_a_log_that_is_gone_removes_nothing_of_the_next_one_of_its_name() -> None:
    """1. Segments of a log are deleted, their files not yet. 2. So is its topic, and made anew. 3. Segments of the new
    one are deleted: only the names of their files say so. 4. The files of the first log are due. 5. The process is
    killed."""
    disk = written()
    manager = start(disk)
    old = log_of(manager)
    doomed = old.delete_segments(2, 1000)
    manager.remove_folder(manager.remove(old))
    log = manager.create("t", 0, bytes(15) + b"\2", 1000)
    while log.end_offset < END:
        append(log, 1, size=40)
    log.flush()
    manager.checkpoint_plan({("t", 0): END}).run()
    log.delete_segments(2, 1000)
    old.forget_deleted(doomed)
    disk.kill()
    manager = start(disk)
    assert holes(log_of(manager)) == [] and not manager.lost
    assert readable(log_of(manager)) == list(range(8, END))


@pytest.mark.parametrize("cut_at", [17, 18, 19])
def test_an_end_that_was_cut_off_and_comes_back_is_not_there_beside_what_was_written_instead(cut_at: int) -> None:
    """1. A log is cut in the middle of a segment. 2. The next batch begins a new one. 3. A power cut undoes the cut,
    but not the new segment. Offsets of the old end would be there twice, and readers from before it would get the wrong
    ones."""
    disk = written()
    manager = start(disk)
    log = log_of(manager)
    manager.truncate_to({log: 20}).run()
    before = disk.read_bytes(path(16))
    manager.truncate_to({log: cut_at}).run()
    log.roll(1000)
    append(log, 1, size=40, epoch=1)
    disk.kill()
    file = disk.open(path(16))
    file.truncate(0)
    file.append(before)
    file.close()
    found = offsets(read_all(log_of(start(disk))))
    assert found == list(range(len(found))) and len(found) >= cut_at


def test_a_deletion_that_a_power_cut_undid_in_part_leaves_no_hole() -> None:
    """Two segments are deleted, the second of which was closed after the last sync. The name of the first comes
    back."""
    disk = MemoryDisk(now_ms=count().__next__)
    manager = start(disk)
    log = manager.create("t", 0, TOPIC_ID, 1000)
    while log.end_offset < 5:
        append(log, 1, size=40)
    log.flush()
    while log.end_offset < 10:
        append(log, 1, size=40)
    manager.checkpoint_plan({("t", 0): 10}).run()
    log.delete_segments(2, 1000)
    disk.kill()
    disk.rename(path(0, ".log.deleted"), path(0))
    manager = start(disk)
    assert holes(log_of(manager)) == [] and not manager.lost
    assert readable(log_of(manager)) == [8, 9]
