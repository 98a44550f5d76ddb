"""What stands where a file of ours belongs and cannot be one: a folder, a pipe, a link that leads nowhere, gigabytes.

To open one is an error at best, for a whole log or a whole log dir; a pipe may be waited at for ever, gigabytes do not
fit into memory, and a name beyond all offsets is no segment's. Set aside, it is a file that is missing, for which there
is a way on.
"""

import re
from collections.abc import Iterable

from headrace.storage.file_names import CUT_SUFFIX, OFFSET_DIGITS
from headrace.storage.files import Disk

BYTES_MAX = 64 << 20
"""Of whatever is read in one piece: the index of a segment of 2 GB has 4 MB, unless somebody wants more."""
OFFSET_MAX = 1 << 62
"""No log has come so far, and none that begins beyond it could go on for long."""
_OURS = re.compile(r"\d{20}(-\d{10})?\..+|(leader-epoch-checkpoint|partition\.metadata|\.headrace_\w+)(\.tmp)?")


def set_aside_in_partition(disk: Disk, folder: str) -> list[str]:
    """A line for each thing that was renamed."""
    if not disk.exists(folder):
        return []
    return _set_aside(disk, folder, [name for name in disk.list(folder) if _OURS.fullmatch(name)])


def set_aside_in_log_dir(disk: Disk, path: str, files: Iterable[str]) -> list[str]:
    """The same for `files` of the log dir itself; partitions' folders belong there."""
    wanted = {name for file in files for name in (file, file + ".tmp")}
    return _set_aside(disk, path, [name for name in disk.list(path) if name in wanted])


def _set_aside(disk: Disk, folder: str, names: list[str]) -> list[str]:
    lines = []
    strange = set(disk.not_files(folder))
    for name in names:
        if name.endswith(CUT_SUFFIX):
            continue
        if name in strange:
            why = "is no file"
        elif ".log" not in name and disk.size(f"{folder}/{name}") > BYTES_MAX:
            why = "is far too large"
        elif name[:OFFSET_DIGITS].isdigit() and int(name[:OFFSET_DIGITS]) > OFFSET_MAX:
            why = "begins beyond all offsets"
        else:
            continue
        aside = name + CUT_SUFFIX
        while disk.exists(f"{folder}/{aside}"):
            aside += CUT_SUFFIX
        disk.rename(f"{folder}/{name}", f"{folder}/{aside}")
        lines.append(f"{folder}/{name} {why}: renamed to {aside}")
    if lines:
        disk.sync_dir(folder)
    return lines
