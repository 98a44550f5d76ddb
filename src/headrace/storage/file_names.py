"""What the files of a segment are called, and what each ending says about a file.

A file is named by the offset of its first record. A second ending says that the file is no part of the log: not yet, or
no more.
"""

from collections.abc import Sequence

OFFSET_DIGITS = 20
SUMS_SUFFIX = ".indexsum"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex", SUMS_SUFFIX)
"""All that can be derived from a `.log` file and lies beside it."""
SHOWN_SUFFIXES = (".index", ".timeindex")
"""What a segment has from its start, as Kafka's have."""
SEGMENT_SUFFIXES = (*INDEX_SUFFIXES, ".log")
"""The log file last: a start goes by it."""
SNAPSHOT_SUFFIX = ".snapshot"

CLEANED_SUFFIX = ".cleaned"
"""Written by a compaction or a repair, and not decided on: a start removes it."""
SWAP_SUFFIX = ".swap"
"""Decided on by a compaction: a start puts it in place."""
DELETED_SUFFIX = ".deleted"
"""Deleted by retention, or replaced by a compaction: a start removes it."""
CORRUPT_SUFFIX = ".corrupt"
"""A segment with damage that its log leaves a hole for. An empty file keeps the place of one that is gone."""
CUT_SUFFIX = ".cut"
"""No longer part of the log, and kept for a person to look at: bytes that were cut off, or a damaged segment after its
repair."""


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:0{OFFSET_DIGITS}d}{suffix}"


def segment_bases(names: Sequence[str], suffix: str) -> list[int]:
    """The offsets in the names of files that end so."""
    bases = []
    for name in names:
        stem = name.removesuffix(suffix)
        if stem != name and len(stem) == OFFSET_DIGITS and stem.isdigit():
            bases.append(int(stem))
    return bases
