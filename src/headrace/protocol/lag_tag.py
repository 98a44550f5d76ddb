"""Asking a leader how old what follows an offset is: an addition to ListOffsets that others pass over.

No API of Kafka's tells when the record at an offset was written, short of fetching it. Whoever wants to know adds this
tagged field to a partition of ListOffsets, and a leader that knows it adds its answer to that partition's row. Tagged
fields that a peer does not know are skipped by the protocol's own rule, so the question is safe to ask of any broker, and
nobody who did not ask is answered.
"""

from struct import Struct

LAG_TAG = 18_514
"""Far beyond the numbers that Kafka gives to its own tagged fields, which count from 0."""
FIRST_VERSION = 6
"""Of ListOffsets: the first with tagged fields."""
INT64 = Struct(">q")
UNKNOWN = -1

Tags = dict[int, bytes] | None


def tagged(value: int) -> dict[int, bytes]:
    """In a request, the offset from which on nothing is consumed; in an answer, the age in milliseconds (-1: unknown)."""
    return {LAG_TAG: INT64.pack(value)}


def value_in(tags: Tags) -> int | None:
    """The value of the field, if it is there. Bytes that are none of it are another's, and passed over."""
    found = tags.get(LAG_TAG) if tags else None
    if found is None or len(found) != INT64.size:
        return None
    value: int = INT64.unpack(found)[0]
    return value
