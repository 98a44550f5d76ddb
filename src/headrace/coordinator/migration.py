"""A group changes its protocol while its members live on: classic to consumer when the first member of the new protocol
joins, and back when the last one leaves. Pure conversions; consumer.py decides when.
"""

from collections.abc import Collection
from typing import Any

from headrace.coordinator.assignors import NO_ASSIGNMENT, Assignment
from headrace.coordinator.classic_group import ClassicGroup, ClassicMember, State as ClassicState
from headrace.coordinator.consumer_group import CONSUMER_PROTOCOL, ConsumerGroup
from headrace.coordinator.consumer_members import (
    ClassicProtocols,
    Member,
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
    with_epoch,
)
from headrace.coordinator.outcome import Record
from headrace.coordinator.shard_state import ShardConfig
from headrace.coordinator.subscriptions import TopicHashes
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Image
from headrace.protocol import messages as m
from headrace.protocol.api import DATA
from headrace.protocol.primitives import ProtocolError

UPGRADE_POLICIES = frozenset({"bidirectional", "upgrade"})
DOWNGRADE_POLICIES = frozenset({"bidirectional", "downgrade"})
DISABLED = "disabled"

# What consumers say to each other through the classic protocol: a version, then a message ----------------------------


def _versioned(name: str, data: bytes) -> Any:
    """Raises ProtocolError. A version newer than ours is read as ours: fields are only ever added at the end."""
    codec = DATA[name]
    version = _version(data)
    message, _ = codec.decoder(min(version, codec.max_version))(data, 2, len(data))
    return message


def _version(data: bytes) -> int:
    if len(data) < 2:
        raise ProtocolError("too short for a version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise ProtocolError(f"version {version} does not exist")
    return version


def read_subscription(data: bytes) -> m.ConsumerProtocolSubscription:
    """Raises ProtocolError."""
    subscription: m.ConsumerProtocolSubscription = _versioned("ConsumerProtocolSubscription", data)
    return subscription


def write_assignment(assignment: Assignment, image: Image, subscription: bytes) -> bytes:
    """In the version in which the member subscribed. Topics that are gone are left out."""
    codec = DATA["ConsumerProtocolAssignment"]
    version = min(_version(subscription), codec.max_version)
    topics = ((image.topics.get(topic_id), partitions) for topic_id, partitions in sorted(assignment.items()))
    message = m.ConsumerProtocolAssignment(
        assigned_partitions=[
            m.ConsumerProtocolAssignment.TopicPartition(topic=topic.name, partitions=list(partitions))
            for topic, partitions in topics
            if topic is not None
        ]
    )
    return version.to_bytes(2, "big") + codec.encode(message, version)


def owned_by_id(subscription: m.ConsumerProtocolSubscription, image: Image) -> list[Any]:
    """The partitions a classic member says it has, in the form in which members of the new protocol say it."""
    topics = ((image.topic_named(owned.topic), owned.partitions) for owned in subscription.owned_partitions)
    return [
        m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic.id, partitions=partitions)
        for topic, partitions in topics
        if topic is not None
    ]


# Upgrade --------------------------------------------------------------------------------------------------------------


def check_upgrade(group: ClassicGroup, config: ShardConfig) -> None:
    why = None
    if config.consumer_migration_policy not in UPGRADE_POLICIES:
        why = "online upgrade is disabled"
    elif not group.of_consumers:
        why = "it does not use the protocol of consumers"
    elif len(group.members) > config.consumer_max_size:
        why = "it has more members than a consumer group may have"
    if why is not None:
        raise KafkaError(Err.GROUP_ID_NOT_FOUND, f"cannot upgrade classic group {group.group_id}: {why}")


