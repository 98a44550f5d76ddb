"""Asking a broker how far it has checked its files, and to check them now: an addition to DescribeLogDirs.

Whoever wants to know adds this tagged field (`private_fields`) to the request, and a broker that knows it adds its
answer.
"""

from struct import Struct
from typing import TypeVar

import msgspec

from headrace.protocol.private_fields import SCRUB_TAG, Tags, value_of

FIRST_VERSION = 2
"""Of DescribeLogDirs: the first with tagged fields."""
_REPLICA = Struct(">qi")

T = TypeVar("T")


class CellDigests(msgspec.Struct, frozen=True):
    """Ranges of offsets of a partition whose digests one broker wants to know from another."""

    topic: str
    partition: int
    first_cell: int
    count: int


class ScrubQuestion(msgspec.Struct, omit_defaults=True):
    """What is asked of a broker."""

    start: bool = False
    """Begin a pass now, as fast as the disk gives, whatever is under way."""
    topics: list[str] | None = None
    """Of these topics only."""
    compare: CellDigests | None = None


class ScrubStatus(msgspec.Struct, frozen=True):
    """How far one broker is."""

    passes: int = 0
    """How many have ended since it was started, on demand or by the clock."""
    is_running: bool = False
    bytes_done: int = 0
    bytes_total: int = 0
    """Of the pass under way, or of the last one."""
    damaged: int = 0
    """Segments found damaged since the broker was started."""
    mended: int = 0
    """Ranges put back in place since then."""
    missing: int = 0
    """Ranges of offsets that cannot be read now."""
    missing_here_only: int = 0
    """Those of them that other replicas have."""
    last_pass_ms: int = -1
    """When a pass over everything last ended, -1 if never."""
    digests: bytes | None = None
    """What was asked for to compare, 8 bytes each; 0 where none is known."""


def ask(question: ScrubQuestion) -> dict[int, bytes]:
    return {SCRUB_TAG: msgspec.json.encode(question)}


def question_in(tags: Tags) -> ScrubQuestion | None:
    return _decoded(tags, ScrubQuestion)


def answer(status: ScrubStatus) -> dict[int, bytes]:
    return {SCRUB_TAG: msgspec.json.encode(status)}


def status_in(tags: Tags) -> ScrubStatus | None:
    return _decoded(tags, ScrubStatus)


def replica_answer(checked_ms: int, holes: int) -> dict[int, bytes]:
    """When all of a replica was last checked (-1: never), and how many ranges of it are missing."""
    return {SCRUB_TAG: _REPLICA.pack(checked_ms, holes)}


def replica_in(tags: Tags) -> tuple[int, int] | None:
    found = value_of(tags, SCRUB_TAG)
    return _REPLICA.unpack(found) if found is not None and len(found) == _REPLICA.size else None


def _decoded(tags: Tags, kind: type[T]) -> T | None:
    found = value_of(tags, SCRUB_TAG)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found, type=kind)
    except msgspec.DecodeError:
        return None  # another's
