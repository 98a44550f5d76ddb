"""Members that speak the classic protocol inside a consumer group, while the group moves from one protocol to the
other.

They join, sync and heartbeat as ever; the server assigns, and a generation is the member's epoch. When only such
members are left, the group becomes a classic one.
"""

from headrace.coordinator.classic_messages import (
    MEMBER_ID_REQUIRED_FROM,
    join_error,
    protocols_of,
    rebalance_timeout_ms,
)
from headrace.coordinator.consumer_decisions import JOIN, SYNC, Decisions, known_static
from headrace.coordinator.consumer_group import CONSUMER_PROTOCOL, ConsumerGroup
from headrace.coordinator.consumer_members import (
    JOINING,
    ClassicProtocols,
    Member,
    MemberState,
    current_record,
    member_record,
    removal_records,
    target_record,
    without_epochs,
)
from headrace.coordinator.migration import (
    DISABLED,
    downgraded,
    may_downgrade,
    owned_by_id,
    read_subscription,
    write_assignment,
)
from headrace.coordinator.outcome import Cancel, Context, Outcome, Record, Timer
from headrace.coordinator.records import batch_bytes
from headrace.coordinator.shard_state import Group
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError


class ClassicMembers:
    def __init__(self, decisions: Decisions) -> None:
        self._decide = decisions
        self._state = decisions.state

    # JoinGroup

    def join(
        self, group: Group, request: m.JoinGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.JoinGroupResponse:
        assert isinstance(group, ConsumerGroup)
        unknown = not request.member_id
        member_id = request.member_id or context.new_id()
        self._check_join(group, request, member_id)
        if unknown and request.group_instance_id is None and context.version >= MEMBER_ID_REQUIRED_FROM:
            return join_error(context.version, member_id, Err.MEMBER_ID_REQUIRED)
        member = self._joining(group, request, member_id, unknown, out)
        subscription = _subscription(request)
        updated = _told(member, request, subscription, context)

        decide = self._decide
        topics_changed = decide.write_subscription(group, member, updated, out)
        changed = decide.update_regexes(group, member, updated, now_ms, out).changed or topics_changed
        coming = decide.next_epoch(group, member, updated, changed, now_ms, out)
        owned = owned_by_id(subscription, self._state.image)
        replaced = group.static_member(request.group_instance_id)
        if replaced is not None and may_downgrade(group, (), replaced, self._state.config):
            stale = group.target_epoch < coming.epoch
            if not stale:
                target = group.target(updated.member_id, updated.instance_id)
                updated = decide.reconcile(group, updated, group.target_epoch, target, changed, owned, out)
            self._downgrade(group, [], updated, now_ms, out, "a member came back as a classic one" if stale else None)
        else:
            target_epoch, target = decide.next_target(group, coming, member, updated, now_ms, out)
            updated = decide.reconcile(group, updated, target_epoch, target, changed, owned, out)
            self._joined(group, updated, request, rebalance_timeout_ms(request, context), out)
        assert updated.classic is not None
        return m.JoinGroupResponse(
            member_id=updated.member_id,
            generation_id=updated.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=updated.classic.protocols[0][0],
        )

    def _check_join(self, group: ConsumerGroup, request: m.JoinGroupRequest, member_id: str) -> None:
        config = self._state.config
        if config.consumer_migration_policy == DISABLED:
            raise KafkaError(
                Err.INCONSISTENT_GROUP_PROTOCOL,
                "classic members cannot join: migration of groups is disabled",
            )
        if len(group.members.live) >= config.consumer_max_size and member_id not in group.members.live:
            raise KafkaError(Err.GROUP_MAX_SIZE_REACHED)
        if not group.supports_classic(request.protocol_type, [protocol.name for protocol in request.protocols]):
            raise KafkaError(Err.INCONSISTENT_GROUP_PROTOCOL, f"the protocols of member {member_id} are not supported")

    def _joining(
        self, group: ConsumerGroup, request: m.JoinGroupRequest, member_id: str, unknown: bool, out: Outcome
    ) -> Member:
        instance_id = request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id) or Member(member_id)
        existing = group.static_member(instance_id)
        if not unknown:
            return known_static(existing, member_id, instance_id)
        if existing is None:
            return Member(member_id)
        return self.take_place(group, existing, member_id, out)

    def _joined(
        self, group: ConsumerGroup, member: Member, request: m.JoinGroupRequest, sync_ms: int, out: Outcome
    ) -> None:
        group_id, member_id = group.group_id, member.member_id
        self._decide.volatile_of(group_id).join_timers.discard(member_id)
        out.timers.append(Cancel((JOIN, group_id, member_id)))
        self._decide.keep_alive(group_id, member_id, request.session_timeout_ms, out)
        out.timers.append(Timer((SYNC, group_id, member_id), sync_ms))

    # SyncGroup

    def sync(
        self, group: Group, request: m.SyncGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.SyncGroupResponse:
        assert isinstance(group, ConsumerGroup)
        member, classic = self._classic_member(group, request)
        protocol = classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (
            None,
            protocol,
        ):
            raise KafkaError(Err.INCONSISTENT_GROUP_PROTOCOL)
        if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member, out)
            return m.SyncGroupResponse(error_code=Err.REBALANCE_IN_PROGRESS)
        try:
            assigned = without_epochs(member.assigned)
            assignment = write_assignment(assigned, self._state.image, classic.protocols[0][1])
        except ProtocolError as e:
            raise KafkaError(Err.UNKNOWN_SERVER_ERROR, f"the member's metadata is malformed: {e}") from e
        out.timers.append(Cancel((SYNC, group.group_id, member.member_id)))
        self._decide.keep_alive(group.group_id, member.member_id, classic.session_timeout_ms, out)
        return m.SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
        )

    # Heartbeat

    def heartbeat(
        self, group: Group, request: m.HeartbeatRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.HeartbeatResponse:
        assert isinstance(group, ConsumerGroup)
        member, classic = self._classic_member(group, request)
        self._decide.keep_alive(group.group_id, member.member_id, classic.session_timeout_ms, out)
        released = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_release(member)
        if member.epoch < group.target_epoch or member.state is MemberState.UNREVOKED_PARTITIONS or released:
            self._expect_join(group, member, out)
            return m.HeartbeatResponse(error_code=Err.REBALANCE_IN_PROGRESS)
        return m.HeartbeatResponse()

    def _classic_member(
        self, group: ConsumerGroup, request: m.SyncGroupRequest | m.HeartbeatRequest
    ) -> tuple[Member, ClassicProtocols]:
        if request.group_instance_id is None:
            member = group.member(request.member_id)
        else:
            existing = group.static_member(request.group_instance_id)
            member = known_static(existing, request.member_id, request.group_instance_id)
        if member.classic is None:
            raise KafkaError(Err.UNKNOWN_MEMBER_ID, f"member {member.member_id} does not use the classic protocol")
        if member.epoch != request.generation_id:
            raise KafkaError(
                Err.ILLEGAL_GENERATION,
                f"generation {request.generation_id} is not the member's epoch {member.epoch}",
            )
        return member, member.classic

    def _expect_join(self, group: ConsumerGroup, member: Member, out: Outcome) -> None:
        """From the first time it is told that a rebalance is on, a member has its rebalance timeout to join."""
        timers = self._decide.volatile_of(group.group_id).join_timers
        if member.member_id not in timers:
            timers.add(member.member_id)
            out.timers.append(Timer((JOIN, group.group_id, member.member_id), member.rebalance_timeout_ms))

    # LeaveGroup, and members of either protocol that go

    def leave(
        self, group: Group, request: m.LeaveGroupRequest, context: Context, now_ms: int, out: Outcome
    ) -> m.LeaveGroupResponse:
        assert isinstance(group, ConsumerGroup)
        leaving: dict[str, Member] = {}
        responses = []
        for identity in request.members:
            error = Err.NONE
            try:
                member = _leaving(group, identity)
                leaving[member.member_id] = member
            except KafkaError as e:
                error = e.error
            responses.append(
                m.LeaveGroupResponse.MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=error,
                )
            )
        self.remove(group, list(leaving.values()), now_ms, out)
        return m.LeaveGroupResponse(members=responses)

    def remove(self, group: ConsumerGroup, members: list[Member], now_ms: int, out: Outcome) -> None:
        if not members:
            return
        if may_downgrade(group, members, None, self._state.config):
            try:
                self._downgrade(group, members, None, now_ms, out, "the last member of the consumer protocol left")
                return
            except KafkaError as e:
                self._state.note(f"group {group.group_id} stays a consumer group: {e.message}")
        self._decide.write_removal(group, members, out)

    def _downgrade(
        self,
        group: ConsumerGroup,
        leaving: list[Member],
        joining: Member | None,
        now_ms: int,
        out: Outcome,
        rebalance_reason: str | None,
    ) -> None:
        """Raises KafkaError before anything has changed."""
        classic = downgraded(group, {member.member_id for member in leaving}, joining, self._state.image, now_ms)
        renamed: dict[str, str] = {}
        if joining is not None:
            replaced = group.static_member(joining.instance_id)
            assert replaced is not None
            renamed[replaced.member_id] = joining.member_id
        records: list[Record] = [*group.tombstones_with(renamed), classic.record()]
        if batch_bytes([*out.records, *records]) > self._state.config.batch_bytes_max:
            raise KafkaError(Err.GROUP_ID_NOT_FOUND, "its records do not fit one batch")
        out.records.extend(records)
        self._decide.forget_timers(group.group_id, list(group.members.live), out)
        self._decide.classic.adopt(classic, now_ms, out, rebalance_reason)
        self._state.note(f"group {group.group_id} turns from a consumer into a classic group")

    def take_place(self, group: ConsumerGroup, existing: Member, member_id: str, out: Outcome) -> Member:
        """A static member comes back under a new id: it has what it had, and joins anew."""
        group_id = group.group_id
        member = existing.but(member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
        out.records.extend(removal_records(group_id, existing.member_id))
        out.records.append(member_record(group_id, member))
        out.records.append(target_record(group_id, member_id, group.target(existing.member_id)))
        out.records.append(current_record(group_id, member))
        if member_id != existing.member_id:
            self._decide.forget_timers(group_id, [existing.member_id], out)
        return member


def _leaving(group: ConsumerGroup, identity: m.LeaveGroupRequest.MemberIdentity) -> Member:
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    existing = group.static_member(identity.group_instance_id)
    if existing is not None and not identity.member_id:
        return existing  # an admin client removes a static member by its name alone
    return known_static(existing, identity.member_id, identity.group_instance_id)


def _subscription(request: m.JoinGroupRequest) -> m.ConsumerProtocolSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except ProtocolError as e:
        raise KafkaError(Err.UNKNOWN_SERVER_ERROR, f"the member's metadata is malformed: {e}") from e


def _told(
    member: Member,
    request: m.JoinGroupRequest,
    subscription: m.ConsumerProtocolSubscription,
    context: Context,
) -> Member:
    timeout_ms = rebalance_timeout_ms(request, context)
    return member.but(
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        client_id=context.client_id,
        client_host=context.client_host,
        classic=ClassicProtocols(request.session_timeout_ms, tuple(protocols_of(request))),
    )
