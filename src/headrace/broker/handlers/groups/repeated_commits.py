"""A member that commits the same partitions again: what was looked up for its last commit still holds."""

from typing import Any

from headrace.broker.cluster.node import Node
from headrace.broker.coordinators.group_host import GroupHost
from headrace.broker.coordinators.host import State
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.fastpath.fast_path import Frame, recognized_request
from headrace.broker.net.connection import Connection
from headrace.broker.net.request import Request
from headrace.broker.net.router import encode_answer
from headrace.coordinator.offsets import RepeatedCommit
from headrace.coordinator.shard_requests import commit_answer, refusal
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.templates.offset_commit import FRAME_BYTES_MAX, OffsetCommitTemplate, offset_commit_template

ACTIVE = State.ACTIVE
OFFSET_COMMIT = int(ApiKey.OFFSET_COMMIT)


def learn(groups: GroupCoordinator, node: Node, request: Request, message: m.OffsetCommitRequest) -> None:
    """A connection that commits the same twice in a row, at a glance, is likely to go on so. All that `message` names
    exists.

    One that commits partition after partition is not: to learn each of them costs as much as a commit.
    """
    if not message.topics or request.end - request.frame > FRAME_BYTES_MAX:
        return
    fast, first = request.connection.fast, message.topics[0]
    glance = request.end - request.frame, message.group_id, first.name, first.partitions[0].partition_index
    if fast is None or not fast.repeats(OFFSET_COMMIT, glance):
        return
    try:
        host = groups.host(message.group_id)
    except KafkaError:
        return
    version = request.version
    response = commit_answer(message)
    answer = encode_answer(API[OFFSET_COMMIT], version, 0, response)
    template = offset_commit_template(request.buf, request.frame, request.end, version, message, answer)
    if template is not None:
        commit = RepeatedCommit(message, version, response)
        fast.learn(OFFSET_COMMIT, template, RepeatedCommits(node, host, template, commit).serve)


class RepeatedCommits:
    """Serves them. Whatever is unusual is left to the long way."""

    __slots__ = ("_commit", "_host", "_node", "_template", "_topics", "version")

    def __init__(self, node: Node, host: GroupHost, template: OffsetCommitTemplate, commit: RepeatedCommit) -> None:
        self.version = template.version
        self._template = template
        self._node = node
        self._topics = node.image.topics
        self._host = host
        self._commit = commit

    def serve(self, connection: Connection, places: tuple[Any, ...], frame: Frame) -> bytes | Request | None:
        """See `FastPath`."""
        host = self._host
        # What was looked up is as good as the image it was found in; a host that is active is the only one of its
        # groups.
        if host.state is not ACTIVE or self._node.image.topics is not self._topics:
            return None
        request = recognized_request(connection, OFFSET_COMMIT, self.version, frame)
        response = host.commit_again(self._commit, places, _Waiting(self, request))
        if response is None:
            return request
        connection.router.waited(request)
        return self.encode(request, response)

    def encode(self, request: Request, response: m.OffsetCommitResponse) -> bytes:
        if response is self._commit.response:
            return self._template.answer(request.correlation_id)
        return encode_answer(API[OFFSET_COMMIT], self.version, request.correlation_id, response)

    def refusal(self, error: Err) -> Any:
        return refusal(self._commit.request, error, self.version)


class _Waiting:
    """A commit that is answered once it is durable."""

    __slots__ = ("_repeated", "_request", "refusal")

    def __init__(self, repeated: RepeatedCommits, request: Request) -> None:
        self._repeated = repeated
        self._request = request
        self.refusal = repeated.refusal

    def answer(self, response: m.OffsetCommitResponse) -> None:
        request = self._request
        request.done(self._repeated.encode(request, response))
