"""A classic group: members that meet in rounds (generations), one of whom, the leader, assigns partitions to all.

This is the state alone; classic.py decides. Only what a GroupMetadata record holds is durable, and that is written
when a generation is complete; everything in between lives in memory and ends with the shard.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from headrace.coordinator.outcome import Promise, Record
from headrace.coordinator.records import record
from headrace.coordinator.shard_state import GroupType, PartitionCheck
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import DATA
from headrace.protocol.primitives import ProtocolError

CONSUMER_PROTOCOL = "consumer"
GROUP_METADATA_VERSION = 3
"""What Kafka 4.3 writes; version 4 exists so that a later broker may."""

Protocol = tuple[str, bytes]


class State(StrEnum):
    """Names as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING}),
    State.PREPARING: frozenset({State.STABLE, State.COMPLETING, State.EMPTY}),
    State.COMPLETING: frozenset({State.PREPARING}),
    State.STABLE: frozenset({State.COMPLETING}),
    State.DEAD: frozenset(State),
}


class ClassicMember:
    """One member. Its session is a timer, which every sign of life arms anew."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Sequence[Protocol],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        """(name, metadata) in the member's order of preference; the metadata is the client's affair."""
        self.assignment = assignment
        self.awaiting_join: Promise | None = None
        self.awaiting_sync: Promise | None = None
        self.is_new = False

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support {protocol}")

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def satisfied(self) -> bool:
        """Needs no heartbeat: it waits for us, not we for it."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


