import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sys import getsizeof
from typing import Any

import pytest

from headrace.config import LogConfig
from headrace.storage.checkpointing import CheckpointFiles
from headrace.storage.checkpoints import MetaProperties, decode_offsets
from headrace.storage.files import RealDisk
from headrace.storage.manager import SHRINK_FROM, LogDirError, LogManager
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut
from headrace.testing.simulator.pages import CrashMode

from .helpers import append, offsets, read_all

TOPIC_ID = bytes(range(16))


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def manager(disk: MemoryDisk, *dirs: str, load: bool = True, node_id: int = 1, **options: object) -> LogManager:
    made = LogManager(disk, dirs or ("/a",), node_id=node_id, **options)  # type: ignore[arg-type]
    made.open()
    if load:
        list(made.load(1000))
    return made


def put(disk: MemoryDisk, path: str, data: bytes) -> None:
    disk.open(path, create=True).append(data)


def test_a_clean_stop_is_remembered_and_used_once(disk: MemoryDisk) -> None:
    first = manager(disk)
    log = first.create("t", 0, TOPIC_ID, 1000)
    written = [append(log) for _ in range(5)]
    log.advance_log_start(2)
    first.close(broker_epoch=9, high_watermarks={("t", 0): 4})
    assert disk.read_bytes("/a/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":9}'
    assert decode_offsets(disk.read_bytes("/a/recovery-point-offset-checkpoint")) == {("t", 0): 5}
    assert decode_offsets(disk.read_bytes("/a/log-start-offset-checkpoint")) == {("t", 0): 2}
    assert decode_offsets(disk.read_bytes("/a/replication-offset-checkpoint")) == {("t", 0): 4}

    second = manager(disk)
    log_dir = second.dirs[0]
    assert (log_dir.clean, log_dir.broker_epoch) == (True, 9)
    assert log_dir.high_watermarks == {("t", 0): 4}
    again = second.get("t", 0)
    assert again is not None and again.topic_id == TOPIC_ID
    assert (again.log_start_offset, again.end_offset, again.durable_end) == (2, 5, 5)
    assert again.recovery.clean and read_all(again) == written[2:]
    assert not disk.exists("/a/.kafka_cleanshutdown")

    disk.kill()
    third = manager(disk)
    assert not third.dirs[0].clean and third.dirs[0].broker_epoch == -1
    found = third.get("t", 0)
    assert found is not None and not found.recovery.clean


def test_identity_is_created_once_and_kept(disk: MemoryDisk) -> None:
    first = manager(disk, "/a", "/b")
    first.close()
    second = manager(disk, "/b", "/a")
    assert second.cluster_id == first.cluster_id
    assert [d.directory_id for d in second.dirs] == [d.directory_id for d in reversed(first.dirs)]
    assert MetaProperties.decode(disk.read_bytes("/a/meta.properties")) == MetaProperties(
        first.cluster_id, 1, first.dirs[0].directory_id
    )


def test_somebody_elses_folder_is_refused_in_one_line(disk: MemoryDisk) -> None:
    manager(disk, "/a").close()
    manager(disk, "/b", node_id=2).close()
    disk.make_dirs("/c")
    put(disk, "/c/meta.properties", b"version=9\n")
    cases: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        (("/a",), {"node_id": 2}, "node.id=1"),
        (("/a",), {"cluster_id": "other"}, "belongs to cluster"),
        (("/b",), {}, "node.id=2"),
        (("/new",), {"may_format": False}, "headrace format"),
        (("/c",), {}, "unreadable"),
        ((), {}, "log.dirs is empty"),
    ]
    for dirs, options, words in cases:
        made = LogManager(disk, dirs, **{"node_id": 1, **options})
        with pytest.raises(LogDirError, match=words) as caught:
            made.open()
        assert "\n" not in str(caught.value)
        made.close(clean=False)


def test_a_copied_dir_is_refused(disk: MemoryDisk) -> None:
    manager(disk, "/a").close()
    disk.make_dirs("/b")
    put(disk, "/b/meta.properties", disk.read_bytes("/a/meta.properties"))
    with pytest.raises(LogDirError, match=r"directory\.id"):
        manager(disk, "/a", "/b")


def test_a_dir_serves_one_broker(disk: MemoryDisk) -> None:
    first = manager(disk)
    with pytest.raises(LogDirError, match="in use"):
        manager(disk)
    first.close()
    manager(disk)


