"""Consumer groups (KIP-848) of one shard: heartbeats decide everything; the server assigns.

A group's epoch moves when a subscription or a topic changes, the target assignment follows it, and each member's own
epoch follows that, once it has given up what it must. Classic members of such groups: consumer_classic.py.
"""

from collections.abc import Hashable
from typing import Any

from headrace.coordinator.classic import ClassicGroups
from headrace.coordinator.classic_group import ClassicGroup
from headrace.coordinator.consumer_classic import ClassicMembers
from headrace.coordinator.consumer_decisions import (
    JOIN,
    REBALANCE,
    REGEX,
    SESSION,
    SYNC,
    Decisions,
    known_static,
)
from headrace.coordinator.consumer_describe import described
from headrace.coordinator.consumer_group import ConsumerGroup
from headrace.coordinator.consumer_members import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    NO_PARTITIONS,
    Epochs,
    Member,
    current_record,
    with_epoch,
    without_epochs,
)
from headrace.coordinator.consumer_replay import Replay, replay_into
from headrace.coordinator.migration import check_upgrade, upgrade_records
from headrace.coordinator.outcome import Context, Outcome
from headrace.coordinator.records import batch_bytes
from headrace.coordinator.shard_state import ShardConfig, ShardState
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Image
from headrace.protocol import messages as m

MEMBER_ID_FROM_CLIENT_FROM = 1
"""The version of ConsumerGroupHeartbeat from which members name themselves, so that a lost answer leaves none
behind."""

Heartbeat = m.ConsumerGroupHeartbeatRequest
Answer = m.ConsumerGroupHeartbeatResponse


