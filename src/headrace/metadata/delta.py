"""What some records change in an image. `replay` takes them one by one, `apply` makes the next image.

A delta also says what changed, so that a broker touches only the partitions concerned.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from headrace.metadata.image import (
    METADATA_VERSION,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    TOPIC_CONFIG,
    Broker,
    ConfigResource,
    Controller,
    Endpoint,
    Image,
    Partition,
    PartitionKey,
    QuotaEntity,
    Topic,
)
from headrace.metadata.names import has_collision_chars, unify_collision_chars
from headrace.metadata.persistent import PersistentMap
from headrace.metadata.records import Record
from headrace.protocol import messages as m

NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1


class ReplayError(Exception):
    """A metadata record that does not fit what came before it: the log is damaged or was written by a newer version."""


class PartitionChange(NamedTuple):
    topic_id: bytes
    topic_name: str
    partition: int
    old: Partition | None
    new: Partition


class _TopicDraft:
    __slots__ = ("base", "changed", "id", "name")

    def __init__(self, topic_id: bytes, name: str, base: Topic | None) -> None:
        self.id = topic_id
        self.name = name
        self.base = base
        self.changed: dict[int, Partition] = {}

    def partition(self, number: int) -> Partition | None:
        found = self.changed.get(number)
        if found is None and self.base is not None:
            found = self.base.partitions.get(number)
        return found


class _Derived(NamedTuple):
    broker_partitions: PersistentMap[int, PersistentMap[PartitionKey, None]]
    reassigning: PersistentMap[PartitionKey, None]
    imbalanced: PersistentMap[PartitionKey, None]


class _Marks:
    """Which partitions come into an index, and which leave it."""

    __slots__ = ("added", "removed")

    def __init__(self) -> None:
        self.added: dict[PartitionKey, None] = {}
        self.removed: list[PartitionKey] = []

    def mark(self, key: PartitionKey, was: bool, is_: bool) -> None:
        if is_ and not was:
            self.added[key] = None
        elif was and not is_:
            self.removed.append(key)


class Delta:
    """Changes on top of `image`. Not thread-safe; used once."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.topics_deleted: dict[bytes, Topic] = {}
        """Topics of the base image that are gone."""
        self.features: dict[str, int] | None = None
        self.brokers: dict[int, Broker | None] = {}
        self.controllers: dict[int, Controller] = {}
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.acls: dict[bytes, m.AccessControlEntryRecord | None] = {}
        self.scrams: dict[tuple[str, int], m.UserScramCredentialRecord | None] = {}
        self.tokens: dict[str, m.DelegationTokenRecord | None] = {}
        self.next_producer_id: int | None = None
        self.zk_migration_state: int | None = None
        self._topics: dict[bytes, _TopicDraft] = {}
        self._names: dict[str, bytes | None] = {}

    # What changed -------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        return not (
            self._topics
            or self.topics_deleted
            or self.features is not None
            or self.brokers
            or self.controllers
            or self.configs
            or self.quotas
            or self.acls
            or self.scrams
            or self.tokens
            or self.next_producer_id is not None
            or self.zk_migration_state is not None
        )

    @property
    def topics_created(self) -> list[tuple[bytes, str]]:
        return [(draft.id, draft.name) for draft in self._topics.values() if draft.base is None]

    def partition_changes(self) -> Iterator[PartitionChange]:
        """New and changed partitions; those of deleted topics are not here but in `topics_deleted`."""
        for draft in self._topics.values():
            old = draft.base.partitions if draft.base is not None else {}
            for number, new in draft.changed.items():
                yield PartitionChange(draft.id, draft.name, number, old.get(number), new)

    # Replay ---------------------------------------------------------------------------------------------------------

    def replay(self, message: Any) -> None:
        handler = _REPLAY.get(type(message))
        if handler is None:
            raise ReplayError(f"{type(message).__name__} does not belong here")
        handler(self, message)

    def replay_all(self, records: Iterable[Record]) -> "Delta":
        for message, _ in records:
            self.replay(message)
        return self

    def _topic(self, topic_id: bytes, what: object) -> _TopicDraft:
        draft = self._topics.get(topic_id)
        if draft is None:
            base = self.image.topics.get(topic_id)
            if base is None or topic_id in self.topics_deleted:
                raise ReplayError(f"{type(what).__name__} for the unknown topic id {topic_id.hex()}")
            draft = self._topics[topic_id] = _TopicDraft(topic_id, base.name, base)
        return draft

    def _topic_id(self, name: str) -> bytes | None:
        return self._names[name] if name in self._names else self.image.topic_ids.get(name)

    def topic(self, record: m.TopicRecord) -> None:
        if self._topic_id(record.name) is not None:
            raise ReplayError(f"topic {record.name} is created twice")
        if record.topic_id in self._topics or record.topic_id in self.image.topics:
            raise ReplayError(f"topic id {record.topic_id.hex()} is used twice")
        self._names[record.name] = record.topic_id
        self._topics[record.topic_id] = _TopicDraft(record.topic_id, record.name, None)

    def partition(self, record: m.PartitionRecord) -> None:
        self._topic(record.topic_id, record).changed[record.partition_id] = partition_of(record)

    def partition_change(self, record: m.PartitionChangeRecord) -> None:
        draft = self._topic(record.topic_id, record)
        old = draft.partition(record.partition_id)
        if old is None:
            raise ReplayError(f"change of the unknown partition {draft.name}-{record.partition_id}")
        draft.changed[record.partition_id] = merge(old, record)

    def remove_topic(self, record: m.RemoveTopicRecord) -> None:
        draft = self._topic(record.topic_id, record)
        del self._topics[record.topic_id]
        if draft.base is not None:
            self.topics_deleted[record.topic_id] = draft.base
        self._names[draft.name] = None
        self.configs[TOPIC_CONFIG, draft.name] = {}

    def clear_elr(self, record: m.ClearElrRecord) -> None:
        if record.topic_name:
            topic_id = self._topic_id(record.topic_name)
            if topic_id is None:
                raise ReplayError(f"ClearElrRecord for the unknown topic {record.topic_name}")
            topic_ids = [topic_id]
        else:
            topic_ids = [*self._topics, *(i for i in self.image.topics if i not in self._topics)]
        for topic_id in topic_ids:
            if topic_id in self.topics_deleted:
                continue
            base = self.image.topics.get(topic_id)
            draft = self._topics.get(topic_id) or _TopicDraft(topic_id, base.name, base)
            cleared = dict(_without_elr(draft))
            if cleared:
                draft.changed.update(cleared)
                self._topics[topic_id] = draft

    def config(self, record: m.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        draft = self.configs.get(resource)
        if draft is None:
            draft = self.configs[resource] = dict(self.image.configs.get(resource, {}))
        if record.value is None:
            draft.pop(record.name, None)
        else:
            draft[record.name] = record.value

    def register_broker(self, record: m.RegisterBrokerRecord) -> None:
        self.brokers[record.broker_id] = Broker(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_ranges(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        )

    def _broker(self, broker_id: int, epoch: int, what: object) -> Broker:
        broker = self.brokers[broker_id] if broker_id in self.brokers else self.image.brokers.get(broker_id)
        if broker is None:
            raise ReplayError(f"{type(what).__name__} for broker {broker_id}, which is not registered")
        if broker.epoch != epoch:
            raise ReplayError(f"{type(what).__name__} for broker {broker_id} epoch {epoch}, now at {broker.epoch}")
        return broker

    def unregister_broker(self, record: m.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch, record)
        self.brokers[record.broker_id] = None

    def fence_broker(self, record: m.FenceBrokerRecord) -> None:
        self.brokers[record.id] = replace(self._broker(record.id, record.epoch, record), fenced=True)

    def unfence_broker(self, record: m.UnfenceBrokerRecord) -> None:
        self.brokers[record.id] = replace(self._broker(record.id, record.epoch, record), fenced=False)

    def broker_registration_change(self, record: m.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch, record)
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
        self.brokers[record.broker_id] = replace(broker, **changes)

    def register_controller(self, record: m.RegisterControllerRecord) -> None:
        self.controllers[record.controller_id] = Controller(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            endpoints=_endpoints(record.end_points),
            features=_ranges(record.features),
        )

    def feature_level(self, record: m.FeatureLevelRecord) -> None:
        if self.features is None:
            self.features = dict(self.image.features)
        if record.feature_level == 0 and record.name != METADATA_VERSION:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level

    def client_quota(self, record: m.ClientQuotaRecord) -> None:
        entity = quota_entity((e.entity_type, e.entity_name) for e in record.entity)
        draft = self.quotas.get(entity)
        if draft is None:
            draft = self.quotas[entity] = dict(self.image.quotas.get(entity, {}))
        if record.remove:
            draft.pop(record.key, None)
        else:
            draft[record.key] = record.value

    def producer_ids(self, record: m.ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def access_control_entry(self, record: m.AccessControlEntryRecord) -> None:
        self.acls[record.id] = record

    def remove_access_control_entry(self, record: m.RemoveAccessControlEntryRecord) -> None:
        known = self.acls.get(record.id) or (record.id not in self.acls and record.id in self.image.acls)
        if not known:
            raise ReplayError(f"removal of the unknown ACL {record.id.hex()}")
        self.acls[record.id] = None

    def user_scram_credential(self, record: m.UserScramCredentialRecord) -> None:
        self.scrams[record.name, record.mechanism] = record

    def remove_user_scram_credential(self, record: m.RemoveUserScramCredentialRecord) -> None:
        self.scrams[record.name, record.mechanism] = None

    def delegation_token(self, record: m.DelegationTokenRecord) -> None:
        self.tokens[record.token_id] = record

    def remove_delegation_token(self, record: m.RemoveDelegationTokenRecord) -> None:
        self.tokens[record.token_id] = None

    def zk_migration(self, record: m.ZkMigrationStateRecord) -> None:
        self.zk_migration_state = record.zk_migration_state

    def nothing(self, record: m.NoOpRecord) -> None:
        """Written by idle Kafka controllers so that the high watermark moves."""

    # The next image -------------------------------------------------------------------------------------------------

    def apply(self, offset: int, epoch: int, timestamp_ms: int) -> Image:
        """The image after these records, the last of which stands at `offset`."""
        image = self.image
        if self.empty:
            return replace(image, offset=offset, epoch=epoch, timestamp_ms=timestamp_ms)
        topics = {draft.id: Topic(draft.id, draft.name, _partitions(draft)) for draft in self._topics.values()}
        derived = self._derived()
        names_removed = [name for name, topic_id in self._names.items() if topic_id is None]
        names_set = {name: topic_id for name, topic_id in self._names.items() if topic_id is not None}
        return Image(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            features=image.features if self.features is None else self.features,
            brokers=_updated(image.brokers, self.brokers),
            controllers=image.controllers.update(self.controllers),
            topics=image.topics.update(topics, self.topics_deleted),
            topic_ids=image.topic_ids.update(names_set, names_removed),
            configs=_updated(image.configs, {r: c or None for r, c in self.configs.items()}),
            quotas=_updated(image.quotas, {e: q or None for e, q in self.quotas.items()}),
            next_producer_id=image.next_producer_id if self.next_producer_id is None else self.next_producer_id,
            acls=_updated(image.acls, self.acls),
            scrams=_updated(image.scrams, self.scrams),
            tokens=_updated(image.tokens, self.tokens),
            zk_migration_state=(
                image.zk_migration_state if self.zk_migration_state is None else self.zk_migration_state
            ),
            broker_partitions=derived.broker_partitions,
            reassigning=derived.reassigning,
            imbalanced=derived.imbalanced,
            colliding_names=self._colliding_names(),
        )

    def _derived(self) -> "_Derived":
        """The indexes over all partitions, from those of the base image and what has changed: one look at each
        change."""
        gained: dict[int, dict[PartitionKey, None]] = {}
        lost: dict[int, list[PartitionKey]] = {}
        reassigning, imbalanced = _Marks(), _Marks()
        for topic in self.topics_deleted.values():
            for number, partition in topic.partitions.items():
                key = (topic.id, number)
                for holder in _holders(partition):
                    lost.setdefault(holder, []).append(key)
                reassigning.mark(key, partition.reassigning, False)
                imbalanced.mark(key, partition.imbalanced, False)
        for draft in self._topics.values():
            base = draft.base.partitions if draft.base is not None else None
            for number, new in draft.changed.items():
                key = (draft.id, number)
                old = base.get(number) if base is not None else None
                after = _holders(new)
                if old is None:
                    for holder in after:
                        gained.setdefault(holder, {})[key] = None
                    reassigning.mark(key, False, new.reassigning)
                    imbalanced.mark(key, False, new.imbalanced)
                    continue
                before = _holders(old)
                if before != after:
                    for holder in before - after:
                        lost.setdefault(holder, []).append(key)
                    for holder in after - before:
                        gained.setdefault(holder, {})[key] = None
                reassigning.mark(key, old.reassigning, new.reassigning)
                imbalanced.mark(key, old.imbalanced, new.imbalanced)
        index = self.image.broker_partitions
        empty: PersistentMap[PartitionKey, None] = PersistentMap()
        changed: dict[int, PersistentMap[PartitionKey, None] | None] = {}
        for holder in gained.keys() | lost.keys():
            held = index.get(holder, empty).update(gained.get(holder, {}), lost.get(holder, ()))
            changed[holder] = held or None
        return _Derived(
            _updated(index, changed),
            self.image.reassigning.update(reassigning.added, reassigning.removed),
            self.image.imbalanced.update(imbalanced.added, imbalanced.removed),
        )

    def _colliding_names(self) -> PersistentMap[str, tuple[str, ...]]:
        index = self.image.colliding_names
        changed: dict[str, tuple[str, ...] | None] = {}
        for name, topic_id in self._names.items():
            if not has_collision_chars(name):
                continue
            unified = unify_collision_chars(name)
            names = changed[unified] if unified in changed else index.get(unified)
            left = tuple(n for n in names or () if n != name)
            changed[unified] = (tuple(sorted((*left, name))) if topic_id is not None else left) or None
        return _updated(index, changed)


def _updated(base: PersistentMap[Any, Any], changes: Mapping[Any, Any]) -> PersistentMap[Any, Any]:
    """`base` with the changes, of which a None removes."""
    return base.update(
        {key: value for key, value in changes.items() if value is not None},
        [key for key, value in changes.items() if value is None],
    )


def _partitions(draft: _TopicDraft) -> PersistentMap[int, Partition]:
    if draft.base is None:
        return PersistentMap(draft.changed)
    return draft.base.partitions.update(draft.changed)


def _holders(partition: Partition) -> set[int]:
    holders = {*partition.isr, *partition.elr}
    if partition.leader == NO_LEADER:
        holders.add(NO_LEADER)
    return holders


def _without_elr(draft: _TopicDraft) -> Iterator[tuple[int, Partition]]:
    base = draft.base.partitions if draft.base is not None else {}
    for number in {**dict.fromkeys(base), **dict.fromkeys(draft.changed)}:
        partition = draft.partition(number)
        assert partition is not None
        if partition.elr or partition.last_known_elr:
            yield (
                number,
                replace(partition, elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1),
            )


def quota_entity(pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def _endpoints(endpoints: Iterable[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in endpoints)


def _ranges(features: Iterable[Any]) -> dict[str, tuple[int, int]]:
    return {f.name: (f.min_supported_version, f.max_supported_version) for f in features}


def _directories(directories: Iterable[bytes], replicas: int) -> tuple[bytes, ...]:
    """Logs older than metadata.version 17 name no directories."""
    return tuple(directories) or (MIGRATING_DIRECTORY,) * replicas


def partition_of(record: m.PartitionRecord) -> Partition:
    return Partition(
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=_directories(record.directories, len(record.replicas)),
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        removing=tuple(record.removing_replicas),
        adding=tuple(record.adding_replicas),
        recovery_state=record.leader_recovery_state,
    )


def merge(old: Partition, record: m.PartitionChangeRecord) -> Partition:
    """The partition after a change: any change raises the partition epoch, naming a leader also the leader epoch."""
    replicas = old.replicas if record.replicas is None else tuple(record.replicas)
    directories = old.directories if record.directories is None else tuple(record.directories)
    if len(directories) != len(replicas):
        directories = (MIGRATING_DIRECTORY,) * len(replicas)
    leader_changed = record.leader != NO_LEADER_CHANGE
    return Partition(
        replicas=replicas,
        isr=old.isr if record.isr is None else tuple(record.isr),
        leader=record.leader if leader_changed else old.leader,
        leader_epoch=old.leader_epoch + leader_changed,
        partition_epoch=old.partition_epoch + 1,
        directories=directories,
        elr=old.elr if record.eligible_leader_replicas is None else tuple(record.eligible_leader_replicas),
        last_known_elr=old.last_known_elr if record.last_known_elr is None else tuple(record.last_known_elr),
        removing=old.removing if record.removing_replicas is None else tuple(record.removing_replicas),
        adding=old.adding if record.adding_replicas is None else tuple(record.adding_replicas),
        recovery_state=old.recovery_state
        if record.leader_recovery_state == NO_RECOVERY_CHANGE
        else record.leader_recovery_state,
    )


_REPLAY: dict[type, Callable[[Delta, Any], None]] = {
    m.RegisterBrokerRecord: Delta.register_broker,
    m.UnregisterBrokerRecord: Delta.unregister_broker,
    m.TopicRecord: Delta.topic,
    m.PartitionRecord: Delta.partition,
    m.ConfigRecord: Delta.config,
    m.PartitionChangeRecord: Delta.partition_change,
    m.FenceBrokerRecord: Delta.fence_broker,
    m.UnfenceBrokerRecord: Delta.unfence_broker,
    m.RemoveTopicRecord: Delta.remove_topic,
    m.DelegationTokenRecord: Delta.delegation_token,
    m.UserScramCredentialRecord: Delta.user_scram_credential,
    m.FeatureLevelRecord: Delta.feature_level,
    m.ClientQuotaRecord: Delta.client_quota,
    m.ProducerIdsRecord: Delta.producer_ids,
    m.BrokerRegistrationChangeRecord: Delta.broker_registration_change,
    m.AccessControlEntryRecord: Delta.access_control_entry,
    m.RemoveAccessControlEntryRecord: Delta.remove_access_control_entry,
    m.NoOpRecord: Delta.nothing,
    m.ZkMigrationStateRecord: Delta.zk_migration,
    m.RemoveUserScramCredentialRecord: Delta.remove_user_scram_credential,
    m.RemoveDelegationTokenRecord: Delta.remove_delegation_token,
    m.RegisterControllerRecord: Delta.register_controller,
    m.ClearElrRecord: Delta.clear_elr,
}
