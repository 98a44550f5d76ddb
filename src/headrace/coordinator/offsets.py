"""Committed offsets of one shard, also those of transactions that are still open.

Clients read what is below the high watermark; decisions (and reads with require_stable, which wait) see all.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.coordinator.classic_group import ClassicGroup
from headrace.coordinator.outcome import Outcome
from headrace.coordinator.records import (
    NO_TOPIC_ID,
    OFFSET_COMMIT_BYTES_MIN,
    next_offset_commit,
    offset_commit,
    offset_commit_key,
)
from headrace.coordinator.shard_state import Group, PartitionCheck, ShardState
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

NO_PRODUCER = -1
MEMBER_EPOCHS_FROM = 9
"""Of OffsetCommit: from here a client knows the errors of the new protocol."""

_CommitTopic = m.OffsetCommitResponse.OffsetCommitResponseTopic
_CommitPartition = m.OffsetCommitResponse.OffsetCommitResponsePartition
_FetchTopic = m.OffsetFetchResponse.OffsetFetchResponseTopics
_FetchPartition = m.OffsetFetchResponse.OffsetFetchResponsePartitions

Key = tuple[str, str, int]
"""Group, topic, partition."""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """One committed offset. `record_offset`: where its record is in the log, to tell which of two is newer."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: bytes
    record_offset: int


class RepeatedCommit:
    """A commit that its member makes over and over: what need not be looked up and encoded each time.

    Without metadata and without a retention of its own; the topics carry names and ids, and exist.
    """

    __slots__ = ("keys", "request", "response", "version")

    def __init__(self, request: m.OffsetCommitRequest, version: int, response: m.OffsetCommitResponse) -> None:
        """`request`: its first time; `response`: to it and all others that are not refused."""
        self.request = request
        self.version = version
        self.response = response
        group_id = request.group_id
        self.keys = [
            (m.OffsetCommitKey(group_id, topic.name, p.partition_index),
             offset_commit_key(group_id, topic.name, p.partition_index), topic.topic_id)
            for topic in request.topics for p in topic.partitions
        ]  # fmt: skip


ByPartition = dict[int, Committed]
_EMPTY: dict[Any, Any] = {}


