"""What the handlers of groups share: where a request comes from, and one answer from the shards of several groups."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.broker.connection import Request
from headrace.broker.coordinator_host import Decision, ShardHost
from headrace.coordinator.shard_requests import precheck, refusal
from headrace.errors import Err, KafkaError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

T = TypeVar("T")


def later(request: Request) -> Callable[[Any], None]:
    """Answers `request` when its time has come."""
    return partial(request.connection.listener.router.answer, request)


class GroupRequest:
    """A request about one group: the shard's `Context`, and who is answered in the end."""

    __slots__ = ("_request", "message", "new_id", "version")

    def __init__(self, broker: "Broker", request: Request, message: Any) -> None:
        self._request = request
        self.message = message
        self.version = request.version
        self.new_id = broker.groups.new_id

    @property
    def client_id(self) -> str:
        return self._request.client_id or ""

    @property
    def client_host(self) -> str:
        # A slash and no name before it: how Java prints an address that was never looked up.
        return "/" + self._request.connection.peer_host

    def answer(self, response: Any) -> None:
        request = self._request
        request.connection.listener.router.answer(request, response)

    def refusal(self, error: Err) -> Any:
        return refusal(self.message, error, self.version)


def one_group(
    broker: "Broker",
    request: Request,
    message: Any,
    decision: Decision,
    requester: GroupRequest | None = None,
) -> Any:
    """A request about one group: refused, answered now, or None and answered once what was decided is committed."""
    groups = broker.groups
    response = precheck(message, request.version, groups.shard_config)
    if response is not None:
        return response
    if requester is None:
        requester = GroupRequest(broker, request, message)
    try:
        host = groups.host(message.group_id)
    except KafkaError as error:
        return requester.refusal(error.error)
    return host.run(decision, message, requester)


class Part(Generic[T]):
    """Who asks a shard for its part of a `Gathering`."""

    __slots__ = ("_at", "_gathering", "refusal")

    def __init__(self, gathering: "Gathering[T]", at: int, refusal: Callable[[Err], T]) -> None:
        self._gathering = gathering
        self._at = at
        self.refusal = refusal

    def answer(self, response: T) -> None:
        self._gathering.put(self._at, response)


class Gathering(Generic[T]):
    """Parts of one answer from several shards, some at once and some later."""

    def __init__(self, count: int, finish: Callable[[list[T]], Any], answer: Callable[[Any], None]) -> None:
        self._parts: list[T | None] = [None] * count
        self._left = count
        self._finish = finish
        self._answer = answer
        self._parked = False

    def take(self, at: int, part: T | None) -> None:
        """A part that came at once, or None when it will come by `put`."""
        if part is not None:
            self._parts[at] = part
            self._left -= 1

    def put(self, at: int, part: T) -> None:
        self._parts[at] = part
        self._left -= 1
        if self._left == 0 and self._parked:
            self._answer(self._whole())

    def result(self) -> Any:
        """The answer, if all parts are there; None: it is given later."""
        if self._left == 0:
            return self._whole()
        self._parked = True
        return None

    def _whole(self) -> Any:
        return self._finish([part for part in self._parts if part is not None])


def by_host(
    broker: "Broker", group_ids: Iterable[str]
) -> tuple[dict[ShardHost, list[str]], list[tuple[str, Err]]]:
    """Groups by the host of their shard, and those that have none here, with the reason."""
    hosted: dict[ShardHost, list[str]] = {}
    refused: list[tuple[str, Err]] = []
    for group_id in group_ids:
        try:
            hosted.setdefault(broker.groups.host(group_id), []).append(group_id)
        except KafkaError as error:
            refused.append((group_id, error.error))
    return hosted, refused