def test_new_logs_go_where_there_are_fewest(disk: MemoryDisk) -> None:
    made = manager(disk, "/a", "/b", "/c")
    logs = [made.create("t", partition, TOPIC_ID, 1000) for partition in range(6)]
    assert [log.path[:2] for log in logs] == ["/a", "/b", "/c"] * 2
    made.remove(logs[1])
    assert made.create("t", 1, TOPIC_ID, 1000).path == "/b/t-1"
    assert made.create("t", 9, TOPIC_ID, 1000, directory_id=made.dirs[2].directory_id).path == "/c/t-9"


def test_deleted_logs_go_in_two_steps(disk: MemoryDisk) -> None:
    made = manager(disk, make_uuid=lambda: bytes(range(16)))
    log = made.create("t", 0, TOPIC_ID, 1000)
    append(log)
    reading = log.read(0, 1000, 1)
    assert reading is not None
    folder = made.remove(log)
    assert folder == "/a/t-0.000102030405060708090a0b0c0d0e0f-delete"
    assert made.get("t", 0) is None
    assert reading.read()
    reading.release()
    again = made.create("t", 0, bytes(15) + b"\1", 1000)
    assert again.end_offset == 0
    made.remove_folder(folder)
    made.remove_folder(folder)
    assert disk.list("/a") == [".lock", "meta.properties", "t-0"]


def test_many_deleted_logs_leave_no_room_in_tables(disk: MemoryDisk) -> None:
    logs = manager(disk)
    made = [logs.create(f"t{number}", 0, bytes([1]) * 16, 0) for number in range(SHRINK_FROM)]

    def room() -> int:
        (log_dir,) = logs.dirs
        return sum(map(getsizeof, (logs.logs, logs._dir_of, log_dir.logs, log_dir.high_watermarks, logs.pool._open)))

    logs.checkpoint_plan({(log.topic, 0): 0 for log in made}).run()
    most = room()
    for log in made[3:]:
        logs.remove(log)
    assert room() < most / 4
    assert [logs.get(log.topic, 0) for log in made[:3]] == made[:3]
    assert logs.dir_of(made[0]) is logs.dirs[0] and logs.dirs[0].logs == set(made[:3])


def test_long_names_still_fit_when_deleted(disk: MemoryDisk) -> None:
    made = manager(disk)
    folder = made.remove(made.create("t" * 249, 0, TOPIC_ID, 1000))
    assert len(folder.removeprefix("/a/")) == 255
    made.close()
    second = manager(disk)  # and is recognised by the next start
    assert second.logs == {} and second.notes == [] and not disk.exists(folder)


def test_strange_folders_are_reported_and_left_alone(disk: MemoryDisk) -> None:
    made = manager(disk)
    made.create("t", 0, TOPIC_ID, 1000)
    for name in (
        "__cluster_metadata-0",
        "lost+found",
        "x-0.abc-stray",
        "x-1.abc-future",
        "x-2.abc-delete",
        "x-01",
        "nodash",
    ):
        disk.make_dirs(f"/a/{name}")
        put(disk, f"/a/{name}/file", b"x")
    put(disk, "/a/t-1", b"a file, not a folder")
    made.close()
    again = manager(disk)
    assert list(again.logs) == [("t", 0)]
    assert sorted(note.split(":")[0] for note in again.notes) == [
        "/a/lost+found", "/a/nodash", "/a/x-0.abc-stray", "/a/x-01", "/a/x-1.abc-future",
    ]  # fmt: skip
    assert disk.exists("/a/x-01/file") and disk.exists("/a/x-0.abc-stray/file") and disk.exists("/a/lost+found/file")
    assert not disk.exists("/a/x-2.abc-delete")


def test_the_same_partition_in_two_dirs_stops_the_start(disk: MemoryDisk) -> None:
    made = manager(disk, "/a", "/b")
    made.create("t", 0, TOPIC_ID, 1000)
    made.close()
    disk.make_dirs("/b/t-0")
    with pytest.raises(LogDirError, match="another log dir"):
        manager(disk, "/a", "/b")


