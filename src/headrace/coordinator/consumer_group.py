"""A consumer group (KIP-848) as its records tell it: members, epochs, target assignment, resolved patterns.

Only `replay_*` changes it. Everything else here is derived from the records as they come, so that no decision has to
walk all members; what describe and list show is kept as of the high watermark too.
"""

from collections.abc import Mapping
from typing import Any

from headrace.coordinator.assignors import NO_ASSIGNMENT, Assignment
from headrace.coordinator.consumer_members import (
    LEAVING,
    NO_PARTITIONS,
    Epochs,
    Member,
    MemberState,
    current_tombstone,
    epoch_tombstone,
    member_tombstone,
    partition_metadata_tombstone,
    regex_tombstone,
    target_epoch_tombstone,
    target_tombstone,
)
from headrace.coordinator.outcome import Record
from headrace.coordinator.shard_state import GroupType, PartitionCheck, Timeline
from headrace.coordinator.subscriptions import Counts, ResolvedRegex, count, is_homogeneous
from headrace.errors import Err, KafkaError

CONSUMER_PROTOCOL = "consumer"
COMMIT_WITH_EPOCHS_FROM = 9
"""OffsetCommit before this version cannot carry a member epoch."""

FIRST_EPOCH = 1
"""Of a group and of its target assignment alike: nobody has joined, nothing is assigned."""

EMPTY = "Empty"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
STABLE = "Stable"


class Facts:
    """The few values of a group that are not by member."""

    EPOCH = "epoch"
    TARGET_EPOCH = "target epoch"
    STATE = "state"


def _bump(counts: dict[str, int], key: str | None, by: int) -> None:
    if key:
        counts[key] = counts.get(key, 0) + by
        if not counts[key]:
            del counts[key]


