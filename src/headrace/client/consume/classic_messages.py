"""What members of a classic group tell one another through their coordinator: subscriptions and assignments. Pure."""

from collections.abc import Iterable
from typing import Any

from headrace.client.consume.assignors import Subscriber, TopicPartition
from headrace.client.errors import NotKafka
from headrace.protocol import messages as m
from headrace.protocol.api import DATA
from headrace.protocol.codec import Codec
from headrace.protocol.primitives import ProtocolError

SUBSCRIPTION: Codec = DATA["ConsumerProtocolSubscription"]
ASSIGNMENT: Codec = DATA["ConsumerProtocolAssignment"]
VERSION = 3


def write_subscription(
    topics: Iterable[str], owned: Iterable[TopicPartition], generation: int, rack: str | None
) -> bytes:
    kind = m.ConsumerProtocolSubscription
    message = kind(
        topics=list(topics),
        owned_partitions=[kind.TopicPartition(topic=t, partitions=p) for t, p in _by_topic(owned).items()],
        generation_id=generation,
        rack_id=rack,
    )
    return VERSION.to_bytes(2, "big") + SUBSCRIPTION.encode(message, VERSION)


def read_subscription(data: bytes, member: m.JoinGroupResponse.JoinGroupResponseMember) -> Subscriber:
    """What a member has said; other clients write it, so it may be anything. Raises NotKafka."""
    try:
        said: m.ConsumerProtocolSubscription = _read(SUBSCRIPTION, data)
    except ProtocolError as error:
        raise NotKafka(f"member {member.member_id!r} has sent a subscription that cannot be read: {error}") from None
    return Subscriber(
        frozenset(said.topics),
        frozenset((one.topic, index) for one in said.owned_partitions for index in one.partitions),
        said.generation_id,
        member.group_instance_id,
    )


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    kind = m.ConsumerProtocolAssignment
    rows = [kind.TopicPartition(topic=t, partitions=p) for t, p in _by_topic(partitions).items()]
    return VERSION.to_bytes(2, "big") + ASSIGNMENT.encode(kind(assigned_partitions=rows), VERSION)


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Raises NotKafka."""
    if not data:
        return frozenset()
    try:
        found: m.ConsumerProtocolAssignment = _read(ASSIGNMENT, data)
    except ProtocolError as error:
        raise NotKafka(f"the group's leader has sent an assignment that cannot be read: {error}") from None
    return frozenset((one.topic, index) for one in found.assigned_partitions for index in one.partitions)


def _read(codec: Codec, data: bytes) -> Any:
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise ProtocolError(f"version {version} does not exist")
    message, _ = codec.decoder(min(version, codec.max_version))(data, 2, len(data))
    return message


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
