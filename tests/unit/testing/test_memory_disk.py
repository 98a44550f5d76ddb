"""The fault disk itself: if it forgave too much, every durability test above it would be worthless."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from headrace.storage.files import Disk
from headrace.testing.simulator.disk import CrashMode, MemoryDisk, PowerCut
from headrace.testing.simulator.pages import SECTOR_BYTES


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.sync_all()
    return disk


def outcomes(disk: MemoryDisk, path: str, seeds: int = 300, mode: CrashMode = CrashMode.RANDOM) -> set[bytes | None]:
    """What may be found at `path` after a power cut now."""
    found: set[bytes | None] = set()
    for seed in range(seeds):
        twin = disk.fork()
        twin.crash(Random(seed), mode)
        found.add(twin.tree().get(path))
    return found


def synced_file(disk: MemoryDisk, path: str, data: bytes = b"") -> None:
    file = disk.open(path, create=True)
    file.append(data)
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])


def test_it_is_a_disk(disk: MemoryDisk) -> None:
    typed: Disk = disk
    assert typed.open("/data/a", create=True).fd == -1


def test_reads_and_writes_like_a_file(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    file.append(b"hello")
    file.append(memoryview(b" world"))
    file.write_at(b"J", 0)
    assert file.read(100, 0) == b"Jello world"
    assert file.read(3, 6) == b"wor"
    assert file.read(3, 50) == b""
    file.truncate(5)
    file.append(bytearray(b"!"))
    assert disk.read_bytes("/data/a") == b"Jello!"
    assert disk.size("/data/a") == file.size() == 6
    file.truncate(8)
    assert disk.read_bytes("/data/a") == b"Jello!\0\0"
    file.write_at(b"x", 10)
    assert disk.read_bytes("/data/a") == b"Jello!\0\0\0\0x"


def test_wide_memoryviews_are_counted_in_bytes(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    file.append(memoryview(bytes(range(8))).cast("I"))
    assert file.size() == 8


@pytest.mark.parametrize(
    ("call", "number"),
    [
        (lambda d: d.open("/data/none"), errno.ENOENT),
        (lambda d: d.open("/none/a", create=True), errno.ENOENT),
        (lambda d: d.open("/data"), errno.EISDIR),
        (lambda d: d.list("/data/f"), errno.ENOTDIR),
        (lambda d: d.list("/none"), errno.ENOENT),
        (lambda d: d.size("/none"), errno.ENOENT),
        (lambda d: d.modified_ms("/none"), errno.ENOENT),
        (lambda d: d.remove("/none"), errno.ENOENT),
        (lambda d: d.remove("/data/full"), errno.EISDIR),
        (lambda d: d.remove_tree("/none"), errno.ENOENT),
        (lambda d: d.rename("/none", "/x"), errno.ENOENT),
        (lambda d: d.rename("/data/f", "/data/full"), errno.EISDIR),
        (lambda d: d.rename("/data/full", "/data/f"), errno.ENOTDIR),
        (lambda d: d.rename("/data/empty", "/data/full"), errno.ENOTEMPTY),
        (lambda d: d.rename("/data", "/data/inside"), errno.EINVAL),
        (lambda d: d.make_dirs("/data/f/g"), errno.ENOTDIR),
        (lambda d: d.sync_dir("/none"), errno.ENOENT),
        (lambda d: d.open("relative", create=True), errno.EINVAL),
        (lambda d: d.open("/data/f", readonly=True).append(b"x"), errno.EBADF),
    ],
)
def test_errors_are_the_kernels(disk: MemoryDisk, call: object, number: int) -> None:
    disk.make_dirs("/data/full/child")
    disk.make_dirs("/data/empty")
    disk.open("/data/f", create=True)
    with pytest.raises(OSError) as caught:
        call(disk)  # type: ignore[operator]
    assert caught.value.errno == number


def test_closed_file_is_closed(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.append(b"x")


def test_names_rename_and_remove(disk: MemoryDisk) -> None:
    disk.make_dirs("/data/t-0/deep")
    disk.open("/data/t-0/b", create=True).append(b"1")
    disk.open("/data/t-0/a", create=True)
    assert disk.list("/data/t-0") == ["a", "b", "deep"]
    disk.rename("/data/t-0", "/data/t-1")
    assert not disk.exists("/data/t-0")
    assert disk.read_bytes("/data/t-1/b") == b"1"
    disk.rename("/data/t-1/b", "/data/t-1/a")
    assert disk.list("/data/t-1") == ["a", "deep"]
    assert disk.read_bytes("/data/t-1/a") == b"1"
    disk.remove_tree("/data/t-1")
    assert disk.list("/data") == []
    assert disk.is_dir("/data") and not disk.is_dir("/data/t-1")


def test_handle_outlives_its_name(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    file.append(b"abc")
    disk.remove("/data/a")
    assert file.read(3, 0) == b"abc"
    disk.open("/data/a", create=True).append(b"new")
    assert file.read(3, 0) == b"abc"


def test_modification_time_follows_the_clock() -> None:
    now = [5]
    disk = MemoryDisk(now_ms=lambda: now[0])
    file = disk.open("/a", create=True)
    assert disk.modified_ms("/a") == 5
    now[0] = 9
    file.append(b"x")
    assert disk.modified_ms("/a") == 9


def test_synced_bytes_under_a_synced_name_survive_anything(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"kept")
    assert outcomes(disk, "/data/a") == {b"kept"}
    assert disk.durable_bytes("/data/a") == b"kept"


def test_unsynced_append_may_be_lost_kept_or_torn_but_never_invented(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"kept")
    disk.open("/data/a").append(b"TAIL")
    found = outcomes(disk, "/data/a")
    assert {b"kept", b"keptT", b"keptTA", b"keptTAI", b"keptTAIL"} <= found
    # The size may arrive before the bytes: a zero-filled tail.
    assert b"kept\0\0\0\0" in found
    for data in found:
        assert data is not None
        assert data[:4] == b"kept"
        assert b"keptTAIL".startswith(data) or data == b"kept\0\0\0\0"


def test_sectors_of_one_append_arrive_in_any_order(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a")
    disk.open("/data/a").append(b"A" * SECTOR_BYTES + b"B" * SECTOR_BYTES)
    hole_first = bytes(SECTOR_BYTES) + b"B" * SECTOR_BYTES
    assert hole_first in outcomes(disk, "/data/a")


def test_unsynced_truncation_may_be_undone_with_new_bytes_in_the_middle(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"0123456789")
    file = disk.open("/data/a")
    file.truncate(5)
    file.append(b"xy")
    found = outcomes(disk, "/data/a")
    assert {b"0123456789", b"01234", b"01234xy"} <= found
    # The block was rewritten in place before the new size was committed.
    assert b"01234xy\0\0\0" in found


def test_modes_without_dice(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"old")
    disk.open("/data/a").append(b"new")
    disk.open("/data/b", create=True).append(b"b")
    assert outcomes(disk, "/data/a", 3, CrashMode.LOSE) == {b"old"}
    assert outcomes(disk, "/data/b", 3, CrashMode.LOSE) == {None}
    assert outcomes(disk, "/data/a", 3, CrashMode.KEEP) == {b"oldnew"}
    assert outcomes(disk, "/data/b", 3, CrashMode.KEEP) == {b"b"}


def test_synced_file_without_synced_name_may_vanish(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    file.append(b"x")
    file.sync()
    assert outcomes(disk, "/data/a") == {None, b"x"}
    disk.sync_dir("/data")
    assert outcomes(disk, "/data/a") == {b"x"}


def test_synced_name_without_synced_bytes_may_be_empty(disk: MemoryDisk) -> None:
    disk.open("/data/a", create=True).append(b"x")
    disk.sync_dir("/data")
    assert outcomes(disk, "/data/a") == {b"", b"x", b"\0"}


def test_a_folder_sync_does_not_make_the_folder_itself_durable(disk: MemoryDisk) -> None:
    disk.make_dirs("/data/t-0")
    synced_file(disk, "/data/t-0/a", b"x")
    assert outcomes(disk, "/data/t-0/a") == {None, b"x"}
    disk.sync_dir("/data")
    assert outcomes(disk, "/data/t-0/a") == {b"x"}


def test_rename_is_atomic_and_undone_until_synced(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"old")
    synced_file(disk, "/data/a.tmp", b"new")
    disk.rename("/data/a.tmp", "/data/a")
    seen = set()
    for seed in range(50):
        twin = disk.fork()
        twin.crash(Random(seed))
        seen.add(tuple(sorted(twin.tree().items())))
    assert seen == {
        (("/data/a", b"new"),),
        (("/data/a", b"old"), ("/data/a.tmp", b"new")),
    }
    disk.sync_dir("/data")
    assert outcomes(disk, "/data/a") == {b"new"}


def test_rename_never_survives_the_loss_of_what_it_renames(disk: MemoryDisk) -> None:
    """Moved into a folder whose own creation is lost, a durable file must still be where it was."""
    synced_file(disk, "/data/a", b"x")
    disk.make_dirs("/data/new")
    disk.rename("/data/a", "/data/new/a")
    for seed in range(200):
        twin = disk.fork()
        twin.crash(Random(seed))
        assert list(twin.tree().values()) == [b"x"], seed


def test_removal_is_undone_until_synced(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"x")
    disk.remove("/data/a")
    assert outcomes(disk, "/data/a") == {None, b"x"}
    disk.sync_dir("/data")
    assert outcomes(disk, "/data/a") == {None}


def test_journaled_crash_keeps_a_prefix_of_names(disk: MemoryDisk) -> None:
    for name in "abcde":
        disk.open(f"/data/{name}", create=True)
    seen = set()
    for seed in range(200):
        twin = disk.fork()
        twin.crash(Random(seed), CrashMode.JOURNALED)
        seen.add("".join(twin.list("/data")))
    assert seen == {"", "a", "ab", "abc", "abcd", "abcde"}


def test_replace_bytes_is_old_or_new_at_every_step(disk: MemoryDisk) -> None:
    disk.replace_bytes("/data/a", b"old")
    steps = 0
    while True:
        for seed in range(60):
            twin = disk.fork()
            twin.cut_after(steps)
            try:
                twin.replace_bytes("/data/a", b"newer")
                done = True
            except PowerCut:
                done = False
            twin.crash(Random(seed))
            assert twin.read_bytes("/data/a") in ({b"newer"} if done else {b"old", b"newer"})
        if done:
            break
        steps += 1
    assert steps == 5  # create, append, sync, rename, sync_dir


def test_kill_keeps_what_was_written(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    file.append(b"x")
    disk.kill()
    assert disk.read_bytes("/data/a") == b"x"
    with pytest.raises(PowerCut):
        file.read(1, 0)
    # But it is no sync: a power cut after the restart still finds the bytes volatile.
    assert None in outcomes(disk, "/data/a")


def test_session_of_a_dead_process_cannot_touch_the_disk(disk: MemoryDisk) -> None:
    session = disk.session()
    session.replace_bytes("/data/a", b"x")
    disk.crash(Random(1))
    for call in (lambda: session.exists("/data/a"), lambda: session.remove("/data/a")):
        with pytest.raises(PowerCut):
            call()
    assert disk.session().read_bytes("/data/a") == b"x"


def test_power_off_stops_everything_until_the_reboot(disk: MemoryDisk) -> None:
    disk.power_off()
    for call in (lambda: disk.exists("/data"), lambda: disk.list("/data"), lambda: disk.open("/data/a", create=True)):
        with pytest.raises(PowerCut):
            call()
    disk.kill()
    assert disk.list("/data") == []


def test_locks_exclude_and_die_with_the_process(disk: MemoryDisk) -> None:
    lock = disk.lock("/data/.lock")
    assert lock is not None
    assert disk.lock("/data/.lock") is None
    disk.unlock(lock)
    assert disk.lock("/data/.lock") is not None
    disk.kill()
    assert disk.lock("/data/.lock") is not None


def test_full_disk_refuses_the_whole_append_and_recovers(disk: MemoryDisk) -> None:
    disk.capacity_bytes = 10
    file = disk.open("/data/a", create=True)
    file.append(b"12345678")
    with pytest.raises(OSError) as caught:
        file.append(b"abc")
    assert caught.value.errno == errno.ENOSPC
    assert disk.read_bytes("/data/a") == b"12345678"
    assert disk.free_bytes("/data") == (10, 2)
    file.write_at(b"x", 0)  # in place: needs no room
    file.append(b"ab")
    with pytest.raises(OSError):
        file.truncate(11)
    disk.capacity_bytes = 20
    file.append(b"abc")
    assert disk.read_bytes("/data/a") == b"x2345678ababc"


def test_what_a_refused_append_had_written_may_come_back_after_a_power_cut(disk: MemoryDisk) -> None:
    disk.capacity_bytes = 6
    synced_file(disk, "/data/a", b"1234")
    with pytest.raises(OSError):
        disk.open("/data/a").append(b"abc")
    assert {b"1234", b"1234ab"} <= outcomes(disk, "/data/a")


def test_nth_operation_fails_as_told(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    fault = disk.fail("append", errno.ENOSPC, path="*/a", skip=2, times=1)
    other = disk.open("/data/b", create=True)
    for data in (b"1", b"2"):
        file.append(data)
        other.append(data)
    with pytest.raises(OSError) as caught:
        file.append(b"3")
    assert caught.value.errno == errno.ENOSPC
    file.append(b"4")
    assert disk.read_bytes("/data/a") == b"124"
    assert fault.hits == 1


def test_predicates_choose_paths_and_faults_can_last(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"1")
    synced_file(disk, "/data/b", b"2")
    disk.fail("read", path=lambda path: path.endswith("/a"), times=None)
    for _ in range(3):
        with pytest.raises(OSError):
            disk.read_bytes("/data/a")
        assert disk.read_bytes("/data/b") == b"2"
    disk.faults.clear()
    assert disk.read_bytes("/data/a") == b"1"


@pytest.mark.parametrize("operation", ["open", "list", "rename", "remove", "sync_dir", "make_dirs", "truncate"])
def test_every_operation_can_fail(disk: MemoryDisk, operation: str) -> None:
    file = disk.open("/data/a", create=True)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open("/data/a"),
        "list": lambda: disk.list("/data"),
        "rename": lambda: disk.rename("/data/a", "/data/b"),
        "remove": lambda: disk.remove("/data/a"),
        "sync_dir": lambda: disk.sync_dir("/data"),
        "make_dirs": lambda: disk.make_dirs("/data/c"),
        "truncate": lambda: file.truncate(0),
    }
    disk.fail(operation, errno.EROFS)  # type: ignore[arg-type]
    before = disk.tree()
    with pytest.raises(OSError) as caught:
        calls[operation]()
    assert caught.value.errno == errno.EROFS
    assert disk.tree() == before
    calls[operation]()


def test_failed_sync_loses_the_bytes_though_later_syncs_succeed(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"old")
    file = disk.open("/data/a")
    file.append(b"LOST")
    disk.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert file.read(10, 0) == b"oldLOST"
    assert outcomes(disk, "/data/a") == {b"old"}
    file.append(b"later")
    file.sync()
    assert outcomes(disk, "/data/a") == {b"old\0\0\0\0later"}


def test_short_append_leaves_the_file_as_it_was(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"12")
    file = disk.open("/data/a")
    disk.fail("append", short=True)
    with pytest.raises(OSError):
        file.append(b"abcd")
    assert file.read(10, 0) == b"12"
    assert b"12ab" in outcomes(disk, "/data/a")


def test_short_overwrite_is_half_done(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"1234")
    file = disk.open("/data/a")
    disk.fail("write", short=True)
    with pytest.raises(OSError):
        file.write_at(b"abcd", 0)
    assert file.read(10, 0) == b"ab34"


def test_flipped_bit_is_seen_now_and_after_the_crash(disk: MemoryDisk) -> None:
    synced_file(disk, "/data/a", b"\0\0")
    disk.flip("/data/a", 1, bit=3)
    assert disk.read_bytes("/data/a") == b"\0\x08"
    assert outcomes(disk, "/data/a") == {b"\0\x08"}
    disk.open("/data/a").append(b"x")
    disk.flip("/data/a", 2)
    disk.open("/data/a").sync()
    assert outcomes(disk, "/data/a") == {b"\0\x08y"}
    with pytest.raises(IndexError):
        disk.flip("/data/a", 3)


def test_cut_after_counts_mutations_only(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    disk.cut_after(2)
    file.append(b"1")
    file.read(1, 0)
    disk.exists("/data/a")
    file.append(b"2")
    with pytest.raises(PowerCut):
        file.append(b"3")
    with pytest.raises(PowerCut):
        file.read(1, 0)
    disk.kill()
    assert disk.read_bytes("/data/a") == b"12"


def test_same_seed_same_outcome(disk: MemoryDisk) -> None:
    for name in "abc":
        file = disk.open(f"/data/{name}", create=True)
        for size in range(1, 60):
            file.append(bytes([size]) * size * 17)
    trees = []
    for _ in range(2):
        twin = disk.fork()
        twin.crash(Random(7))
        trees.append(twin.tree())
    assert trees[0] == trees[1]


def test_fork_is_independent(disk: MemoryDisk) -> None:
    file = disk.open("/data/a", create=True)
    twin = disk.fork()
    file.append(b"here")
    assert twin.read_bytes("/data/a") == b""
    twin.remove("/data/a")
    assert disk.read_bytes("/data/a") == b"here"
