"""What is said of a broker's disks before they are full."""

import pytest

from headrace.cli.cluster import _disk_row, disk_line
from headrace.cli.doctor import Verdict, check_disks
from headrace.client.admin.admin import LogDir
from headrace.client.admin.disk_space import Fill, disk_space_of, time_text
from headrace.errors import Err
from headrace.protocol.private_fields.disk_space import NO_RECORDS, Space

GB = 1 << 30


def log_dir(usable_gb: float, space: Space | None = None, error: Err = Err.NONE, total_gb: float = 100) -> LogDir:
    return LogDir(1, "/data", error, int(total_gb * GB), int(usable_gb * GB), (), space)


def filling(gb_per_hour: float, level: int = 0) -> Space:
    return Space(level, GB // 4, int(gb_per_hour * GB), 3_600_000)


@pytest.mark.parametrize(
    ("found", "fill"),
    [
        (log_dir(50), Fill.ENOUGH),
        (log_dir(9), Fill.LOW),
        (log_dir(50, filling(-3)), Fill.ENOUGH),
        (log_dir(50, filling(2)), Fill.ENOUGH),
        (log_dir(50, filling(2.2)), Fill.LOW),
        (log_dir(50, filling(0, NO_RECORDS)), Fill.FULL),
        (log_dir(0.2, filling(0)), Fill.FULL),
        (log_dir(50, error=Err.KAFKA_STORAGE_ERROR), Fill.OFFLINE),
        (log_dir(-1, total_gb=-1), Fill.UNKNOWN),
    ],
)
def test_what_a_log_dir_is(found: LogDir, fill: Fill) -> None:
    assert disk_space_of(found).fill is fill


def test_what_the_commands_say() -> None:
    low = log_dir(9, filling(1))
    assert (
        disk_line(_disk_row(disk_space_of(low)))
        == "low: broker 1, /data  9.7 GB of 107.4 GB free, 268.4 MB reserved, full in 9 h"
    )
    findings = list(
        check_disks([low, log_dir(50), log_dir(0.1, filling(1, NO_RECORDS)), log_dir(1, error=Err.KAFKA_STORAGE_ERROR)])
    )
    assert [finding.verdict for finding in findings] == [Verdict.NOTE, Verdict.BAD, Verdict.BAD, Verdict.GOOD]
    assert (
        "full in 9 h" in findings[0].text and "takes no records" in findings[1].text and "1 log dir" in findings[3].text
    )


def test_forecasts_are_round() -> None:
    assert [time_text(s) for s in (5, 119, 120, 7_199, 7_200, 180_000, 1e6)] == [
        "5 s",
        "119 s",
        "2 min",
        "120 min",
        "2 h",
        "2 days",
        "12 days",
    ]
