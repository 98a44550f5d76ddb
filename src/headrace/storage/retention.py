"""Which segments have outlived their topic's limits.

The decision is pure: facts in, a count of oldest segments out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.config import LogConfig


class SegmentFacts(NamedTuple):
    """What retention needs to know of one segment."""

    base_offset: int
    end_offset: int
    """Where the next segment begins, or the log ends."""
    size: int
    max_timestamp: int
    """Largest record timestamp; where records have none, the time of the last write."""


class Expired(NamedTuple):
    """So many of the oldest segments may go, and why."""

    segments: int
    reason: str


def expired_segments(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> Expired:
    """How many of the oldest segments to delete. All of them means: roll first, then delete all but the new one.

    Nothing at or above the high watermark goes: it is not committed yet. A log that is only compacted loses only what
    lies below its start.
    """
    count = 0
    reason = ""
    excess_bytes = sum(segment.size for segment in segments) - config.retention_bytes
    last = len(segments) - 1
    for at, segment in enumerate(segments):
        if segment.end_offset > high_watermark or (at == last and segment.size == 0):
            break
        if at < last and segment.end_offset <= log_start_offset:
            why = f"below the log start offset {log_start_offset}"
        elif not config.delete:
            break
        elif config.retention_bytes >= 0 and excess_bytes >= segment.size:
            why = f"over retention.bytes={config.retention_bytes}"
        elif 0 <= config.retention_ms < now_ms - segment.max_timestamp:
            why = f"older than retention.ms={config.retention_ms}"
        else:
            break
        excess_bytes -= segment.size
        count += 1
        reason = why
    return Expired(count, reason)
