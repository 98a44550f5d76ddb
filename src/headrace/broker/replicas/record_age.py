"""How old the records of a log are, without reading them: from the time index, in compacted topics from the header of
one batch."""

from bisect import bisect_left, bisect_right
from operator import attrgetter

from headrace.broker.replicas.partition import Partition
from headrace.protocol.private_fields.record_age import UNKNOWN
from headrace.storage.segment import CorruptSegment, Segment

_BASE_OFFSET = attrgetter("base_offset")


def age_ms(partition: Partition, offset: int, now_ms: int) -> int:
    """How long ago the first record at or after `offset` was written: 0 where there is none, UNKNOWN without times."""
    if offset >= partition.high_watermark:
        return 0
    timestamp = timestamp_near(partition, offset)
    return UNKNOWN if timestamp < 0 else max(0, now_ms - timestamp)


def timestamp_near(partition: Partition, offset: int) -> int:
    """About when the first record at or after `offset` was written; -1: unknown."""
    log = partition.log
    offset = max(offset, log.log_start_offset)
    segments = log.segments
    at = max(0, bisect_right(segments, offset, key=_BASE_OFFSET) - 1)
    try:
        if log.config.compact:
            return _of_next_batch(segments, at, offset)
        return _in_segment(segments[at], offset)
    except (CorruptSegment, OSError):
        return -1


def _of_next_batch(segments: list[Segment], at: int, offset: int) -> int:
    """Of a log with gaps, where the record before an offset and the one after it may be years apart: from its batch."""
    while at < len(segments):
        place = segments[at].find(offset)
        if place is not None:
            return segments[at].header_at(place.position).max_timestamp
        at += 1
    return -1


def _in_segment(segment: Segment, offset: int) -> int:
    """Between the entries of the time index around the offset."""
    index = segment.times
    relative = offset - segment.base_offset
    slot = bisect_left(index.offsets, relative)
    if slot < len(index):
        after = index.offsets[slot], index.timestamps[slot]
    else:
        latest = segment.max_timestamp  # reading it finds its offset too
        after = segment.max_timestamp_offset - segment.base_offset, latest
    if slot:
        before = index.offsets[slot - 1], index.timestamps[slot - 1]
    else:
        before = 0, segment.first_batch_timestamp()
    if after[0] <= before[0] or relative >= after[0] or before[1] < 0:
        return after[1]
    share = (relative - before[0]) / (after[0] - before[0])
    return int(before[1] + share * (after[1] - before[1]))
