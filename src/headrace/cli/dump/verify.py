"""Holds the indexes of a segment against its log: would a reader that trusts them miss a record?

Only what could lead a reader astray counts. An index may have gaps, and one that belongs to an active segment may lag
behind; both cost time, not records.
"""

import os
from bisect import bisect_right

from headrace.cli.dump.kinds import base_offset_of
from headrace.cli.dump.report import Report
from headrace.cli.dump.segments import Broken, walk
from headrace.storage.indexes import CorruptIndex, OffsetIndex, TimeIndex, decode_aborted


class Batches:
    """Where the batches of one log file lie, in columns, and the largest timestamp up to each."""

    def __init__(self, path: str) -> None:
        self.positions: list[int] = []
        self.base_offsets: list[int] = []
        self.last_offsets: list[int] = []
        self.max_timestamps: list[int] = []
        largest = -1
        try:
            for place in walk(path):
                header = place.header
                largest = max(largest, header.max_timestamp)
                self.positions.append(place.position)
                self.base_offsets.append(header.base_offset)
                self.last_offsets.append(header.last_offset)
                self.max_timestamps.append(largest)
        except Broken:
            # The dump of the log itself has said so; what lies before can still be compared.
            pass


def verify_indexes(log_path: str, report: Report) -> None:
    """Check the indexes beside a log file."""
    stem = log_path.removesuffix(".log")
    batches = Batches(log_path)
    base = base_offset_of(log_path)
    for suffix, check in ((".index", _check_offsets), (".timeindex", _check_times), (".txnindex", _check_aborted)):
        path = stem + suffix
        if not os.path.exists(path):
            continue
        with open(path, "rb") as file:
            data = file.read()
        before = len(report.damaged)
        try:
            check(data, path, base, batches, report)
        except CorruptIndex as error:
            report.damage(path, str(error))
        if len(report.damaged) == before:
            report.line(f"{os.path.basename(path)} agrees with the log")


def _check_offsets(data: bytes, path: str, base: int, batches: Batches, report: Report) -> None:
    index = OffsetIndex.decode(data)
    starts = {position: slot for slot, position in enumerate(batches.positions)}
    before = -1
    for slot, (relative, position) in enumerate(zip(index.offsets, index.positions)):
        offset = base + relative
        where = f"entry {slot} (offset {offset} -> byte {position})"
        batch = starts.get(position)
        if relative <= before:
            report.damage(path, f"{where}: offsets do not grow")
        elif batch is None:
            report.damage(path, f"{where}: no batch begins at that byte")
        elif batches.base_offsets[batch] > offset:
            report.damage(path, f"{where}: the batch there begins later, at offset {batches.base_offsets[batch]}")
        before = relative


def _check_times(data: bytes, path: str, base: int, batches: Batches, report: Report) -> None:
    index = TimeIndex.decode(data)
    for slot, (timestamp, relative) in enumerate(zip(index.timestamps, index.offsets)):
        offset = base + relative
        where = f"entry {slot} ({timestamp} -> offset {offset})"
        # Batches that end before the offset: a look-up for a later time skips them all.
        skipped = bisect_right(batches.last_offsets, offset - 1)
        if batches.last_offsets and offset > batches.last_offsets[-1]:
            report.damage(path, f"{where}: the log ends at offset {batches.last_offsets[-1]}")
        elif skipped and batches.max_timestamps[skipped - 1] > timestamp:
            newer = batches.max_timestamps[skipped - 1]
            report.damage(path, f"{where}: a batch before that offset has the later timestamp {newer}")


def _check_aborted(data: bytes, path: str, base: int, batches: Batches, report: Report) -> None:
    for slot, entry in enumerate(decode_aborted(data, base)):
        if batches.last_offsets and entry.last_offset > batches.last_offsets[-1]:
            report.damage(path, f"entry {slot}: its marker at offset {entry.last_offset} is beyond the end of the log")
