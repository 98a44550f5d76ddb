"""JoinGroup as it is asked and answered: what a request means in its version, and what every answer must carry."""

from headrace.coordinator.classic_group import ClassicGroup, Protocol
from headrace.coordinator.outcome import Context
from headrace.errors import Err
from headrace.protocol import messages as m

MEMBER_ID_REQUIRED_FROM = 4
"""The version of JoinGroup from which a dynamic member joins a second time, with the id it was given."""
PROTOCOL_NAME_NULL_FROM = 7


def protocols_of(request: m.JoinGroupRequest) -> list[Protocol]:
    """In order of preference; of a name that comes twice, the first."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return list(protocols.items())


def rebalance_timeout_ms(request: m.JoinGroupRequest, context: Context) -> int:
    # v0 knew one timeout for both.
    return request.session_timeout_ms if context.version == 0 else request.rebalance_timeout_ms


def reason_of(request: m.JoinGroupRequest) -> str:
    return request.reason or "not provided"


def differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual


def join_error(version: int, member_id: str, error: Err) -> m.JoinGroupResponse:
    name = None if version >= PROTOCOL_NAME_NULL_FROM else ""
    return m.JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=name)


def joined(
    group: ClassicGroup,
    member_id: str,
    version: int,
    members: list[m.JoinGroupResponse.JoinGroupResponseMember],
    *,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> m.JoinGroupResponse:
    name = group.protocol_name or (None if version >= PROTOCOL_NAME_NULL_FROM else "")
    return m.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=name,
        leader=leader or group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )
