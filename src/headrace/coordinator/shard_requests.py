"""Refusing group requests: what is wrong whatever the shard holds, and how each request says no."""

from collections.abc import Callable
from typing import Any

from headrace.coordinator.classic_messages import join_error
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err
from headrace.protocol import messages as m

PROTOCOL_IN_SYNC_FROM = 5
SEVERAL_LEAVE_FROM = 3
GROUP_ERROR_IN_FETCH_FROM = 2

# What a failed read or append of the log means to a client of the coordinator.
LOG_ERRORS: dict[Err, Err] = {
    Err.NETWORK_EXCEPTION: Err.COORDINATOR_LOAD_IN_PROGRESS,
    Err.UNKNOWN_TOPIC_OR_PARTITION: Err.COORDINATOR_NOT_AVAILABLE,
    Err.NOT_ENOUGH_REPLICAS: Err.COORDINATOR_NOT_AVAILABLE,
    Err.REQUEST_TIMED_OUT: Err.COORDINATOR_NOT_AVAILABLE,
    Err.NOT_LEADER_OR_FOLLOWER: Err.NOT_COORDINATOR,
    Err.KAFKA_STORAGE_ERROR: Err.NOT_COORDINATOR,
    Err.MESSAGE_TOO_LARGE: Err.UNKNOWN_SERVER_ERROR,
    Err.RECORD_LIST_TOO_LARGE: Err.UNKNOWN_SERVER_ERROR,
    Err.INVALID_FETCH_SIZE: Err.UNKNOWN_SERVER_ERROR,
}


def precheck(request: Any, version: int, config: ShardConfig) -> Any | None:
    """The answer to a request that no shard needs to see, None for all others.

    OffsetCommit, OffsetFetch, DescribeGroups and DeleteGroups allow the empty group id, for old simple consumers.
    """
    check = _PRECHECKS.get(type(request))
    return None if check is None else check(request, version, config)


def _check_join(request: m.JoinGroupRequest, version: int, config: ShardConfig) -> Any | None:
    if not request.group_id:
        return join_error(version, request.member_id, Err.INVALID_GROUP_ID)
    if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
        return join_error(version, request.member_id, Err.INVALID_SESSION_TIMEOUT)
    return None


def _check_sync(request: m.SyncGroupRequest, version: int, config: ShardConfig) -> Any | None:
    protocol_missing = request.protocol_type is None or request.protocol_name is None
    if version >= PROTOCOL_IN_SYNC_FROM and protocol_missing:
        return refusal(request, Err.INCONSISTENT_GROUP_PROTOCOL, version)
    return _check_group_id(request, version, config)


def _check_group_id(request: Any, version: int, config: ShardConfig) -> Any | None:
    return None if request.group_id else refusal(request, Err.INVALID_GROUP_ID, version)


_PRECHECKS: dict[type, Callable[[Any, int, ShardConfig], Any | None]] = {
    m.JoinGroupRequest: _check_join,
    m.SyncGroupRequest: _check_sync,
    m.HeartbeatRequest: _check_group_id,
    m.LeaveGroupRequest: _check_group_id,
    m.OffsetDeleteRequest: _check_group_id,
    m.TxnOffsetCommitRequest: _check_group_id,
}


def refusal(request: Any, error: Err, version: int, message: str | None = None) -> Any:
    """The answer to a whole request that failed with `error`, also one of the log (LOG_ERRORS).

    Requests about several groups are refused group by group: `fetch_refusal` and the others below.
    """
    error = LOG_ERRORS.get(error, error)
    return _REFUSALS[type(request)](request, error, version, message)


def _join(request: m.JoinGroupRequest, error: Err, version: int, message: str | None) -> m.JoinGroupResponse:
    return join_error(version, "", error)


def _sync(request: m.SyncGroupRequest, error: Err, version: int, message: str | None) -> m.SyncGroupResponse:
    return m.SyncGroupResponse(error_code=error)


