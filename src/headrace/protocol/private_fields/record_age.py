"""Asking a leader how old what follows an offset is: an addition to ListOffsets that others pass over.

No API of Kafka's tells when the record at an offset was written, short of fetching it. Whoever wants to know adds this
tagged field (`private_fields`) to a partition of ListOffsets, and a leader that knows it adds its answer to that
partition's row. Nobody who did not ask is answered. A partition may be named once in a request, but groups stand at
many offsets of it: the field has as many numbers as one likes to ask for, and the answer one for each, in the same
order.
"""

from struct import pack, unpack

from headrace.protocol.private_fields import RECORD_AGE_TAG, Tags, value_of

FIRST_VERSION = 6
"""Of ListOffsets: the first with tagged fields."""
INT64_BYTES = 8
OFFSETS_MAX = 1_000
"""In one field. A leader answers for a partition in one go; more in one would keep it from its other work."""
UNKNOWN = -1


def tagged(*values: int) -> dict[int, bytes]:
    """In a request, offsets from which on nothing is consumed; in an answer, ages in milliseconds (-1: unknown)."""
    return {RECORD_AGE_TAG: pack(f">{len(values)}q", *values)}


def values_in(tags: Tags) -> tuple[int, ...]:
    """The values of the field, if it is there. Bytes that are none of it are another's, and passed over."""
    found = value_of(tags, RECORD_AGE_TAG)
    if found is None or len(found) % INT64_BYTES or len(found) > OFFSETS_MAX * INT64_BYTES:
        return ()
    return unpack(f">{len(found) // INT64_BYTES}q", found)


def value_in(tags: Tags) -> int | None:
    """The answer to a question about one offset, if there is one."""
    values = values_in(tags)
    return values[0] if len(values) == 1 else None
