"""Which transactions were aborted, for readers that have to skip them: found by index from where the reader is.

The marker that aborts a transaction may lie in a later segment than its records, and in a part of the log that is
damaged or missing. What is decided there is not known until that part is back. So two things never happen here:

    1. A reader before a hole, whose records may be of a transaction that ended in it, is told nothing: it gets an
       error, since these records may be aborted.
    2. An index that was derived from a log with a hole in it is never kept (`SegmentReader.aborted_guessed`). It is
       right for what lies behind the hole, but not for what will be put back into it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from headrace.errors import Err, KafkaError
from headrace.replication.producers import AbortedTransaction, ProducerStates
from headrace.storage.holes import Hole, is_whole
from headrace.storage.indexes import CorruptIndex
from headrace.storage.segment import CorruptSegment, Segment
from headrace.storage.snapshots import replay

if TYPE_CHECKING:
    from headrace.storage.reader import LogReader

_LAST_OFFSET = attrgetter("last_offset")


def aborted_in(log: "LogReader", at: int, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of each aborted transaction with records in the range, which begins in the segment
    before number `at`; KAFKA_STORAGE_ERROR where nobody can tell."""
    found: list[tuple[int, int]] = []
    segments = log.segments
    while True:
        entries = aborted_of(log, segments[at - 1])
        # In the order of their markers: those that ended before the range are passed over at once.
        for entry in islice(entries, bisect_left(entries, start_offset, key=_LAST_OFFSET), None):
            if entry.first_offset < end_offset:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= end_offset:
                # All that ends later also began after the range.
                return found
        if at == len(segments):
            return found
        if log.holes:
            hole = _hole_between(log.holes, segments[at - 1].base_offset, segments[at].base_offset)
            if hole is not None:
                # A slice is said to end behind the hole where the index tells no better; what is read ends before it.
                if _open_before(log, hole) < min(end_offset, hole.start_offset):
                    raise KafkaError(
                        Err.KAFKA_STORAGE_ERROR,
                        f"records of {log.topic}-{log.partition} below {end_offset} may be of a transaction that was"
                        f" aborted in offsets {hole.start_offset} to {hole.end_offset}, which are damaged or missing",
                    )
                return found
        if _open_at(log, segments[at]) >= end_offset:
            return found
        at += 1


def aborted_of(log: "LogReader", segment: Segment) -> list[AbortedTransaction]:
    """The transaction index of a segment; from the log where the file is not what was written."""
    try:
        return segment.aborted
    except CorruptIndex:
        pass
    states, start_offset, is_known = _begin(log, segment.base_offset)
    at = log.segments.index(segment) + 1
    end_offset = log.segments[at].base_offset if at < len(log.segments) else log.end_offset
    try:
        found = replay(states, log.segments, start_offset, end_offset)
    except CorruptSegment as damage:
        damaged = next(one for one in log.segments if one.handle.path == damage.path)
        log.set_aside(damaged, damage.reason)
        raise KafkaError(Err.KAFKA_STORAGE_ERROR, str(damage)) from damage
    entries = [entry for where, entry in found if where is segment]
    if is_known:
        with suppress(OSError):
            segment.replace_aborted(entries)
        segment.keep_indexes()
    else:
        segment.guess_aborted(entries)
    return segment.aborted


def _hole_between(holes: Sequence[Hole], base_offset: int, following: int) -> Hole | None:
    """The first hole that a reader meets on its way from one segment to the next."""
    between = (hole for hole in holes if base_offset <= hole.start_offset < following)
    return min(between, key=attrgetter("start_offset"), default=None)


def _open_at(log: "LogReader", segment: Segment) -> int:
    """Where the earliest transaction began that was open when a segment began; its own base if none was. -1 where the
    snapshot that would tell is missing, or may be another's."""
    if segment.open_from is None:
        first = log.snapshots.first_open(segment.base_offset)
        segment.open_from = -1 if first is None else first
    return segment.open_from


def _open_before(log: "LogReader", hole: Hole) -> int:
    """The same, of the offset where a hole begins; from the log where there is no snapshot."""
    if hole.open_from is None:
        states, start_offset, _ = _begin(log, hole.start_offset)
        replay(states, log.segments, start_offset, hole.start_offset)
        first = states.first_undecided_offset
        hole.open_from = hole.start_offset if first is None else first
    return hole.open_from


def _begin(log: "LogReader", offset: int) -> tuple[ProducerStates, int, bool]:
    """From where on the log has to be read to know its transactions at `offset`: the producers there, the offset, and
    whether nothing is missing behind it.

    Where something is, what is left begins behind it. That tells all about the records that lie between.
    """
    states = ProducerStates()
    start_offset = max(log.log_start_offset, log.snapshots.load(states, offset, 0) or 0)
    if is_whole(log.holes, start_offset, offset):
        return states, start_offset, True
    states.clear()
    return states, max(hole.end_offset for hole in log.holes if hole.start_offset < offset), False
