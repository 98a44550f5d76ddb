"""Whether a folder has all its segments: finds those that are missing, cut short, or another partition's.

With a manifest that can be trusted, each closed segment is compared with its line by name, size and time; the file is
read only where these differ. Without one, segments of a log that was never compacted have to begin where the last one
ends.
"""

import os.path
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from headrace.config import LogConfig
from headrace.storage.checking import checked_batches, verify_file
from headrace.storage.file_names import CORRUPT_SUFFIX, CUT_SUFFIX, DELETED_SUFFIX, file_name, segment_bases
from headrace.storage.files import Disk
from headrace.storage.holes import (
    Hole,
    RecoveryReport,
    kept_places,
    leave_place,
    retire_place,
    set_segment_aside,
)
from headrace.storage.manifest import (
    HEAD_BYTES,
    MANIFEST,
    UNKNOWN_SIZE,
    CorruptManifest,
    Entry,
    Manifest,
    entry_of,
    fingerprint,
    is_file_of,
)
from headrace.storage.segment import CorruptSegment, Segment


def end_of(segment: Segment) -> int:
    """Where its last batch ends; CorruptSegment where it does not end with one."""
    last = segment.last_batch()
    return segment.base_offset if last is None else last[1].end_offset


def read_manifest(disk: Disk, path: str, names: Sequence[str], report: RecoveryReport) -> Manifest | None:
    """What the folder's manifest says, if there is one to be believed. A deletion that was interrupted is then finished
    in it: before the files go, which are all that shows that nothing is missing."""
    if MANIFEST not in names:
        return None
    try:
        manifest = Manifest.decode(disk.read_bytes(f"{path}/{MANIFEST}"))
    except (CorruptManifest, ValueError) as error:
        report.say(f"{MANIFEST} is damaged ({error}): it is written anew, and segments are only checked to join")
        return None
    if manifest.folder not in ("", os.path.basename(path)):
        report.say(
            f"{MANIFEST} is that of {manifest.folder}: it is written anew, and segments are only checked to join"
        )
        return None
    swap = manifest.swap
    for base in segment_bases(names, ".log" + DELETED_SUFFIX):
        if swap is not None and swap.base_offset <= base < swap.end_offset:
            continue  # replaced, or about to be
        entry = manifest.get(base)
        if file_name(base, ".log") in names:
            continue
        if entry is None:
            # Deleted before it was noted. Where a power cut has brought those before it back, nothing is missing behind
            # them.
            later = [other for other in segment_bases(names, ".log") if other > base]
            if (
                later
                and base >= manifest.start
                and not any(e.base_offset < base < e.end_offset for e in manifest.entries)
            ):
                manifest.begin_at(min(later))
        elif is_file_of(disk, f"{path}/{file_name(base, '.log' + DELETED_SUFFIX)}", entry):
            # What a compaction has replaced is left under the same name for a while, and says nothing about the segment
            # in its place.
            manifest.begin_at(max(manifest.start, entry.end_offset))
    manifest.save(disk, path)
    return manifest


class ManifestCheck:
    """Compares the segments that are there with the manifest. What it finds goes into the report and into the
    manifest."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        segments: list[Segment],
        names: Sequence[str],
        manifest: Manifest,
        config: LogConfig,
        log_start: int,
        report: RecoveryReport,
    ) -> None:
        self.disk = disk
        self.config = config
        self.path = path
        self.segments = segments
        self.manifest = manifest
        self.log_start = log_start
        self.report = report
        self.places = kept_places(path, names)
        """Files that keep the place of what is set aside or gone."""
        self._alike: set[tuple[int, int]] = set()
        """Sizes and times that two segments share: they do not tell one from the other."""

    def run(self) -> None:
        manifest = self.manifest
        self._settle_swap()
        self._settle_deletion()
        stamps = Counter((entry.size, entry.modified_ms) for entry in manifest.entries)
        self._alike = {stamp for stamp, count in stamps.items() if count > 1}
        for entry in manifest.entries:
            segment = self._find(entry.base_offset)
            places = [base for base in self.places if entry.base_offset <= base < entry.end_offset]
            if segment is not None and self._is_same(entry, segment):
                for base in places:
                    self._retire(base)
                manifest.mark_lost(entry.base_offset, False)
            elif not self.segments or entry.base_offset > self.segments[-1].base_offset:
                manifest.drop(
                    entry.base_offset, entry.end_offset
                )  # the end of the log is gone; the report has where it was
            elif entry.end_offset <= self.log_start and segment is None:
                manifest.drop(entry.base_offset, entry.base_offset + 1)
            elif entry.lost and not places:
                self._given_up(entry, segment)
            elif entry.lost and any(entry.base_offset <= s.base_offset < entry.end_offset for s in self.segments):
                self._partly_there(entry)
            elif segment is None:
                self._missing(entry, places)
            else:
                self._changed(entry, segment, places)
        self._set_strangers_aside()

    def _find(self, base_offset: int) -> Segment | None:
        return next((segment for segment in self.segments if segment.base_offset == base_offset), None)

    def _settle_swap(self) -> None:
        """A compaction was under way: either all old segments are there, or the new one."""
        swap = self.manifest.swap
        if swap is not None:
            new = self._find(swap.base_offset)
            others = [s for s in self.segments if swap.base_offset < s.base_offset < swap.end_offset]
            # Of exactly its size: the old segment may begin with all that the new one holds, above all if it is empty.
            is_new = new is not None and is_file_of(self.disk, new.path(".log"), swap)
            self.manifest.end_swap(is_new and not others)

    def _settle_deletion(self) -> None:
        """What was deleted may be back after a power cut. It may stay where nothing is missing behind it."""
        start = self.manifest.start
        for segment in reversed([s for s in self.segments if s.base_offset < self.manifest.start]):
            try:
                joins = end_of(segment) == start
            except CorruptSegment:
                joins = False
            if not joins:
                self._set_aside(segment, CUT_SUFFIX, "it was deleted, and what followed it is gone")
            else:
                start = segment.base_offset
        if start != self.manifest.start:
            self.manifest.begin_at(start)

    def _is_same(self, entry: Entry, segment: Segment) -> bool:
        if entry.size == UNKNOWN_SIZE or segment.size < entry.size:
            return False
        path = segment.path(".log")
        stamp = segment.size, self.disk.modified_ms(path)
        if not entry.lost and stamp == (entry.size, entry.modified_ms) and stamp not in self._alike:
            return True
        file = self.disk.open(path, readonly=True)
        try:
            same = fingerprint(file, entry.size) == (entry.head, entry.tail)
        finally:
            file.close()
        if same and segment.size > entry.size:
            self.report.say(
                f"{os.path.basename(path)} has {segment.size - entry.size} bytes too many at its end, which do not"
                " count"
            )
            segment.size = entry.size
        return same

    # -- what is wrong

    def _missing(self, entry: Entry, places: list[int]) -> None:
        self._hole(entry.base_offset, entry, places, "{file} is missing")

    def _changed(self, entry: Entry, segment: Segment, places: list[int]) -> None:
        """Another file under the name of a segment; or the same, cut short: then what is left of it is served."""
        size, end_offset = self._prefix(entry, segment)
        if size:
            segment.size = size
            if segment is self.segments[-1]:
                self.manifest.drop(entry.base_offset, entry.end_offset)
                self.manifest.add(entry_of(self.disk, segment.path(".log"), entry.base_offset, end_offset, size))
                return  # the end of the log is gone
            self._hole(end_offset, entry, places, "{file} was cut short")
        else:
            # What is left of a damaged segment is read again later. Another log's batches would be taken for that, too.
            suffix = CORRUPT_SUFFIX if self._is_alike(entry, segment) else CUT_SUFFIX
            self._set_aside(segment, suffix, "it is not the file that was written there")
            self._hole(entry.base_offset, entry, [], "{file} is another file than was written there")

    def _is_alike(self, entry: Entry, segment: Segment) -> bool:
        """Whether its beginning or its end is what it was: then it is the same file with damage in it."""
        file = self.disk.open(segment.path(".log"), readonly=True)
        try:
            head, tail = fingerprint(file, min(entry.size, segment.size))
        finally:
            file.close()
        return segment.size > HEAD_BYTES and (head == entry.head or tail == entry.tail)

    def _prefix(self, entry: Entry, segment: Segment) -> tuple[int, int]:
        """(bytes, end offset) of what is left of a segment that was cut short; (0, _) where it is another one."""
        if not HEAD_BYTES <= segment.size < entry.size:
            return 0, segment.base_offset
        size, end_offset = 0, segment.base_offset
        file = self.disk.open(segment.path(".log"), readonly=True)
        try:
            if fingerprint(file, HEAD_BYTES)[0] == entry.head:
                for position, fields, batch in checked_batches(
                    file, segment.base_offset, segment.size, segment.base_offset
                ):
                    size, end_offset = position + len(batch), fields[0] + fields[6] + 1
        except CorruptSegment:
            pass  # it ends within a batch
        finally:
            file.close()
        return size, end_offset

    def _hole(self, start_offset: int, entry: Entry, places: list[int], what: str) -> None:
        file = file_name(entry.base_offset if entry.size != UNKNOWN_SIZE else start_offset, ".log")
        known = start_offset in places
        path = self.places.get(start_offset) or leave_place(self.disk, self.path, start_offset)
        for base in places:
            if base != start_offset:
                self._retire(base)
        self.places[start_offset] = path
        hole = Hole(start_offset, entry.end_offset, path)
        if known:
            self.report.holes.append(hole)
        else:
            self.report.found_hole(hole, what.format(file=file), file)
        self.manifest.mark_lost(entry.base_offset)

    def _given_up(self, entry: Entry, segment: Segment | None) -> None:
        """Somebody has removed the file that kept its place: the log goes on without these records."""
        self.manifest.drop(entry.base_offset, entry.base_offset + 1)
        end = f"offsets {entry.base_offset} to {entry.end_offset - 1}"
        if segment is not None:
            size, end_offset = self._prefix(entry, segment)
            if not size:
                self._set_aside(segment, CUT_SUFFIX, "it is not the file that was written there")
            else:
                segment.size = size
                end = f"offsets {end_offset} to {entry.end_offset - 1}"
        self.report.say(f"goes on without {end}, which somebody has given up")

    def _partly_there(self, entry: Entry) -> None:
        """Something is put back, or was left: all of it has to be whole, and what it does not have is still missing."""
        covered = entry.base_offset
        is_whole = True
        for segment in [s for s in self.segments if entry.base_offset <= s.base_offset < entry.end_offset]:
            size, end_offset = self._prefix(entry, segment) if segment.base_offset == entry.base_offset else (0, 0)
            if size:
                segment.size = size
            else:
                damage = verify_file(self.disk, segment.path(".log"), segment.base_offset, segment.size)
                if damage is not None or not segment.size or end_of(segment) > entry.end_offset:
                    self._set_aside(segment, CUT_SUFFIX, damage or "it is not what was written there")
                    continue
                end_offset = end_of(segment)
            is_whole = self._still_missing(covered, segment.base_offset, entry) and is_whole
            for base in [base for base in self.places if segment.base_offset <= base < end_offset]:
                self._retire(base)
            covered = end_offset
        is_whole = self._still_missing(covered, entry.end_offset, entry) and is_whole
        if is_whole:
            self.manifest.drop(entry.base_offset, entry.base_offset + 1)

    def _still_missing(self, start_offset: int, end_offset: int, entry: Entry) -> bool:
        """What lies between that which is there. True where nothing is missing: compaction leaves gaps, too, but marks
        none."""
        places = [base for base in self.places if start_offset <= base < end_offset]
        if start_offset >= end_offset or (self.config.compact and not places and start_offset > entry.base_offset):
            return True
        if self.config.compact and places:
            start_offset = places[0]
        self._hole(start_offset, entry._replace(end_offset=end_offset), places, "{file} is missing")
        return False

    def _set_strangers_aside(self) -> None:
        """Files among the closed segments that were never one of them: copies under another name."""
        manifest = self.manifest
        end_offset = manifest.end_offset
        ranges = [(entry.base_offset, entry.end_offset) for entry in manifest.entries if not entry.lost]
        for segment in list(self.segments):
            base = segment.base_offset
            if base < end_offset and any(start < base < end for start, end in ranges):
                self._set_aside(segment, CUT_SUFFIX, "it is none of this log's segments")

    def _set_aside(self, segment: Segment, suffix: str, reason: str) -> None:
        self.segments.remove(segment)
        segment.close()
        path = set_segment_aside(self.disk, segment, suffix)
        if path.endswith(CORRUPT_SUFFIX):
            self.places[segment.base_offset] = path
        self.report.say(f"set {file_name(segment.base_offset, '.log')} aside as {os.path.basename(path)}: {reason}")

    def _retire(self, base: int) -> None:
        """Nothing is missing there any more."""
        retire_place(self.disk, self.places.pop(base))


def check_joins(
    disk: Disk,
    path: str,
    segments: list[Segment],
    deleted: Sequence[int],
    config: LogConfig,
    cleaned: int,
    until: int,
    report: RecoveryReport,
) -> None:
    """Without a manifest: segments that begin at or below `until` hold their own offsets, and all of them.

    Compaction leaves gaps, and so does copying a compacted log: within its segments.
    """
    at = 0
    while at + 1 < len(segments) and segments[at + 1].base_offset <= until:
        segment, following = segments[at], segments[at + 1]
        reason = _foreign(disk, segment, following.base_offset)
        if reason is not None:
            del segments[at]
            segment.close()
            place = set_segment_aside(disk, segment, CORRUPT_SUFFIX)
            hole = Hole(segment.base_offset, following.base_offset, place)
            report.found_hole(
                hole, f"{file_name(segment.base_offset, '.log')} {reason}", file_name(segment.base_offset, ".log")
            )
            continue
        at += 1
        end_offset = end_of(segment)
        is_deleted = any(end_offset <= base < following.base_offset for base in deleted)
        if (
            end_offset == following.base_offset
            or config.compact
            or following.base_offset <= cleaned
            or is_deleted
            or report.covers(end_offset, following.base_offset)
            or _has_gaps(segment)
            or _has_gaps(following)
        ):
            continue
        hole = Hole(end_offset, following.base_offset, leave_place(disk, path, end_offset))
        file = file_name(end_offset, ".log")
        report.found_hole(hole, f"{file} is missing, or the segment before it was cut short", file)


def _foreign(disk: Disk, segment: Segment, following: int) -> str | None:
    """What is wrong with a segment that is not the one its name says, by its first and last batch; None where it may
    be."""
    try:
        first = segment.header_at(0).base_offset if segment.size else segment.base_offset
        end_offset = end_of(segment)
    except CorruptSegment:
        # Every byte of it, before it is called damaged: it may be of a format that is not ours to judge.
        return verify_file(disk, segment.path(".log"), segment.base_offset, segment.size)
    if first < segment.base_offset or end_offset > following:
        return f"holds offsets {first} to {end_offset - 1}, which are another segment's"
    return None


def _has_gaps(segment: Segment) -> bool:
    try:
        headers = [header for _, header in segment.walk(0, segment.size)]
    except CorruptSegment:
        return False
    return any(header.end_offset < following.base_offset for header, following in pairwise(headers))


def note_segments(disk: Disk, manifest: Manifest, segments: Sequence[Segment], report: RecoveryReport) -> None:
    """At the end of opening a folder: the manifest names what is there, and what is missing."""
    here = {segment.base_offset: segment for segment in segments[:-1]}
    for entry in manifest.entries:
        segment = here.get(entry.base_offset)
        in_hole = any(hole.start_offset <= entry.base_offset < hole.end_offset for hole in report.holes)
        if segment is None and in_hole:
            manifest.mark_lost(entry.base_offset)
        elif segment is None or (segment.size != entry.size and not entry.lost):
            manifest.drop(entry.base_offset, entry.base_offset + 1)
    first = min([segments[0].base_offset, *(hole.start_offset for hole in report.holes)])
    if first != manifest.start:
        manifest.begin_at(first)
    for segment, following in pairwise(segments):
        if segment.synced and manifest.get(segment.base_offset) is None:
            end_offset = covered_until(segment, following, report.holes)
            path = segment.path(".log")
            manifest.add(entry_of(disk, path, segment.base_offset, end_offset, segment.size))


def covered_until(segment: Segment, following: Segment, holes: Sequence[Hole]) -> int:
    """Where what a segment stands for ends: at the next one, or where records are known to be missing before it."""
    starts = [hole.start_offset for hole in holes if segment.base_offset < hole.start_offset < following.base_offset]
    return min([following.base_offset, *starts])
