"""What the handlers of groups share: where a request comes from, and one answer from the shards of several groups."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.broker.connection import Request
from headrace.broker.coordinator_host import Decision, ShardHost
from headrace.coordinator.outcome import Context
from headrace.coordinator.shard_requests import precheck, refusal
from headrace.errors import Err, KafkaError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

T = TypeVar("T")


def context_of(broker: "Broker", request: Request) -> Context:
    connection = request.connection
    # A slash and no name before it: how Java prints an address that was never looked up.
    return Context(request.client_id or "", "/" + connection.peer_host, request.version, broker.groups.new_id)


def later(request: Request) -> Callable[[Any], None]:
    """Answers `request` when its time has come."""
    return partial(request.connection.listener.router.answer, request)


def one_group(
    broker: "Broker",
    request: Request,
    message: Any,
    decision: Callable[[ShardHost], Decision],
    done: Callable[[Any], None] | None = None,
) -> Any:
    """A request about one group: refused, answered now, or None and answered (or `done` called) once committed."""
    groups = broker.groups
    context = context_of(broker, request)
    response = precheck(message, context, groups.shard_config)
    if response is not None:
        return response
    try:
        host = groups.host(message.group_id)
    except KafkaError as error:
        return refusal(message, error.error, request.version)
    return host.run(decision(host), message, context, done or later(request))


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
