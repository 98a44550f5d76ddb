"""What kind of file a path is, by its name alone."""

import os
import re
from enum import Enum

from headrace.quorum import mark
from headrace.storage import checkpoints, epochs, manifest
from headrace.storage.durability import UNSYNCED
from headrace.storage.file_names import SUMS_SUFFIX


class Kind(Enum):
    LOG = "log segment"
    METADATA_SNAPSHOT = "metadata snapshot"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TXN_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    OFFSETS = "offset checkpoint"
    EPOCHS = "leader epochs"
    SEGMENTS = "closed segments"
    PARTITION_METADATA = "partition metadata"
    META_PROPERTIES = "node identity"
    QUORUM_STATE = "quorum state"
    CLEAN_SHUTDOWN = "clean shutdown mark"
    VOUCHED = "mark of synced logs"
    LOCK = "lock"
    INDEX_SUMS = "index checksums"
    SCRUB = "progress of checks"
    METADATA_MARK = "metadata mark"
    UNSYNCED = "mark of a failed sync"
    DISK_PROBE = "probe of a full disk"


_SUFFIXES = {
    ".log": Kind.LOG,
    ".checkpoint": Kind.METADATA_SNAPSHOT,
    ".index": Kind.OFFSET_INDEX,
    ".timeindex": Kind.TIME_INDEX,
    ".txnindex": Kind.TXN_INDEX,
    ".snapshot": Kind.PRODUCER_SNAPSHOT,
    SUMS_SUFFIX: Kind.INDEX_SUMS,
}
_NAMES = {
    checkpoints.RECOVERY_POINTS: Kind.OFFSETS,
    checkpoints.HIGH_WATERMARKS: Kind.OFFSETS,
    checkpoints.LOG_STARTS: Kind.OFFSETS,
    checkpoints.CLEANER_OFFSETS: Kind.OFFSETS,
    checkpoints.PARTITION_METADATA: Kind.PARTITION_METADATA,
    checkpoints.META_PROPERTIES: Kind.META_PROPERTIES,
    checkpoints.CLEAN_SHUTDOWN: Kind.CLEAN_SHUTDOWN,
    checkpoints.VOUCHED: Kind.VOUCHED,
    checkpoints.LOCK: Kind.LOCK,
    epochs.FILE_NAME: Kind.EPOCHS,
    manifest.MANIFEST: Kind.SEGMENTS,
    "quorum-state": Kind.QUORUM_STATE,
    mark.FILE_NAME: Kind.METADATA_MARK,
    UNSYNCED: Kind.UNSYNCED,
    # These two belong to parts of a running broker, which a look at its files need not load.
    ".headrace_scrub": Kind.SCRUB,
    ".headrace_room": Kind.DISK_PROBE,
}
# A file on its way in or out keeps its format under another last name.
_PASSING = re.compile(r"\.(deleted|cleaned|swap|tmp|part)$")
# What recovery has set aside is still a log file, if a damaged one.
_SET_ASIDE = re.compile(r"(\.\d+)?\.(corrupt|cut)$")
_PARTITION = re.compile(r"(?P<topic>.+)-(?P<index>\d+)")
_FOLDER_TAILS = re.compile(r"\.[0-9a-f]{32}-(delete|future|stray)$")


def kind_of(path: str) -> Kind | None:
    """None for a file that is no broker's."""
    name = _SET_ASIDE.sub("", _PASSING.sub("", os.path.basename(path)))
    return _NAMES.get(name) or _SUFFIXES.get(os.path.splitext(name)[1])


def is_set_aside(path: str) -> bool:
    """Whether recovery took this file out of its log because of damage."""
    return _SET_ASIDE.search(os.path.basename(path)) is not None


def base_offset_of(path: str) -> int:
    """The offset in a segment file's name; 0 where there is none."""
    digits = os.path.basename(path).split(".")[0].split("-")[0]
    return int(digits) if digits.isdecimal() else 0


def partition_of(folder: str) -> tuple[str, int] | None:
    """(topic, partition) of a partition's folder, also of one that is being deleted or moved."""
    match = _PARTITION.fullmatch(_FOLDER_TAILS.sub("", os.path.basename(os.path.abspath(folder))))
    return (match["topic"], int(match["index"])) if match else None