class ClassicGroup:
    """Fulfils `shard_state.Group`."""

    type = GroupType.CLASSIC

    def __init__(self, group_id: str, state: State = State.EMPTY, state_timestamp_ms: int = -1) -> None:
        self.group_id = group_id
        self.state = state
        self.previous_state = State.DEAD
        self.state_timestamp_ms = state_timestamp_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending: dict[str, None] = {}
        """Ids that were given to members that have not joined with them, in that order."""
        self.awaiting_join_count = 0
        self.support: dict[str, int] = {}
        """How many members support each protocol."""
        self.pending_sync: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        """None: not known, because the group is not one of consumers or its metadata cannot be read."""
        self.new_member_added = False
        self.join_delay_ms = 0
        self.join_remaining_ms: int | None = None
        """Of the initial rebalance, how long it may still be drawn out; None during any other."""
        self.written: m.GroupMetadataValue | None = None
        """The last record of this group: what a reload would start from."""

    # What offsets, deletion and listing ask.

    def state_name(self, committed: bool) -> str:
        return self.state.value

    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_simple(self) -> bool:
        """Only ever used to keep offsets."""
        return self.protocol_type is None and self.is_empty() and not self.pending

    def validate_member(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(Err.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise KafkaError(Err.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID)

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool, version: int
    ) -> PartitionCheck | None:
        if self.state is State.DEAD:
            raise KafkaError(Err.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.state is State.EMPTY:
            # A consumer that assigns itself, or an admin client, keeps its offsets in a group without members.
            return None
        if generation >= 0 or member_id or instance_id is not None:
            self.validate_member(member_id, instance_id)
            if generation != self.generation:
                raise KafkaError(Err.ILLEGAL_GENERATION)
        elif not transactional:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is State.COMPLETING:
            raise KafkaError(Err.REBALANCE_IN_PROGRESS)
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, committed: bool) -> None:
        if self.state is State.DEAD:
            raise KafkaError(Err.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")

    def validate_offset_delete(self) -> None:
        if self.state is State.DEAD:
            raise KafkaError(Err.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")
        if self.state is not State.EMPTY and not self.of_consumers:
            raise KafkaError(Err.NON_EMPTY_GROUP)

    def validate_delete(self) -> None:
        if self.state is State.DEAD:
            raise KafkaError(Err.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")
        if self.state is not State.EMPTY:
            raise KafkaError(Err.NON_EMPTY_GROUP)

    def subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.of_consumers
        return topic in self.subscribed_topics

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is State.EMPTY:
            return commit_timestamp_ms if self.state_timestamp_ms == -1 else self.state_timestamp_ms
        if self.of_consumers and self.subscribed_topics is not None and self.state is State.STABLE:
            return commit_timestamp_ms
        return None

    def tombstones(self) -> list[Record]:
        return [record(m.GroupMetadataKey(group=self.group_id), None)]

    # Members.

    @property
    def of_consumers(self) -> bool:
        """Its metadata and assignments are those of Kafka's consumers."""
        return self.protocol_type == CONSUMER_PROTOCOL

    def add(self, member: ClassicMember, protocol_type: str, promise: Promise | None = None) -> None:
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count_support(member, 1)
        member.awaiting_join = promise
        if promise is not None:
            self.awaiting_join_count += 1
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """A member or one that was to become it."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_support(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)

    def update(
        self,
        member: ClassicMember,
        protocols: Sequence[Protocol],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        promise: Promise | None,
    ) -> None:
        self._count_support(member, -1)
        member.protocols = protocols
        self._count_support(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_join_count += (promise is not None) - (member.awaiting_join is not None)
        member.awaiting_join = promise

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> ClassicMember:
        """The same member under a new id. The caller has answered whoever waited under the old one."""
        old = self.members.pop(old_id)
        assert old.awaiting_join is None and old.awaiting_sync is None
        new = ClassicMember(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self.members[new_id] = new
        if self.leader == old_id:
            self.leader = new_id
        self.static_members[instance_id] = new_id
        return new

    def _count_support(self, member: ClassicMember, by: int) -> None:
        for name, _ in member.protocols:
            self.support[name] = self.support.get(name, 0) + by
            if not self.support[name]:
                del self.support[name]

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Could a member with these protocols be in the group with the others?"""
        if self.state is State.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(self.support.get(n, 0) == count for n in names)

    def select_protocol(self) -> str:
        """The protocol most members prefer among those that all support."""
        count = len(self.members)
        candidates = {name for name, support in self.support.items() if support == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(in_java_order(votes), key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """A leader that has joined this round, another if need be; False if nobody has."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    def all_joined(self) -> bool:
        return len(self.members) == self.awaiting_join_count and not self.pending

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Rounds.

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS[State.PREPARING]

    def transition(self, state: State, now_ms: int) -> None:
        assert self.state in VALID_PREVIOUS[state], (self.state, state)
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    def next_generation(self, now_ms: int) -> None:
        # As an int32 in Java: after the last generation comes the smallest one.
        self.generation = (self.generation + 1 + 2**31) % 2**32 - 2**31
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition(State.COMPLETING if self.members else State.EMPTY, now_ms)
        self.pending_sync.clear()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """From the members' metadata, which is theirs to garble: None if it cannot be read."""
        if not self.of_consumers:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            names = subscribed_topics(member.metadata(self.protocol_name))
            if names is None:
                return None
            topics.update(names)
        return frozenset(topics)

    # Records and answers.

    def record(self) -> Record:
        """The group as it stands, members with the assignments they hold."""
        members = [
            m.GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=member.assignment,
            )
            for member in self.members.values()
        ]
        value = m.GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=self.state_timestamp_ms,
            members=members,
        )
        return record(m.GroupMetadataKey(group=self.group_id), value, GROUP_METADATA_VERSION)

    def empty_record(self) -> Record:
        """Of a group that somebody has asked for and nobody has joined yet."""
        value = m.GroupMetadataValue(
            protocol_type="",
            generation=0,
            protocol=None,
            leader=None,
            current_state_timestamp=self.state_timestamp_ms,
            members=[],
        )
        return record(m.GroupMetadataKey(group=self.group_id), value, GROUP_METADATA_VERSION)

    @classmethod
    def from_record(cls, group_id: str, value: m.GroupMetadataValue) -> "ClassicGroup":
        state = State.STABLE if value.members else State.EMPTY
        group = cls(group_id, state, value.current_state_timestamp)
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol if value.protocol is not None or not value.members else ""
        group.generation = value.generation
        group.leader = value.leader
        for loaded in value.members:
            if loaded.member_id in group.members or loaded.group_instance_id in group.static_members:
                continue
            member = ClassicMember(
                loaded.member_id,
                loaded.group_instance_id,
                loaded.client_id,
                loaded.client_host,
                loaded.session_timeout if loaded.rebalance_timeout == -1 else loaded.rebalance_timeout,
                loaded.session_timeout,
                [(value.protocol or "", loaded.subscription)],
                loaded.assignment,
            )
            group.add(member, value.protocol_type)
        if group.leader not in group.members:
            group.leader = next(iter(group.members), None)
        group.subscribed_topics = group.compute_subscribed_topics()
        group.written = value
        return group

    def joined_members(self) -> list[m.JoinGroupResponse.JoinGroupResponseMember]:
        """What the leader is told of the others."""
        return [
            m.JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """The topics in a consumer's subscription, whose later fields come after them; None if it is garbled."""
    if len(metadata) < 2 or metadata[0] & 0x80:
        return None
    try:
        subscription, _ = DATA["ConsumerProtocolSubscription"].decoder(0)(metadata, 2, len(metadata))
    except ProtocolError:
        return None
    topics: list[str] = subscription.topics
    return topics


def in_java_order(names: Iterable[str]) -> list[str]:
    """In the order of a java.util.HashMap: Kafka lets it break ties, and so must we to choose the same protocol."""
    names = list(names)
    if len(names) < 2:
        return names
    capacity = 16
    while len(names) > capacity * 3 // 4:
        capacity *= 2
    return sorted(names, key=lambda name: _spread_hash(name) & (capacity - 1))


def _spread_hash(name: str) -> int:
    units = name.encode("utf-16-be", "surrogatepass")
    h = 0
    for i in range(0, len(units), 2):
        h = (h * 31 + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h ^ (h >> 16)