class Offsets:
    __slots__ = ("_open", "_order", "_past", "_pending", "by_group", "committed_end", "count", "state")

    def __init__(self, state: ShardState) -> None:
        self.state = state
        self.by_group: dict[str, dict[str, ByPartition]] = {}
        self.count = 0
        self.committed_end = 0
        # As in shard_state.Timeline.
        self._past: dict[Key, Committed | None] = {}
        self._order: deque[tuple[int, Key, Committed | None]] = deque()
        self._pending: dict[int, dict[Key, Committed]] = {}
        self._open: dict[str, dict[tuple[str, int], set[int]]] = {}
        """Producers with an open transaction over a partition, by group."""

    # OffsetCommit v2-10. v2-4: retention. v6: leader epoch. v7: static members. v9: new protocol. v10: topic ids.

    def commit(
        self, group: Group | None, request: m.OffsetCommitRequest, version: int, now_ms: int, out: Outcome
    ) -> m.OffsetCommitResponse:
        """`group` None: nobody knows it; a consumer that manages itself makes it by its first commit."""
        check = _may_commit(group, request, version)
        retention_ms = request.retention_time_ms
        expire_ms = -1 if retention_ms == -1 else now_ms + retention_ms
        group_id, records = request.group_id, out.records
        records_max = self.state.config.batch_bytes_max // OFFSET_COMMIT_BYTES_MIN
        topics = []
        for topic in request.topics:
            name, topic_id = topic.name, topic.topic_id
            partitions = []
            for p in topic.partitions:
                index, metadata = p.partition_index, p.committed_metadata
                if metadata and self._too_long(metadata):
                    partitions.append(_CommitPartition(index, Err.OFFSET_METADATA_TOO_LARGE))
                    continue
                if check is not None:
                    check(name, topic_id, index)
                value = m.OffsetCommitValue(
                    p.committed_offset, p.committed_leader_epoch, metadata or "", now_ms, expire_ms, topic_id
                )
                records.append(offset_commit(group_id, name, index, value))
                if len(records) > records_max:
                    raise KafkaError(Err.MESSAGE_TOO_LARGE)  # no need to make a million more to know
                partitions.append(_CommitPartition(index))
            topics.append(_CommitTopic(name, topic_id, partitions))
        return m.OffsetCommitResponse(topics=topics)

    def commit_again(
        self, group: Group | None, commit: RepeatedCommit, places: Sequence[Any], now_ms: int, out: Outcome
    ) -> m.OffsetCommitResponse:
        """`places`: an offset, a leader epoch and something else for each of the partitions."""
        check = _may_commit(group, commit.request, commit.version)
        for (key_message, key, topic_id), offset, epoch in zip(commit.keys, places[::3], places[1::3]):
            if check is not None:
                check(key_message.topic, topic_id, key_message.partition)
            value = m.OffsetCommitValue(offset, epoch, "", now_ms, -1, topic_id)
            out.records.append(next_offset_commit(key_message, key, value))
        return commit.response

    def commit_transactional(
        self, group: Group | None, request: m.TxnOffsetCommitRequest, version: int, now_ms: int, out: Outcome
    ) -> m.TxnOffsetCommitResponse:
        """Its records are written with the producer's id and epoch, and stay pending until the marker comes."""
        try:
            check: PartitionCheck | None = None
            if group is not None:
                check = group.validate_offset_commit(
                    request.member_id, request.group_instance_id, request.generation_id, True, version
                )
            elif request.generation_id >= 0:
                raise KafkaError(Err.ILLEGAL_GENERATION)
            return self._commit_transactional(request, check, now_ms, out)
        except KafkaError as e:
            if e.error is Err.STALE_MEMBER_EPOCH:
                # Transactional producers know only the older error.
                raise KafkaError(Err.ILLEGAL_GENERATION) from e
            raise

    def _commit_transactional(
        self, request: m.TxnOffsetCommitRequest, check: PartitionCheck | None, now_ms: int, out: Outcome
    ) -> m.TxnOffsetCommitResponse:
        topics = []
        for topic in request.topics:
            topic_id = self.state.image.topic_ids.get(topic.name, NO_TOPIC_ID)
            if topic_id == NO_TOPIC_ID and check is not None:
                raise KafkaError(Err.ILLEGAL_GENERATION)
            partitions = []
            for p in topic.partitions:
                error = Err.NONE
                if p.committed_metadata and self._too_long(p.committed_metadata):
                    error = Err.OFFSET_METADATA_TOO_LARGE
                else:
                    if check is not None:
                        check(topic.name, topic_id, p.partition_index)
                    value = m.OffsetCommitValue(
                        p.committed_offset, p.committed_leader_epoch, p.committed_metadata or "", now_ms
                    )
                    out.records.append(offset_commit(request.group_id, topic.name, p.partition_index, value))
                partitions.append(
                    m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=error
                    )
                )
            topics.append(
                m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)
            )
        return m.TxnOffsetCommitResponse(topics=topics)

    def _too_long(self, metadata: str) -> bool:
        # Java counts UTF-16 units.
        limit = self.state.config.offset_metadata_max_bytes
        return len(metadata) > limit or len(metadata.encode("utf-16-be", "surrogatepass")) > 2 * limit

    # OffsetFetch v1-10. v2: all topics, group error. v7: require_stable. v8: several groups. v9: member epoch.
    # v10: topic ids.

    def fetch(
        self, request: m.OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool
    ) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
        """Of one group. Raises KafkaError for an error of the whole group."""
        group_id = request.group_id
        group = self.state.groups.get(group_id) if require_stable else self.state.groups.committed(group_id)
        known = group is not None
        if group is not None:
            try:
                group.validate_offset_fetch(request.member_id, request.member_epoch, not require_stable)
            except KafkaError as e:
                if e.error is not Err.GROUP_ID_NOT_FOUND:
                    raise
                known = False
        open_partitions = self._open.get(group_id, {}) if require_stable else {}
        if request.topics is None:
            topics = self._fetch_all(group_id, require_stable, open_partitions) if known else []
        else:
            topics = [
                _FetchTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        self._fetch_one(group_id, topic, partition, known, require_stable, open_partitions)
                        for partition in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        return m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    def _fetch_one(
        self,
        group_id: str,
        topic: m.OffsetFetchRequest.OffsetFetchRequestTopics,
        partition: int,
        known: bool,
        require_stable: bool,
        open_partitions: dict[tuple[str, int], set[int]],
    ) -> _FetchPartition:
        if (topic.name, partition) in open_partitions:
            return _unstable(partition)
        found = self.get(group_id, topic.name, partition, committed=not require_stable) if known else None
        if found is None or _other_topic(found.topic_id, topic.topic_id) or self._is_of_another(topic.name, found):
            return _FetchPartition(partition_index=partition, committed_offset=-1)
        return _fetched(partition, found)

    def _fetch_all(
        self, group_id: str, require_stable: bool, open_partitions: dict[tuple[str, int], set[int]]
    ) -> list[_FetchTopic]:
        topics: dict[str, list[_FetchPartition]] = {}
        for topic, partition, found in self.items(group_id, committed=not require_stable):
            if self._is_of_another(topic, found):
                continue
            unstable = (topic, partition) in open_partitions
            topics.setdefault(topic, []).append(_unstable(partition) if unstable else _fetched(partition, found))
        return [_FetchTopic(name=name, partitions=partitions) for name, partitions in topics.items()]

    def _is_of_another(self, topic: str, found: Committed) -> bool:
        """Whether it was committed to a topic that is gone, and another has its name: read from there on, the new one
        would lack its first records. Such offsets are left where a topic was deleted while no shard was loaded; they
        are overwritten, or go with their group.

        No offset is of a topic that this image does not have yet: it was committed by a leader of an earlier epoch,
        which had read less of the metadata than it takes to lead now.
        """
        return _other_topic(found.topic_id, self.state.image.topic_ids.get(topic, NO_TOPIC_ID))

    def get(self, group_id: str, topic: str, partition: int, *, committed: bool) -> Committed | None:
        if committed and self._past:
            key = group_id, topic, partition
            if key in self._past:
                return self._past[key]
        partitions = self.by_group.get(group_id, {}).get(topic)
        return None if partitions is None else partitions.get(partition)

    def items(self, group_id: str, *, committed: bool) -> Iterator[tuple[str, int, Committed]]:
        past = self._past if committed else {}
        for topic, partitions in self.by_group.get(group_id, {}).items():
            for partition, value in partitions.items():
                if not past or (group_id, topic, partition) not in past:
                    yield topic, partition, value
        for (group, topic, partition), before in past.items():
            if group == group_id and before is not None:
                yield topic, partition, before

    # Deleting and expiring.

    def delete(self, group: Group, request: m.OffsetDeleteRequest, out: Outcome) -> m.OffsetDeleteResponse:
        group.validate_offset_delete()
        topics = []
        for topic in request.topics:
            subscribed = group.subscribed_to(topic.name)
            partitions = []
            for p in topic.partitions:
                index = p.partition_index
                if not subscribed and self._known(request.group_id, topic.name, index):
                    out.records.append(offset_commit(request.group_id, topic.name, index, None))
                partitions.append(
                    m.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=index,
                        error_code=Err.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else Err.NONE,
                    )
                )
            topics.append(m.OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return m.OffsetDeleteResponse(topics=topics)

    def delete_all(self, group_id: str, out: Outcome) -> None:
        """Of a group that is deleted."""
        for topic, partition, _ in self.items(group_id, committed=False):
            out.records.append(offset_commit(group_id, topic, partition, None))
        for topic, partition in self._open.get(group_id, ()):
            if self.get(group_id, topic, partition, committed=False) is None:
                out.records.append(offset_commit(group_id, topic, partition, None))

    def expire(self, group: Group, now_ms: int, out: Outcome) -> bool:
        """Tombstones for what is over; True when nothing remains, so that an empty group may go too."""
        group_id = group.group_id
        pending = self._open.get(group_id)
        remain = bool(pending)
        retention_ms = self.state.config.offsets_retention_ms
        for topic, partitions in self.by_group.get(group_id, {}).items():
            if group.expiry_base_ms(0) is None:
                return False
            if group.subscribed_to(topic):
                remain = True
                continue
            for partition, value in partitions.items():
                if value.expire_timestamp_ms != -1:
                    over = now_ms >= value.expire_timestamp_ms
                else:
                    base_ms = group.expiry_base_ms(value.commit_timestamp_ms)
                    over = base_ms is not None and now_ms - base_ms >= retention_ms
                if over and (pending is None or (topic, partition) not in pending):
                    out.records.append(offset_commit(group_id, topic, partition, None))
                else:
                    remain = True
        return not remain

    def topics_deleted(self, deleted: dict[str, bytes], out: Outcome) -> None:
        """`deleted`: ids by name. Offsets of an older or newer topic of the same name are told apart by its id."""
        doomed: dict[Key, None] = {}
        for group_id, topics in self.by_group.items():
            for name, topic_id in deleted.items():
                for partition, value in topics.get(name, {}).items():
                    if value.topic_id in (NO_TOPIC_ID, topic_id):
                        doomed[group_id, name, partition] = None
        for pending in self._pending.values():
            for key, value in pending.items():
                if key[1] in deleted and value.topic_id in (NO_TOPIC_ID, deleted[key[1]]):
                    doomed[key] = None
        out.records.extend(offset_commit(*key, None) for key in doomed)

    def _known(self, group_id: str, topic: str, partition: int) -> bool:
        return self.get(group_id, topic, partition, committed=False) is not None or (
            topic,
            partition,
        ) in self._open.get(group_id, ())

    # Replay: the only way anything changes.

    def replay(
        self,
        offset: int,
        producer_id: int,
        group_id: str,
        topic: str,
        partition: int,
        value: m.OffsetCommitValue | None,
    ) -> None:
        if value is None:
            self._remove(group_id, topic, partition, offset)
            self._forget_pending(group_id, topic, partition)
            return
        if group_id not in self.state.groups.live:
            simple = ClassicGroup(group_id, state_timestamp_ms=value.commit_timestamp)
            self.state.groups.put(group_id, simple, offset)
        committed = Committed(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            offset,
        )
        if producer_id == NO_PRODUCER:
            self._put(group_id, topic, partition, committed, offset)
        else:
            self._pending.setdefault(producer_id, {})[group_id, topic, partition] = committed
            self._open.setdefault(group_id, {}).setdefault((topic, partition), set()).add(producer_id)

    def replay_marker(self, offset: int, producer_id: int, committed: bool) -> None:
        """The end of a producer's transaction."""
        for (group_id, topic, partition), value in self._pending.pop(producer_id, {}).items():
            self._close(group_id, topic, partition, producer_id)
            if committed:
                existing = self.get(group_id, topic, partition, committed=False)
                # A later plain commit stands: it was decided knowing no less.
                if existing is None or value.record_offset > existing.record_offset:
                    self._put(group_id, topic, partition, value, offset)

    def advance(self, committed_end: int) -> None:
        self.committed_end = max(self.committed_end, committed_end)
        order, past, by_group = self._order, self._past, self.by_group
        while order and order[0][0] < committed_end:
            _, key, value = order.popleft()
            group_id, topic, partition = key
            if by_group.get(group_id, _EMPTY).get(topic, _EMPTY).get(partition) is value:
                past.pop(key, None)
            else:
                past[key] = value

    def _put(self, group_id: str, topic: str, partition: int, value: Committed, offset: int) -> None:
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        existing = partitions.get(partition)
        if existing is None:
            self.count += 1
        if offset >= self.committed_end:
            key = group_id, topic, partition
            self._past.setdefault(key, existing)
            self._order.append((offset, key, value))
        partitions[partition] = value

    def _remove(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        topics = self.by_group.get(group_id, {})
        partitions = topics.get(topic, {})
        existing = partitions.pop(partition, None)
        if existing is None:
            return
        self.count -= 1
        if offset >= self.committed_end:
            key = group_id, topic, partition
            self._past.setdefault(key, existing)
            self._order.append((offset, key, None))
        if not partitions:
            del topics[topic]
            if not topics:
                del self.by_group[group_id]

    def _forget_pending(self, group_id: str, topic: str, partition: int) -> None:
        for producer_id in list(self._open.get(group_id, {}).get((topic, partition), ())):
            pending = self._pending[producer_id]
            pending.pop((group_id, topic, partition), None)
            if not pending:
                del self._pending[producer_id]
            self._close(group_id, topic, partition, producer_id)

    def _close(self, group_id: str, topic: str, partition: int, producer_id: int) -> None:
        partitions = self._open[group_id]
        producers = partitions[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[topic, partition]
            if not partitions:
                del self._open[group_id]

    def snapshot(self) -> dict[str, Any]:
        """Everything durable, to compare one shard with another."""
        return {"offsets": self.by_group, "pending": self._pending, "open": self._open}


def _may_commit(group: Group | None, request: m.OffsetCommitRequest, version: int) -> PartitionCheck | None:
    """Raises unless whoever asks may commit now; what is returned then says so of each partition."""
    generation = request.generation_id_or_member_epoch
    if group is not None:
        return group.validate_offset_commit(request.member_id, request.group_instance_id, generation, False, version)
    if generation >= 0:
        if version >= MEMBER_EPOCHS_FROM:
            raise group_not_found(request.group_id)
        raise KafkaError(Err.ILLEGAL_GENERATION)
    return None


def group_not_found(group_id: str) -> KafkaError:
    return KafkaError(Err.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def _other_topic(actual: bytes, asked: bytes) -> bool:
    """The offset belongs to a topic of the same name that is gone."""
    return NO_TOPIC_ID not in (actual, asked) and actual != asked


def _fetched(partition: int, found: Committed) -> _FetchPartition:
    return _FetchPartition(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _unstable(partition: int) -> _FetchPartition:
    return _FetchPartition(partition_index=partition, committed_offset=-1, error_code=Err.UNSTABLE_OFFSET_COMMIT)