class ConsumerGroups:
    """Decides for the consumer groups of one shard. Handlers fill `out`; they raise KafkaError for what they refuse."""

    def __init__(self, state: ShardState, classic: ClassicGroups) -> None:
        self.state = state
        self.decisions = Decisions(state, classic)
        self._replay = Replay(state, self.decisions)
        self._classic = classic
        self._members = ClassicMembers(self.decisions)
        self.classic_join = self._members.join
        self.classic_sync = self._members.sync
        self.classic_heartbeat = self._members.heartbeat
        self.classic_leave = self._members.leave
        self.replay = self._replay.record
        self.advance = self._replay.advance

    def find(self, group_id: str) -> ConsumerGroup:
        group = self.state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "does not exist" if group is None else "is not a consumer group"
            raise KafkaError(Err.GROUP_ID_NOT_FOUND, f"group {group_id} {what}")
        return group

    # ConsumerGroupHeartbeat v0-1. v1: patterns, and member ids made by the client.

    def heartbeat(self, request: Heartbeat, context: Context, now_ms: int, out: Outcome) -> Answer:
        check_request(request, context.version, self.state.config)
        if request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return self._leave(request, now_ms, out)
        group, upgraded = self._find_or_make(request, out)
        self._check_room(group, request.member_id)
        member_id = request.member_id or context.new_id()
        if request.instance_id is None:
            member = self._dynamic(group, member_id, request)
        else:
            member = self._static(group, member_id, request, out)
        updated = _told(member, request, context)
        answer = self._decide(group, member, updated, request, now_ms, out)
        if upgraded is not None:
            self._finish_upgrade(group, upgraded, now_ms, out)
        return answer

    def _decide(
        self,
        group: ConsumerGroup,
        member: Member,
        updated: Member,
        request: Heartbeat,
        now_ms: int,
        out: Outcome,
    ) -> Answer:
        decide = self.decisions
        topics_changed = decide.write_subscription(group, member, updated, out)
        regex = decide.update_regexes(group, member, updated, now_ms, out)
        coming = decide.next_epoch(group, member, updated, topics_changed or regex.resolved, now_ms, out)
        target_epoch, target = decide.next_target(group, coming, member, updated, now_ms, out)
        updated = decide.reconcile(
            group,
            updated,
            target_epoch,
            target,
            topics_changed or regex.changed,
            request.topic_partitions,
            out,
        )
        group_id = group.group_id
        decide.keep_alive(group_id, updated.member_id, decide.session_timeout_ms(group_id), out)
        default = self.state.config.consumer_heartbeat_interval_ms
        answer = Answer(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=decide.option(group_id, "consumer.heartbeat.interval.ms", default),
        )
        if request.member_epoch == JOINING or _is_full(request) or updated.assigned != member.assigned:
            answer.assignment = _assignment(updated.assigned)
        return answer

    def _find_or_make(self, request: Heartbeat, out: Outcome) -> tuple[ConsumerGroup, ClassicGroup | None]:
        """The group, and the classic group it comes from if it is one only by the records of this outcome."""
        group_id = request.group_id
        group = self.state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, None
        if request.member_epoch != JOINING:
            return self.find(group_id), None
        if group is None:
            return ConsumerGroup(group_id), None
        assert isinstance(group, ClassicGroup)
        if group.is_empty():
            out.records.extend(group.tombstones())
            return ConsumerGroup(group_id), group
        check_upgrade(group, self.state.config)
        records = upgrade_records(group, self.state.image, self.decisions.hashes)
        out.records.extend(records)
        coming = ConsumerGroup(group_id)
        for record in records[len(group.tombstones()) :]:
            replay_into(coming, 0, record.kind, record.key_message, record.value_message)
        return coming, group

    def _finish_upgrade(self, group: ConsumerGroup, classic: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Last, because those who wait in the classic group cannot be told twice."""
        if batch_bytes(out.records) > self.state.config.batch_bytes_max:
            raise KafkaError(
                Err.GROUP_ID_NOT_FOUND,
                f"cannot upgrade classic group {group.group_id}: it does not fit one batch",
            )
        out.revocable = False
        self._classic.abandon(classic, Err.REBALANCE_IN_PROGRESS, out)
        for member in group.members.live.values():
            if member.classic is not None:
                timeout_ms = member.classic.session_timeout_ms
                self.decisions.keep_alive(group.group_id, member.member_id, timeout_ms, out)
        self.state.note(f"group {group.group_id} turns from a classic into a consumer group")

    def _check_room(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = self.state.config.consumer_max_size
        if len(group.members.live) >= size_max and member_id not in group.members.live:
            raise KafkaError(Err.GROUP_MAX_SIZE_REACHED, f"the group has its maximum of {size_max} members")

    def _dynamic(self, group: ConsumerGroup, member_id: str, request: Heartbeat) -> Member:
        if request.member_epoch == JOINING:
            return group.members.get(member_id) or Member(member_id)
        member = group.member(member_id)
        check_epoch(member, request)
        return member

    def _static(self, group: ConsumerGroup, member_id: str, request: Heartbeat, out: Outcome) -> Member:
        existing = group.static_member(request.instance_id)
        if request.member_epoch != JOINING:
            member = known_static(existing, member_id, request.instance_id)
            check_epoch(member, request)
            return member
        if existing is None:
            return group.members.get(member_id) or Member(member_id)
        if existing.classic is None and existing.epoch != LEAVING_FOR_A_WHILE:
            raise KafkaError(
                Err.UNRELEASED_INSTANCE_ID,
                f"instance id {request.instance_id} belongs to member {existing.member_id}, which has not left",
            )
        return self._members.take_place(group, existing, member_id, out)

    # Leaving

    def _leave(self, request: Heartbeat, now_ms: int, out: Outcome) -> Answer:
        group = self.find(request.group_id)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = known_static(group.static_member(request.instance_id), request.member_id, request.instance_id)
            if request.member_epoch == LEAVING_FOR_A_WHILE:
                # It keeps its partitions, until its session ends, under an epoch that no commit can have.
                away = member.but(
                    epoch=LEAVING_FOR_A_WHILE,
                    revoking=NO_PARTITIONS,
                    assigned=with_epoch(without_epochs(member.assigned), 0),
                )
                out.records.append(current_record(group.group_id, away))
                return Answer(member_id=member.member_id, member_epoch=LEAVING_FOR_A_WHILE)
        self._members.remove(group, [member], now_ms, out)
        return Answer(member_id=request.member_id, member_epoch=request.member_epoch)

    # Time

    def timeout(self, key: Hashable, now_ms: int, out: Outcome) -> None:
        assert isinstance(key, tuple)
        kind, group_id = key[0], key[1]
        group = self.state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        if kind == REGEX:
            self.decisions.go_on_resolving(group, now_ms, out)
            return
        member = group.members.get(key[2])
        why = None if member is None else self._overdue(kind, group, member)
        if member is not None and why is not None:
            self.state.note(f"group {group_id}: member {member.member_id} is removed, {why}")
            self._members.remove(group, [member], now_ms, out)

    def _overdue(self, kind: str, group: ConsumerGroup, member: Member) -> str | None:
        volatile = self.decisions.volatile_of(group.group_id)
        if kind == SESSION:
            return "its session is over"
        if kind == REBALANCE:
            since = volatile.revoking_since.pop(member.member_id, None)
            return None if since != member.epoch else f"it has not given up its partitions since epoch {since}"
        if kind == JOIN:
            volatile.join_timers.discard(member.member_id)
            return "it did not join within its rebalance timeout"
        assert kind == SYNC
        return "it did not sync within its rebalance timeout"

    def loaded(self, now_ms: int, out: Outcome) -> None:
        """All is replayed. Sessions start afresh: nobody could heartbeat meanwhile."""
        for group in list(self.state.groups.live.values()):
            if not isinstance(group, ConsumerGroup):
                continue
            timeout_ms = self.decisions.session_timeout_ms(group.group_id)
            for member in group.members.live.values():
                self.decisions.keep_alive(group.group_id, member.member_id, timeout_ms, out)
                self.decisions.resume_revocation(group.group_id, member, out)

    def expire(self, now_ms: int, out: Outcome) -> None:
        """Nothing of a consumer group expires by itself: the shard deletes it when it is empty and has no offsets."""

    def on_metadata(self, old: Image, new: Image, now_ms: int, out: Outcome) -> None:
        """Groups look at their topics again with their next heartbeat, if one of these changed."""
        if self.decisions.topics_version < 0 or self._has_new_topics(old, new):
            self.decisions.topics_version = new.offset
        for name, group_ids in self._replay.groups_by_topic.items():
            if old.topic_named(name) is not new.topic_named(name):
                for group_id in group_ids:
                    self.decisions.volatile_of(group_id).refresh_at_ms = 0

    def _has_new_topics(self, old: Image, new: Image) -> bool:
        if old.topic_ids is new.topic_ids:
            return False
        # Only patterns care, and to compare all topics for nobody would be a waste; taken for new they do no harm.
        return not self._replay.groups_with_regexes or any(i not in old.topics for i in new.topics)

    # ConsumerGroupDescribe v0-1. v1: member type.

    def describe(self, group_ids: list[str]) -> list[m.ConsumerGroupDescribeResponse.DescribedGroup]:
        return [self._describe(group_id) for group_id in group_ids]

    def _describe(self, group_id: str) -> m.ConsumerGroupDescribeResponse.DescribedGroup:
        group = self.state.groups.committed(group_id)
        if isinstance(group, ConsumerGroup):
            return described(group, self.decisions.most_wanted, self.state.image)
        what = "not found" if group is None else "is not a consumer group"
        return m.ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=Err.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {what}."
        )


# Checks ---------------------------------------------------------------------------------------------------------------


def check_request(request: Heartbeat, version: int, config: ShardConfig) -> None:
    """What can be refused without looking at any group."""
    epoch = request.member_epoch
    named = version >= MEMBER_ID_FROM_CLIENT_FROM or epoch > 0 or epoch == LEAVING
    for value, what in (
        (request.member_id if named else None, "MemberId"),
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise KafkaError(Err.INVALID_REQUEST, f"{what} can't be empty.")
    problem = None
    if epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "TopicPartitions must be empty when (re-)joining."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif epoch < LEAVING_FOR_A_WHILE:
        problem = "MemberEpoch is invalid."
    if problem is not None:
        raise KafkaError(Err.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in config.consumer_assignors:
        raise KafkaError(
            Err.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(config.consumer_assignors)}.",
        )


def check_epoch(member: Member, request: Heartbeat) -> None:
    """One epoch behind is fine while the member has no more than it should: the answer that moved it may be lost."""
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    behind = epoch < member.epoch
    if behind and epoch == member.previous_epoch and _within(request.topic_partitions, member.assigned):
        return
    raise KafkaError(
        Err.FENCED_MEMBER_EPOCH,
        f"the member's epoch {epoch} is {'behind' if behind else 'ahead of'} the coordinator's, {member.epoch}; "
        "it must give up its partitions and rejoin",
    )


def _within(owned: list[Any] | None, assigned: Epochs) -> bool:
    if owned is None:
        return False
    return all(t.topic_id in assigned and all(p in assigned[t.topic_id] for p in t.partitions) for t in owned)


def _told(member: Member, request: Heartbeat, context: Context) -> Member:
    """The member with what the request says of it; what it does not say stays. Mostly it says nothing new."""
    said = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "assignor": request.server_assignor,
        "regex": request.subscribed_topic_regex,
        "client_id": context.client_id,
        "client_host": context.client_host,
    }
    changes: dict[str, Any] = {
        name: value for name, value in said.items() if value is not None and value != getattr(member, name)
    }
    if request.rebalance_timeout_ms not in (-1, member.rebalance_timeout_ms):
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    names = request.subscribed_topic_names
    if names is not None and member.topics != (topics := frozenset(names)):
        changes["topics"] = topics
    if member.classic is not None:
        changes["classic"] = None
    return member.but(**changes) if changes else member


def _is_full(request: Heartbeat) -> bool:
    """A request that says everything wants everything."""
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _assignment(assigned: Epochs) -> Answer.Assignment:
    return Answer.Assignment(
        topic_partitions=[
            Answer.TopicPartitions(topic_id=topic_id, partitions=list(partitions))
            for topic_id, partitions in sorted(without_epochs(assigned).items())
        ]
    )
