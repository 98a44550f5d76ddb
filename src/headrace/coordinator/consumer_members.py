"""A member of a consumer group, as its two records tell it: who it is and wants, and what it has.

Members are immutable: a change is another member, so that a decision can be compared with what was before it.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from headrace.coordinator.assignors import Assignment
from headrace.coordinator.outcome import Record
from headrace.coordinator.records import record
from headrace.protocol import messages as m

Epochs = Mapping[bytes, Mapping[int, int]]
"""By topic id and partition, the epoch at which the partition was assigned. Never changed in place."""

NO_PARTITIONS: Epochs = {}
JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""Member epochs with a meaning: the last is that of a static member that will be back."""


class MemberState(IntEnum):
    STABLE = 0
    """Has what it should have."""
    UNREVOKED_PARTITIONS = 1
    """Has still to give something up."""
    UNRELEASED_PARTITIONS = 2
    """Waits for others to give something up."""
    UNKNOWN = 127
    """Written by a broker that knows more states than we do."""

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        return cls.UNKNOWN


class ClassicProtocols(msgspec.Struct, frozen=True, gc=False):
    """What a member that speaks the classic protocol told when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) in the member's order of preference."""


class Member(msgspec.Struct, frozen=True):
    member_id: str
    epoch: int = JOINING
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    """Empty: no subscription by pattern."""
    assignor: str | None = None
    assigned: Epochs = NO_PARTITIONS
    revoking: Epochs = NO_PARTITIONS
    classic: ClassicProtocols | None = None
    """Of members that use the classic protocol; None for the others."""

    def reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def told_alike(self, other: "Member") -> bool:
        """The same wishes, topics aside."""
        return self.regex == other.regex and self.assignor == other.assignor and self.classic is other.classic

    def but(self, **changes: Any) -> "Member":
        return msgspec.structs.replace(self, **changes)

    def at_epoch(self, epoch: int, **changes: Any) -> "Member":
        return msgspec.structs.replace(self, epoch=epoch, previous_epoch=self.epoch, **changes)

    def told(self, value: m.ConsumerGroupMemberMetadataValue) -> "Member":
        """As its subscription record has it."""
        classic = value.classic_member_metadata
        return self.but(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicProtocols(
                classic.session_timeout_ms, tuple((p.name, p.metadata) for p in classic.supported_protocols)
            ),
        )

    def placed(self, value: m.ConsumerGroupCurrentMemberAssignmentValue) -> "Member":
        """As its current assignment record has it."""
        return self.but(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=_epochs(value.assigned_partitions, value.member_epoch),
            revoking=_epochs(value.partitions_pending_revocation, value.member_epoch),
        )


def _epochs(topics: Iterable[Any], member_epoch: int) -> Epochs:
    """Records of brokers before 4.3 have no epoch for each partition: the member's own is the best that is known."""
    result: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        result[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return result


def with_epoch(assignment: Assignment, epoch: int) -> Epochs:
    return {topic_id: dict.fromkeys(partitions, epoch) for topic_id, partitions in assignment.items()}


def without_epochs(epochs: Epochs) -> Assignment:
    return {topic_id: tuple(sorted(partitions)) for topic_id, partitions in epochs.items()}


# Records --------------------------------------------------------------------------------------------------------------
# Topics by id, partitions ascending: Kafka leaves both to the order of its hash tables, and reads any.


def member_record(group_id: str, member: Member) -> Record:
    classic = member.classic
    value = m.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                m.ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )
    return record(m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def member_tombstone(group_id: str, member_id: str) -> Record:
    return record(m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def current_record(group_id: str, member: Member) -> Record:
    value = m.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_topic_epochs(member.assigned),
        partitions_pending_revocation=_topic_epochs(member.revoking),
    )
    return record(m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def _topic_epochs(epochs: Epochs) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for topic_id, partitions in sorted(epochs.items())
    ]


def current_tombstone(group_id: str, member_id: str) -> Record:
    return record(m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> Record:
    value = m.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            m.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(topic_id=topic_id, partitions=list(partitions))
            for topic_id, partitions in sorted(assignment.items())
        ]
    )
    return record(m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_tombstone(group_id: str, member_id: str) -> Record:
    return record(m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    value = m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return record(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_epoch_tombstone(group_id: str) -> Record:
    return record(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return record(m.ConsumerGroupMetadataKey(group_id=group_id), value)


def epoch_tombstone(group_id: str) -> Record:
    return record(m.ConsumerGroupMetadataKey(group_id=group_id), None)


def partition_metadata_tombstone(group_id: str) -> Record:
    """Kafka 4.0 wrote what it knew of the topics; the hash in the epoch record has taken its place."""
    return record(m.ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def regex_record(group_id: str, regex: str, topics: Iterable[str], version: int, timestamp_ms: int) -> Record:
    value = m.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=timestamp_ms)
    return record(m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def regex_tombstone(group_id: str, regex: str) -> Record:
    return record(m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def removal_records(group_id: str, member_id: str) -> list[Record]:
    """In the order in which a member's parts may go."""
    return [
        current_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]
