"""Members of groups, and looking at groups.

JoinGroup v0-9. v4: a member id must be asked for first (KIP-394). v5: group instance ids (KIP-345). v8: reason.
v9: the leader may be told to skip its assignment (KIP-814). SyncGroup v0-5. Heartbeat v0-4. LeaveGroup v0-5 (v3:
several members at once). ConsumerGroupHeartbeat v0-1 and ConsumerGroupDescribe v0-1 (KIP-848).
DescribeGroups v0-6 (v6: GROUP_ID_NOT_FOUND). ListGroups v0-5 (v4: states, v5: types). DeleteGroups v0-2.
"""

from functools import partial
from typing import Any

from headrace.broker.coordinators.gathering import Gathering, Part
from headrace.broker.coordinators.host import State
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.handlers.groups.requests import by_host, one_group
from headrace.broker.net.request import Request
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_requests import (
    consumer_describe_refusals,
    delete_refusals,
    describe_refusals,
    refusal,
)
from headrace.errors import Err
from headrace.protocol import messages as m

GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: all that there is for a group."""


class GroupHandlers:
    """Members join, are looked after, looked at and deleted."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def join_group(self, request: Request, message: m.JoinGroupRequest) -> m.JoinGroupResponse | None:
        answer: m.JoinGroupResponse | None = one_group(self._groups, request, message, GroupShard.join_group)
        return answer

    def sync_group(self, request: Request, message: m.SyncGroupRequest) -> m.SyncGroupResponse | None:
        answer: m.SyncGroupResponse | None = one_group(self._groups, request, message, GroupShard.sync_group)
        return answer

    def heartbeat(self, request: Request, message: m.HeartbeatRequest) -> m.HeartbeatResponse | None:
        answer: m.HeartbeatResponse | None = one_group(self._groups, request, message, GroupShard.heartbeat)
        return answer

    def leave_group(self, request: Request, message: m.LeaveGroupRequest) -> m.LeaveGroupResponse | None:
        answer: m.LeaveGroupResponse | None = one_group(self._groups, request, message, GroupShard.leave_group)
        return answer

    def consumer_group_heartbeat(
        self, request: Request, message: m.ConsumerGroupHeartbeatRequest
    ) -> m.ConsumerGroupHeartbeatResponse | None:
        if not self._groups.serves_consumer_protocol:
            refused: m.ConsumerGroupHeartbeatResponse = refusal(message, Err.UNSUPPORTED_VERSION, request.version)
            return refused
        answer: m.ConsumerGroupHeartbeatResponse | None = one_group(
            self._groups, request, message, GroupShard.consumer_group_heartbeat
        )
        return answer

    def describe_groups(self, request: Request, message: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        R = m.DescribeGroupsResponse
        hosted, refused = by_host(self._groups, message.groups)
        found = {group_id: describe_refusals([group_id], error)[0] for group_id, error in refused}
        for host, group_ids in hosted.items():
            for group in host.shard.describe_groups(group_ids, request.version):
                if message.include_authorized_operations and not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
                found[group.group_id] = group
        return R(groups=[found[group_id] for group_id in message.groups])

    def consumer_group_describe(
        self, request: Request, message: m.ConsumerGroupDescribeRequest
    ) -> m.ConsumerGroupDescribeResponse:
        R = m.ConsumerGroupDescribeResponse
        if not self._groups.serves_consumer_protocol:
            return R(groups=consumer_describe_refusals(message.group_ids, Err.UNSUPPORTED_VERSION))
        hosted, refused = by_host(self._groups, filter(None, message.group_ids))
        refused.append(("", Err.INVALID_GROUP_ID))  # where it was asked for
        found = {group_id: consumer_describe_refusals([group_id], error)[0] for group_id, error in refused}
        for host, group_ids in hosted.items():
            for group in host.shard.consumer_group_describe(group_ids):
                if message.include_authorized_operations and not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
                found[group.group_id] = group
        return R(groups=[found[group_id] for group_id in message.group_ids])

    def list_groups(self, request: Request, message: m.ListGroupsRequest) -> m.ListGroupsResponse:
        R = m.ListGroupsResponse
        if any(host.state is State.LOADING for host in self._groups.hosts.values()):
            return R(error_code=Err.COORDINATOR_LOAD_IN_PROGRESS)
        response = R()
        for host in self._groups.active():
            response.groups += host.shard.list_groups(message.states_filter, message.types_filter)
        return response

    def delete_groups(self, request: Request, message: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse | None:
        R = m.DeleteGroupsResponse
        hosted, refused = by_host(self._groups, dict.fromkeys(message.groups_names))
        first = [result for group_id, error in refused for result in delete_refusals([group_id], error)]

        def finish(parts: list[list[Any]]) -> m.DeleteGroupsResponse:
            return R(results=first + [result for part in parts for result in part])

        gathering: Gathering[list[Any]] = Gathering(len(hosted), finish, request.respond)
        for at, (host, group_ids) in enumerate(hosted.items()):
            decision = partial(host.shard.delete_groups, group_ids)
            gathering.take(at, host.ask(decision, Part(gathering, at, partial(delete_refusals, group_ids))))
        answer: m.DeleteGroupsResponse | None = gathering.result()
        return answer