def _heartbeat(request: m.HeartbeatRequest, error: Err, version: int, message: str | None) -> m.HeartbeatResponse:
    # Its session is not running while the coordinator loads, so the member may take it for alive.
    return m.HeartbeatResponse(error_code=Err.NONE if error is Err.COORDINATOR_LOAD_IN_PROGRESS else error)


def _leave(request: m.LeaveGroupRequest, error: Err, version: int, message: str | None) -> m.LeaveGroupResponse:
    if error is Err.UNKNOWN_MEMBER_ID and version >= SEVERAL_LEAVE_FROM:
        return m.LeaveGroupResponse(
            members=[
                m.LeaveGroupResponse.MemberResponse(
                    member_id=x.member_id, group_instance_id=x.group_instance_id, error_code=error
                )
                for x in request.members
            ]
        )
    return m.LeaveGroupResponse(error_code=error)


def _offset_commit(
    request: m.OffsetCommitRequest, error: Err, version: int, message: str | None
) -> m.OffsetCommitResponse:
    return commit_answer(request, error)


def commit_answer(request: m.OffsetCommitRequest, error: Err = Err.NONE) -> m.OffsetCommitResponse:
    """The same for every partition."""
    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    m.OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=error
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _txn_offset_commit(
    request: m.TxnOffsetCommitRequest, error: Err, version: int, message: str | None
) -> m.TxnOffsetCommitResponse:
    return m.TxnOffsetCommitResponse(
        topics=[
            m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=error
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_delete(
    request: m.OffsetDeleteRequest, error: Err, version: int, message: str | None
) -> m.OffsetDeleteResponse:
    return m.OffsetDeleteResponse(error_code=error)


def _consumer_heartbeat(
    request: m.ConsumerGroupHeartbeatRequest, error: Err, version: int, message: str | None
) -> m.ConsumerGroupHeartbeatResponse:
    return m.ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)


def _list_groups(request: m.ListGroupsRequest, error: Err, version: int, message: str | None) -> m.ListGroupsResponse:
    return m.ListGroupsResponse(error_code=error)


_REFUSALS: dict[type, Callable[[Any, Err, int, str | None], Any]] = {
    m.JoinGroupRequest: _join,
    m.SyncGroupRequest: _sync,
    m.HeartbeatRequest: _heartbeat,
    m.LeaveGroupRequest: _leave,
    m.OffsetCommitRequest: _offset_commit,
    m.TxnOffsetCommitRequest: _txn_offset_commit,
    m.OffsetDeleteRequest: _offset_delete,
    m.ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
    m.ListGroupsRequest: _list_groups,
}


def fetch_refusal(
    group: m.OffsetFetchRequest.OffsetFetchRequestGroup, error: Err, version: int
) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
    error = LOG_ERRORS.get(error, error)
    if version >= GROUP_ERROR_IN_FETCH_FROM:
        return m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    return m.OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            m.OffsetFetchResponse.OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    m.OffsetFetchResponse.OffsetFetchResponsePartitions(
                        partition_index=partition, committed_offset=-1, error_code=error
                    )
                    for partition in topic.partition_indexes
                ],
            )
            for topic in group.topics or ()
        ],
    )


def delete_refusals(group_ids: list[str], error: Err) -> list[m.DeleteGroupsResponse.DeletableGroupResult]:
    error = LOG_ERRORS.get(error, error)
    return [m.DeleteGroupsResponse.DeletableGroupResult(group_id=g, error_code=error) for g in group_ids]


def describe_refusals(group_ids: list[str], error: Err) -> list[m.DescribeGroupsResponse.DescribedGroup]:
    error = LOG_ERRORS.get(error, error)
    return [m.DescribeGroupsResponse.DescribedGroup(group_id=g, error_code=error) for g in group_ids]


def consumer_describe_refusals(
    group_ids: list[str], error: Err
) -> list[m.ConsumerGroupDescribeResponse.DescribedGroup]:
    error = LOG_ERRORS.get(error, error)
    return [m.ConsumerGroupDescribeResponse.DescribedGroup(group_id=g, error_code=error) for g in group_ids]
