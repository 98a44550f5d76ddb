"""Brokers and controllers come and go: registration, fencing, controlled shutdown, and what that does to partitions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.errors import Err, KafkaError
from headrace.metadata.image import (
    METADATA_VERSION,
    METADATA_VERSION_MIN,
    NO_LEADER,
    RESERVED_DIRECTORIES_END,
    Broker,
    Image,
    Partition,
    PartitionKey,
    Topic,
)
from headrace.metadata.outcome import Outcome
from headrace.metadata.partitions import Election, Rules, Wanted, change
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.metadata.topics import default_directory
from headrace.metadata.versions import DIRECTORIES_LEVEL, ELR_VERSION, KRAFT_VERSION, level
from headrace.protocol import messages as m

FENCE = 1
UNFENCE = -1
IN_CONTROLLED_SHUTDOWN = 1


# --- registration -----------------------------------------------------------------------------------------------------


def register_broker(
    image: Image,
    request: m.BrokerRegistrationRequest,
    *,
    cluster_id: str,
    next_offset: int,
    policy: ElectionPolicy,
    session_alive: bool,
) -> Outcome[int]:
    """Records, and the broker epoch: the offset of the registration, or the old one for the same incarnation.

    `session_alive`: another incarnation of this broker is still in touch with the controller.
    """
    if request.cluster_id != cluster_id:
        raise KafkaError(
            Err.INCONSISTENT_CLUSTER_ID,
            f"the broker is of cluster {request.cluster_id}, this is {cluster_id}",
        )
    existing: Broker | None = image.brokers.get(request.broker_id)
    same = existing is not None and existing.incarnation_id == request.incarnation_id
    if session_alive and existing is not None and not same:
        raise KafkaError(
            Err.DUPLICATE_BROKER_REGISTRATION,
            f"another broker with id {request.broker_id} is still registered",
        )
    if request.is_migrating_zk_broker:
        raise KafkaError(Err.BROKER_ID_NOT_REGISTERED, "brokers of ZooKeeper mode cannot register")
    if image.metadata_version >= DIRECTORIES_LEVEL:
        _check_directories(image, request)
    _check_features(image, request)
    records: list[Record] = []
    record = _registration(image, request)
    if same:
        assert existing is not None
        record.broker_epoch = existing.epoch
        record.fenced = existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
    else:
        clean = existing is not None and request.previous_broker_epoch == existing.epoch
        records += broker_gone(image, request.broker_id, policy, clean=clean)
        record.broker_epoch = next_offset + len(records)
    records.append((record, level(image.metadata_version).register_broker_record))
    return Outcome(records, record.broker_epoch)


def _registration(image: Image, request: m.BrokerRegistrationRequest) -> m.RegisterBrokerRecord:
    record = m.RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            m.RegisterBrokerRecord.BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in request.listeners
        ],
        features=[
            m.RegisterBrokerRecord.BrokerFeature(
                name=f.name,
                min_supported_version=f.min_supported_version,
                max_supported_version=f.max_supported_version,
            )
            for f in request.features
        ],
        rack=request.rack,
        fenced=True,
    )
    if image.metadata_version >= DIRECTORIES_LEVEL:
        record.log_dirs = list(request.log_dirs)
    return record


def _check_directories(image: Image, request: m.BrokerRegistrationRequest) -> None:
    dirs = request.log_dirs
    if not dirs:
        raise KafkaError(Err.INVALID_REGISTRATION, "no log directories in the registration")
    if any(int.from_bytes(d, "big") < RESERVED_DIRECTORIES_END for d in dirs):
        raise KafkaError(Err.INVALID_REGISTRATION, "a reserved directory id in the registration")
    if len(set(dirs)) != len(dirs):
        raise KafkaError(Err.INVALID_REGISTRATION, "a directory id twice in the registration")
    for broker in image.brokers.values():
        if broker.id != request.broker_id and not set(dirs).isdisjoint(broker.log_dirs):
            raise KafkaError(
                Err.INVALID_REGISTRATION,
                f"broker {broker.id} is registered with one of these log directories",
            )


def _check_features(image: Image, request: m.BrokerRegistrationRequest) -> None:
    supported = {f.name: (f.min_supported_version, f.max_supported_version) for f in request.features}
    if METADATA_VERSION not in supported:
        raise KafkaError(Err.INVALID_REGISTRATION, "the registration does not say which metadata.version it supports")
    finalized = {METADATA_VERSION: METADATA_VERSION_MIN, **image.features}
    for name in {**supported, **finalized}:
        if name == KRAFT_VERSION:
            continue  # kept by the quorum, not by metadata records
        low, high = supported.get(name, (0, 0))
        feature_level = finalized.get(name, 0)
        if not low <= feature_level <= high:
            raise KafkaError(
                Err.UNSUPPORTED_VERSION,
                f"{name} is finalized at {feature_level}, and broker {request.broker_id} supports {low} to {high}",
            )


def register_controller(request: m.ControllerRegistrationRequest) -> list[Record]:
    return [
        (
            m.RegisterControllerRecord(
                controller_id=request.controller_id,
                incarnation_id=request.incarnation_id,
                zk_migration_ready=False,
                end_points=[
                    m.RegisterControllerRecord.ControllerEndpoint(
                        name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
                    )
                    for e in request.listeners
                ],
                features=[
                    m.RegisterControllerRecord.ControllerFeature(
                        name=f.name,
                        min_supported_version=f.min_supported_version,
                        max_supported_version=f.max_supported_version,
                    )
                    for f in request.features
                ],
            ),
            0,
        )
    ]


def unregister_broker(image: Image, broker_id: int, policy: ElectionPolicy) -> list[Record]:
    broker: Broker | None = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(Err.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    records = _without(image, broker_id, policy)
    records.append((m.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch), 0))
    return records


def check_broker_epoch(image: Image, broker_id: int, broker_epoch: int) -> Broker:
    broker: Broker | None = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(Err.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
    if broker.epoch != broker_epoch:
        raise KafkaError(Err.STALE_BROKER_EPOCH, f"broker {broker_id} is at epoch {broker.epoch}, not {broker_epoch}")
    return broker


# --- life and death ---------------------------------------------------------------------------------------------------


def fence_broker(image: Image, broker_id: int, policy: ElectionPolicy) -> list[Record]:
    """Its partitions first, then the broker, as Kafka."""
    broker = image.brokers[broker_id]
    return [*_without(image, broker_id, policy), registration_change(broker, 0, fenced=FENCE)]


def unfence_broker(image: Image, broker_id: int, policy: ElectionPolicy) -> list[Record]:
    """The broker first, then the partitions that had no leader and may now have it."""
    broker = image.brokers[broker_id]
    return [
        registration_change(broker, 0, fenced=UNFENCE),
        *_changes(image, image.partitions_of(NO_LEADER), policy, returning=broker_id),
    ]


def controlled_shutdown(image: Image, broker_id: int, policy: ElectionPolicy) -> list[Record]:
    """Move leadership away while the broker still serves."""
    broker = image.brokers[broker_id]
    records: list[Record] = []
    if not broker.in_controlled_shutdown:
        records.append(registration_change(broker, 1, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN))
    return records + _without(image, broker_id, policy)


def elect_leaderless(image: Image, policy: ElectionPolicy) -> list[Record]:
    """Leaders for partitions that have none and could: because their topic has come to rather lose records than wait,
    or because the controller that brought a replica back, or did not quite send it away, died before it came to
    them."""
    active = {broker.id for broker in image.brokers.values() if broker.active}
    electable = (
        (key, partition)
        for key, partition in image.partitions_of(NO_LEADER)
        if not active.isdisjoint(partition.replicas)
    )
    return _changes(image, electable, policy)


def leads_any(image: Image, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, partition in image.partitions_of(broker_id))


def broker_gone(image: Image, broker_id: int, policy: ElectionPolicy, *, clean: bool) -> list[Record]:
    """What a new incarnation means for the partitions of the last one.

    With eligible leader replicas, one that did not stop cleanly may lack what it acknowledged: it is no longer
    in sync, nor eligible.
    """
    if ELR_VERSION in image.features and not clean:
        return _changes(image, image.partitions_of(broker_id), policy, lost=broker_id)
    return _without(image, broker_id, policy)


def registration_change(broker: Broker, version: int, **changes: Any) -> Record:
    return m.BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, **changes), version


def _without(image: Image, broker_id: int, policy: ElectionPolicy) -> list[Record]:
    in_isr = ((key, p) for key, p in image.partitions_of(broker_id) if broker_id in p.isr)
    return changes_without(image, in_isr, policy, broker_id)


def changes_without(
    image: Image, partitions: Iterable[tuple[PartitionKey, Partition]], policy: ElectionPolicy, broker_id: int
) -> list[Record]:
    """Leaders and ISRs of some partitions once `broker_id` can serve them no more."""
    return _changes(image, partitions, policy, leaving=broker_id)


def _changes(
    image: Image,
    partitions: Iterable[tuple[PartitionKey, Partition]],
    policy: ElectionPolicy,
    *,
    leaving: int = NO_LEADER,
    returning: int = NO_LEADER,
    lost: int = NO_LEADER,
) -> list[Record]:
    """Leaders and ISRs after `leaving` stops, `returning` comes back, or `lost` lost its unsynced data."""

    def alive(broker_id: int) -> bool:
        if broker_id in (leaving, lost):
            return False
        broker: Broker | None = image.brokers.get(broker_id)
        return broker is not None and (broker_id == returning or broker.active)

    records: list[Record] = []
    elections: dict[bytes, tuple[Topic, Election, int]] = {}
    for (topic_id, number), partition in partitions:
        # A broker holds many partitions of few topics: what their configs say is looked up once.
        known = elections.get(topic_id)
        if known is None:
            topic = image.topics[topic_id]
            election = Election.UNCLEAN if policy.unclean_election(image, topic.name) else Election.ONLINE
            known = elections[topic_id] = topic, election, policy.min_isr(image, topic.name)
        topic, election, min_isr = known
        rules = _rules(image, partition, min_isr, alive, topic.name, policy)
        wanted = Wanted.of(partition)
        wanted.isr = [r for r in partition.isr if r not in (leaving, lost)]
        if lost != NO_LEADER:
            wanted.unclean_shutdown = (lost,)
        record = change(partition, topic_id, number, wanted, rules, election)
        if record is not None:
            records.append(record)
    return records


def partition_rules(
    image: Image, topic: str, partition: Partition, policy: ElectionPolicy, alive: Callable[[int], bool]
) -> Rules:
    return _rules(image, partition, policy.min_isr(image, topic), alive, topic, policy)


def without_room(image: Image, broker_id: int, policy: ElectionPolicy) -> list[Record]:
    """Others lead, and are in sync without it, where a broker has no room and another in-sync replica has.

    It leaves the ISR at once: nothing could be committed while others wait for a replica that writes nothing.
    """

    def takes_records(replica: int, topic: str, partition: Partition) -> bool:
        broker: Broker | None = image.brokers.get(replica)
        return (
            broker is not None and broker.active and policy.disk_space.has_space_for(image, topic, partition, replica)
        )

    def affected() -> Iterator[tuple[PartitionKey, Partition]]:
        for key, partition in image.partitions_of(broker_id):
            if broker_id in partition.isr:
                topic = image.topics[key[0]].name
                if not policy.disk_space.has_space_for(image, topic, partition, broker_id) and any(
                    takes_records(replica, topic, partition) for replica in partition.isr if replica != broker_id
                ):
                    yield key, partition

    return changes_without(image, affected(), policy, broker_id)


def _rules(
    image: Image, partition: Partition, min_isr: int, alive: Callable[[int], bool], topic: str, policy: ElectionPolicy
) -> Rules:
    metadata_version = image.metadata_version

    def acceptable(broker_id: int) -> bool:
        """Alive, and with the partition's log dir online."""
        if not alive(broker_id):
            return False
        if metadata_version < DIRECTORIES_LEVEL or broker_id not in partition.replicas:
            return True
        return image.brokers[broker_id].has_online_directory(partition.directory_of(broker_id))

    rules = Rules(
        metadata_version=metadata_version,
        elr_enabled=ELR_VERSION in image.features,
        min_isr=min(min_isr, len(partition.replicas)),
        acceptable=acceptable,
        default_directory=lambda broker_id: default_directory(image, broker_id),
    )
    if policy.disk_space:
        return rules._replace(
            has_space=lambda broker_id: policy.disk_space.has_space_for(image, topic, partition, broker_id)
        )
    return rules
