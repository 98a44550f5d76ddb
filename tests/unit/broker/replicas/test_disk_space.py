"""When a log dir is full, when it has room again, and how long it will last."""

import errno

import pytest

from headrace.broker.maintenance.disk_space_watch import try_write
from headrace.broker.replicas.log_dir_space import (
    LOOK_FULL_S,
    LOOK_S,
    LOOK_S_MIN,
    RESERVE_BYTES_MAX,
    LogDirSpace,
)
from headrace.protocol.private_fields.disk_space import NO_RECORDS, NOTHING, Space, seconds_to_full
from headrace.testing.simulator.disk import MemoryDisk

MB, GB = 1 << 20, 1 << 30
TOTAL = 100 * GB


def room(usable_bytes: int = 50 * GB, reserve_bytes: int = -1) -> LogDirSpace:
    made = LogDirSpace(reserve_bytes)
    made.look(TOTAL, usable_bytes, 0)
    return made


def test_the_reserve_is_a_share_of_small_disks_and_bounded_on_large_ones() -> None:
    for total_bytes, expected in ((6 * MB, 6 * MB // 20), (GB, GB // 20), (TOTAL, RESERVE_BYTES_MAX)):
        one = LogDirSpace(-1)
        one.look(total_bytes, total_bytes, 0)
        assert one.reserve_bytes == expected and one.level == 0
    assert room(reserve_bytes=0).reserve_bytes == 0


def test_it_is_full_below_its_reserve_and_has_room_again_only_well_above_it() -> None:
    one = room()
    assert not one.look(TOTAL, RESERVE_BYTES_MAX, 1)
    assert one.look(TOTAL, RESERVE_BYTES_MAX - 1, 2) and one.level == NO_RECORDS
    for usable_bytes in (RESERVE_BYTES_MAX + 1, one.resume_bytes - 1, RESERVE_BYTES_MAX - 1):
        assert not one.look(TOTAL, usable_bytes, 3), "neither to nor fro"
    assert one.look(TOTAL, one.resume_bytes, 4) and one.level == 0


def test_when_the_reserve_is_eaten_too_nothing_is_promised() -> None:
    one = room()
    assert one.look(TOTAL, RESERVE_BYTES_MAX // 8 - 1, 1) and one.level == NOTHING
    assert not one.look(TOTAL, RESERVE_BYTES_MAX // 8 + 1, 2)
    assert one.look(TOTAL, RESERVE_BYTES_MAX // 4, 3) and one.level == NO_RECORDS
    assert one.look(TOTAL, TOTAL // 2, 4) and one.level == 0


@pytest.mark.parametrize(("own", "level"), [(False, NO_RECORDS), (True, NOTHING)])
def test_a_write_without_room_tells_before_the_next_look(own: bool, level: int) -> None:
    """With no reserve at all, or faster than the next look."""
    one = room(reserve_bytes=0)
    assert one.write_failed(TOTAL, 200_000, 1, own=own) and one.level == level
    assert not one.must_be_tried
    assert one.look(TOTAL, 10 * MB, 2) and one.level == 0


def test_what_the_file_system_does_not_tell_has_to_be_tried() -> None:
    """A quota: there are bytes, and not for us."""
    one = room()
    assert one.write_failed(TOTAL, 40 * GB, 1, own=False) and one.level == NOTHING
    assert not one.look(TOTAL, 40 * GB, 2) and one.must_be_tried
    one.write_succeeded()
    assert one.look(TOTAL, 40 * GB, 3) and one.level == 0


def test_trying_leaves_nothing_behind() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/d")
    try_write(disk, "/d/probe")
    disk.fail("append", errno.EDQUOT, path="/d/*", times=None)
    with pytest.raises(OSError, match="uota"):
        try_write(disk, "/d/probe")
    assert list(disk.list("/d")) == []


def test_the_fuller_it_is_the_sooner_it_is_looked_at_again() -> None:
    assert room(50 * GB).look_again_s == LOOK_S
    assert LOOK_S_MIN < room(RESERVE_BYTES_MAX + 300 * MB).look_again_s < LOOK_S
    assert room(RESERVE_BYTES_MAX + MB).look_again_s == LOOK_S_MIN
    assert room(RESERVE_BYTES_MAX - MB).look_again_s == LOOK_FULL_S


def test_time_to_full_goes_by_the_last_hour() -> None:
    one = room(60 * GB)
    assert seconds_to_full(60 * GB, one.space(10_000)) is None, "too early to tell"
    for minute in range(1, 180):
        # An hour of nothing, then 100 MB a minute.
        usable_bytes = 60 * GB - max(0, minute - 60) * 100 * MB
        one.look(TOTAL, usable_bytes, minute * 60_000)
        if minute == 60:
            assert seconds_to_full(usable_bytes, one.space(minute * 60_000)) is None, "it does not fill"
    space = one.space(179 * 60_000)
    assert 3_500_000 <= space.over_ms <= 3_700_000
    left_s = seconds_to_full(usable_bytes, space)
    assert left_s == pytest.approx((usable_bytes - RESERVE_BYTES_MAX) / (100 * MB) * 60, rel=0.01)
    assert seconds_to_full(usable_bytes, Space(0, 0, -5, 1000)) is None
