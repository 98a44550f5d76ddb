"""Find offsets by time: the time index narrows it to a batch, its records decide.

Kept from the log itself because it decodes records, which nothing else in storage does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.records.layout import BatchHeader
from headrace.records.reader import Record, read_records
from headrace.storage.segment import Segment


class TimedOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(segments: Sequence[Segment], timestamp: int, start_offset: int) -> TimedOffset | None:
    """The first record at or above `start_offset` whose timestamp is at least `timestamp`."""
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            found = _in_segment(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _in_segment(segment: Segment, timestamp: int, start_offset: int) -> TimedOffset | None:
    place = segment.find(max(segment.offset_before(timestamp), start_offset))
    if place is None:
        return None
    for at, header in segment.walk(place.position, segment.size):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in _records(segment, at, header):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimedOffset(record.offset, record.timestamp, header.leader_epoch)
    return None


def with_max_timestamp(segments: Sequence[Segment]) -> TimedOffset | None:
    """The first record that has the largest timestamp of all."""
    latest = max(segments, key=lambda segment: segment.max_timestamp, default=None)
    if latest is None:
        return None
    # Where no record has a timestamp, -1 is the largest and the first record has it.
    place = latest.find(max(latest.max_timestamp_offset, latest.base_offset))
    if place is None:
        return None
    header = latest.header_at(place.position)
    for record in _records(latest, place.position, header):
        if record.timestamp == header.max_timestamp:
            return TimedOffset(record.offset, record.timestamp, header.leader_epoch)
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> list[Record]:
    return read_records(segment.handle.open().read(header.size, position), 0, header)
