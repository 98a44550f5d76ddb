"""Which decision a marker carries out, and in which epoch its partition's leader was asked: additions to
WriteTxnMarkers.

In the classic protocol all transactions of a producer have the same epoch. So nothing in Kafka's own fields tells a
marker that comes late, twice or after a change of leaders from that of the next transaction. A leader that knows these
fields (`private_fields`) tells them apart: the decision is the offset of its record in the log of transactions.
"""

from struct import Struct, pack, unpack

from headrace.protocol.private_fields import LEADER_EPOCHS_TAG, MARKER_DECISION_TAG, Tags, value_of

UNKNOWN = -1
_INT64 = Struct(">q")
_INT32_BYTES = 4


def decision_tag(offset: int) -> dict[int, bytes] | None:
    """Of a marker."""
    return {MARKER_DECISION_TAG: _INT64.pack(offset)} if offset >= 0 else None


def decision_in(tags: Tags) -> int:
    found = value_of(tags, MARKER_DECISION_TAG)
    return UNKNOWN if found is None or len(found) != _INT64.size else int(_INT64.unpack(found)[0])


def leader_epochs_tag(epochs: list[int]) -> dict[int, bytes]:
    """Of a topic: one for each of its partitions, in their order."""
    return {LEADER_EPOCHS_TAG: pack(f">{len(epochs)}i", *epochs)}


def leader_epochs_in(tags: Tags, count: int) -> tuple[int, ...]:
    """One for each of `count` partitions. Bytes that are none of it are another's, and passed over."""
    found = value_of(tags, LEADER_EPOCHS_TAG)
    if found is None or len(found) != count * _INT32_BYTES:
        return (UNKNOWN,) * count
    return unpack(f">{count}i", found)
