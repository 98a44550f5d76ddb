"""What the hand-written Produce and Fetch share: how a topic is named, and hints about leaders."""

from struct import Struct
from typing import Any

import msgspec

from headrace.protocol.primitives import STRING_LENGTH_MAX, ProtocolError, uvarint

_LENGTH = Struct(">h").pack


class LeaderHint(msgspec.Struct, frozen=True, gc=False):
    """Who leads the partition now, for a client that asked the wrong broker."""

    leader_id: int
    leader_epoch: int


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """Where a hinted leader is to be found."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def encode_topic(topic: Any, flexible: bool, by_id: bool) -> bytes:
    """A topic's id, or its name behind its length."""
    if by_id:
        topic_id: bytes = topic
        return topic_id
    name: bytes = topic.encode()
    if len(name) > STRING_LENGTH_MAX:
        raise ProtocolError("a topic's name is too long")
    return (uvarint(len(name) + 1) if flexible else _LENGTH(len(name))) + name
