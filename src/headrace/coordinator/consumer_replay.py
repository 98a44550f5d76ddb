"""Records of consumer groups, live and on load alike: the only way in which these groups change."""

from collections.abc import Iterable
from typing import Any

from headrace.coordinator.classic_group import ClassicGroup
from headrace.coordinator.consumer_decisions import Decisions
from headrace.coordinator.consumer_group import ConsumerGroup
from headrace.coordinator.consumer_members import Member
from headrace.coordinator.shard_state import ShardState
from headrace.coordinator.subscriptions import ResolvedRegex

EPOCH = 3
PARTITION_METADATA = 4
MEMBER = 5
TARGET_EPOCH = 6
TARGET = 7
CURRENT = 8
REGEX = 16

NO_TARGET_EPOCH = -1


def replay_into(group: ConsumerGroup, offset: int, kind: int, key: Any, value: Any | None) -> None:
    """One record other than the tombstone of the whole group."""
    if kind == EPOCH:
        if value is not None:
            group.replay_epoch(offset, value.epoch, value.metadata_hash)
    elif kind == PARTITION_METADATA:
        group.has_partition_metadata = value is not None
    elif kind == TARGET_EPOCH:
        if value is None:
            group.replay_target_epoch(offset, NO_TARGET_EPOCH, 0)
        else:
            group.replay_target_epoch(offset, value.assignment_epoch, value.assignment_timestamp)
    elif kind == TARGET:
        topics = None if value is None else value.topic_partitions
        assignment = None if topics is None else {t.topic_id: tuple(sorted(t.partitions)) for t in topics}
        group.replay_target(offset, key.member_id, assignment)
    elif kind == REGEX:
        resolved = None
        if value is not None:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
        group.replay_regex(key.regular_expression, resolved)
    else:
        _replay_member(group, offset, kind, key.member_id, value)


def _replay_member(group: ConsumerGroup, offset: int, kind: int, member_id: str, value: Any | None) -> None:
    if value is None:
        if kind == CURRENT:
            group.replay_left(offset, member_id)
        else:
            group.replay_removed(offset, member_id)
        return
    member = group.members.get(member_id) or Member(member_id)
    group.replay_member(offset, member.placed(value) if kind == CURRENT else member.told(value))


class Replay:
    """Finds or makes the group of a record, and keeps the index of groups by topic."""

    def __init__(self, state: ShardState, decisions: Decisions) -> None:
        self._state = state
        self._decisions = decisions
        self.groups_by_topic: dict[str, set[str]] = {}
        self.groups_with_regexes: set[str] = set()
        self._unsettled: dict[ConsumerGroup, int] = {}
        """Groups with changes above the high watermark, and the offset of the last."""

    def record(self, offset: int, kind: int, key: Any, value: Any | None) -> None:
        group = self._group(offset, key.group_id, value)
        if kind == EPOCH and value is None:
            self._remove(offset, key.group_id, group)
            return
        if group is None:
            return
        if offset >= self._state.groups.committed_end:
            self._unsettled[group] = offset
        before = self._topics(group, kind, key)
        replay_into(group, offset, kind, key, value)
        self._index(group, before)
        self._index(group, self._topics(group, kind, key))
        if kind == MEMBER:
            self._index_regexes(group)

    def advance(self, high_watermark: int) -> None:
        if not self._unsettled:
            return
        for group, last in list(self._unsettled.items()):
            group.advance(high_watermark)
            if last < high_watermark:
                del self._unsettled[group]

    def _group(self, offset: int, group_id: str, value: Any | None) -> ConsumerGroup | None:
        group = self._state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if value is None or (isinstance(group, ClassicGroup) and not group.is_simple):
            # The live group has changed its type already; what is left of the old one no longer matters.
            return None
        made = ConsumerGroup(group_id, self._state.groups.committed_end)
        self._state.groups.put(group_id, made, offset)
        return made

    def _remove(self, offset: int, group_id: str, group: ConsumerGroup | None) -> None:
        self._decisions.volatile.pop(group_id, None)
        if group is None:
            return
        if group.members.live:
            self._state.note(f"group {group_id} is deleted with {len(group.members.live)} members in it")
        topics = list(group.topics)
        self.groups_with_regexes.discard(group_id)
        self._state.groups.remove(group_id, offset)
        for topic in topics:
            self._unindex(group_id, topic)

    @staticmethod
    def _topics(group: ConsumerGroup, kind: int, key: Any) -> Iterable[str]:
        """Topics whose subscription a record of this kind can change."""
        if kind == MEMBER:
            member = group.members.get(key.member_id)
            return () if member is None else member.topics
        if kind == REGEX:
            resolved = group.resolved.get(key.regular_expression)
            return () if resolved is None else resolved.topics
        return ()

    def _index(self, group: ConsumerGroup, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic in group.topics:
                self.groups_by_topic.setdefault(topic, set()).add(group.group_id)
            else:
                self._unindex(group.group_id, topic)

    def _index_regexes(self, group: ConsumerGroup) -> None:
        if group.regexes:
            self.groups_with_regexes.add(group.group_id)
        else:
            self.groups_with_regexes.discard(group.group_id)

    def _unindex(self, group_id: str, topic: str) -> None:
        groups = self.groups_by_topic.get(topic)
        if groups is not None:
            groups.discard(group_id)
            if not groups:
                del self.groups_by_topic[topic]
                self._decisions.hashes.forget(topic)
