"""Offsets of groups.

OffsetCommit v2-10. v5: no retention of its own. v6: leader epochs. v7: group instance ids. v10: topic ids only.
OffsetFetch v1-10. v2: all topics, one error for all. v7: require stable. v8: several groups. v9: member epochs.
v10: topic ids only. OffsetDelete v0. TxnOffsetCommit v0-5. v3: members and generations (KIP-447).
v4: TRANSACTION_ABORTABLE. v5: the group's partition is added to the transaction (KIP-890).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.broker.cluster.node import Node
from headrace.broker.coordinators.gathering import Gathering, Part
from headrace.broker.coordinators.group_host import Decision
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.handlers.groups.repeated_commits import learn
from headrace.broker.handlers.groups.requests import GroupRequest, one_group
from headrace.broker.net.request import Request
from headrace.broker.transactions.membership import Ability, Membership
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_requests import fetch_refusal, precheck
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Image
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.records.layout import NO_SEQUENCE
from headrace.replication.verification import Verification

BY_ID = 10
"""The first version of OffsetCommit and OffsetFetch that names topics by id."""
SEVERAL_GROUPS = 8
LOADING_SINCE = 2
NO_OFFSET, NO_EPOCH, NO_METADATA = -1, -1, ""
ZERO_ID = bytes(16)

Refused = dict[str | bytes, Any]
"""Topics of an answer by name; those whose id no topic has, by that."""


class GroupOffsetHandlers:
    """Offsets that groups commit, fetch and delete."""

    def __init__(self, groups: GroupCoordinator, node: Node, membership: Membership) -> None:
        self._groups = groups
        self._node = node
        self._membership = membership

    def offset_commit(self, request: Request, message: m.OffsetCommitRequest) -> m.OffsetCommitResponse | None:
        by_id = request.version >= BY_ID
        image = self._node.image
        refused: Refused = {}
        for topic in message.topics:
            partitions = _known_partitions(image, topic, by_id)
            asked = topic.partitions
            if partitions is None or not asked or not all(row.partition_index in partitions for row in asked):
                refused = _refuse_unknown(message, lambda topic: _known_partitions(image, topic, by_id), by_id)
                if not message.topics:
                    return m.OffsetCommitResponse(topics=list(refused.values()))
                break
        if not refused and request.is_whole and request.connection.fast is not None:
            learn(self._groups, self._node, request, message)
        answer: m.OffsetCommitResponse | None = self._ask(request, message, GroupShard.offset_commit, refused)
        return answer

    def offset_delete(self, request: Request, message: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse | None:
        def known_partitions(topic: Any) -> Any:
            found = self._node.image.topic_named(topic.name)
            return None if found is None else found.partitions

        refused = _refuse_unknown(message, known_partitions)
        answer: m.OffsetDeleteResponse | None = self._ask(request, message, GroupShard.offset_delete, refused)
        return answer

    async def txn_offset_commit(self, request: Request, message: m.TxnOffsetCommitRequest) -> m.TxnOffsetCommitResponse:
        def known_partitions(topic: Any) -> Any:
            found = self._node.image.topic_named(topic.name)
            return None if found is None else found.partitions

        refused = _refuse_unknown(message, known_partitions)
        requester = _InTransaction(self._groups, request, message, refused)
        response = precheck(message, request.version, self._groups.shard_config)
        if response is None and message.topics:
            try:
                guard = await self._verified(message, Ability.of_offset_commit(request.version))
                host = self._groups.host(message.group_id)
                response = host.commit_in_transaction(message, requester, guard)
                if response is None:
                    response = await requester.answered
            except KafkaError as error:
                response = requester.refusal(error.error)
        if response is None:
            response = m.TxnOffsetCommitResponse()
        return _for_old_clients(requester.whole(response), request.version)

    async def _verified(self, message: m.TxnOffsetCommitRequest, ability: Ability) -> Verification | None:
        """Once the transaction's coordinator knows that offsets are committed within it. Raises KafkaError."""
        partition = self._groups.host(message.group_id).partition
        who = message.producer_id, message.producer_epoch
        guard = partition.log.producers.begin_verification(
            *who, NO_SEQUENCE, partition.environment.wall_ms(), supports_epoch_bump=ability is Ability.ADDS
        )
        if guard is not None:
            place = OFFSETS_TOPIC, partition.index
            errors = await self._membership.errors(message.transactional_id, *who, [place], ability)
            if errors:
                raise KafkaError(errors[place])
        return guard

    def _ask(self, request: Request, message: Any, decision: Decision, refused: Refused) -> Any:
        """Have the shard decide on what was not `refused` before."""
        if not refused:
            return one_group(self._groups, request, message, decision)
        requester = _PartlyRefused(self._groups, request, message, refused)
        response = one_group(self._groups, request, message, decision, requester)
        return None if response is None else requester.whole(response)

    def offset_fetch(self, request: Request, message: m.OffsetFetchRequest) -> m.OffsetFetchResponse | None:
        R, Q = m.OffsetFetchResponse, m.OffsetFetchRequest
        version = request.version
        if version >= SEVERAL_GROUPS:
            groups = message.groups
        else:
            topics = None
            if message.topics is not None:
                topics = [
                    Q.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in message.topics
                ]
            groups = [Q.OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)]

        def finish(parts: list[Any]) -> m.OffsetFetchResponse:
            return R(groups=parts) if version >= SEVERAL_GROUPS else _flat(parts[0])

        gathering: Gathering[Any] = Gathering(len(groups), finish, request.respond)
        for at, group in enumerate(groups):
            part = Part(gathering, at, partial(fetch_refusal, group, version=version))
            gathering.take(at, self._fetch(version, group, message.require_stable, part))
        answer: m.OffsetFetchResponse | None = gathering.result()
        return answer

    def _fetch(self, version: int, group: Any, require_stable: bool, part: Part[Any]) -> Any:
        by_id = version >= BY_ID
        unknown = _resolve_ids(self._node.image, group) if by_id and group.topics is not None else []
        try:
            host = self._groups.host(group.group_id)
            found = host.shard.fetch_offsets(group, require_stable, version)
        except KafkaError as error:
            return part.refusal(error.error)
        if by_id and not found.error_code:
            _fill_ids(self._node.image, found)
            found.topics += unknown
        return host.when_committed(found, part) if require_stable else found


