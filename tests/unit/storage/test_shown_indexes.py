"""The index files of an active segment: there from its start, brought up to date now and then, trusted by nobody."""

import asyncio
import errno
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.broker.maintenance.active_indexes import LOOK_PARTITIONS_MAX, ActiveIndexes
from headrace.broker.replicas.partition import Partition
from headrace.config import LogConfig
from headrace.storage.file_names import SHOWN_SUFFIXES
from headrace.storage.indexes import OffsetIndex, TimeIndex
from headrace.storage.log import Log
from headrace.storage.segment import Segment
from headrace.testing.simulator.disk import MemoryDisk
from tests.unit.storage.helpers import append, files_of, open_log, restored

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=200)


def grown(disk: MemoryDisk, batches: int) -> Log:
    log = open_log(disk, config=CONFIG)
    grow(log, batches)
    return log


def grow(log: Log, batches: int) -> None:
    for number in range(batches):
        append(log, 2, timestamp=1000 + 3 * log.end_offset + number % 2, size=60)


def files(segment: Segment) -> tuple[bytes, bytes]:
    offsets, times = (segment.disk.read_bytes(segment.path(suffix)) for suffix in SHOWN_SUFFIXES)
    return offsets, times


def memory(segment: Segment) -> tuple[bytes, bytes]:
    return segment.offsets.encode(), segment.times.encode()


def test_a_new_segment_has_both_files_as_kafkas_have() -> None:
    log = open_log(MemoryDisk(), config=CONFIG)
    assert files(log.active) == (b"", b"")
    grow(log, 200)
    assert len(log.segments) > 1 and files(log.active) == (b"", b""), "an append writes no index"
    assert files(log.segments[0]) == memory(log.segments[0])


def test_only_what_is_new_is_appended() -> None:
    log = grown(MemoryDisk(), 30)
    log.active.show_indexes()
    assert files(log.active) == memory(log.active) != (b"", b"")
    shown = files(log.active)
    grow(log, 30)
    assert log.active.unshown_entries > 0 and files(log.active) == shown
    log.active.show_indexes()
    assert files(log.active) == memory(log.active) and log.active.unshown_entries == 0
    assert files(log.active)[0].startswith(shown[0]) and files(log.active)[1].startswith(shown[1])
    assert len(OffsetIndex.decode(files(log.active)[0])) and len(TimeIndex.decode(files(log.active)[1]))


def test_after_a_truncation_the_files_follow() -> None:
    log = grown(MemoryDisk(), 40)
    log.active.show_indexes()
    log.truncate_to(21)
    grow(log, 40)
    log.active.show_indexes()
    assert files(log.active) == memory(log.active)


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 24, bytes(240), "older", "of another"])
def test_whatever_a_crash_leaves_in_them_is_built_again(garbage: bytes | str) -> None:
    disk = MemoryDisk()
    log = grown(disk, 40)
    whole = memory(log.active)
    log.active.show_indexes()
    left = files_of(disk)
    other = grown(MemoryDisk(), 25)
    for suffix, data in zip(SHOWN_SUFFIXES, files(log.active)):
        wrong = {"older": data[: len(data) // 24 * 12], "of another": memory(other.active)[suffix == ".timeindex"]}
        left[log.active.path(suffix).rpartition("/")[2]] = wrong[garbage] if isinstance(garbage, str) else garbage
    again = open_log(restored(left), config=CONFIG)
    assert memory(again.active) == whole
    again.active.show_indexes()
    assert files(again.active) == whole
    again.close()
    closed = open_log(cast(MemoryDisk, again.disk), clean=True, config=CONFIG)
    assert closed.active.offsets.encode() == whole[0] and closed.end_offset == log.end_offset


def test_a_full_disk_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    log = grown(MemoryDisk(), 30)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(log.disk, "open", full)
        log.active.show_indexes()
    assert log.active.unshown_entries > 0
    log.active.show_indexes()
    assert files(log.active) == memory(log.active)


def test_a_look_takes_those_furthest_behind_and_leaves_what_was_deleted() -> None:
    logs = [grown(MemoryDisk(), 10 + number % 7) for number in range(LOOK_PARTITIONS_MAX + 20)]
    logs[3].abandon()
    furthest = {id(log) for log in logs if log.active.unshown_entries == max(o.active.unshown_entries for o in logs)}
    looked = ActiveIndexes(cast("list[Partition]", [SimpleNamespace(log=log) for log in logs]))
    asyncio.run(looked.run())
    behind = [log for log in logs if log.active.unshown_entries]
    assert logs[3] in behind and 20 <= len(behind) <= 21
    assert not furthest & {id(log) for log in behind if not log.abandoned}
    asyncio.run(looked.run())
    assert [log for log in logs if log.active.unshown_entries] == [logs[3]]