class ConsumerGroup:
    """Fulfils `shard_state.Group`."""

    type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str, committed_end: int = 0) -> None:
        self.group_id = group_id
        self.members: Timeline[str, Member] = Timeline(committed_end)
        self.targets: Timeline[str, Assignment] = Timeline(committed_end)
        self._facts: Timeline[str, Any] = Timeline(committed_end)
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.has_partition_metadata = False
        """There is a record of Kafka 4.0 to be cleared away."""
        # Derived from members.
        self.static_members: dict[str, str] = {}
        self.assignors: dict[str, int] = {}
        self.topics: dict[str, Counts] = {}
        self.regexes: dict[str, int] = {}
        """Members by the pattern they subscribe to."""
        self.resolved: dict[str, ResolvedRegex] = {}
        self.classic_count = 0
        self.classic_support: dict[str, int] = {}
        """How many classic members support each protocol."""
        self._holders: dict[bytes, dict[int, int]] = {}
        """The epoch at which some member holds a partition, be it to give it up."""
        self._reconciled = 0

    # Replay -----------------------------------------------------------------------------------------------------------

    def replay_epoch(self, offset: int, epoch: int, metadata_hash: int) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash
        self._put(Facts.EPOCH, epoch, offset)
        self._update_state(offset)

    def replay_target_epoch(self, offset: int, epoch: int, timestamp_ms: int) -> None:
        self.target_epoch = epoch
        self.target_timestamp_ms = timestamp_ms
        self._put(Facts.TARGET_EPOCH, epoch, offset)
        self._reconciled = sum(member.reconciled_to(epoch) for member in self.members.live.values())
        self._update_state(offset)

    def replay_target(self, offset: int, member_id: str, assignment: Assignment | None) -> None:
        if assignment is None:
            self.targets.remove(member_id, offset)
        else:
            self.targets.put(member_id, assignment, offset)

    def replay_member(self, offset: int, member: Member) -> None:
        old = self.members.get(member.member_id)
        self.members.put(member.member_id, member, offset)
        self._release(old)
        self._hold(member)
        if old is not None and old.topics is member.topics and old.told_alike(member):
            # Only its place changed, as it does most often.
            self._reconciled += member.reconciled_to(self.target_epoch) - old.reconciled_to(self.target_epoch)
        else:
            self._count(old, -1)
            self._count(member, 1)
        self._forget_instance(old)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._update_state(offset)

    def replay_left(self, offset: int, member_id: str) -> None:
        """The current assignment of a member is gone; the member itself goes next."""
        member = self.members.get(member_id)
        if member is not None:
            gone = member.but(epoch=LEAVING, previous_epoch=LEAVING, assigned=NO_PARTITIONS, revoking=NO_PARTITIONS)
            self.replay_member(offset, gone)

    def replay_removed(self, offset: int, member_id: str) -> None:
        old = self.members.remove(member_id, offset)
        self._count(old, -1)
        self._release(old)
        self._forget_instance(old)
        self._update_state(offset)

    def replay_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        old = self.resolved.pop(regex, None)
        if old is not None:
            count(self.topics, old.topics, by_regex=-1)
        if resolved is not None:
            self.resolved[regex] = resolved
            count(self.topics, resolved.topics, by_regex=1)

    def _forget_instance(self, member: Member | None) -> None:
        """Unless the name has gone to another member meanwhile."""
        if member is None or member.instance_id is None:
            return
        if self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _put(self, name: str, value: Any, offset: int) -> None:
        self._facts.put(name, value, offset)

    def _count(self, member: Member | None, by: int) -> None:
        if member is None:
            return
        count(self.topics, member.topics, by_name=by)
        _bump(self.assignors, member.assignor, by)
        _bump(self.regexes, member.regex, by)
        self._reconciled += by * member.reconciled_to(self.target_epoch)
        if member.classic is not None:
            self.classic_count += by
            for name, _ in member.classic.protocols:
                _bump(self.classic_support, name, by)

    def _release(self, member: Member | None) -> None:
        if member is None:
            return
        for epochs in (member.assigned, member.revoking):
            for topic_id, partitions in epochs.items():
                held = self._holders.get(topic_id, {})
                for partition in partitions:
                    # Another may have it by now: records of one batch can take before they give.
                    if held.get(partition) == member.epoch:
                        del held[partition]
                if not held:
                    self._holders.pop(topic_id, None)

    def _hold(self, member: Member) -> None:
        for epochs in (member.assigned, member.revoking):
            for topic_id, partitions in epochs.items():
                held = self._holders.setdefault(topic_id, {})
                for partition in partitions:
                    held[partition] = max(member.epoch, held.get(partition, member.epoch))

    def _update_state(self, offset: int) -> None:
        if not self.members.live:
            state = EMPTY
        elif self.epoch > self.target_epoch:
            state = ASSIGNING
        else:
            state = STABLE if self._reconciled == len(self.members.live) else RECONCILING
        if self._facts.live.get(Facts.STATE) != state:
            self._put(Facts.STATE, state, offset)

    def advance(self, committed_end: int) -> None:
        self.members.advance(committed_end)
        self.targets.advance(committed_end)
        self._facts.advance(committed_end)

    # What offsets, deletion and listing ask ---------------------------------------------------------------------------

    def state_name(self, committed: bool) -> str:
        found = self._facts.committed(Facts.STATE) if committed else self._facts.get(Facts.STATE)
        return found or EMPTY

    def is_empty(self) -> bool:
        return not self.members.live

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool, version: int
    ) -> PartitionCheck | None:
        if generation < 0 and self.is_empty():
            return None  # offsets set from outside, while nobody reads
        if transactional and generation == -1 and not member_id and instance_id is None:
            return None  # a producer that does not know the group's members
        member = self.member(member_id)
        if not transactional and member.classic is None and version < COMMIT_WITH_EPOCHS_FROM:
            raise KafkaError(
                Err.UNSUPPORTED_VERSION,
                f"members of the consumer protocol commit with version {COMMIT_WITH_EPOCHS_FROM} or above",
            )
        if generation == member.epoch:
            return None
        stale = Err.STALE_MEMBER_EPOCH if member.classic is None else Err.ILLEGAL_GENERATION
        if generation > member.epoch:
            raise KafkaError(stale, f"epoch {generation} is newer than the member's epoch {member.epoch}")
        return _assigned_since(member, generation, stale)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, committed: bool) -> None:
        if member_id is None and member_epoch < 0:
            return
        known = self.members.committed if committed else self.members.get
        member = None if member_id is None else known(member_id)
        if member is None:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of group {self.group_id}")
        if member_epoch != member.epoch:
            stale = Err.STALE_MEMBER_EPOCH if member.classic is None else Err.ILLEGAL_GENERATION
            raise KafkaError(stale, f"epoch {member_epoch} is not the member's epoch {member.epoch}")

    def validate_offset_delete(self) -> None:
        """Always: what is subscribed to is refused topic by topic."""

    def validate_delete(self) -> None:
        if not self.is_empty():
            raise KafkaError(Err.NON_EMPTY_GROUP)

    def subscribed_to(self, topic: str) -> bool:
        return topic in self.topics

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms

    def tombstones(self) -> list[Record]:
        return self.tombstones_with({})

    def tombstones_with(self, renamed: Mapping[str, str]) -> list[Record]:
        """Members by another id if the records before these have given them one."""
        group_id = self.group_id
        members = [renamed.get(member_id, member_id) for member_id in self.members.live]
        return [
            *(current_tombstone(group_id, member_id) for member_id in members),
            *(target_tombstone(group_id, member_id) for member_id in members),
            target_epoch_tombstone(group_id),
            *(member_tombstone(group_id, member_id) for member_id in members),
            *(regex_tombstone(group_id, regex) for regex in sorted(self.resolved)),
            partition_metadata_tombstone(group_id),
            epoch_tombstone(group_id),
        ]

    # What decisions ask -----------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of group {self.group_id}")
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str, instance_id: str | None = None) -> Assignment:
        """Of the member, or of the static member in whose place it comes."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, member_id)
        return self.targets.live.get(member_id, NO_ASSIGNMENT)

    def holder_epoch(self, topic_id: bytes, partition: int) -> int:
        held = self._holders.get(topic_id)
        return -1 if held is None else held.get(partition, -1)

    def is_homogeneous(self) -> bool:
        return is_homogeneous(self.topics, self.regexes, len(self.members.live))

    def subscription(self, member: Member) -> frozenset[str]:
        """Topics by name and by pattern, as far as it is resolved."""
        resolved = self.resolved.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def supports_classic(self, protocol_type: str, names: list[str]) -> bool:
        """Whether all classic members and one with these protocols have one in common."""
        if protocol_type != CONSUMER_PROTOCOL:
            return False
        if self.is_empty():
            return bool(names)
        return any(self.classic_support.get(name, 0) == self.classic_count for name in names)

    def waits_for_release(self, member: Member) -> bool:
        """Whether anything the member should have is still held by another."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {}) and self.holder_epoch(topic_id, partition) != -1
            for topic_id, partitions in self.target(member.member_id).items()
            for partition in partitions
        )

    def committed(self, name: str, default: Any) -> Any:
        """One of `Facts` as of the high watermark."""
        found = self._facts.committed(name)
        return default if found is None else found

    def snapshot(self) -> dict[str, Any]:
        """All that the records have made of the group, to compare one replay with another."""
        return {
            "members": dict(self.members.live),
            "targets": dict(self.targets.live),
            "epoch": (self.epoch, self.metadata_hash, self.target_epoch, self.target_timestamp_ms),
            "state": self.state_name(committed=False),
            "static": dict(self.static_members),
            "assignors": dict(self.assignors),
            "topics": dict(self.topics),
            "regexes": (dict(self.regexes), dict(self.resolved)),
            "classic": (self.classic_count, dict(self.classic_support)),
            "holders": {t: dict(p) for t, p in self._holders.items()},
        }


def _assigned_since(member: Member, epoch: int, stale: Err) -> PartitionCheck:
    """A late commit is still good for a partition that the member has had without a break since that epoch."""

    def check(topic: str, topic_id: bytes, partition: int) -> None:
        since = _epoch_of(member.assigned, topic_id, partition)
        if since is None:
            since = _epoch_of(member.revoking, topic_id, partition)
        if since is None:
            raise KafkaError(stale, f"{topic}-{partition} is not assigned to the member")
        if epoch < since:
            raise KafkaError(stale, f"epoch {epoch} is older than the assignment of {topic}-{partition}, {since}")

    return check


def _epoch_of(epochs: Epochs, topic_id: bytes, partition: int) -> int | None:
    partitions = epochs.get(topic_id)
    return None if partitions is None else partitions.get(partition)