def _known_partitions(image: Image, topic: Any, by_id: bool) -> Any:
    """The partitions of the topic meant; its name and id are filled in from each other. None: there is no such
    topic."""
    if by_id:
        found = image.topics.get(topic.topic_id)
        if found is None:
            return None
        topic.name = found.name
    else:
        found = image.topic_named(topic.name)
        if found is None:
            return None
        topic.topic_id = found.id
    return found.partitions


# ---- what OffsetCommit and OffsetDelete share


def _refuse_unknown(message: Any, known_partitions: Callable[[Any], Any], by_id: bool = False) -> Refused:
    """Takes out of the request what does not exist, and topics of which nothing is left; the answers to the former."""
    answer_topic, answer_partition = _ANSWERS[type(message)]
    refused: Refused = {}
    kept_topics = []
    for topic in message.topics:
        partitions = known_partitions(topic)
        kept: list[Any] = []
        missing: list[Any] = []
        for asked in topic.partitions:
            exists = partitions is not None and asked.partition_index in partitions
            (kept if exists else missing).append(asked)
        if missing or partitions is None:
            error = Err.UNKNOWN_TOPIC_ID if partitions is None and by_id else Err.UNKNOWN_TOPIC_OR_PARTITION
            answered = refused.get(_key(topic))
            if answered is None:
                answered = refused[_key(topic)] = answer_topic(name=topic.name)
                if by_id:
                    answered.topic_id = topic.topic_id
            answered.partitions += [answer_partition(row.partition_index, error) for row in missing]
        if kept:
            topic.partitions = kept
            kept_topics.append(topic)
    message.topics = kept_topics
    return refused


