"""What an operator should know of a log dir before it is full: how much is left, for how long, and whether that is
little."""

from enum import StrEnum
from typing import NamedTuple

from headrace.client.admin.admin import LogDir
from headrace.errors import Err
from headrace.protocol.private_fields.disk_space import seconds_to_full

LOW_SHARE = 0.10
"""Of the file system, free."""
LOW_S = 24 * 3600
"""Until it is full."""


class Fill(StrEnum):
    ENOUGH = "ok"
    LOW = "low"
    FULL = "full"
    OFFLINE = "offline"
    UNKNOWN = "unknown"
    """Brokers before Kafka 3.4 tell of no sizes."""


class DiskSpace(NamedTuple):
    node_id: int
    path: str
    fill: Fill
    total_bytes: int = -1
    usable_bytes: int = -1
    reserve_bytes: int = 0
    """Kept for what brokers write themselves: records are refused below it."""
    full_in_s: float | None = None
    """By the rate of the last hour; None where it does not fill, or nobody knows."""


def disk_space_of(found: LogDir) -> DiskSpace:
    if found.error is not Err.NONE:
        return DiskSpace(found.node_id, found.path, Fill.OFFLINE)
    if found.usable_bytes < 0 or found.total_bytes <= 0:
        return DiskSpace(found.node_id, found.path, Fill.UNKNOWN)
    level, reserve_bytes = (0, 0) if found.space is None else (found.space.level, max(0, found.space.reserve_bytes))
    full_in_s = seconds_to_full(found.usable_bytes, found.space)
    if level or found.usable_bytes <= reserve_bytes:
        fill = Fill.FULL
    elif found.usable_bytes < LOW_SHARE * found.total_bytes or (full_in_s is not None and full_in_s < LOW_S):
        fill = Fill.LOW
    else:
        fill = Fill.ENOUGH
    return DiskSpace(found.node_id, found.path, fill, found.total_bytes, found.usable_bytes, reserve_bytes, full_in_s)


def time_text(seconds: float) -> str:
    """`5 min`, `7 h`, `12 days`: nobody needs more of a forecast."""
    for unit, unit_s in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
