"""The classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the timers between them.

A round: the first to join starts it (PREPARING), the others are told by their heartbeats and join too; when all have,
or the rebalance timeout is over, all are answered and the leader sends everyone's assignment (COMPLETING -> STABLE).
"""

from collections.abc import Callable, Hashable

from headrace.coordinator.classic_group import ClassicGroup, ClassicMember, State
from headrace.coordinator.classic_messages import (
    MEMBER_ID_REQUIRED_FROM,
    differs,
    join_error,
    joined,
    protocols_of,
    reason_of,
    rebalance_timeout_ms,
)
from headrace.coordinator.outcome import Cancel, Context, Outcome, Promise, Timer
from headrace.coordinator.records import batch_bytes
from headrace.coordinator.shard_state import GroupType, ShardState
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

SESSION = "session"
JOIN = "join"
SYNC = "sync"
TIMERS = frozenset({SESSION, JOIN, SYNC})

PENDING_MEMBERS_MAX = 10_000
"""Per group. Kafka sets no bound to ids that were given out and not used; each costs memory until its session ends."""

STRING_BYTES_MAX = 32_767
"""What the strings of a record can hold."""

SKIP_ASSIGNMENT_FROM = 9


class ClassicGroups:
    """Decides for the classic groups of one shard. Handlers fill `out`; they raise KafkaError for what they refuse."""

    __slots__ = ("_timeouts", "state")

    def __init__(self, state: ShardState) -> None:
        self.state = state
        self._timeouts: dict[str, Callable[[ClassicGroup, str, int, Outcome], None]] = {
            SESSION: self._session_over,
            JOIN: self._join_over,
            SYNC: self._sync_over,
        }

    def find(self, group_id: str) -> ClassicGroup | None:
        group = self.state.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def loaded(self, now_ms: int, out: Outcome) -> None:
        """All is replayed. Sessions start afresh: nobody could heartbeat meanwhile."""
        for group in list(self.state.groups.live.values()):
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                self.keep_alive(group, member, out)
            if len(group.members) > self.state.config.group_max_size:
                self.prepare_rebalance(group, "the loaded group is larger than group.max.size", now_ms, out)

    def unload(self) -> list[Promise]:
        """Those who still wait, to be refused."""
        waiting: list[Promise] = []
        for group in self.state.groups.live.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    waiting.extend(p for p in (member.awaiting_join, member.awaiting_sync) if p is not None)
        return waiting

    def adopt(self, group: ClassicGroup, now_ms: int, out: Outcome, rebalance_reason: str | None = None) -> None:
        """Takes over a group that was a consumer group; its record and the other's tombstones are the caller's."""
        out.revocable = False
        self.state.groups.put(group.group_id, group, self.state.written_end)
        for member in group.members.values():
            self.keep_alive(group, member, out)
        if rebalance_reason is not None:
            self.prepare_rebalance(group, rebalance_reason, now_ms, out)

    def abandon(self, group: ClassicGroup, error: Err, out: Outcome) -> None:
        """Answers all who wait in a group that becomes a consumer group."""
        for member in group.members.values():
            self._answer_join_error(group, member, member.member_id, error, out)
            self._answer_sync(member, m.SyncGroupResponse(error_code=error), out)
        for timer in (JOIN, SYNC):
            out.timers.append(Cancel((timer, group.group_id)))

    # JoinGroup v0-9. v1: rebalance timeout. v4: member id required. v5: static members. v7: protocol type in the
    # answer. v8: reason. v9: skip_assignment.

    def join(
        self, request: m.JoinGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.JoinGroupResponse | Promise:
        """The answer or a promise of it."""
        unknown = not request.member_id
        group = self.find(request.group_id)
        is_new = group is None
        if group is None:
            if not unknown:
                return join_error(context.version, request.member_id, Err.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(request.group_id, state_timestamp_ms=now_ms)
            self.state.groups.put(request.group_id, group, self.state.written_end)
            out.revocable = False
        records_before = len(out.records)
        response: m.JoinGroupResponse | Promise
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            response = join_error(context.version, "", Err.GROUP_MAX_SIZE_REACHED)
        elif not group.supports(request.protocol_type, [p.name for p in request.protocols]):
            response = join_error(context.version, request.member_id, Err.INCONSISTENT_GROUP_PROTOCOL)
        elif unknown:
            response = self._join_new(group, request, context, now_ms, out)
        else:
            response = self._join_known(group, request, context, now_ms, out)
        if is_new and len(out.records) == records_before:
            # So that the group outlives a change of coordinator between this answer and the first generation.
            out.records.append(group.empty_record())
        return response

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        size_max = self.state.config.group_max_size
        member = group.members.get(member_id)
        if group.state is State.PREPARING:
            # Counts who has joined this round, so that a group above its size shrinks to it: those who come first stay.
            return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < size_max
        if group.state in (State.COMPLETING, State.STABLE):
            return member is not None or len(group.members) < size_max
        return True

    def _join_new(
        self, group: ClassicGroup, request: m.JoinGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.JoinGroupResponse | Promise:
        instance_id = request.group_instance_id
        member_id = f"{context.client_id if instance_id is None else instance_id}-{context.new_id()}"
        if len(member_id.encode()) > STRING_BYTES_MAX:
            return join_error(context.version, "", Err.UNKNOWN_SERVER_ERROR)
        if instance_id is not None:
            existing = group.static_members.get(instance_id)
            if existing is not None:
                return self._rejoin_static(group, request, existing, member_id, context, now_ms, out)
        elif context.version >= MEMBER_ID_REQUIRED_FROM:
            if len(group.pending) >= PENDING_MEMBERS_MAX:
                return join_error(context.version, "", Err.GROUP_MAX_SIZE_REACHED)
            # The member joins with its id, so that an answer lost on the way leaves no member behind (KIP-394).
            group.pending[member_id] = None
            out.timers.append(Timer((SESSION, group.group_id, member_id), request.session_timeout_ms))
            return join_error(context.version, member_id, Err.MEMBER_ID_REQUIRED)
        return self._add(group, request, member_id, context, now_ms, out)

    def _join_known(
        self, group: ClassicGroup, request: m.JoinGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.JoinGroupResponse | Promise:
        member_id = request.member_id
        if member_id in group.pending:
            if request.group_instance_id is not None:
                # Only dynamic members are ever pending; Kafka answers with its unforeseen error too.
                return join_error(context.version, "", Err.UNKNOWN_SERVER_ERROR)
            return self._add(group, request, member_id, context, now_ms, out)
        try:
            group.validate_member(member_id, request.group_instance_id)
        except KafkaError as e:
            return join_error(context.version, member_id, e.error)
        member = group.members[member_id]
        unchanged = protocols_of(request) == member.protocols
        leads = group.leader == member_id
        if group.state is State.COMPLETING and unchanged:
            # Its answer was lost: it gets the same again, and the round goes on.
            return joined(group, member_id, context.version, group.joined_members() if leads else [])
        if group.state is State.STABLE and unchanged and not leads:
            return joined(group, member_id, context.version, [])
        # In STABLE the leader joins again to have all assigned anew; others because their metadata changed.
        return self._update(group, member, request, context, now_ms, out)

    def _update(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        request: m.JoinGroupRequest,
        context: Context,
        now_ms: int,
        out: Outcome,
    ) -> Promise:
        out.revocable = False
        self._drop_earlier_join(member, out)
        promise = Promise(context.version)
        group.update(
            member, protocols_of(request), rebalance_timeout_ms(request, context), request.session_timeout_ms, promise
        )
        reason = f"member {member.member_id} joined in {group.state}; client reason: {reason_of(request)}"
        self._rebalance_or_complete(group, reason, now_ms, out)
        return promise

    def _add(
        self,
        group: ClassicGroup,
        request: m.JoinGroupRequest,
        member_id: str,
        context: Context,
        now_ms: int,
        out: Outcome,
    ) -> Promise:
        out.revocable = False
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            context.client_id,
            context.client_host,
            rebalance_timeout_ms(request, context),
            request.session_timeout_ms,
            protocols_of(request),
        )
        member.is_new = True
        if group.state is State.PREPARING and group.previous_state is State.EMPTY:
            group.new_member_added = True
        promise = Promise(context.version)
        group.add(member, request.protocol_type, promise)
        # Longer than a session, since it cannot heartbeat before it is answered; bounded, should its client be gone.
        self._keep_alive_for(group, member, self.state.config.new_member_join_timeout_ms, out)
        reason = f"new member {member_id} (instance {request.group_instance_id}); client reason: {reason_of(request)}"
        self._rebalance_or_complete(group, reason, now_ms, out)
        return promise

    def _rejoin_static(
        self,
        group: ClassicGroup,
        request: m.JoinGroupRequest,
        old_id: str,
        new_id: str,
        context: Context,
        now_ms: int,
        out: Outcome,
    ) -> m.JoinGroupResponse | Promise:
        """A static member that was restarted takes its place back, if it can without a rebalance."""
        instance_id = request.group_instance_id
        assert instance_id is not None
        out.revocable = False
        old_leader = group.leader
        old = group.members[old_id]
        self._fence(group, old, out)
        member = group.replace_static(instance_id, old_id, new_id)
        self.keep_alive(group, member, out)
        promise = Promise(context.version)
        group.update(
            member, protocols_of(request), rebalance_timeout_ms(request, context), request.session_timeout_ms, promise
        )
        reason = f"static member {instance_id} joined in {group.state}; client reason: {reason_of(request)}"
        if group.state is State.COMPLETING:
            self.prepare_rebalance(group, reason, now_ms, out)
        elif group.state is not State.STABLE:
            self._complete_join_if_all_joined(group, now_ms, out)
        elif group.select_protocol() != group.protocol_name:
            self._rebalance_or_complete(group, f"{reason}; the protocol changes", now_ms, out)
        else:
            record = group.record()
            if batch_bytes([record]) > self.state.config.batch_bytes_max:
                group.update(member, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms, None)
                self.keep_alive(group, group.replace_static(instance_id, new_id, old_id), out)
                return join_error(context.version, "", Err.UNKNOWN_SERVER_ERROR)
            out.records.append(record)
            # Kafka does this only when it loads the record: until then it goes by the topics of the old metadata.
            group.subscribed_topics = group.compute_subscribed_topics()
            leads = group.leader == new_id
            if context.version >= SKIP_ASSIGNMENT_FROM:
                # The leader needs the members to watch for changed topics, and is told not to assign (KIP-814).
                members = group.joined_members() if leads else []
                response = joined(group, new_id, context.version, members, skip_assignment=leads)
            else:
                # Under its old id as leader, the member does not take itself for it and leaves the assignment alone.
                response = joined(group, new_id, context.version, [], leader=old_leader)
            self._answer_join(group, member, response, out)
        return promise

    def _fence(self, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        """Whoever waits under the old id of a static member learns that another has taken its place."""
        self._answer_join_error(group, member, member.member_id, Err.FENCED_INSTANCE_ID, out)
        self._answer_sync(member, m.SyncGroupResponse(error_code=Err.FENCED_INSTANCE_ID), out)
        self._forget_session(group, member.member_id, out)

    # The join phase.

    def _rebalance_or_complete(self, group: ClassicGroup, reason: str, now_ms: int, out: Outcome) -> None:
        if group.can_rebalance:
            self.prepare_rebalance(group, reason, now_ms, out)
        else:
            self._complete_join_if_all_joined(group, now_ms, out)

    def prepare_rebalance(self, group: ClassicGroup, reason: str, now_ms: int, out: Outcome) -> None:
        out.revocable = False
        if group.state is State.COMPLETING:
            self._reset_assignments(group, Err.REBALANCE_IN_PROGRESS, now_ms, out)
        group.pending_sync.clear()
        out.timers.append(Cancel((SYNC, group.group_id)))
        initial = group.state is State.EMPTY
        group.transition(State.PREPARING, now_ms)
        self.state.note(f"group {group.group_id} prepares to rebalance from generation {group.generation}: {reason}")
        if initial:
            # Members of a fresh group tend to start together: one round for all instead of one for each.
            delay_ms = self.state.config.group_initial_rebalance_delay_ms
            group.join_delay_ms = delay_ms
            group.join_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            out.timers.append(Timer((JOIN, group.group_id), delay_ms))
        elif group.all_joined():
            self._complete_join(group, now_ms, out)
        else:
            group.join_remaining_ms = None
            out.timers.append(Timer((JOIN, group.group_id), group.rebalance_timeout_ms()))

    def _complete_join_if_all_joined(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        # The initial rebalance always lasts its delay.
        if group.state is State.PREPARING and group.previous_state is not State.EMPTY and group.all_joined():
            self._complete_join(group, now_ms, out)

    def _join_over(self, group: ClassicGroup, _: str, now_ms: int, out: Outcome) -> None:
        """The rebalance timeout, or one delay of the initial rebalance."""
        if group.state is not State.PREPARING:
            return
        remaining_ms = group.join_remaining_ms
        if remaining_ms and group.new_member_added:
            group.new_member_added = False
            delay_ms = min(self.state.config.group_initial_rebalance_delay_ms, remaining_ms)
            group.join_remaining_ms = max(remaining_ms - group.join_delay_ms, 0)
            group.join_delay_ms = delay_ms
            out.timers.append(Timer((JOIN, group.group_id), delay_ms))
        else:
            self._complete_join(group, now_ms, out)

    def _complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Starts a generation of those who joined; static members stay, for their session, whether or not they did."""
        out.revocable = False
        group.join_remaining_ms = None
        out.timers.append(Cancel((JOIN, group.group_id)))
        for member in [x for x in group.members.values() if x.awaiting_join is None and x.instance_id is None]:
            group.remove(member.member_id)
            self._forget_session(group, member.member_id, out)
        if not group.elect_joined_leader() and group.members:
            out.timers.append(Timer((JOIN, group.group_id), group.rebalance_timeout_ms()))
            return
        group.next_generation(now_ms)
        if group.state is State.EMPTY:
            out.records.append(group.record())
            return
        self.state.note(
            f"group {group.group_id} generation {group.generation} has {len(group.members)} members, "
            f"led by {group.leader} with {group.protocol_name}"
        )
        for member in group.members.values():
            if member.awaiting_join is not None:
                others = group.joined_members() if group.leader == member.member_id else []
                version = member.awaiting_join.version
                self._answer_join(group, member, joined(group, member.member_id, version, others), out)
            self.keep_alive(group, member, out)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        out.timers.append(Timer((SYNC, group.group_id), group.rebalance_timeout_ms()))

    # SyncGroup v0-5. v3: static members. v5: protocol type and name.

    def sync(
        self, group: ClassicGroup, request: m.SyncGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.SyncGroupResponse | Promise:
        member_id = request.member_id
        if group.state is State.EMPTY:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID)
        group.validate_member(member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(Err.ILLEGAL_GENERATION)
        if differs(request.protocol_type, group.protocol_type) or differs(request.protocol_name, group.protocol_name):
            raise KafkaError(Err.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is State.PREPARING:
            raise KafkaError(Err.REBALANCE_IN_PROGRESS)
        member = group.members[member_id]
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            out.timers.append(Cancel((SYNC, group.group_id)))
        if group.state is State.STABLE:
            return self._assignment(group, member)
        out.revocable = False
        if member.awaiting_sync is not None:
            # It gave up on the earlier request; whoever still listens learns that it is answered elsewhere.
            out.complete(member.awaiting_sync, m.SyncGroupResponse(error_code=Err.REBALANCE_IN_PROGRESS))
        promise = member.awaiting_sync = Promise(context.version)
        if group.leader == member_id:
            self._assign(group, {a.member_id: a.assignment for a in request.assignments}, now_ms, out)
        return promise

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """The generation is complete: written once, then everyone is told its part."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        record = group.record()
        if batch_bytes([record]) > self.state.config.batch_bytes_max:
            self.state.note(f"group {group.group_id}: its metadata is too large for one batch")
            self._reset_assignments(group, Err.UNKNOWN_SERVER_ERROR, now_ms, out)
            self._rebalance_or_complete(group, "its assignment could not be stored", now_ms, out)
            return
        out.records.append(record)
        for member in group.members.values():
            if self._answer_sync(member, self._assignment(group, member), out):
                self.keep_alive(group, member, out)
        group.transition(State.STABLE, now_ms)

    def _assignment(self, group: ClassicGroup, member: ClassicMember) -> m.SyncGroupResponse:
        return m.SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
        )

    def _reset_assignments(self, group: ClassicGroup, error: Err, now_ms: int, out: Outcome) -> None:
        for member in group.members.values():
            member.assignment = b""
            if self._answer_sync(member, m.SyncGroupResponse(error_code=error), out):
                self.keep_alive(group, member, out)

    def _sync_over(self, group: ClassicGroup, _: str, now_ms: int, out: Outcome) -> None:
        """Members that joined and never asked for their assignment would hold partitions without reading them."""
        if group.state not in (State.COMPLETING, State.STABLE) or not group.pending_sync:
            return
        late = sorted(group.pending_sync)
        for member_id in late:
            group.remove(member_id)
            self._forget_session(group, member_id, out)
        self.prepare_rebalance(group, f"no SyncGroup from {len(late)} members", now_ms, out)

    # Heartbeat v0-4. v3: static members.

    def heartbeat(
        self, group: ClassicGroup, request: m.HeartbeatRequest, now_ms: int, out: Outcome
    ) -> m.HeartbeatResponse:
        group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(Err.ILLEGAL_GENERATION)
        if group.state is State.EMPTY:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID)
        self.keep_alive(group, group.members[request.member_id], out)
        if group.state is State.PREPARING:
            return m.HeartbeatResponse(error_code=Err.REBALANCE_IN_PROGRESS)
        return m.HeartbeatResponse()

    # LeaveGroup v0-5. v3: several members, static ones among them. v5: reason.

    def leave(
        self, group: ClassicGroup, request: m.LeaveGroupRequest, now_ms: int, out: Outcome
    ) -> m.LeaveGroupResponse:
        responses = []
        left = 0
        for identity in request.members:
            error = self._leave_one(group, identity.member_id, identity.group_instance_id, out)
            left += error is Err.NONE
            responses.append(
                m.LeaveGroupResponse.MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
                )
            )
        if left:
            out.revocable = False
            if group.state in (State.STABLE, State.COMPLETING):
                self._rebalance_or_complete(group, f"{left} members left", now_ms, out)
            elif group.state is State.PREPARING:
                self._complete_join_if_all_joined(group, now_ms, out)
        return m.LeaveGroupResponse(members=responses)

    def _leave_one(self, group: ClassicGroup, member_id: str, instance_id: str | None, out: Outcome) -> Err:
        if not member_id:
            # An admin client removes a static member by its name alone.
            known = None if instance_id is None else group.static_members.get(instance_id)
            if known is None:
                return Err.UNKNOWN_MEMBER_ID
            member_id = known
        elif member_id not in group.pending:
            try:
                group.validate_member(member_id, instance_id)
            except KafkaError as e:
                return e.error
        self._remove(group, member_id, out)
        self._forget_session(group, member_id, out)
        return Err.NONE

    def _remove(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._answer_join_error(group, member, "", Err.UNKNOWN_MEMBER_ID, out)
            # Kafka leaves the member's SyncGroup unanswered, until its client gives up.
            self._answer_sync(member, m.SyncGroupResponse(error_code=Err.UNKNOWN_MEMBER_ID), out)
        group.remove(member_id)

    # Sessions: every sign of life arms the member's timer anew, which lasts as long whatever the wall clock is set to.

    def keep_alive(self, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        self._keep_alive_for(group, member, member.session_timeout_ms, out)

    def _keep_alive_for(self, group: ClassicGroup, member: ClassicMember, timeout_ms: int, out: Outcome) -> None:
        out.timers.append(Timer((SESSION, group.group_id, member.member_id), timeout_ms))

    def _forget_session(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        out.timers.append(Cancel((SESSION, group.group_id, member_id)))

    def _session_over(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        if member_id in group.pending:
            group.remove(member_id)
            if group.state is State.PREPARING and group.all_joined():
                self._complete_join(group, now_ms, out)
            return
        member = group.members.get(member_id)
        if member is None or member.satisfied:
            return
        out.revocable = False
        self.state.note(f"group {group.group_id}: member {member_id} failed, no heartbeat within its session")
        self._remove(group, member_id, out)
        if group.state in (State.STABLE, State.COMPLETING):
            self._rebalance_or_complete(group, f"the session of {member_id} is over", now_ms, out)
        elif group.state is State.PREPARING and group.all_joined():
            self._complete_join(group, now_ms, out)

    def timeout(self, key: Hashable, now_ms: int, out: Outcome) -> None:
        assert isinstance(key, tuple)
        group = self.find(key[1])
        if group is not None:
            self._timeouts[key[0]](group, key[-1], now_ms, out)

    # Answers.

    def _answer_join(
        self, group: ClassicGroup, member: ClassicMember, response: m.JoinGroupResponse, out: Outcome
    ) -> None:
        if member.awaiting_join is not None:
            out.complete(member.awaiting_join, response)
            member.awaiting_join = None
            group.awaiting_join_count -= 1

    def _answer_join_error(
        self, group: ClassicGroup, member: ClassicMember, member_id: str, error: Err, out: Outcome
    ) -> None:
        if member.awaiting_join is not None:
            self._answer_join(group, member, join_error(member.awaiting_join.version, member_id, error), out)

    def _answer_sync(self, member: ClassicMember, response: m.SyncGroupResponse, out: Outcome) -> bool:
        if member.awaiting_sync is None:
            return False
        out.complete(member.awaiting_sync, response)
        member.awaiting_sync = None
        return True

    def _drop_earlier_join(self, member: ClassicMember, out: Outcome) -> None:
        """A member that joins twice has given up on its first request; without an answer that would wait for ever."""
        if member.awaiting_join is not None:
            version = member.awaiting_join.version
            error = join_error(version, member.member_id, Err.REBALANCE_IN_PROGRESS)
            out.complete(member.awaiting_join, error)

    # Replay.

    def replay(self, offset: int, group_id: str, value: m.GroupMetadataValue | None, *, live: bool) -> None:
        """Of a GroupMetadata record. Live, the handler that wrote it has changed the group already."""
        group = self.state.groups.get(group_id)
        if value is None:
            if group is not None and group.type is GroupType.CLASSIC:
                self.state.groups.remove(group_id, offset)
        elif live and isinstance(group, ClassicGroup):
            group.written = value
        else:
            self.state.groups.put(group_id, ClassicGroup.from_record(group_id, value), offset)
