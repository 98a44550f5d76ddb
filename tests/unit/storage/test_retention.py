from typing import Any

import pytest

from headrace.config import LogConfig
from headrace.storage.retention import SegmentFacts, expired_segments
from headrace.testing.simulator.disk import MemoryDisk

from .helpers import FOLDER, append, offsets, open_log, read_all

# Four segments of 100 bytes and ten offsets, written at 1000, 2000, 3000, 4000.
FACTS = [SegmentFacts(10 * at, 10 * at + 10, 100, 1000 * at + 1000) for at in range(4)]


def expired(
    facts: list[SegmentFacts] = FACTS, *, hw: int = 40, start: int = 0, now_ms: int = 4000, **config: int
) -> int:
    options: dict[str, Any] = {"retention_ms": -1, "retention_bytes": -1, **config}
    found = expired_segments(facts, LogConfig(**options), log_start_offset=start, high_watermark=hw, now_ms=now_ms)
    assert bool(found.reason) == bool(found.segments)
    return found.segments


def test_no_limit_keeps_everything() -> None:
    assert expired(now_ms=1 << 50) == 0


@pytest.mark.parametrize(("retention_ms", "gone"), [(3000, 0), (2999, 1), (2000, 1), (1999, 2), (0, 3)])
def test_by_time(retention_ms: int, gone: int) -> None:
    assert expired(retention_ms=retention_ms) == gone


def test_even_the_active_segment_expires() -> None:
    assert expired(retention_ms=100, now_ms=10_000) == 4


def test_time_goes_in_order_so_a_young_segment_keeps_what_follows() -> None:
    facts = [FACTS[0], FACTS[1]._replace(max_timestamp=9000), *FACTS[2:]]
    assert expired(facts, retention_ms=100, now_ms=9000) == 1


@pytest.mark.parametrize(("retention_bytes", "gone"), [(400, 0), (301, 0), (300, 1), (299, 1), (200, 2), (0, 4)])
def test_by_size_only_whole_segments_over_the_limit(retention_bytes: int, gone: int) -> None:
    assert expired(retention_bytes=retention_bytes) == gone


def test_below_the_log_start_even_when_only_compacted() -> None:
    assert expired(start=19) == 1
    assert expired(start=20) == 2
    assert expired(start=20, delete=False, compact=True) == 2
    assert expired(retention_ms=0, now_ms=10_000, delete=False, compact=True) == 0
    assert expired(start=40) == 3  # the active segment goes by age or size only


@pytest.mark.parametrize(("hw", "gone"), [(0, 0), (9, 0), (10, 1), (39, 3), (40, 4)])
def test_never_what_is_not_committed(hw: int, gone: int) -> None:
    assert expired(hw=hw, retention_ms=0, now_ms=10_000) == gone


def test_an_empty_active_segment_stays() -> None:
    assert expired([*FACTS[:3], SegmentFacts(30, 30, 0, 0)], hw=30, retention_ms=0, now_ms=10_000) == 3


def test_timestamps_in_the_future_do_not_expire() -> None:
    assert expired([FACTS[0]._replace(max_timestamp=1 << 50), *FACTS[1:]], retention_ms=0, now_ms=10_000) == 0


def test_a_log_loses_its_oldest_segments() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    log = open_log(disk, config=LogConfig(segment_bytes=300, retention_ms=1000))
    for at in range(12):
        append(log, size=60, timestamp=1000 + at * 100)
    segments = len(log.segments)
    removed, reason = log.apply_retention(log.end_offset, 2500)
    assert "retention.ms" in reason
    assert 0 < len(log.segments) < segments
    assert log.log_start_offset == log.segments[0].base_offset
    assert offsets(read_all(log)) == list(range(log.log_start_offset, 12))
    assert removed and all(path.endswith(".deleted") and disk.exists(path) for path in removed)
    assert not [name for name in disk.list(FOLDER) if name.startswith("0" * 20) and not name.endswith(".deleted")]
    # All of it: the log goes on, empty, at the same offset.
    log.apply_retention(log.end_offset, 10_000)
    assert (log.log_start_offset, log.end_offset) == (12, 12)
    append(log)
    log.close()
    again = open_log(disk, clean=True)
    assert offsets(read_all(again)) == [12]
    assert not [name for name in disk.list(FOLDER) if name.endswith(".deleted")]


def test_records_without_timestamps_age_by_the_file() -> None:
    now_ms = 5000
    disk = MemoryDisk(now_ms=lambda: now_ms)
    disk.make_dirs("/data")
    log = open_log(disk, config=LogConfig(retention_ms=1000))
    log.append(b"x" * 100, 0, 0, 0, -1, 5000)
    log.roll(5000)
    assert [facts.max_timestamp for facts in log.facts()] == [5000, 5000]