_ANSWERS: dict[type, tuple[Any, Any]] = {
    m.OffsetCommitRequest: (
        m.OffsetCommitResponse.OffsetCommitResponseTopic, m.OffsetCommitResponse.OffsetCommitResponsePartition,
    ),
    m.OffsetDeleteRequest: (
        m.OffsetDeleteResponse.OffsetDeleteResponseTopic, m.OffsetDeleteResponse.OffsetDeleteResponsePartition,
    ),
    m.TxnOffsetCommitRequest: (
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
    ),
}  # fmt: skip


def _key(topic: Any) -> str | bytes:
    # An id that no topic has comes without a name.
    key: str | bytes = topic.name or getattr(topic, "topic_id", b"")
    return key


class _PartlyRefused(GroupRequest):
    """Puts the answers to what was refused before into the shard's."""

    __slots__ = ("_refused",)

    def __init__(self, groups: GroupCoordinator, request: Request, message: Any, refused: Refused) -> None:
        super().__init__(groups, request, message)
        self._refused = refused

    def answer(self, response: Any) -> None:
        super().answer(self.whole(response))

    def whole(self, response: Any) -> Any:
        # Only OffsetDelete has an error for all, and that stands alone.
        if not getattr(response, "error_code", Err.NONE):
            topics = self._refused
            for topic in response.topics:
                earlier = topics.setdefault(_key(topic), topic)
                if earlier is not topic:
                    earlier.partitions += topic.partitions
            response.topics = list(topics.values())
        return response


class _InTransaction(_PartlyRefused):
    """A commit within a transaction, whose handler waits for the answer itself."""

    __slots__ = ("answered",)

    def __init__(self, groups: GroupCoordinator, request: Request, message: Any, refused: Refused) -> None:
        super().__init__(groups, request, message, refused)
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, response: Any) -> None:
        if not self.answered.done():
            self.answered.set_result(response)


def _for_old_clients(response: m.TxnOffsetCommitResponse, version: int) -> m.TxnOffsetCommitResponse:
    """Producers before Kafka 2.0 fail when they hear that a coordinator is loading (KAFKA-7296)."""
    if version < LOADING_SINCE:
        for topic in response.topics:
            for row in topic.partitions:
                if row.error_code == Err.COORDINATOR_LOAD_IN_PROGRESS:
                    row.error_code = Err.COORDINATOR_NOT_AVAILABLE
    return response


# ---- OffsetFetch


def _resolve_ids(image: Image, group: Any) -> list[Any]:
    """Give topics their names; those that do not exist are taken out and answered here."""
    R = m.OffsetFetchResponse
    known, unknown = [], []
    for topic in group.topics:
        found = image.topics.get(topic.topic_id)
        if found is not None:
            topic.name = found.name
            known.append(topic)
            continue
        unknown.append(
            R.OffsetFetchResponseTopics(
                topic_id=topic.topic_id,
                partitions=[
                    R.OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        committed_leader_epoch=NO_EPOCH,
                        metadata=NO_METADATA,
                        error_code=Err.UNKNOWN_TOPIC_ID,
                    )
                    for index in topic.partition_indexes
                ],
            )
        )
    group.topics = known
    return unknown


def _fill_ids(image: Image, found: Any) -> None:
    """Name topics by id; one that has none any more cannot be named at all."""
    for topic in found.topics:
        if topic.topic_id == ZERO_ID:
            topic.topic_id = image.topic_ids.get(topic.name, ZERO_ID)
    found.topics = [topic for topic in found.topics if topic.topic_id != ZERO_ID]


def _flat(found: Any) -> m.OffsetFetchResponse:
    """The answer of versions that know one group only."""
    R = m.OffsetFetchResponse
    return R(
        error_code=found.error_code,
        topics=[
            R.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    R.OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in found.topics
        ],
    )