def test_a_failing_dir_takes_only_its_own_logs(disk: MemoryDisk) -> None:
    made = manager(disk, "/a", "/b")
    lost, kept = made.create("t", 0, TOPIC_ID, 1000), made.create("t", 1, TOPIC_ID, 1000)
    append(lost)
    append(kept)
    disk.fail("sync", errno.EIO, path="/a/*")
    plan = lost.sync_plan()
    assert plan is not None
    with pytest.raises(OSError) as caught:
        plan.run()
    with pytest.raises(OSError):
        lost.mark_durable(plan)
    assert made.fail_dir(made.dir_of(lost), caught.value) == [lost]
    assert made.get("t", 0) is None and made.get("t", 1) is kept
    assert ("t", 0) in made.offline
    with pytest.raises(OSError):
        made.create("t", 0, TOPIC_ID, 1000)
    assert made.create("t", 2, TOPIC_ID, 1000).path.startswith("/b")
    made.close()
    assert disk.exists("/b/.kafka_cleanshutdown") and not disk.exists("/a/.kafka_cleanshutdown")


def test_an_unreadable_partition_does_not_keep_the_others_down(disk: MemoryDisk) -> None:
    made = manager(disk)
    for partition in range(3):
        append(made.create("t", partition, TOPIC_ID, 1000))
    disk.kill()
    disk.fail("read", errno.EIO, path="/a/t-1/*", times=None)
    again = manager(disk)
    assert sorted(again.logs) == [("t", 0), ("t", 2)]
    assert list(again.offline) == [("t", 1)]
    assert any("t-1 is offline" in note for note in again.notes)


def test_a_failed_close_leaves_no_clean_mark(disk: MemoryDisk) -> None:
    made = manager(disk)
    for partition in range(3):
        append(made.create("t", partition, TOPIC_ID, 1000))
    disk.fail("sync", errno.EIO, path="/a/t-1/*")
    made.close()
    assert not disk.exists("/a/.kafka_cleanshutdown")
    assert any("could not be closed" in note for note in made.notes)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"0\n5\nt 0 1\n"])
def test_damaged_checkpoints_only_cost_time(disk: MemoryDisk, damage: bytes) -> None:
    made = manager(disk)
    log = made.create("t", 0, TOPIC_ID, 1000)
    for _ in range(4):
        append(log)
    made.close(high_watermarks={("t", 0): 4})
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"):
        disk.open(f"/a/{name}").truncate(0)
        put(disk, f"/a/{name}", damage)
    again = manager(disk)
    found = again.get("t", 0)
    assert found is not None and offsets(read_all(found)) == [0, 1, 2, 3]
    assert not found.recovery.clean
    assert len([note for note in again.notes if "unreadable" in note]) == 3


def test_truncation_lowers_the_recovery_point_on_disk_first(disk: MemoryDisk) -> None:
    made = manager(disk, config_of=lambda topic: LogConfig(segment_bytes=300))
    log = made.create("t", 0, TOPIC_ID, 1000)
    for _ in range(20):
        append(log, size=60)
    log.flush()
    made.checkpoint_plan().run()
    assert decode_offsets(disk.read_bytes("/a/recovery-point-offset-checkpoint")) != {("t", 0): 2}
    made.truncate_to({log: 2}).run()
    assert decode_offsets(disk.read_bytes("/a/recovery-point-offset-checkpoint")) == {("t", 0): 2}


def test_what_a_manager_closed_survives_a_power_cut(disk: MemoryDisk) -> None:
    made = manager(disk, "/a", "/b", config_of=lambda topic: LogConfig(segment_bytes=500))
    written = {}
    for partition in range(6):
        log = made.create("t", partition, TOPIC_ID, 1000)
        written[partition] = [append(log, size=50) for _ in range(partition * 4)]

    def backward(work: list[Callable[[], None]]) -> None:
        for step in reversed(work):
            step()

    made.close(run_all=backward)
    disk.crash(random.Random(1), CrashMode.LOSE)
    again = manager(disk, "/a", "/b")
    assert all(log_dir.clean for log_dir in again.dirs)
    for partition, batches in written.items():
        log = again.logs["t", partition]
        assert read_all(log) == batches and log.topic_id == TOPIC_ID
        assert log.recovery.segments_checked == 0


def test_more_logs_than_descriptors_are_closed_in_groups(disk: MemoryDisk) -> None:
    made = manager(disk, open_files_max=8)
    for partition in range(30):
        append(made.create("t", partition, TOPIC_ID, 1000))
    most = 0

    def watched(work: list[Callable[[], None]]) -> None:
        nonlocal most
        most = max(most, len(made.pool))
        for step in work:
            step()

    made.close(run_all=watched)
    assert most <= 8
    assert manager(disk).dirs[0].clean


