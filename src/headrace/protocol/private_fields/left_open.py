"""What became of transactions that are open in partitions: an addition to ListTransactions.

A leader knows the producer of a transaction, and not its transactional id. So it asks every coordinator, and each says
which shards it answers for: only all of them together can say that a transaction is over (`private_fields`).
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from headrace.protocol.private_fields import LEFT_OPEN_TAG, Tags, value_of

PLACES_MAX = 1_000
"""In one question."""

_COUNT = struct.Struct(">i")
_PLACE = struct.Struct(">iqhH")
"""Partition, producer id and epoch, and how long the topic's name is."""
_SHARD = struct.Struct(">ii")


class Place(NamedTuple):
    """A transaction that is open in a partition, as its leader knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


class Standing(IntEnum):
    """What a coordinator knows of one."""

    UNKNOWN = 0
    """It does not have this transaction, or it is over."""
    OPEN = 1
    """Its end is still to come."""
    COMMITTED = 2


class Known(NamedTuple):
    """A coordinator's answer."""

    shards: dict[int, int]
    """Those that it answers for -> the epoch in which it leads them."""
    standings: list[Standing]
    """Of each place, as they were asked."""


def question_tag(places: list[Place]) -> dict[int, bytes]:
    parts = [_COUNT.pack(len(places))]
    for topic, partition, producer_id, epoch in places:
        name = topic.encode()
        parts += [_PLACE.pack(partition, producer_id, epoch, len(name)), name]
    return {LEFT_OPEN_TAG: b"".join(parts)}


def places_in(tags: Tags) -> list[Place] | None:
    """None: the request does not ask. Bytes that cannot be read are somebody else's, and passed over."""
    found = value_of(tags, LEFT_OPEN_TAG)
    if found is None:
        return None
    try:
        (count,) = _COUNT.unpack_from(found)
        places, at = [], _COUNT.size
        for _ in range(min(count, PLACES_MAX)):
            partition, producer_id, epoch, length = _PLACE.unpack_from(found, at)
            at += _PLACE.size + length
            places.append(Place(found[at - length : at].decode(), partition, producer_id, epoch))
    except (struct.error, UnicodeDecodeError):
        return None
    return places


def answer_tag(known: Known) -> dict[int, bytes]:
    shards = b"".join(_SHARD.pack(*shard) for shard in known.shards.items())
    return {LEFT_OPEN_TAG: _COUNT.pack(len(known.shards)) + shards + bytes(known.standings)}


def answer_in(tags: Tags, count: int) -> Known | None:
    """None: the broker does not know this addition."""
    found = value_of(tags, LEFT_OPEN_TAG)
    if found is None or len(found) < _COUNT.size:
        return None
    (shards,) = _COUNT.unpack_from(found)
    end = _COUNT.size + shards * _SHARD.size
    if shards < 0 or len(found) != end + count:
        return None
    try:
        standings = [Standing(one) for one in found[end:]]
    except ValueError:
        return None
    return Known(dict(_SHARD.iter_unpack(found[_COUNT.size : end])), standings)
