"""What brokers tell of the room on their disks: additions to BrokerHeartbeat and DescribeLogDirs that others pass over.

Kafka's protocol has no word for a log dir that works and is full. Both are tagged fields (`private_fields`).
DescribeLogDirs tells only those who ask for it by an empty one.
"""

from struct import Struct, error
from typing import NamedTuple

from headrace.protocol.private_fields import DISK_SPACE_TAG, Tags, value_of

QUESTION = {DISK_SPACE_TAG: b""}
"""In DescribeLogDirs, from v2 on, which is the first with tagged fields."""

NO_RECORDS = 1
"""Room is left for what brokers write themselves (offsets, metadata, checkpoints), and for nobody's records."""
NOTHING = 2
"""Nothing at all can be written."""

_DIRECTORY = Struct(">16sB")
_SPACE = Struct(">Bqqq")
UNKNOWN = -1


class FullDirectories(NamedTuple):
    """Of one broker."""

    levels: dict[bytes, int]
    """NO_RECORDS or NOTHING, by the id of a directory; those with room are not in it."""
    everywhere: int = 0
    """The least of all its directories: what holds for replicas whose directory the metadata does not name."""


def full_tagged(full: FullDirectories) -> dict[int, bytes] | None:
    """For a heartbeat; None where there is nothing to tell."""
    if not full.levels:
        return None
    rows = b"".join(_DIRECTORY.pack(directory, level) for directory, level in full.levels.items())
    return {DISK_SPACE_TAG: bytes((full.everywhere,)) + rows}


def full_in(tags: Tags) -> FullDirectories:
    """Bytes that are none of it are another's, and passed over."""
    found = value_of(tags, DISK_SPACE_TAG)
    if not found or (len(found) - 1) % _DIRECTORY.size:
        return FullDirectories({})
    return FullDirectories(dict(_DIRECTORY.iter_unpack(found[1:])), found[0])


class Space(NamedTuple):
    """What DescribeLogDirs adds about one log dir."""

    level: int = 0
    """0, NO_RECORDS or NOTHING."""
    reserve_bytes: int = UNKNOWN
    filled_bytes: int = 0
    """By how much free space has shrunk over `over_ms`; negative where it has grown."""
    over_ms: int = 0
    """About an hour, or less where the broker has not run for so long."""


def is_asked(tags: Tags) -> bool:
    """Whether somebody wants to know."""
    return value_of(tags, DISK_SPACE_TAG) is not None


def space_tagged(space: Space) -> dict[int, bytes]:
    return {DISK_SPACE_TAG: _SPACE.pack(*space)}


def space_in(tags: Tags) -> Space | None:
    found = value_of(tags, DISK_SPACE_TAG)
    if found is None:
        return None
    try:
        return Space(*_SPACE.unpack(found))
    except error:
        return None


def seconds_to_full(usable_bytes: int, space: Space | None) -> float | None:
    """Until only the reserve is left, if it goes on as in the time that `space` tells of; None: it does not fill, or
    who knows."""
    if space is None or space.filled_bytes <= 0 or space.over_ms <= 0:
        return None
    return max(0, usable_bytes - space.reserve_bytes) / (space.filled_bytes / (space.over_ms / 1000))
