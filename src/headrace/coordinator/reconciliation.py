"""The way of one member from what it has to what it should have, without two members ever having the same.

A member first gives up what it must (UNREVOKED_PARTITIONS) and only then moves to the new epoch and takes what is free;
what others still hold it waits for (UNRELEASED_PARTITIONS).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.coordinator.assignors import Assignment
from headrace.coordinator.consumer_members import NO_PARTITIONS, Epochs, Member, MemberState
from headrace.errors import Err, KafkaError

Owned = Iterable[Any] | None
"""Topics with partitions (`topic_id`, `partitions`) a member says it has; None if it did not say."""

FREE = -1


def _owns_any(owned: Owned, partitions: Epochs) -> bool:
    """A member that does not say what it has is taken to have it all."""
    if owned is None:
        return True
    none: Mapping[int, int] = {}
    return any(p in partitions.get(topic.topic_id, none) for topic in owned for p in topic.partitions)


class Step:
    """One step of one member towards the target assignment of its group."""

    def __init__(
        self,
        member: Member,
        target_epoch: int,
        target: Assignment,
        subscribes: Callable[[bytes], bool] | None,
        holder_epoch: Callable[[bytes, int], int],
        owned: Owned,
    ) -> None:
        self._member = member
        self._target_epoch = target_epoch
        self._target = target
        self._subscribes = subscribes or (lambda topic_id: False)
        """By topic id: the target may be older than the member's subscription. None: it subscribes to nothing."""
        self._nothing = subscribes is None
        self._holder_epoch = holder_epoch
        """The epoch at which somebody holds a partition, or FREE."""
        self._owned = owned

    def taken(self, subscription_changed: bool) -> Member:
        """The member after the step; the same member if there is nothing to do."""
        member = self._member
        if member.state is MemberState.STABLE:
            if member.epoch != self._target_epoch:
                return self._next()
            return self._unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(self._owned, member.revoking):
            return self._unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNKNOWN and (self._owned is None or any(True for _ in self._owned)):
            raise KafkaError(
                Err.FENCED_MEMBER_EPOCH,
                "the state of the member is unknown to this coordinator; it must give up its partitions and rejoin",
            )
        return self._next()

    def _unsubscribed(self) -> Member:
        """Takes back what the member no longer subscribes to, ahead of the next target assignment."""
        member = self._member
        gone = {t: p for t, p in member.assigned.items() if not self._subscribes(t)}
        if not gone and (not self._nothing or member.revoking):
            return member
        kept = {t: p for t, p in member.assigned.items() if t not in gone}
        revoking = dict(member.revoking)
        for topic_id, partitions in gone.items():
            revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
        if revoking and _owns_any(self._owned, revoking):
            return member.at_epoch(
                member.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
            )
        return member.at_epoch(member.epoch, assigned=kept)

    def _next(self) -> Member:
        member = self._member
        kept: dict[bytes, Mapping[int, int]] = {}
        revoked: dict[bytes, Mapping[int, int]] = {}
        added: dict[bytes, list[int]] = {}
        unreleased = False
        for topic_id in self._target.keys() | member.assigned.keys():
            target = set(self._target.get(topic_id, ())) if self._subscribes(topic_id) else set()
            have = member.assigned.get(topic_id, {})
            keep = {partition: epoch for partition, epoch in have.items() if partition in target}
            if keep:
                kept[topic_id] = keep
            if len(keep) < len(have):
                revoked[topic_id] = {p: epoch for p, epoch in have.items() if p not in target}
            giving_up = member.revoking.get(topic_id, {})
            for partition in sorted(target - keep.keys()):
                if self._holder_epoch(topic_id, partition) == FREE or partition in giving_up:
                    added.setdefault(topic_id, []).append(partition)
                else:
                    unreleased = True

        if revoked and _owns_any(self._owned, revoked):
            return member.at_epoch(
                member.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoked
            )
        for topic_id, partitions in added.items():
            kept[topic_id] = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, self._target_epoch)}
        return member.at_epoch(
            self._target_epoch,
            state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
            assigned=kept,
            revoking=NO_PARTITIONS,
        )
