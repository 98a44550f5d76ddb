"""An image as the records of a snapshot: replayed on an empty image they make the same image again.

Sections come in Kafka's order and entries in a fixed order, so that equal images make equal snapshots.
"""

from collections.abc import Iterator
from typing import Any

from headrace.metadata.image import METADATA_VERSION, Broker, Controller, Image, Partition
from headrace.metadata.records import Record
from headrace.metadata.versions import (
    CONTROLLER_REGISTRATION_LEVEL,
    CORDONED_DIRECTORIES_LEVEL,
    DIRECTORIES_LEVEL,
    ELR_LEVEL,
    level,
)
from headrace.protocol import messages as m


def image_records(image: Image) -> Iterator[Record]:
    """All records of a snapshot of `image`, metadata.version first since it decides how the rest is read."""
    yield from _features(image)
    for _, broker in sorted(image.brokers.items()):
        yield broker_record(broker, image.metadata_version)
    if image.metadata_version >= CONTROLLER_REGISTRATION_LEVEL:
        for _, controller in sorted(image.controllers.items()):
            yield controller_record(controller)
    for name, topic_id in sorted(image.topic_ids.items()):
        yield m.TopicRecord(name=name, topic_id=topic_id), 0
        for number, partition in sorted(image.topics[topic_id].partitions.items(), key=_first):
            yield partition_record(partition, topic_id, number, image.metadata_version)
    for (resource_type, resource_name), config in sorted(image.configs.items(), key=_first):
        for name, value in sorted(config.items()):
            yield config_record(resource_type, resource_name, name, value)
    yield from _quotas(image)
    if image.next_producer_id >= 0:
        yield m.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id), 0
    for section in (image.acls, image.scrams, image.tokens):
        for _, record in sorted(section.items(), key=_first):
            yield record, 0


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _features(image: Image) -> Iterator[Record]:
    yield m.FeatureLevelRecord(name=METADATA_VERSION, feature_level=image.metadata_version), 0
    for name, feature_level in sorted(image.features.items()):
        if name != METADATA_VERSION:
            yield m.FeatureLevelRecord(name=name, feature_level=feature_level), 0
    if image.zk_migration_state is not None:
        yield m.ZkMigrationStateRecord(zk_migration_state=image.zk_migration_state), 0


def _quotas(image: Image) -> Iterator[Record]:
    for entity, quotas in sorted(image.quotas.items(), key=lambda pair: [(t, n or "", n is None) for t, n in pair[0]]):
        for key, value in sorted(quotas.items()):
            data = [m.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            yield m.ClientQuotaRecord(entity=data, key=key, value=value, remove=False), 0


def config_record(resource_type: int, resource_name: str, name: str, value: str | None) -> Record:
    return m.ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value), 0


def partition_record(partition: Partition, topic_id: bytes, number: int, metadata_version: int) -> Record:
    record = m.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=partition.recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    if metadata_version >= DIRECTORIES_LEVEL:
        record.directories = list(partition.directories)
    if metadata_version >= ELR_LEVEL:
        record.eligible_leader_replicas = list(partition.elr) or None
        record.last_known_elr = list(partition.last_known_elr) or None
    return record, level(metadata_version).partition_record


def broker_record(broker: Broker, metadata_version: int) -> Record:
    record = m.RegisterBrokerRecord(
        broker_id=broker.id,
        is_migrating_zk_broker=broker.is_migrating_zk_broker,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            m.RegisterBrokerRecord.BrokerEndpoint(
                name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in broker.endpoints
        ],
        features=[
            m.RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(broker.features.items())
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
    )
    if metadata_version >= DIRECTORIES_LEVEL:
        record.log_dirs = list(broker.log_dirs)
    if metadata_version >= CORDONED_DIRECTORIES_LEVEL and broker.cordoned_log_dirs is not None:
        record.cordoned_log_dirs = list(broker.cordoned_log_dirs)
    return record, level(metadata_version).register_broker_record


def controller_record(controller: Controller) -> Record:
    return (
        m.RegisterControllerRecord(
            controller_id=controller.id,
            incarnation_id=controller.incarnation_id,
            zk_migration_ready=controller.zk_migration_ready,
            end_points=[
                m.RegisterControllerRecord.ControllerEndpoint(
                    name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
                )
                for e in controller.endpoints
            ],
            features=[
                m.RegisterControllerRecord.ControllerFeature(
                    name=name, min_supported_version=low, max_supported_version=high
                )
                for name, (low, high) in sorted(controller.features.items())
            ],
        ),
        0,
    )
