"""One partition of `__consumer_offsets` as a state machine: groups, offsets, and a handler for each request.

Handlers decide on everything written so far and return an `Outcome`; `apply` and `replay` alone change what is durable.
Reads for clients (describe, list, fetch without require_stable) see what is below the high watermark.

How a runtime drives it is in outcome.py.

The parts share one `ShardState`: classic.py and consumer.py (KIP-848) decide for the two types of groups, offsets.py
for what groups have committed. A group changes its type inside consumer.py: on the way up, those who wait in the
classic group are answered by `classic.abandon`; on the way down, `classic.adopt` puts the new classic group into
`state.groups`, so that `apply` meets it there already. Tombstones of one type never remove a group of the other.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from headrace.coordinator.classic import TIMERS as CLASSIC_TIMERS, ClassicGroups
from headrace.coordinator.classic_group import ClassicGroup, State
from headrace.coordinator.classic_messages import join_error
from headrace.coordinator.consumer import ConsumerGroups
from headrace.coordinator.offsets import Offsets, RepeatedCommit, group_not_found
from headrace.coordinator.outcome import Context, Outcome, Promise, Record
from headrace.coordinator.records import (
    CONSUMER_KINDS,
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    decode,
    decode_offset_commit,
)
from headrace.coordinator.shard_requests import SEVERAL_LEAVE_FROM, fetch_refusal, refusal
from headrace.coordinator.shard_state import Group, GroupType, ShardConfig, ShardState
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Image
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError

GROUP_NOT_FOUND_FROM = 6
"""Of DescribeGroups: before, an unknown group was described as a dead one."""

EXPIRY_STEP = 10_000
"""Offsets looked at in one turn of expiry."""

_OFFSET_COMMIT_PREFIX = b"\0\1"


class GroupShard:
    """Not thread-safe; time comes in as `now_ms`."""

    def __init__(self, config: ShardConfig, *, note: Callable[[str], None] | None = None) -> None:
        self.state = ShardState(config, note)
        self.offsets = Offsets(self.state)
        self.classic = ClassicGroups(self.state)
        self.consumer = ConsumerGroups(self.state, self.classic)
        self.skipped = 0
        """Records of kinds this version does not know, or that cannot be read."""
        self._to_expire: list[str] = []

    # Loading and replaying.

    def advance(self, high_watermark: int) -> None:
        """All below is committed: call it before a load with what is known, and whenever it moves."""
        self.state.groups.advance(high_watermark)
        self.offsets.advance(high_watermark)
        self.consumer.advance(high_watermark)

    def replay(self, offset: int, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        """One record of the log, during a load."""
        self.state.written_end = offset + 1
        try:
            if key[:2] == _OFFSET_COMMIT_PREFIX:
                group, topic, partition, commit = decode_offset_commit(key, value)
                self.offsets.replay(offset, producer_id, group, topic, partition, commit)
                return
            record = decode(key, value)
        except ProtocolError as e:
            self._skip(offset, str(e))
            return
        if record is None:
            self._skip(offset, "its kind is unknown to this version")
        else:
            self._replay(offset, producer_id, record, live=False)

    def replay_marker(self, offset: int, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """The end of a transaction, during a load and live."""
        self.state.written_end = offset + 1
        self.offsets.replay_marker(offset, producer_id, committed)

    def apply(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        """One record of an outcome, at the offset it will have in the log."""
        self.state.written_end = offset + 1
        if record.kind == OFFSET_COMMIT:
            key = record.key_message
            self.offsets.replay(offset, producer_id, key.group, key.topic, key.partition, record.value_message)
        else:
            self._replay(offset, producer_id, record, live=True)

    def _replay(self, offset: int, producer_id: int, record: Record, *, live: bool) -> None:
        """Any but an offset commit, which is told apart before."""
        kind, key, value = record.kind, record.key_message, record.value_message
        if kind == GROUP_METADATA:
            self.classic.replay(offset, key.group, value, live=live)
        elif kind in CONSUMER_KINDS:
            self.consumer.replay(offset, kind, key, value)
        elif kind == LEGACY_OFFSET_COMMIT:
            if value is not None:
                value = m.OffsetCommitValue(
                    offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp
                )
            self.offsets.replay(offset, producer_id, key.group, key.topic, key.partition, value)
        else:
            self._skip(offset, f"kind {kind} belongs to a type of group that Headrace does not serve")

    def _skip(self, offset: int, why: str) -> None:
        # Kept in the log, so that a broker that understands it finds it there.
        self.skipped += 1
        if self.skipped <= 10:
            self.state.note(f"record {offset} of the offsets topic is left alone: {why}")

    def loaded(self, now_ms: int) -> Outcome:
        """Once, when everything is replayed and the first image is there."""
        out = Outcome()
        self.classic.loaded(now_ms, out)
        self.consumer.loaded(now_ms, out)
        return out

    def unload(self) -> list[Promise]:
        """Promises that will never be kept; the runtime refuses them."""
        return self.classic.unload()

    # Time and metadata.

    def timeout(self, key: Hashable, now_ms: int) -> Outcome:
        """A timer of an earlier outcome is due."""
        out = Outcome()
        assert isinstance(key, tuple)
        if key[0] in CLASSIC_TIMERS:
            self.classic.timeout(key, now_ms, out)
        else:
            self.consumer.timeout(key, now_ms, out)
        return out

    def expire(self, now_ms: int) -> Outcome:
        """Every offsets.retention.check.interval.ms. `response` True: call again soon, there is more to look at."""
        out = Outcome(response=False)
        out.atomic = False
        if not self._to_expire:
            self._to_expire = list(self.state.groups.live)
            self.consumer.expire(now_ms, out)
        looked_at = 0
        while self._to_expire and looked_at < EXPIRY_STEP:
            group = self.state.groups.get(self._to_expire.pop())
            if group is None:
                continue
            looked_at += 1 + sum(map(len, self.offsets.by_group.get(group.group_id, {}).values()))
            if self.offsets.expire(group, now_ms, out) and group.is_empty():
                out.records.extend(group.tombstones())
        out.response = bool(self._to_expire)
        return out

    def on_metadata(self, image: Image, now_ms: int) -> Outcome:
        """Whenever the image changes. Offsets of deleted topics go."""
        out = Outcome()
        out.atomic = False
        old, self.state.image = self.state.image, image
        if old.topics is not image.topics:
            deleted = {topic.name: id for id, topic in old.topics.items() if id not in image.topics}
            if deleted:
                self.offsets.topics_deleted(deleted, out)
            self.consumer.on_metadata(old, image, now_ms, out)
        return out

    # Requests.

    def join_group(self, request: m.JoinGroupRequest, context: Context, now_ms: int) -> Outcome:
        out = Outcome()
        group = self.state.groups.get(request.group_id)
        try:
            if group is not None and group.type is GroupType.CONSUMER:
                if not group.is_empty():
                    out.response = self.consumer.classic_join(group, request, context, now_ms, out)
                    return out
                if request.member_id:
                    return Outcome(join_error(context.version, request.member_id, Err.UNKNOWN_MEMBER_ID))
                # A consumer group without members turns classic; its offsets stay.
                out.records.extend(group.tombstones())
                self.state.groups.remove(request.group_id, self.state.written_end)
            out.response = self.classic.join(request, context, now_ms, out)
        except KafkaError as e:
            return Outcome(refusal(request, e.error, context.version))
        return out

    def sync_group(self, request: m.SyncGroupRequest, context: Context, now_ms: int) -> Outcome:
        def decide(group: Group, out: Outcome) -> Any:
            if isinstance(group, ClassicGroup):
                return self.classic.sync(group, request, context, now_ms, out)
            return self.consumer.classic_sync(group, request, context, now_ms, out)

        return self._for_member(request, context, decide)

    def heartbeat(self, request: m.HeartbeatRequest, context: Context, now_ms: int) -> Outcome:
        def decide(group: Group, out: Outcome) -> Any:
            if isinstance(group, ClassicGroup):
                return self.classic.heartbeat(group, request, now_ms, out)
            return self.consumer.classic_heartbeat(group, request, context, now_ms, out)

        return self._for_member(request, context, decide)

    def leave_group(self, request: m.LeaveGroupRequest, context: Context, now_ms: int) -> Outcome:
        several = context.version >= SEVERAL_LEAVE_FROM
        if not several:
            request.members = [m.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]

        def decide(group: Group, out: Outcome) -> Any:
            if isinstance(group, ClassicGroup):
                response = self.classic.leave(group, request, now_ms, out)
            else:
                response = self.consumer.classic_leave(group, request, context, now_ms, out)
            if not several:
                response = m.LeaveGroupResponse(error_code=response.error_code or response.members[0].error_code)
            return response

        return self._for_member(request, context, decide)

    def _for_member(self, request: Any, context: Context, decide: Callable[[Group, Outcome], Any]) -> Outcome:
        """A request that makes sense only for a member of a group."""
        out = Outcome()
        try:
            group = self.state.groups.get(request.group_id)
            if group is None:
                raise KafkaError(Err.UNKNOWN_MEMBER_ID)
            out.response = decide(group, out)
        except KafkaError as e:
            out = Outcome(refusal(request, e.error, context.version, e.message))
        return out

    def offset_commit(self, request: m.OffsetCommitRequest, context: Context, now_ms: int) -> Outcome:
        """Topics must carry their names (v10: resolved by the handler from the ids), and exist."""
        out = Outcome()
        group = self.state.groups.get(request.group_id)
        try:
            out.response = self.offsets.commit(group, request, context.version, now_ms, out)
        except KafkaError as e:
            return Outcome(refusal(request, e.error, context.version))
        self._has_committed(group, request.member_id, out)
        return out

    def offset_commit_again(self, commit: RepeatedCommit, places: Sequence[Any], now_ms: int) -> Outcome:
        """As `offset_commit` decides; only the offsets and leader epochs are others now."""
        out = Outcome()
        request = commit.request
        group = self.state.groups.get(request.group_id)
        try:
            out.response = self.offsets.commit_again(group, commit, places, now_ms, out)
        except KafkaError as e:
            return Outcome(refusal(request, e.error, commit.version))
        self._has_committed(group, request.member_id, out)
        return out

    def _has_committed(self, group: Group | None, member_id: str, out: Outcome) -> None:
        if isinstance(group, ClassicGroup) and group.state in (State.STABLE, State.PREPARING):
            # Whoever commits is alive.
            self.classic.keep_alive(group, group.members[member_id], out)

    def txn_offset_commit(self, request: m.TxnOffsetCommitRequest, context: Context, now_ms: int) -> Outcome:
        """To be written, and applied, with the request's producer id and epoch, as a transactional batch."""
        out = Outcome()
        group = self.state.groups.get(request.group_id)
        try:
            out.response = self.offsets.commit_transactional(group, request, context.version, now_ms, out)
        except KafkaError as e:
            return Outcome(refusal(request, e.error, context.version))
        return out

    def offset_delete(self, request: m.OffsetDeleteRequest, context: Context, now_ms: int) -> Outcome:
        out = Outcome()
        try:
            group = self.state.groups.get(request.group_id)
            if group is None:
                raise group_not_found(request.group_id)
            out.response = self.offsets.delete(group, request, out)
        except KafkaError as e:
            return Outcome(refusal(request, e.error, context.version))
        return out

    def delete_groups(self, group_ids: Iterable[str], now_ms: int) -> Outcome:
        """`response`: a DeletableGroupResult for each."""
        results: list[m.DeleteGroupsResponse.DeletableGroupResult] = []
        out = Outcome(results)
        # Half a deletion is no harm, and can be asked for again; what does not fit one batch could never be deleted.
        out.atomic = False
        deleted: set[str] = set()
        for group_id in group_ids:
            error = Err.NONE
            group = None if group_id in deleted else self.state.groups.get(group_id)
            if group is None:
                error = Err.GROUP_ID_NOT_FOUND
            else:
                try:
                    group.validate_delete()
                    self.offsets.delete_all(group_id, out)
                    out.records.extend(group.tombstones())
                    deleted.add(group_id)
                except KafkaError as e:
                    error = e.error
            results.append(m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error))
        return out

    def consumer_group_heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, context: Context, now_ms: int
    ) -> Outcome:
        out = Outcome()
        try:
            out.response = self.consumer.heartbeat(request, context, now_ms, out)
        except KafkaError as e:
            return Outcome(refusal(request, e.error, context.version, e.message))
        return out

    # Reads.

    def fetch_offsets(
        self, group: m.OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool, version: int
    ) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
        """Of one group (v1-7: made by the handler); `topics` None is all of them.

        With require_stable the answer waits, like an outcome without records, for what was written before.
        """
        try:
            return self.offsets.fetch(group, require_stable)
        except KafkaError as e:
            return fetch_refusal(group, e.error, version)

    def describe_groups(self, group_ids: Iterable[str], version: int) -> list[m.DescribeGroupsResponse.DescribedGroup]:
        """Only classic groups are known here."""
        return [self._describe(group_id, version) for group_id in group_ids]

    def _describe(self, group_id: str, version: int) -> m.DescribeGroupsResponse.DescribedGroup:
        group = self.state.groups.committed(group_id)
        if isinstance(group, ClassicGroup):
            stable = group.state is State.STABLE
            return m.DescribeGroupsResponse.DescribedGroup(
                group_id=group_id,
                group_state=group.state.value,
                protocol_type=group.protocol_type or "",
                protocol_data=(group.protocol_name or "") if stable else "",
                members=[
                    m.DescribeGroupsResponse.DescribedGroupMember(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        member_metadata=member.metadata(group.protocol_name) if stable else b"",
                        member_assignment=member.assignment,
                    )
                    for member in group.members.values()
                ],
            )
        described = m.DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
        if version >= GROUP_NOT_FOUND_FROM:
            described.error_code = Err.GROUP_ID_NOT_FOUND
            known = group is not None
            described.error_message = f"Group {group_id} {'is not a classic group' if known else 'not found'}."
        return described

    def consumer_group_describe(self, group_ids: list[str]) -> list[m.ConsumerGroupDescribeResponse.DescribedGroup]:
        return self.consumer.describe(group_ids)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[m.ListGroupsResponse.ListedGroup]:
        """All groups in one of the states and of one of the types; empty: all."""
        wanted_states = {state.lower().strip() for state in states}
        wanted_types = {kind.lower() for kind in types}
        listed = []
        for group_id, group in self.state.groups.committed_items():
            state = group.state_name(committed=True)
            if wanted_states and state.lower() not in wanted_states:
                continue
            if wanted_types and group.type.value not in wanted_types:
                continue
            listed.append(
                m.ListGroupsResponse.ListedGroup(
                    group_id=group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=state,
                    group_type=group.type.value,
                )
            )
        return listed
