"""The decisions that all requests to consumer groups share: epochs, target assignment, reconciliation, removal.

Each takes what is, adds records and timers to the outcome, and returns what will be once the records are replayed. The
steps follow one another within a request, so a step is handed what the records of the steps before it will change.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.coordinator.assignors import ASSIGNORS, NO_ASSIGNMENT, Assignment, MemberSpec
from headrace.coordinator.classic import ClassicGroups
from headrace.coordinator.consumer_group import ConsumerGroup
from headrace.coordinator.consumer_members import (
    Member,
    MemberState,
    current_record,
    epoch_record,
    member_record,
    partition_metadata_tombstone,
    regex_record,
    regex_tombstone,
    removal_records,
    target_epoch_record,
    target_record,
)
from headrace.coordinator.consumer_regex import TopicPattern
from headrace.coordinator.outcome import Cancel, Outcome, Timer
from headrace.coordinator.reconciliation import Owned, Step
from headrace.coordinator.shard_state import ShardState
from headrace.coordinator.subscriptions import (
    UNRESOLVED,
    Counts,
    Resolution,
    ResolvedRegex,
    TopicHashes,
    count,
    existing,
    is_homogeneous,
)
from headrace.errors import Err, KafkaError
from headrace.metadata.image import GROUP_CONFIG

SESSION = "consumer-session"
REBALANCE = "consumer-rebalance"
JOIN = "consumer-join"
SYNC = "consumer-sync"
REGEX = "consumer-regex"

METADATA_REFRESH_MS = 2**31 - 1
REGEX_REFRESH_MIN_MS = 10_000
RESOLUTION_LOST_MS = 60_000
"""A resolution that has not ended by now never will: the outcome that was to start it was dropped."""
NEVER = -(2**63)


class Volatile:
    """What is known of a group beyond its records; it ends with the shard and nothing durable depends on it."""

    __slots__ = (
        "join_timers",
        "refresh_at_ms",
        "refresh_epoch",
        "resolution",
        "resolution_started_ms",
        "revoking_since",
    )

    def __init__(self) -> None:
        self.revoking_since: dict[str, int] = {}
        """The epoch members were at when the time they have to give partitions up began to run."""
        self.join_timers: set[str] = set()
        self.refresh_at_ms = 0
        """When to look at the subscribed topics again though no change was seen; 0: at the next request."""
        self.refresh_epoch = 0
        self.resolution: Resolution | None = None
        self.resolution_started_ms = 0

    def metadata_expired(self, group_epoch: int, now_ms: int) -> bool:
        # An epoch that was never written means that the outcome that looked was dropped.
        return now_ms >= self.refresh_at_ms or group_epoch < self.refresh_epoch

    def metadata_seen(self, group_epoch: int, now_ms: int) -> None:
        self.refresh_at_ms = now_ms + METADATA_REFRESH_MS
        self.refresh_epoch = group_epoch


class Next(NamedTuple):
    """What a group will be: its epoch, and whether all its members will subscribe to the same topics (None: as now)."""

    epoch: int
    homogeneous: bool | None


class RegexChange(NamedTuple):
    changed: bool
    resolved: bool
    """The topics of the new subscription are known already, so that the epoch can move now."""


def known_static(member: Member | None, member_id: str, instance_id: str | None) -> Member:
    if member is None:
        raise KafkaError(Err.UNKNOWN_MEMBER_ID, f"instance id {instance_id} is unknown")
    if member.member_id != member_id:
        raise KafkaError(
            Err.FENCED_INSTANCE_ID, f"instance id {instance_id} belongs to member {member.member_id} by now"
        )
    return member


class Decisions:
    def __init__(self, state: ShardState, classic: ClassicGroups) -> None:
        self.state = state
        self.classic = classic
        self.hashes = TopicHashes()
        self.volatile: dict[str, Volatile] = {}
        self.topics_version = NEVER
        """Offset of the metadata that last had new topics."""

    def volatile_of(self, group_id: str) -> Volatile:
        found = self.volatile.get(group_id)
        if found is None:
            found = self.volatile[group_id] = Volatile()
        return found

    def option(self, group_id: str, name: str, default: int) -> int:
        """An option that a group can have its own value of."""
        override = self.state.image.config(GROUP_CONFIG, group_id).get(name)
        return default if override is None else int(override)

    def session_timeout_ms(self, group_id: str) -> int:
        default = self.state.config.consumer_session_timeout_ms
        return self.option(group_id, "consumer.session.timeout.ms", default)

    # Subscriptions ----------------------------------------------------------------------------------------------------

    def write_subscription(self, group: ConsumerGroup, member: Member, updated: Member, out: Outcome) -> bool:
        """Whether the topics it names changed."""
        if updated is member or updated == member:
            return False
        out.records.append(member_record(group.group_id, updated))
        return updated.topics != member.topics

    def update_regexes(
        self, group: ConsumerGroup, member: Member, updated: Member, now_ms: int, out: Outcome
    ) -> RegexChange:
        """Notes a member's change of pattern, and starts to resolve the group's patterns anew when it is time."""
        old, new = member.regex, updated.regex
        unknown = resolved = False
        if old != new:
            if old and group.regexes.get(old) == 1:
                out.records.append(regex_tombstone(group.group_id, old))
            if new and new not in group.regexes:
                TopicPattern(new)  # raises if it is none
                unknown = True
            elif new:
                resolved = new in group.resolved
            else:
                resolved = True
        if unknown or group.regexes:
            # Every heartbeat comes here, and a group may have as many patterns as members: none is looked at.
            gone = old if old != new and group.regexes.get(old) == 1 else None
            self._maybe_resolve(group, new if unknown else None, gone, now_ms, out)
        return RegexChange(old != new, resolved)

    def _maybe_resolve(
        self, group: ConsumerGroup, unknown: str | None, gone: str | None, now_ms: int, out: Outcome
    ) -> None:
        """`unknown` and `gone`: the pattern that comes and the one that goes with this decision."""
        volatile = self.volatile_of(group.group_id)
        if volatile.resolution is not None and now_ms < volatile.resolution_started_ms + RESOLUTION_LOST_MS:
            return
        last = next(iter(group.resolved.values()), None)
        last_ms = NEVER if last is None else last.timestamp_ms
        set_back = last_ms > now_ms  # the clock, since then
        if not set_back and now_ms <= last_ms + REGEX_REFRESH_MIN_MS:
            return
        wanted = len(group.regexes) + (unknown is not None) - (gone is not None)
        due = (
            unknown is not None
            or wanted != len(group.resolved)
            or (0 if last is None else last.version) < self.topics_version
            or set_back
            or now_ms > last_ms + self.state.config.consumer_regex_refresh_interval_ms
        )
        if due and wanted:
            regexes = {*group.regexes, unknown or ""} - {gone, ""}
            volatile.resolution = Resolution(self.state.image, regexes, now_ms, self.state.note)
            volatile.resolution_started_ms = now_ms
            out.timers.append(Timer((REGEX, group.group_id), 0))

    def go_on_resolving(self, group: ConsumerGroup, now_ms: int, out: Outcome) -> None:
        volatile = self.volatile_of(group.group_id)
        if volatile.resolution is None:
            return
        found = volatile.resolution.go_on()
        if found is None:
            out.timers.append(Timer((REGEX, group.group_id), 0))
            return
        volatile.resolution = None
        self._write_resolved(group, found, now_ms, out)

    def _write_resolved(
        self, group: ConsumerGroup, found: Mapping[str, ResolvedRegex], now_ms: int, out: Outcome
    ) -> None:
        topics = dict(group.topics)
        bump = False
        for regex, new in sorted(found.items()):
            if regex not in group.regexes:
                continue  # nobody wants it any more
            old = group.resolved.get(regex, UNRESOLVED)
            if old.topics != new.topics:
                bump = True
                count(topics, old.topics, by_regex=-1)
                count(topics, new.topics, by_regex=1)
            out.records.append(regex_record(group.group_id, regex, *new))
        metadata_hash = self.hashes.of(self.state.image, topics)
        if bump or metadata_hash != group.metadata_hash:
            out.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
            self.volatile_of(group.group_id).metadata_seen(group.epoch + 1, now_ms)

    # Epochs -----------------------------------------------------------------------------------------------------------

    def next_epoch(
        self, group: ConsumerGroup, member: Member, updated: Member, bump: bool, now_ms: int, out: Outcome
    ) -> Next:
        """The group's epoch moves when a subscription changed or a topic did."""
        volatile = self.volatile_of(group.group_id)
        if not bump and not volatile.metadata_expired(group.epoch, now_ms):
            return Next(group.epoch, None)
        topics, regexes = self._with_member(group, member, updated)
        metadata_hash = self.hashes.of(self.state.image, topics)
        new = updated.member_id not in group.members.live and group.static_member(updated.instance_id) is None
        homogeneous = is_homogeneous(topics, regexes, len(group.members.live) + new)
        epoch = group.epoch
        if bump or metadata_hash != group.metadata_hash:
            epoch += 1
            out.records.append(epoch_record(group.group_id, epoch, metadata_hash))
        volatile.metadata_seen(epoch, now_ms)
        if group.has_partition_metadata:
            out.records.append(partition_metadata_tombstone(group.group_id))
        return Next(epoch, homogeneous)

    def _with_member(
        self, group: ConsumerGroup, member: Member, updated: Member
    ) -> tuple[dict[str, Counts], dict[str, int]]:
        """The group's subscriptions with `updated` in the place of `member`."""
        topics, regexes = dict(group.topics), dict(group.regexes)
        count(topics, member.topics, by_name=-1)
        count(topics, updated.topics, by_name=1)
        if member.regex != updated.regex:
            if member.regex:
                regexes[member.regex] = regexes.get(member.regex, 0) - 1
                if not regexes[member.regex]:
                    del regexes[member.regex]
                    count(topics, group.resolved.get(member.regex, UNRESOLVED).topics, by_regex=-1)
            if updated.regex:
                regexes[updated.regex] = regexes.get(updated.regex, 0) + 1
        return topics, regexes

    # Target assignment ------------------------------------------------------------------------------------------------

    def next_target(
        self, group: ConsumerGroup, coming: Next, member: Member, updated: Member, now_ms: int, out: Outcome
    ) -> tuple[int, Assignment]:
        """The epoch of the target assignment and the member's part of it, computed anew if the group has moved on."""
        if group.target_epoch >= coming.epoch or not self._may_assign(group, now_ms):
            return group.target_epoch, group.target(updated.member_id, updated.instance_id)
        specs = self._specs(group, updated)
        counts = {
            topic_id: len(self.state.image.topics[topic_id].partitions)
            for topic_ids in {spec.topic_ids for spec in specs.values()}
            for topic_id in topic_ids
        }
        assign = ASSIGNORS[self._preferred_assignor(group, member, updated)]
        # The counts behind `coming` miss a member that joins with a pattern nobody has resolved yet, or with nothing.
        homogeneous = group.is_homogeneous() if coming.homogeneous is None else coming.homogeneous
        homogeneous = homogeneous and len({spec.topic_ids for spec in specs.values()}) == 1
        targets = assign(specs, counts, homogeneous)
        for member_id in sorted(specs):
            target = targets.get(member_id, NO_ASSIGNMENT)
            if group.targets.live.get(member_id) != target:
                out.records.append(target_record(group.group_id, member_id, target))
        out.records.append(target_epoch_record(group.group_id, coming.epoch, now_ms))
        return coming.epoch, targets.get(updated.member_id, NO_ASSIGNMENT)

    def _may_assign(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Not too often: members that come one by one are assigned together."""
        default = self.state.config.consumer_assignment_interval_ms
        interval_ms = self.option(group.group_id, "consumer.assignment.interval.ms", default)
        last_ms = group.target_timestamp_ms
        # A last time that is still to come was written before the clock was set back.
        return not last_ms or not interval_ms or not last_ms <= now_ms < last_ms + interval_ms

    def _preferred_assignor(self, group: ConsumerGroup, member: Member, updated: Member) -> str:
        votes = {name: group.assignors[name] for name in ASSIGNORS if name in group.assignors}
        if member.assignor in votes:
            votes[member.assignor] -= 1
            if not votes[member.assignor]:
                del votes[member.assignor]
        if updated.assignor is not None:
            # Kafka leaves ties to the order of a hash table: a name that is new to it comes first.
            new = {} if updated.assignor in votes else {updated.assignor: 0}
            votes = {**new, **votes}
            votes[updated.assignor] += 1
        return self.most_wanted(votes)

    def most_wanted(self, votes: Mapping[str, int]) -> str:
        """Of those with most votes the first."""
        known = [name for name in votes if name in ASSIGNORS]
        return max(known, key=votes.__getitem__) if known else self.state.config.consumer_assignors[0]

    def _specs(self, group: ConsumerGroup, updated: Member) -> dict[str, MemberSpec]:
        image = self.state.image
        ids: dict[frozenset[str], frozenset[bytes]] = {}

        def spec(member: Member, assignment: Assignment) -> MemberSpec:
            names = group.subscription(member)
            topic_ids = ids.get(names)
            if topic_ids is None:
                topic_ids = ids[names] = frozenset(topic_id for _, topic_id in existing(image, names))
            return MemberSpec(topic_ids, assignment, member.instance_id)

        targets = group.targets.live
        specs = {i: spec(m, targets.get(i, NO_ASSIGNMENT)) for i, m in group.members.live.items()}
        previous = group.static_member(updated.instance_id)
        if previous is not None:
            specs.pop(previous.member_id, None)
        specs[updated.member_id] = spec(updated, group.target(updated.member_id, updated.instance_id))
        return specs

    # Reconciliation ---------------------------------------------------------------------------------------------------

    def reconcile(
        self,
        group: ConsumerGroup,
        member: Member,
        target_epoch: int,
        target: Assignment,
        subscription_changed: bool,
        owned: Owned,
        out: Outcome,
    ) -> Member:
        if not subscription_changed and member.reconciled_to(target_epoch):
            return member
        names = group.subscription(member)
        topics = self.state.image.topics

        def subscribes(topic_id: bytes) -> bool:
            topic = topics.get(topic_id)
            return topic is not None and topic.name in names

        step = Step(member, target_epoch, target, subscribes if names else None, group.holder_epoch, owned)
        updated = step.taken(subscription_changed)
        if updated == member:
            return member
        out.records.append(current_record(group.group_id, updated))
        if updated.classic is None:
            self._time_revocation(group.group_id, updated, out)
        return updated

    def _time_revocation(self, group_id: str, member: Member, out: Outcome) -> None:
        """A member that does not give up what it must is removed, or the others would wait for ever."""
        key = (REBALANCE, group_id, member.member_id)
        revoking_since = self.volatile_of(group_id).revoking_since
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            revoking_since[member.member_id] = member.epoch
            out.timers.append(Timer(key, member.rebalance_timeout_ms))
        elif revoking_since.pop(member.member_id, None) is not None:
            out.timers.append(Cancel(key))

    def resume_revocation(self, group_id: str, member: Member, out: Outcome) -> None:
        """After a load."""
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self._time_revocation(group_id, member, out)

    # Sessions and removal ---------------------------------------------------------------------------------------------

    def keep_alive(self, group_id: str, member_id: str, timeout_ms: int, out: Outcome) -> None:
        """Every sign of life arms the timer anew: when it fires, the session is over."""
        out.timers.append(Timer((SESSION, group_id, member_id), timeout_ms))

    def forget_timers(self, group_id: str, member_ids: Iterable[str], out: Outcome) -> None:
        volatile = self.volatile_of(group_id)
        for member_id in member_ids:
            volatile.revoking_since.pop(member_id, None)
            volatile.join_timers.discard(member_id)
            out.timers.extend(Cancel((kind, group_id, member_id)) for kind in (SESSION, REBALANCE, JOIN, SYNC))

    def write_removal(self, group: ConsumerGroup, members: list[Member], out: Outcome) -> None:
        """Members leave together: one epoch for all."""
        group_id = group.group_id
        for member in members:
            out.records.extend(removal_records(group_id, member.member_id))
        topics = dict(group.topics)
        leaving: dict[str, int] = {}
        for member in members:
            count(topics, member.topics, by_name=-1)
            if member.regex:
                leaving[member.regex] = leaving.get(member.regex, 0) + 1
        for regex, members_leaving in sorted(leaving.items()):
            if group.regexes.get(regex) == members_leaving:
                out.records.append(regex_tombstone(group_id, regex))
                count(topics, group.resolved.get(regex, UNRESOLVED).topics, by_regex=-1)
        metadata_hash = self.hashes.of(self.state.image, topics)
        out.records.append(epoch_record(group_id, group.epoch + 1, metadata_hash))
        self.forget_timers(group_id, [member.member_id for member in members], out)
