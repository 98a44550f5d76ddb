"""What the handlers of groups share: where a request comes from, and the shards of several groups."""

from collections.abc import Iterable
from typing import Any

from headrace.broker.coordinators.group_host import Decision, GroupHost
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.net.request import Request
from headrace.coordinator.shard_requests import precheck, refusal
from headrace.errors import Err, KafkaError


class GroupRequest:
    """A request about one group: the shard's `Context`, and who is answered in the end."""

    __slots__ = ("_request", "message", "new_id", "version")

    def __init__(self, groups: GroupCoordinator, request: Request, message: Any) -> None:
        self._request = request
        self.message = message
        self.version = request.version
        self.new_id = groups.new_id

    @property
    def client_id(self) -> str:
        return self._request.client_id or ""

    @property
    def client_host(self) -> str:
        # A slash and no name before it: how Java prints an address that was never looked up.
        return "/" + self._request.connection.peer_host

    def answer(self, response: Any) -> None:
        self._request.respond(response)

    def refusal(self, error: Err) -> Any:
        return refusal(self.message, error, self.version)


def one_group(
    groups: GroupCoordinator,
    request: Request,
    message: Any,
    decision: Decision,
    requester: GroupRequest | None = None,
) -> Any:
    """A request about one group: refused, answered now, or None and answered once what was decided is committed."""
    response = precheck(message, request.version, groups.shard_config)
    if response is not None:
        return response
    if requester is None:
        requester = GroupRequest(groups, request, message)
    try:
        host = groups.host(message.group_id)
    except KafkaError as error:
        return requester.refusal(error.error)
    return host.run(decision, message, requester)


def by_host(
    groups: GroupCoordinator, group_ids: Iterable[str]
) -> tuple[dict[GroupHost, list[str]], list[tuple[str, Err]]]:
    """Groups by the host of their shard, and those that have none here, with the reason."""
    hosted: dict[GroupHost, list[str]] = {}
    refused: list[tuple[str, Err]] = []
    for group_id in group_ids:
        try:
            hosted.setdefault(groups.host(group_id), []).append(group_id)
        except KafkaError as error:
            refused.append((group_id, error.error))
    return hosted, refused
