"""Damage and loss in a log: what is set aside, what is missing, and what opening a folder found of either.

`docs/decisions/0002-quarantine.md` says what becomes of it.
"""

import os.path
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.storage.file_names import CORRUPT_SUFFIX, CUT_SUFFIX, INDEX_SUFFIXES, file_name, segment_bases
from headrace.storage.files import Disk
from headrace.storage.segment import Segment

WHAT_TO_DO = (
    "reading them is an error. Where other replicas have them, they are copied, and there is nothing to do. Else stop"
    " this node and restore {file} from a backup; or give them up: delete records up to {end} (DeleteRecords), or"
    " remove {place} while this node is stopped"
)


@dataclass(slots=True)
class Hole:
    """Offsets that were in a segment now set aside, or gone: reading them is an error, never a silent skip."""

    start_offset: int
    end_offset: int
    path: str
    open_from: int | None = None
    """Where the earliest transaction began that was open at `start_offset`: how it ended may be known here only. None
    until somebody asks."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found, for people (`lines`) and for the broker (`holes`)."""

    path: str
    clean: bool
    segments_checked: int = 0
    bytes_checked: int = 0
    bytes_truncated: int = 0
    quarantined: bool = False
    """Whether a segment was found damaged or missing this time."""
    synced_end: int = 0
    """Everything below was on the disk, as checkpoints and the manifest say. A log that ends before it has lost its
    end."""
    lines: list[str] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(f"{os.path.basename(self.path)}: {line}")

    def found_hole(self, hole: Hole, what: str, file: str) -> None:
        """A hole that was not known before: `what` is wrong with `file`."""
        self.holes.append(hole)
        self.quarantined = True
        place = os.path.basename(hole.path)
        advice = WHAT_TO_DO.format(file=file, end=hole.end_offset, place=place)
        self.say(f"lacks offsets {hole.start_offset} to {hole.end_offset - 1}: {what}; {advice}")

    def covers(self, start_offset: int, end_offset: int) -> bool:
        """Whether holes that are known explain why all from one offset to another is missing."""
        for hole in sorted(self.holes, key=lambda hole: hole.start_offset):
            if hole.start_offset <= start_offset < hole.end_offset:
                start_offset = hole.end_offset
        return start_offset >= end_offset


def is_whole(holes: Iterable[Hole], start_offset: int, end_offset: int) -> bool:
    """Whether nothing is missing from one offset to another: what is derived from that range is right."""
    return not any(hole.start_offset < end_offset and start_offset < hole.end_offset for hole in holes)


def leave_place(disk: Disk, folder: str, offset: int) -> str:
    """An empty file that keeps the place of records which are gone; at every start the hole is found again by its
    name."""
    path = f"{folder}/{file_name(offset, '.log' + CORRUPT_SUFFIX)}"
    disk.open(path, create=True).close()
    disk.sync_dir(folder)
    return path


def kept_places(folder: str, names: Sequence[str]) -> dict[int, str]:
    """The `.corrupt` files of a folder, by offset: each keeps the place of what is set aside or gone."""
    suffix = ".log" + CORRUPT_SUFFIX
    return {base: f"{folder}/{file_name(base, suffix)}" for base in sorted(segment_bases(names, suffix))}


def set_segment_aside(disk: Disk, segment: Segment, suffix: str) -> str:
    """Rename a segment's log so that nothing serves or deletes it; its indexes can be derived again."""
    source = segment.path(".log")
    for index in INDEX_SUFFIXES:
        if disk.exists(segment.path(index)):
            disk.remove(segment.path(index))
    target = source + suffix
    number = 0
    while disk.exists(target) and disk.size(target):
        number += 1  # never over what was set aside before
        target = f"{source}.{number}{CUT_SUFFIX}"
    disk.rename(source, target)
    disk.sync_dir(segment.folder)
    return target


def put_away(disk: Disk, path: str) -> str:
    """Rename a file that was set aside to `.cut`, under a name that is free: nothing set aside is ever overwritten."""
    stem = path.removesuffix(CORRUPT_SUFFIX)
    target, number = stem + CUT_SUFFIX, 0
    while disk.exists(target):
        number += 1
        target = f"{stem}.{number}{CUT_SUFFIX}"
    disk.rename(path, target)
    return target


def retire_place(disk: Disk, path: str) -> None:
    """Nothing is missing there any more: an empty file that kept the place goes, what was set aside stays as `.cut`."""
    if disk.size(path):
        put_away(disk, path)
    else:
        disk.remove(path)