def upgrade_records(group: ClassicGroup, image: Image, hashes: TopicHashes) -> list[Record]:
    """The classic group goes; a consumer group comes, whose members have what they had, at the same epoch."""
    group_id, epoch = group.group_id, group.generation
    members: list[Member] = []
    targets: dict[str, Assignment] = {}
    protocol = group.protocol_name or group.select_protocol()
    for classic in group.members.values():
        try:
            assignment = _read_assignment(classic.assignment, image)
            subscription = read_subscription(classic.metadata(protocol))
        except ProtocolError as e:
            raise KafkaError(
                Err.GROUP_ID_NOT_FOUND,
                f"cannot upgrade classic group {group_id}: a member's metadata is malformed ({e})",
            ) from e
        targets[classic.member_id] = assignment
        members.append(_consumer_member(classic, epoch, assignment, subscription))
    topics = {topic for member in members for topic in member.topics}
    return [
        *group.tombstones(),
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, hashes.of(image, topics)),
        *(target_record(group_id, member_id, target) for member_id, target in targets.items()),
        target_epoch_record(group_id, epoch, 0),
        *(current_record(group_id, member) for member in members),
    ]


def _read_assignment(data: bytes, image: Image) -> Assignment:
    if not data:
        return NO_ASSIGNMENT
    message = _versioned("ConsumerProtocolAssignment", data)
    if message.user_data:
        raise ProtocolError("an assignor of the client's own has left data of its own, which would be lost")
    found = ((image.topic_named(topic.topic), topic.partitions) for topic in message.assigned_partitions)
    return {topic.id: tuple(sorted(partitions)) for topic, partitions in found if topic is not None}


def _consumer_member(
    classic: ClassicMember, epoch: int, assignment: Assignment, subscription: m.ConsumerProtocolSubscription
) -> Member:
    return Member(
        classic.member_id,
        epoch=epoch,
        previous_epoch=epoch,
        instance_id=classic.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        client_id=classic.client_id,
        client_host=classic.client_host,
        topics=frozenset(subscription.topics),
        assigned=with_epoch(assignment, epoch),
        classic=ClassicProtocols(classic.session_timeout_ms, tuple(classic.protocols)),
    )


# Downgrade ------------------------------------------------------------------------------------------------------------


def may_downgrade(
    group: ConsumerGroup, leaving: Collection[Member], replaced: Member | None, config: ShardConfig
) -> bool:
    """Whether only members of the classic protocol will be left, of whom `replaced` will be one."""
    remaining = len(group.members.live) - len(leaving)
    if replaced is None:
        only_classic = group.classic_count - sum(member.classic is not None for member in leaving) == remaining
    else:
        only_classic = replaced.classic is None and group.classic_count == remaining - 1
    return (
        only_classic
        and remaining > 0
        and config.consumer_migration_policy in DOWNGRADE_POLICIES
        and remaining <= config.group_max_size
    )


def downgraded(
    group: ConsumerGroup, leaving: Collection[str], joining: Member | None, image: Image, now_ms: int
) -> ClassicGroup:
    """The group as a classic one, whose members have what the target assignment gives them.

    `joining` takes the place of the static member with its instance id. Raises KafkaError if that cannot be.
    """
    classic = ClassicGroup(group.group_id, ClassicState.STABLE, now_ms)
    classic.generation = group.epoch
    replaced = group.static_member(joining.instance_id) if joining is not None else None
    held_by: dict[str, str] = {}
    for member in group.members.live.values():
        if member.member_id not in leaving and member is not replaced:
            classic.add(_classic_member(member), CONSUMER_PROTOCOL)
            held_by[member.member_id] = member.member_id
    if joining is not None:
        assert replaced is not None, "only a static member can take another's place"
        classic.add(_classic_member(joining), CONSUMER_PROTOCOL)
        held_by[joining.member_id] = replaced.member_id
    classic.protocol_name = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    for member_id, kept in classic.members.items():
        try:
            kept.assignment = write_assignment(
                group.target(held_by[member_id]), image, kept.metadata(classic.protocol_name)
            )
        except ProtocolError as e:
            raise KafkaError(Err.GROUP_ID_NOT_FOUND, f"cannot downgrade group {group.group_id}: {e}") from e
    return classic


def _classic_member(member: Member) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        list(member.classic.protocols),
    )