def test_on_the_real_disk(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    disk = RealDisk()
    made = LogManager(disk, dirs, node_id=1)
    made.open()
    list(made.load(1000))
    for partition in range(4):
        append(made.create("t", partition, TOPIC_ID, 1000))
    made.close()
    again = LogManager(disk, dirs, node_id=1)
    again.open()
    assert [done for done, _, _ in again.load(1000)] == [0, 1, 2, 3, 4]
    assert len(again.logs) == 4 and again.notes == []
    again.close()


def test_checkpoints_that_run_in_another_order_leave_the_latest(disk: MemoryDisk) -> None:
    """Each is taken on the loop and written by some thread; an answer may rest on the later one."""
    made = manager(disk)
    log = made.create("t", 0, TOPIC_ID, 1000)
    for _ in range(5):
        append(log)
    log.advance_log_start(1)
    earlier = made.checkpoint_plan({("t", 0): 3})
    log.advance_log_start(4)
    later = made.checkpoint_plan({("t", 0): 5})
    later.run()
    earlier.run()
    assert decode_offsets(disk.read_bytes("/a/log-start-offset-checkpoint")) == {("t", 0): 4}
    assert decode_offsets(disk.read_bytes("/a/replication-offset-checkpoint")) == {("t", 0): 5}


def test_a_checkpoint_of_a_log_of_the_same_name_never_meets_the_new_log(disk: MemoryDisk) -> None:
    made = manager(disk)
    old = made.create("t", 0, TOPIC_ID, 1000)
    for _ in range(5):
        append(old)
    old.advance_log_start(4)
    slow = made.checkpoint_plan({("t", 0): 5})
    made.checkpoint_plan({("t", 0): 5}).run()
    made.remove(old)
    new = made.create("t", 0, bytes(15) + b"\1", 1000)
    written = [append(new) for _ in range(2)]
    new.flush()
    slow.run()
    disk.crash(random.Random(1), CrashMode.LOSE)
    again = manager(disk).get("t", 0)
    assert again is not None and again.log_start_offset == 0 and read_all(again) == written


def test_a_log_that_could_not_be_opened_is_not_called_closed_in_order(disk: MemoryDisk) -> None:
    """What is noted of it stays, and the next start looks at it as after a crash."""
    first = manager(disk)
    for partition in range(2):
        log = first.create("t", partition, TOPIC_ID, 1000)
        for _ in range(5):
            append(log)
        log.advance_log_start(3)
        log.flush()
    first.checkpoint_plan({("t", 0): 5, ("t", 1): 5}).run()
    disk.kill()
    disk.fail("open", errno.EIO, path="/a/t-1/*.log", times=1)
    second = manager(disk)
    assert ("t", 1) in second.offline and second.get("t", 0) is not None
    second.checkpoint_plan().run()
    second.close()
    assert not disk.exists("/a/.kafka_cleanshutdown")
    third = manager(disk)
    again = third.get("t", 1)
    assert again is not None and not again.recovery.clean
    assert (again.log_start_offset, again.end_offset) == (3, 5)


def test_a_gap_below_what_was_compacted_is_no_lost_end(disk: MemoryDisk) -> None:
    """Apache Kafka compacts before it has checkpointed what is committed; killed then, it has lost nothing."""
    config = LogConfig(segment_bytes=500, compact=True, delete=False)
    first = manager(disk, config_of=lambda topic: config)
    log = first.create("t", 0, TOPIC_ID, 1000)
    while len(log.segments) < 4:
        append(log, 1, size=40)
    end_offset, bases = log.end_offset, [segment.base_offset for segment in log.segments]
    log.flush()
    put(disk, "/a/replication-offset-checkpoint", b"0\n1\nt 0 1\n")
    disk.open(f"/a/t-0/{bases[1]:020}.log").truncate(0)
    disk.kill()
    cut = disk.fork()
    assert reopened(cut, config) == list(range(bases[1])), "for all that is known, the power took the rest"
    put(disk, "/a/cleaner-offset-checkpoint", b"0\n1\nt 0 %d\n" % bases[3])
    assert reopened(disk, config) == [*range(bases[1]), *range(bases[2], end_offset)]


def reopened(disk: MemoryDisk, config: LogConfig) -> list[int]:
    found = manager(disk, config_of=lambda topic: config).get("t", 0)
    assert found is not None
    return offsets(read_all(found))


def test_a_log_that_is_named_and_gone_is_missed_though_nobody_can_tell_what_it_had(disk: MemoryDisk) -> None:
    first = manager(disk)
    first.create("t", 0, TOPIC_ID, 1000)
    first.checkpoint_plan({("t", 0): 0}).run()
    disk.kill()
    disk.remove_tree("/a/t-0")
    second = manager(disk)
    assert not second.missing["t", 0].is_known
    assert second.whole_since() == -1


@pytest.mark.parametrize("mode", CrashMode)
def test_who_has_a_line_has_a_folder_whenever_the_power_goes(disk: MemoryDisk, mode: CrashMode) -> None:
    """Else a power cut would look like a folder that somebody has removed."""
    first = manager(disk)
    first.checkpoint_plan({}).run()
    disk.sync_all()
    first.create("t", 0, TOPIC_ID, 1000)
    named = 0
    for cut in range(1, 9):
        for seed in range(30):
            here = disk.fork()
            files = CheckpointFiles(here, "/a")
            here.cut_after(cut)
            with suppress(PowerCut):
                files.plan({("t", 0): 0}, {}, {("t", 0): 0}).run()
            here.crash(random.Random(f"{cut} {seed}"), mode)
            if b"t\t0" in here.read_bytes("/a/recovery-point-offset-checkpoint"):
                named += 1
                assert here.exists("/a/t-0"), (cut, seed)
    assert named


def test_what_is_no_file_is_as_good_as_missing(disk: MemoryDisk) -> None:
    """A folder in place of each file: of a segment, of what is derived from it, of a checkpoint."""
    first = manager(disk)
    log = first.create("t", 0, TOPIC_ID, 1000)
    other = first.create("u", 0, TOPIC_ID, 1000)
    written = [append(log) for _ in range(3)]
    log.roll(1000)
    written += [append(log) for _ in range(3)]
    append(other)
    first.close(broker_epoch=9, high_watermarks={("t", 0): 6, ("u", 0): 1})
    replaced = [f"/a/t-0/{name}" for name in disk.list("/a/t-0") if not name.startswith(f"{0:020d}.log")]
    replaced.remove("/a/t-0/00000000000000000003.log")
    for path in [*replaced, "/a/replication-offset-checkpoint", "/a/recovery-point-offset-checkpoint"]:
        disk.remove(path)
        disk.make_dirs(path)
    second = manager(disk)
    again, untouched = second.get("t", 0), second.get("u", 0)
    assert again is not None and read_all(again) == written
    assert untouched is not None and len(read_all(untouched)) == 1
    assert any("t-0/leader-epoch-checkpoint is no file: renamed to" in note for note in second.notes)
    second.close(broker_epoch=9, high_watermarks={})
    disk.remove("/a/t-0/00000000000000000000.log")
    disk.make_dirs("/a/t-0/00000000000000000000.log")
    third = manager(disk).get("t", 0)
    assert third is not None and [(hole.start_offset, hole.end_offset) for hole in third.holes] == [(0, 3)]


def test_pipes_circles_and_gigabytes_keep_no_start_waiting(tmp_path: Path) -> None:
    real = RealDisk()
    first = LogManager(real, [str(tmp_path)], node_id=1)
    first.open()
    list(first.load(1000))
    log = first.create("t", 0, TOPIC_ID, 1000)
    written = [append(log) for _ in range(3)]
    log.roll(1000)
    first.close(broker_epoch=9, high_watermarks={("t", 0): 3})
    folder = tmp_path / "t-0"
    pipe, circle = folder / f"{0:020d}.index", folder / f"{0:020d}.timeindex"
    for path in (pipe, circle, folder / "partition.metadata"):
        path.unlink()
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    (folder / "partition.metadata").symlink_to("/nowhere")
    for huge in ("leader-epoch-checkpoint", f"{0:020d}.indexsum"):
        with (folder / huge).open("ab") as file:
            file.truncate(1 << 40)
    for beyond in ("99999999999999999999", f"{(1 << 63) - 1:020d}"):
        (folder / f"{beyond}.log").write_bytes(b"junk")
    second = LogManager(real, [str(tmp_path)], node_id=1)
    second.open()
    list(second.load(1000))
    again = second.get("t", 0)
    assert again is not None and read_all(again) == written, second.notes
    assert sum("renamed to" in note for note in second.notes) == 7
    assert again.end_offset == 3
    second.close(broker_epoch=9, high_watermarks={})
