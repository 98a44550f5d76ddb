"""The short way for a member that commits the same partitions again."""

from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Connection, Request
from headrace.broker.coordinator_host import ShardHost, State
from headrace.broker.router import encode_answer
from headrace.coordinator.offsets import RepeatedCommit
from headrace.coordinator.shard_requests import commit_answer, refusal
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.commit_shape import FRAME_BYTES_MAX, CommitShape, shape_of
from headrace.protocol.headers import CLIENT_ID_AT

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.server import Broker

ACTIVE = State.ACTIVE
OFFSET_COMMIT = int(ApiKey.OFFSET_COMMIT)


def learn(broker: "Broker", request: Request, message: m.OffsetCommitRequest) -> None:
    """A connection that commits the same twice in a row, at a glance, is likely to go on so. All that `message` names exists.

    One that commits partition after partition is not: to learn each of them costs as much as a commit.
    """
    if not message.topics or request.end - request.frame > FRAME_BYTES_MAX:
        return
    connection, first = request.connection, message.topics[0]
    glance = request.end - request.frame, message.group_id, first.name, first.partitions[0].partition_index
    if connection.last_commit != glance:
        connection.last_commit = glance
        return
    try:
        host = broker.groups.host(message.group_id)
    except KafkaError:
        return
    version = request.version
    response = commit_answer(message)
    answer = encode_answer(API[OFFSET_COMMIT], version, 0, response)
    shape = shape_of(request.buf, request.frame, request.end, version, message, answer)
    if shape is not None:
        commit = RepeatedCommit(message, version, response)
        connection.shortcuts[OFFSET_COMMIT] = CommitShortcut(broker.node, host, shape, commit)


class CommitShortcut:
    """Serves requests of one shape. Whatever is unusual is left to the long way."""

    __slots__ = ("_commit", "_find", "_host", "_node", "_shape", "_topics", "said", "version")

    def __init__(self, node: "Node", host: ShardHost, shape: CommitShape, commit: RepeatedCommit) -> None:
        self.version = shape.version
        self.said = shape.said
        self._shape = shape
        self._find = shape.find
        self._node = node
        self._topics = node.image.topics
        self._host = host
        self._commit = commit

    def take(
        self, connection: Connection, pos: int, end: int, correlation_id: int, started: float
    ) -> bytes | Request | None:
        """The answer to the frame at `pos`, or its place in the queue if it has to wait; None: nothing was done."""
        places = self._find(connection.buf, pos, end)
        host = self._host
        # What was looked up is as good as the image it was found in; a host that is active is the only one of its groups.
        if places is None or host.state is not ACTIVE or self._node.image.topics is not self._topics:
            return None
        request = Request(connection, OFFSET_COMMIT, self.version, correlation_id, -1, pos + CLIENT_ID_AT, end, started)
        request.let_go()
        response = host.commit_again(self._commit, places, _Waiting(self, request))
        if response is None:
            return request
        connection.listener.router.parked_done(request)
        return self.encode(request, response)

    def encode(self, request: Request, response: m.OffsetCommitResponse) -> bytes:
        if response is self._commit.response:
            return self._shape.answer(request.correlation_id)
        return encode_answer(API[OFFSET_COMMIT], self.version, request.correlation_id, response)

    def refusal(self, error: Err) -> Any:
        return refusal(self._commit.request, error, self.version)


class _Waiting:
    """A commit that is answered once it is durable."""

    __slots__ = ("_request", "_shortcut", "refusal")

    def __init__(self, shortcut: CommitShortcut, request: Request) -> None:
        self._shortcut = shortcut
        self._request = request
        self.refusal = shortcut.refusal

    def answer(self, response: m.OffsetCommitResponse) -> None:
        request = self._request
        request.connection.listener.router.parked_done(request)
        request.complete(self._shortcut.encode(request, response))
